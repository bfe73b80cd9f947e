"""The façade users hold, and the one place where a checkpoint, a model, a backend and an engine meet."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any

from olivine import models, tokenizer
from olivine.backends import Program
from olivine.engine import Engine, Sampling
from olivine.errors import ModelError, OlivineError, RequestError
from olivine.formats import Checkpoint, open_checkpoint
from olivine.tokenizer import Tokenizer

# Nobody asked for a cache of 128K tokens by opening a file that allows it.
DEFAULT_CONTEXT = 4096
PAGE_SIZE = 16
DEVICES = ("auto", "cpu", "reference")


def load(
    path: str | os.PathLike[str],
    *,
    device: str = "auto",
    threads: int | None = None,
    context: int | None = None,
) -> LLM:
    """Opens a model: a safetensors folder, a GGUF file or a qwen3.c `.bin`.

    `device` is "cpu", "reference" or "auto"; `threads` are the CPU's, by default one a physical core that
    this process may use; `context` is in tokens.
    """
    return LLM(open_checkpoint(path), device=device, threads=threads, context=context)


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer that a checkpoint brings along."""
    match checkpoint.format:
        case "gguf":
            return tokenizer.from_gguf(checkpoint.metadata)
        case "safetensors":
            folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
            return tokenizer.from_folder(folder)
        case "qwen3.c":
            rows = checkpoint.tensors["token_embd.weight"].shape[0]
            return tokenizer.from_qwen3c(checkpoint.path.with_name(checkpoint.path.name + ".tokenizer"), rows)


def model_of(checkpoint: Checkpoint) -> models.Model:
    """The plan and the weights of a checkpoint."""
    return models.build(checkpoint.architecture, checkpoint.naming, checkpoint.metadata, checkpoint.tensors)


def published_sampling(checkpoint: Checkpoint) -> Sampling:
    """How the model's publisher samples from it: greedy where nothing is said."""
    if checkpoint.naming == "gguf":
        keys = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
        told = {
            name: checkpoint.metadata[f"general.sampling.{key}"]
            for name, key in keys.items()
            if f"general.sampling.{key}" in checkpoint.metadata
        }
        return _sampling(told, temperature=1.0 if told else 0.0)
    if not checkpoint.generation.get("do_sample", False):
        return Sampling()
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    told = {
        name: checkpoint.generation[name] for name in names if checkpoint.generation.get(name) is not None
    }
    return _sampling(told, temperature=1.0)


def _sampling(told: dict[str, Any], temperature: float) -> Sampling:
    """What a file recommends, or greedy if it recommends nonsense: a hint is no reason to refuse a model."""
    try:
        return Sampling(**{"temperature": temperature, **told})
    except (OlivineError, TypeError):
        return Sampling()


def compile_plan(model: models.Model, device: str, threads: int | None, context: int) -> tuple[Program, str]:
    """The plan on a backend, with a KV cache for one sequence of `context` tokens; and what it runs on."""
    if device not in DEVICES:
        raise RequestError(f"there is no device {device!r}; known: {', '.join(DEVICES)}")
    if threads is not None and not 1 <= threads <= 1024:
        raise RequestError(f"threads must lie in 1..1024, and is {threads}")

    def pages(size: int) -> list[int]:
        return [-(-context // size)] * len(model.plan.groups)

    if device == "reference":
        from olivine.backends.reference import ReferenceProgram

        return ReferenceProgram(
            model.plan, model.weights, page_counts=pages(PAGE_SIZE), page_size=PAGE_SIZE
        ), device
    from olivine.backends import cpu

    count = threads or cpu.default_threads()
    program = cpu.CpuProgram(model.plan, model.weights, page_counts=pages(cpu.PAGE_SIZE), threads=count)
    return program, f"cpu×{count} {cpu.isa()}"


class LLM:
    """A model ready to run. Use it as a context manager, or `close` it."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        device: str = "auto",
        threads: int | None = None,
        context: int | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.tokenizer = tokenizer_of(checkpoint)
        self.model = model_of(checkpoint)
        self.warnings = (*self.model.warnings, *self.tokenizer.warnings)
        if context is not None and context < 1:
            raise ModelError(f"a context of {context} tokens holds nothing; give at least 1")
        if context is not None and context > self.model.config.context:
            self.warnings += (
                f"a context of {context} tokens is longer than the {self.model.config.context} "
                "that the model was made for",
            )
        self.context = min(DEFAULT_CONTEXT, self.model.config.context) if context is None else context
        self.sampling = published_sampling(checkpoint)
        program, self.device = compile_plan(self.model, device, threads, self.context)
        self._engine: Engine | None = Engine(program, self.context)

    @property
    def program(self) -> Program:
        """The compiled plan, for benchmarks and tests."""
        if self._engine is None:
            raise OlivineError("this LLM is closed")
        return self._engine.program

    def stream(
        self,
        prompt: str | list[int],
        *,
        sampling: Sampling | None = None,
        max_tokens: int = 256,
        parse_special: bool = False,
        on_prefill: Callable[[int, int], None] | None = None,
        on_token: Callable[[int], None] | None = None,
    ) -> Iterator[str]:
        """The text that follows the prompt, piece by piece as it is made."""
        if self._engine is None:
            raise OlivineError("this LLM is closed")
        tokens = prompt
        if isinstance(tokens, str):
            tokens = self.tokenizer.encode(tokens, parse_special=parse_special)
        text = self.tokenizer.stream()
        for token in self._engine.generate(
            tokens, sampling or self.sampling, max_tokens, self.tokenizer.stop_ids, on_prefill
        ):
            if on_token is not None:
                on_token(token)
            if piece := text.push(token):
                yield piece
        if rest := text.flush():
            yield rest

    def generate(self, prompt: str | list[int], **options: Any) -> str:
        """All of `stream` at once."""
        return "".join(self.stream(prompt, **options))

    def close(self) -> None:
        """Gives the weights and the cache back. Closing twice is fine."""
        self._engine = None

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def random_seed() -> int:
    """A fresh seed from the operating system, to be reported so that any output can be had again."""
    return int.from_bytes(os.urandom(8), "little")


def with_seed(sampling: Sampling, seed: int | None) -> Sampling:
    return replace(sampling, seed=random_seed() if seed is None else seed)
