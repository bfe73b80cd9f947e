"""Loading a model: checkpoint → model → backend → engine. Only this module and `llm` know all of them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

from olivine import models, tokenizer
from olivine.backends import BACKENDS, CACHE_TYPES, Compiled, CompileOptions, Progress, Share, backend
from olivine.backends.ahead import Ahead, compile_ahead
from olivine.cache_fit import fitting_context, whole_share
from olivine.checks import INT32, Check, flag, from_kwargs, integer, number, of_type, optional, refused, shown
from olivine.engine import Engine, Sampling
from olivine.engine.budget import page_counts
from olivine.engine.engine import QUEUE
from olivine.errors import OlivineError, RequestError
from olivine.formats import Checkpoint
from olivine.formats.gguf import SAMPLING
from olivine.tokenizer import Tokenizer
from olivine.tokenizer.gguf import KEY
from olivine.towers import Tower, longest_block, towers_of

# The context where none is asked for: a cache for 128K tokens is a choice, not a consequence of a file.
DEFAULT_CONTEXT = 4096
DEFAULT_SEQUENCES = 8
DEVICES = ("auto", *BACKENDS)
KV_TYPES = ("auto", *map(str.lower, CACHE_TYPES))
# Where a model's files name no sampling: llama.cpp's defaults. Greedy decoding makes small models loop.
DEFAULT_SAMPLING = Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)


class LoadKwargs(TypedDict, total=False):
    """The keywords of `load`, for type checkers and editors: the fields of `LoadOptions`."""

    device: str
    threads: int | None
    context: int | None
    sequences: int
    queue: int
    queue_per_client: int | None
    kv_bytes: int | None
    kv_type: str
    speculate: bool
    reproducible: bool
    progress: Progress | None
    compile_progress: Progress | None
    mmproj: str | os.PathLike[str] | None
    tensor_parallel: int
    pipeline_parallel: int
    nodes: int | None
    rank_address: str | None
    rank_key: str | None


@dataclass(frozen=True)
class LoadOptions:
    """The options of `load`, with their defaults."""

    device: str = "auto"
    threads: int | None = None
    context: int | None = None
    sequences: int = DEFAULT_SEQUENCES
    queue: int = QUEUE
    queue_per_client: int | None = None
    kv_bytes: int | None = None
    kv_type: str = "auto"
    speculate: bool = True
    reproducible: bool = False
    progress: Progress | None = None
    compile_progress: Progress | None = None
    mmproj: str | os.PathLike[str] | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    nodes: int | None = None
    rank_address: str | None = None
    rank_key: str | None = None

    def __post_init__(self) -> None:
        for name, check in _TYPES.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise _invalid("threads", f"threads must lie in 1..1024, and is {self.threads}")
        if not 1 <= self.sequences <= 4096:
            raise _invalid("sequences", f"sequences must lie in 1..4096, and is {self.sequences}")
        if self.rank_address is not None and not self.rank_key:
            raise _invalid(
                "rank_key", "rank_address needs a rank_key, the same on all machines: OLIVINE_RANK_KEY"
            )
        if self.rank_address is None and (self.nodes or 1) > 1:
            raise _invalid(
                "rank_address", f"{self.nodes} nodes need a rank_address, where this one is found: host:port"
            )

    @property
    def ranks(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def machines(self) -> int:
        """That the ranks are on."""
        return 1 if self.rank_address is None else self.nodes or self.ranks

    @classmethod
    def of(cls, given: LoadKwargs) -> LoadOptions:
        """The options that were given by name; one that is not known is refused."""
        return from_kwargs(cls, given)


def _invalid(param: str, message: str) -> RequestError:
    return RequestError(message, code="invalid_value", param=param)


def _kv_type(name: str, value: Any) -> str:
    """One of `KV_TYPES`, in any case."""
    if not isinstance(value, str):
        raise refused(name, "a string", value)
    if value.lower() not in KV_TYPES:
        raise _invalid(name, f"there is no {name} {shown(value)}; known: {', '.join(KV_TYPES)}")
    return value.lower()


_INTEGER = integer("1 or more", -INT32, (1 << 63) - 1)
_BYTES = number("0 or more, in bytes", 0, 1e18)
# What an option must be; `device` is looked up, and the ranges are checked where they matter.
_AT_LEAST_1 = integer("at least 1", 1, INT32)
_RANKS = integer("between 1 and 256", 1, 256)
_TYPES: dict[str, Check] = {
    "threads": optional(_INTEGER),
    "context": optional(integer("0 (the model's own) or more", 0, (1 << 63) - 1)),
    "sequences": _INTEGER,
    "queue": _AT_LEAST_1,
    "queue_per_client": optional(_AT_LEAST_1),
    "kv_bytes": optional(lambda name, value: int(_BYTES(name, value))),
    "kv_type": _kv_type,
    "speculate": flag,
    "reproducible": flag,
    "mmproj": optional(of_type((str, os.PathLike), "a path")),
    "tensor_parallel": _RANKS,
    "pipeline_parallel": _RANKS,
    "nodes": optional(_RANKS),
    "rank_address": optional(of_type(str, "host:port")),
    "rank_key": optional(of_type(str, "a string")),
}


class Loaded(NamedTuple):
    """A model with everything that runs it."""

    model: models.Model
    tokenizer: Tokenizer
    engine: Engine
    towers: tuple[Tower, ...]
    backend: str  # that runs it: cpu, cuda or reference
    compiled: Compiled
    context: int
    sampling: Sampling  # the publisher's, without the tokens that the publisher suppresses
    warnings: tuple[str, ...]
    hints: tuple[str, ...]  # about the speed of this machine: for people, not for logs


def load_engine(checkpoint: Checkpoint, options: LoadOptions) -> Loaded:
    """Builds the model, compiles its plan and starts an engine for it."""
    model, context = model_and_context(checkpoint, options)
    towers, told = towers_of(checkpoint, model, None if options.mmproj is None else Path(options.mmproj))
    warnings = [*model.warnings, *told]
    with _kernels_ahead(model, context, options) as kernels:
        device, notes = choose_device(options.device)
        if device != "cuda":
            kernels.close()
        if options.kv_bytes is None:
            shares = shares_of(model, device, options)
            context, reduced = fitting_context(model, device, context, options.kv_type, towers, shares)
            warnings += reduced
            model = model_of(checkpoint, context) if reduced else model  # parts depend on the context
        if context > model.config.context:
            warnings.append(
                f"a context of {context} tokens is longer than the {model.config.context} "
                "that the model was made for"
            )
        compiled = compile_model(model, device, context, options, checkpoint, towers)
        # The tokenizer is built after compiling: the CPU backend touches its memory in the background
        # meanwhile.
        words = tokenizer_of(checkpoint)
        words.fit(model.plan.logits.width)
        kernels.wait(options.compile_progress)
    never = suppressed(checkpoint, model.plan.logits.width)
    engine = Engine(
        compiled.program,
        context,
        sequences=options.sequences,
        queue=options.queue,
        queue_per_client=options.queue_per_client,
        speculate=options.speculate,
        check=checkpoint.check_files if compiled.reads_files else None,
    )
    return Loaded(
        model,
        words,
        engine,
        towers,
        device,
        compiled,
        context,
        replace(published_sampling(checkpoint), logit_bias=dict.fromkeys(never, -math.inf)),
        (*warnings, *notes, *compiled.notes, *words.warnings),
        kernel_hints(device),
    )


def _kernels_ahead(model: models.Model, context: int, options: LoadOptions) -> Ahead:
    """Starts to compile the kernels of a GPU, if one may be used: before torch is imported, which takes as
    long."""
    if options.device not in ("auto", "cuda") or options.ranks > 1:
        return Ahead()
    kernels = compile_ahead(model.plan, model.weights, _cache_type(options), context)
    if kernels.is_awaited and options.compile_progress is not None:
        options.compile_progress(0, 0)
    return kernels


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer of a checkpoint."""
    match checkpoint.format:
        case "gguf":
            return tokenizer.from_gguf(checkpoint.metadata)
        case "safetensors":
            folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
            return tokenizer.from_folder(folder)
        case "qwen3.c":
            rows = checkpoint.tensors["token_embd.weight"].shape[0]
            return tokenizer.from_qwen3c(checkpoint.path.with_name(checkpoint.path.name + ".tokenizer"), rows)


def model_of(checkpoint: Checkpoint, context: int | None = DEFAULT_CONTEXT) -> models.Model:
    """The plan and the weights of a checkpoint, for sequences of up to `context` tokens; None: as many as the
    model was made for."""
    return models.build(
        checkpoint.architecture, checkpoint.naming, checkpoint.metadata, checkpoint.tensors, context=context
    )


def model_and_context(checkpoint: Checkpoint, options: LoadOptions) -> tuple[models.Model, int]:
    """The model of a checkpoint, and the context that these options ask for: 0 is the one that the model was
    made for."""
    asked = options.context
    model = model_of(checkpoint, None if asked == 0 else asked or DEFAULT_CONTEXT)
    own = model.config.context
    return model, min(DEFAULT_CONTEXT, own) if asked is None else asked or own


def choose_device(device: str) -> tuple[str, tuple[str, ...]]:
    """The backend that runs "auto", "cpu", "cuda" or "reference", and warnings about the choice."""
    if device not in DEVICES:
        raise _invalid("device", f"there is no device {device!r}; known: {', '.join(DEVICES)}")
    if device not in ("auto", "cuda"):
        return device, ()
    from olivine.backends.devices import cuda_obstacle

    obstacle = cuda_obstacle()
    if obstacle is None:
        return "cuda", ()
    if device == "cuda":
        raise RequestError(f"CUDA cannot be used: {obstacle.reason}")
    return "cpu", (f"running on the CPU: {obstacle.reason}",) if obstacle.gpu else ()


def kernel_hints(device: str) -> tuple[str, ...]:
    """What a user should know about the speed of a chosen device."""
    if device != "cpu":
        return ()
    from olivine.backends import cpu

    slow = cpu.slow_kernels()
    return () if slow is None else (slow,)


def shares_of(model: models.Model, device: str, options: LoadOptions) -> list[Share]:
    """What each device of this machine will have of the model: first the one that has its towers too."""
    if options.ranks == 1:
        whole = whole_share(model)
        if device == "cuda":
            from olivine.backends.cuda import device_bytes  # which brings torch

            whole = whole._replace(weights=device_bytes(model.plan, model.weights))
        return [whole]
    from olivine.cluster import Parallel
    from olivine.cluster.memory import shares

    parallel = Parallel(options.tensor_parallel, options.pipeline_parallel)
    return shares(model.plan, model.weights, parallel, options.machines, device)


def compile_model(
    model: models.Model,
    device: str,
    context: int,
    options: LoadOptions,
    checkpoint: Checkpoint | None = None,
    towers: Sequence[Tower] = (),
) -> Compiled:
    """The plan on a backend, with a KV cache for `options.sequences` sequences of `context` tokens, or for
    fewer where the memory is short. One step must take a whole image of the towers, for which a GPU keeps
    room.

    A file of the checkpoint that is truncated while a step reads it is named before the process ends."""

    block = longest_block(towers)
    room = sum(tower.weight_bytes + tower.step_bytes for tower in towers)

    def pages(
        page_size: int,
        chunk: int,
        cache_type: str,
        spare: Callable[[], int] | None = None,
        share: Share | None = None,
    ) -> tuple[list[int], int]:
        budget = options.kv_bytes
        if spare is not None and budget is None:
            budget = max(0, spare() - room)
        each = CACHE_TYPES[cache_type]
        most = max(chunk, block)
        return page_counts(model.plan, page_size, each, context, options.sequences, budget, most, share)

    files = () if checkpoint is None else tuple((file.data, str(file.path)) for file in checkpoint.maps)
    wanted = CompileOptions(pages, _cache_type(options), options.threads, options.progress, files)
    if options.ranks > 1 and checkpoint is not None:
        from olivine.cluster import Address, Meeting, Parallel, compile_group

        parallel = Parallel(options.tensor_parallel, options.pipeline_parallel)
        elsewhere = None
        if options.rank_address is not None and options.rank_key and options.machines > 1:
            elsewhere = Meeting(Address.of(options.rank_address), options.rank_key, options.machines)
        return compile_group(
            model.plan,
            model.weights,
            wanted,
            checkpoint.path,
            model.context,
            device,
            parallel,
            meeting=elsewhere,
        )
    return backend(device)(model.plan, model.weights, wanted)


def _cache_type(options: LoadOptions) -> str | None:
    """As `CompileOptions` has it."""
    return None if options.kv_type == "auto" else options.kv_type.upper()


# ---- what the publisher recommends


def published_sampling(checkpoint: Checkpoint) -> Sampling:
    """How the model's publisher samples from it; `DEFAULT_SAMPLING` where the files do not say."""
    if checkpoint.naming == "gguf":
        keys = {**SAMPLING, "repeat_last_n": "penalty_last_n"}
        found = {
            name: checkpoint.metadata[f"general.sampling.{key}"]
            for name, key in keys.items()
            if f"general.sampling.{key}" in checkpoint.metadata
        }
        if "repetition_penalty" in found and found.setdefault("repeat_last_n", 64) == -1:  # as in llama.cpp
            found["repeat_last_n"] = None
        return _sampling(found)
    if checkpoint.generation.get("do_sample") is False:
        return Sampling()  # greedy
    found = {
        name: checkpoint.generation[name] for name in SAMPLING if checkpoint.generation.get(name) is not None
    }
    if checkpoint.generation.get("do_sample") is True:
        found.setdefault("temperature", 1.0)  # transformers' default
    return _sampling(found)


def _sampling(found: dict[str, Any]) -> Sampling:
    """The sampling that a file recommends. Invalid values are ignored: the model itself may be fine."""
    if not found:
        return DEFAULT_SAMPLING
    try:
        return Sampling(**{"temperature": 1.0, **found})
    except (OlivineError, TypeError):
        return DEFAULT_SAMPLING


def suppressed(checkpoint: Checkpoint, vocabulary: int) -> list[int]:
    """The tokens that the publisher never lets the model generate; invalid entries are ignored."""
    if checkpoint.naming == "gguf":
        listed = checkpoint.metadata.get(f"{KEY}suppress_tokens")
    else:
        listed = checkpoint.generation.get("suppress_tokens")
    if not isinstance(listed, list | tuple | np.ndarray):
        return []
    return [
        int(token)
        for token in listed
        if isinstance(token, int | np.integer) and not isinstance(token, bool) and 0 <= token < vocabulary
    ]
