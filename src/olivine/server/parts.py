"""Pieces of an answer as a sequence of parts, for APIs whose answers are lists of blocks."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from olivine.reply import CallDelta, Delta, Reply


class Kind(Enum):
    """What a block of an answer is."""

    THOUGHT = "thought"
    TEXT = "text"
    CALL = "call"


class Part(NamedTuple):
    """Text of one block. Those of calls have `call`; with a name, it begins a call."""

    kind: Kind
    text: str
    call: CallDelta | None = None


def parts_of(piece: Delta) -> list[Part]:
    """The parts of a piece, in the order in which the model wrote them: what still belongs to a call that an
    earlier piece began comes before what follows the call."""
    calls = [Part(Kind.CALL, call.arguments, call) for call in piece.tool_calls]
    begins = next((i for i, part in enumerate(calls) if part.call and part.call.name is not None), len(calls))
    found = calls[:begins]
    if piece.reasoning:
        found.append(Part(Kind.THOUGHT, piece.reasoning))
    if piece.content:
        found.append(Part(Kind.TEXT, piece.content))
    return found + calls[begins:]


def whole_piece(reply: Reply) -> Delta:
    """An answer as one piece."""
    calls = [CallDelta(i, call.id, call.name, call.arguments) for i, call in enumerate(reply.tool_calls)]
    return Delta(reply.content, reply.reasoning or "", calls, logprobs=reply.logprobs)
