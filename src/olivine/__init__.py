"""Olivine: an inference engine for open-weight language models.

    import olivine

    with olivine.load("model.gguf") as llm:
        for piece in llm.stream("Once upon a time"):
            print(piece, end="")

Importing this package is cheap: what a name needs is imported when the name is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, whose import takes longer than all of this module
if TYPE_CHECKING:
    from typing import Any

    from olivine.chat.messages import Message
    from olivine.completion import Completion, Piece
    from olivine.engine import Sampling, Stats, Usage
    from olivine.errors import (
        BusyError,
        CheckpointError,
        ClosedError,
        ContextError,
        DeadlineError,
        DownloadError,
        MediaError,
        MissingModelError,
        ModelError,
        OlivineError,
        RankError,
        RequestError,
        TokenizerError,
    )
    from olivine.formats import open_checkpoint
    from olivine.llm import LLM, load
    from olivine.reply import Delta, Reply
    from olivine.scoring import Score
    from olivine.streaming import Stream

__all__ = [
    "LLM",
    "BusyError",
    "CheckpointError",
    "ClosedError",
    "Completion",
    "ContextError",
    "DeadlineError",
    "Delta",
    "DownloadError",
    "MediaError",
    "Message",
    "MissingModelError",
    "ModelError",
    "OlivineError",
    "Piece",
    "RankError",
    "Reply",
    "RequestError",
    "Sampling",
    "Score",
    "Stats",
    "Stream",
    "TokenizerError",
    "Usage",
    "load",
    "open_checkpoint",
]

__version__ = "0.1.0"

_HOMES = {
    "LLM": "olivine.llm",
    "load": "olivine.llm",
    "Sampling": "olivine.engine",
    "Stats": "olivine.engine",
    "Stream": "olivine.streaming",
    "Usage": "olivine.engine",
    "open_checkpoint": "olivine.formats",
    "Completion": "olivine.completion",
    "Delta": "olivine.reply",
    "Message": "olivine.chat.messages",
    "Reply": "olivine.reply",
    "Piece": "olivine.completion",
    "Score": "olivine.scoring",
    "BusyError": "olivine.errors",
    "OlivineError": "olivine.errors",
    "CheckpointError": "olivine.errors",
    "ClosedError": "olivine.errors",
    "ContextError": "olivine.errors",
    "DeadlineError": "olivine.errors",
    "ModelError": "olivine.errors",
    "DownloadError": "olivine.errors",
    "MediaError": "olivine.errors",
    "MissingModelError": "olivine.errors",
    "RankError": "olivine.errors",
    "RequestError": "olivine.errors",
    "TokenizerError": "olivine.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'olivine' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
