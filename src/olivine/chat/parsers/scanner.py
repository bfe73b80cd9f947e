"""Reads one form of tool calls, character by character."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, Protocol

from olivine.chat.parsers.events import Event


class Scanner(Protocol):
    """Reads calls from the text behind their opening marker.

    `state` is undecided until it is certain that this is a call, and refused if it is none: then `raw` is all
    that was read. It is certain when the arguments are complete and are JSON; where a grammar sees to that
    (`constrained`), with the name: then the arguments are given out while they come. After the name has been
    given out there is no way back; when it is done, `rest` is what it read but has no use for.
    """

    state: Literal["undecided", "open", "done", "refused"]
    raw: str
    rest: str

    def __init__(self, names: Collection[str], constrained: bool = False) -> None: ...
    @property
    def in_string(self) -> bool:
        """Whether a marker at this point would be part of a string."""
        ...

    def feed(self, text: str) -> list[Event]: ...
    def quote(self) -> list[Event]:
        """The format's own quotation mark came."""
        ...

    def end(self) -> list[Event]:
        """The closing marker came, or the end of the output."""
        ...
