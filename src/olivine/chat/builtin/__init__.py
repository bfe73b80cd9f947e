"""Templates of our own, for files that have none. They render as the published ones do."""

from __future__ import annotations

from functools import cache
from pathlib import Path

# By architecture, as GGUF and Hugging Face name them.
FAMILIES = {
    "gemma3": "gemma3",
    "gemma3_text": "gemma3",
    "gemma4": "gemma4",
    "gemma4_text": "gemma4",
    "gemma4_unified": "gemma4",
    "gemma4_unified_text": "gemma4",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3",
    "qwen3_moe": "qwen3",
}


@cache
def source(name: str) -> str:
    """The template of a family: gemma3, gemma4, qwen3 or chatml."""
    return (Path(__file__).parent / f"{name}.jinja").read_text("utf-8").removesuffix("\n")
