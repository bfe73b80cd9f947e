"""The events that a parser makes of a model's output."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Content:
    """Text of the answer."""

    text: str


@dataclass(frozen=True)
class Layout:
    """White space of the answer that is left out, before a marker or a call: stop strings may end with it."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """Text of the reasoning before the answer."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """A tool call begins: everything that follows up to the next one belongs to it."""

    name: str


@dataclass(frozen=True)
class CallPiece:
    """A piece of the call's arguments, which are JSON."""

    text: str


Event = Content | Layout | Reasoning | CallStart | CallPiece
