"""Answers under way, by their ids: another connection can end their thought, or the whole of them.

Ids are random, so whoever knows one has it from the answer. Where the server has API keys, the client must be
the same one, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from olivine.server.errors import ApiError

if TYPE_CHECKING:
    from olivine.server.endpoint import Call


class Answer(Protocol):
    """What can be done to an answer while it is made."""

    def end_thought(self) -> None: ...
    def cancel(self) -> None: ...


class Running:
    """The answers that a server is giving."""

    def __init__(self) -> None:
        self._answers: dict[str, tuple[str, Answer]] = {}  # the client, and the answer

    def __len__(self) -> int:
        return len(self._answers)

    def knows(self, name: str) -> bool:
        """Whether an answer of this id is running."""
        return name in self._answers

    @contextmanager
    def entry(self, ids: tuple[str, ...], client: str, answer: Answer) -> Iterator[None]:
        """The answer can be found by these ids meanwhile."""
        self._answers.update(dict.fromkeys(ids, (client, answer)))
        try:
            yield
        finally:
            for each in ids:
                self._answers.pop(each, None)

    def find(self, call: Call) -> tuple[str, Answer]:
        """The id in the path of a request, and the answer that has it."""
        wanted = str(call.request.path_params["id"])
        client, answer = self._answers.get(wanted, ("", None))
        if answer is None or (call.server.settings.api_keys and client != call.client):
            raise ApiError(404, f"no answer {wanted[:80]!r} is running", code="not_found", param="id")
        return wanted, answer


async def end_thinking(call: Call) -> Mapping[str, Any]:
    """POST /v1/chat/completions/{id}/end_thinking"""
    found, answer = call.server.running.find(call)
    answer.end_thought()
    return {"id": found}


async def cancel(call: Call) -> Mapping[str, Any]:
    """POST /v1/chat/completions/{id}/cancel"""
    found, answer = call.server.running.find(call)
    answer.cancel()
    return {"id": found}
