"""What a model's output is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Content:
    """A bit of the answer."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """A bit of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """A tool call begins: everything that follows up to the next one belongs to it."""

    name: str


@dataclass(frozen=True)
class CallPiece:
    """A bit of the call's arguments, which are JSON."""

    text: str


Event = Content | Reasoning | CallStart | CallPiece
