"""What a model's files say about it, whether it is loaded or not."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from olivine.chat.template import ChatTemplate, template_source
from olivine.errors import OlivineError
from olivine.formats import Checkpoint, open_checkpoint
from olivine.loading import model_of
from olivine.server.served import ServedModel
from olivine.towers import towers_of


@dataclass(frozen=True)
class Facts:
    """A model's files in numbers. What cannot be read is left out; `problem` says why."""

    architecture: str = ""
    format: str = ""
    parameters: int = 0
    file_bytes: int = 0
    train_context: int | None = None  # tokens that the model was made for
    types: Mapping[str, int] = field(default_factory=dict)  # bytes of weights by storage type, most first
    embedding_length: int | None = None
    layers: int | None = None
    chat_template: str | None = None  # the one that is used: the files' own, or ours
    tools: bool = False
    reasoning: bool = False
    vision: bool = False  # takes images
    audio: bool = False
    problem: str | None = None

    @property
    def capabilities(self) -> dict[str, bool]:
        """In LM Studio's words."""
        return {**self.modalities, "tools": self.tools, "reasoning": self.reasoning}

    @property
    def modalities(self) -> dict[str, bool]:
        """What a message may have besides text, in llama.cpp's words."""
        return {"vision": self.vision, "audio": self.audio}


async def facts_of(model: ServedModel) -> Facts:
    """What the files say; they are read again where they have changed."""
    llm = model.loaded
    # The count of loads: the file may be another one when it is loaded again.
    version = _version(model.path) if llm is None else model.past["model_loads"]
    if model.facts is None or model.facts[0] != version:
        source = model.path if llm is None else llm.checkpoint
        model.facts = (version, await asyncio.to_thread(read_facts, source, model.mmproj))
    found: Facts = model.facts[1]
    return found


def read_facts(source: Checkpoint | Path | None, mmproj: Path | None = None) -> Facts:
    """The facts of a checkpoint, which may be broken."""
    try:
        checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source or "")
        architecture = checkpoint.architecture
    except OlivineError as error:
        return Facts(problem=str(error))
    sizes: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        sizes[tensor.dtype.name] += tensor.nbytes
    facts: dict[str, Any] = {
        "architecture": architecture,
        "format": checkpoint.format,
        "parameters": sum(tensor.size for tensor in checkpoint.tensors.values()),
        "file_bytes": checkpoint.file_bytes,
        "types": dict(sizes.most_common()),
    }
    try:
        model = model_of(checkpoint)
        config, kinds = model.config, {tower.kind for tower in towers_of(checkpoint, model, mmproj)[0]}
        facts |= {
            "vision": "vision" in kinds,
            "audio": "audio" in kinds,
            "train_context": config.context,
            "embedding_length": config.width,
            "layers": config.layers,
        }
        facts |= _template_facts(checkpoint)
    except OlivineError as error:
        facts["problem"] = str(error)
    return Facts(**facts)


def _template_facts(checkpoint: Checkpoint) -> dict[str, Any]:
    source = template_source(checkpoint.chat_template, checkpoint.architecture, checkpoint.prompt_files)
    template = ChatTemplate(source)
    tools = checkpoint.tool_template is not None or template.knows_tools
    return {"chat_template": source, "tools": tools, "reasoning": template.thinks}


def _version(path: Path | None) -> Any:
    """Changes when the file does, or the folder."""
    try:
        status = os.stat(path or "")
        return status.st_mtime_ns, status.st_size
    except OSError:
        return None
