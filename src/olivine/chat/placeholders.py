"""Media in a prompt: what a template writes for an image becomes markers, and between them soft tokens.

A template writes one placeholder for each medium. It is replaced in the rendered text, before that becomes
tokens, because the markers' surroundings may fuse with the text's: the line ends around an image of Gemma 3
do. The soft tokens are put between the markers' tokens afterwards: no vocabulary needs to have one for them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from olivine.chat.template import Prompt
from olivine.errors import ModelError, RequestError
from olivine.tokenizer import Tokenizer


@dataclass(frozen=True)
class Slot:
    """Between two marker tokens, the places of the soft tokens of some parts."""

    begin: str
    end: str
    kind: str  # of the tower that makes them
    parts: tuple[Any, ...]  # each with `tokens`, how many it has, and `digest`


@dataclass(frozen=True)
class Place:
    """Where the soft tokens of a part begin."""

    start: int
    kind: str
    part: Any


@dataclass(frozen=True)
class Inset:
    """What stands in a prompt for one medium."""

    placeholder: str  # the template's
    text: str  # with the markers, and nothing between them
    slots: tuple[Slot, ...]


def expanded(prompt: Prompt, insets: Sequence[Inset]) -> tuple[Prompt, list[Slot]]:
    """The prompt with the text of each medium for its placeholder, and the slots in their order. Placeholders
    that users typed are text like any other."""
    waiting: dict[str, list[Inset]] = {}
    for inset in insets:
        waiting.setdefault(inset.placeholder, []).append(inset)
    names = sorted(waiting, key=len, reverse=True)
    text, slots, literal, last, shift = [], list[Slot](), set[int](), 0, 0
    places = sorted(prompt.literal)
    for match in re.finditer("|".join(map(re.escape, names)), prompt.text):
        if match.start() in prompt.literal:
            continue
        if not waiting[match[0]]:
            raise RequestError(f"the chat template has more places for {match[0]} than there are media")
        inset = waiting[match[0]].pop(0)
        literal |= {place + shift for place in places if last <= place < match.start()}
        text += [prompt.text[last : match.start()], inset.text]
        shift += len(inset.text) - len(match[0])
        slots += inset.slots
        last = match.end()
    if any(waiting.values()):
        raise RequestError("this model's chat template has no place for some of the images, sounds or videos")
    literal |= {place + shift for place in places if place >= last}
    return Prompt("".join([*text, prompt.text[last:]]), frozenset(literal)), slots


def with_soft_tokens(
    tokens: Sequence[int], slots: Sequence[Slot], tokenizer: Tokenizer
) -> tuple[list[int], list[Place]]:
    """The tokens with places for soft tokens in the slots, and where each part begins. What stands at those
    places is no token, and different for different media."""
    found: list[int] = []
    places: list[Place] = []
    waiting, last = list(slots), -1
    ids = {name: _id(tokenizer, name) for slot in slots for name in (slot.begin, slot.end)}
    for token in tokens:
        if waiting and (last, token) == (ids[waiting[0].begin], ids[waiting[0].end]):
            slot = waiting.pop(0)
            for part in slot.parts:
                places.append(Place(len(found), slot.kind, part))
                found += [-1 - (int.from_bytes(part.digest[:4], "little") >> 2)] * part.tokens
        found.append(token)
        last = token
    if waiting:
        raise ModelError(f"the tokenizer does not keep {waiting[0].begin} and {waiting[0].end} together")
    return found, places


def _id(tokenizer: Tokenizer, name: str) -> int:
    token = tokenizer.id_of(name)
    if token is None:
        raise ModelError(f"the model's vocabulary has no {name}, which images and sounds need")
    return token
