"""The common form of every file format: names, and views of the memory map. No tensor data is copied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from olivine.errors import CheckpointError
from olivine.formats.mapping import MappedFile
from olivine.hub import local
from olivine.tensor import Bytes, Tensor

__all__ = ["TOOL_USE", "Bytes", "Checkpoint", "Tensor"]

TOOL_USE = "tool_use"  # the name of the template for conversations with tools


@dataclass(frozen=True)
class Checkpoint:
    """A read-only view of one model's files."""

    path: Path  # what the user named: a folder, or a file
    format: Literal["safetensors", "gguf", "qwen3.c"]
    # Whose names `metadata` and `tensors` use: Hugging Face's config.json, or GGUF's keys.
    naming: Literal["hf", "gguf"]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    chat_template: str | None = None
    tool_template: str | None = None  # the one for conversations with tools, where there is another
    # Prompts of one question that lie beside a qwen3.c file, by kind: "", "with-system", …
    prompt_files: Mapping[str, str] = field(default_factory=dict)
    # generation_config.json of a safetensors folder; empty elsewhere.
    generation: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[Path, ...] = ()  # the files that hold the tensors
    maps: tuple[MappedFile, ...] = ()  # the same files, as they were when they were mapped
    file_bytes: int = 0

    @property
    def is_for_chat(self) -> bool:
        """Whether the model has a chat template. Those that qwen3.c runs are all for chat."""
        return self.chat_template is not None or self.format == "qwen3.c"

    @property
    def folder(self) -> Path:
        """Where the model's files lie."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def title(self) -> str:
        """The name of its folder, or in the cache of Hugging Face of its repository."""
        return local.title(self.folder.resolve())

    def check_files(self) -> None:
        """Raises if a mapped file was written to or truncated since it was mapped."""
        for file in self.maps:
            file.check()

    @property
    def architecture(self) -> str:
        """The publisher's name of the architecture: `general.architecture`, or config.json's `model_type`."""
        key = "general.architecture" if self.naming == "gguf" else "model_type"
        value = self.metadata.get(key)
        if not isinstance(value, str) or not value:
            raise CheckpointError(self.path, key, "is missing, so nothing says what model this is")
        return value
