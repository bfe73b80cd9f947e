"""Which kernels a program will launch, found without a GPU: its launchers run on tensors that have a shape
and no memory, and what Triton would compile for them is recorded.

A kernel is compiled for types, for constants, and for which integers 16 divides. What of it depends on the
rows of a batch takes few values, because rows are padded (micro_batch.py): all of them occur here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from olivine.backends.base import Weights
from olivine.backends.cuda.chain import Chain, ChainKind, Chains
from olivine.backends.cuda.executable import Executable
from olivine.backends.cuda.forward import Forward
from olivine.backends.cuda.kernels import hash_kernels
from olivine.backends.cuda.kernels.prefill_attention import ROWS
from olivine.backends.cuda.micro_batch import (
    DECODE_ROWS,
    MAX_OUTPUTS,
    PREFILL_STEP,
    Shape,
    end_after,
    power_of_two,
)
from olivine.backends.cuda.program import CHUNK, CudaProgram
from olivine.backends.cuda.tiles import gpu_of
from olivine.plan import Plan

META = torch.device("meta")
# To draw: whether tokens are sampled, with a histogram, and from adjusted logits. All kernels of any way.
_WAYS = (
    (False, False, False),
    (False, False, True),
    (True, False, False),
    (True, True, False),
    (True, True, True),
)
_compile = JITFunction._do_compile


@dataclass(frozen=True)
class Kernel:
    """A kernel for arguments of certain types; `arguments` are those of Triton's `_do_compile`."""

    function: Any
    arguments: tuple[Any, ...]

    @property
    def name(self) -> str:
        return str(self.function.__name__)

    def compile(self) -> Any:
        """Compiles it, or finds it in Triton's cache."""
        return _compile(self.function, *self.arguments)


class _NoDriver:
    """Stands in for Triton's driver, which would open the GPU."""

    def __init__(self) -> None:
        major, minor = gpu_of(META).capability
        self._target = GPUTarget("cuda", 10 * major + minor, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class _NotCompiled:
    """Stands in for a compiled kernel that was recorded once."""

    function = packed_metadata = None

    def launch_metadata(self, *arguments: Any) -> None:
        pass

    def run(self, *arguments: Any) -> None:
        pass


@contextmanager
def recorded() -> Iterator[dict[Any, Kernel]]:
    """The different kernels that are launched within. None is compiled, none runs."""
    found: dict[Any, Kernel] = {}

    def record(function: Any, key: Any, *rest: Any, **named: Any) -> None:
        found[function.__module__, function.__name__, key] = Kernel(function, (key, *rest, *named.values()))
        function.device_caches[0][0][key] = _NotCompiled()

    JITFunction._do_compile = record
    try:
        yield found
    finally:
        JITFunction._do_compile = _compile


def program_of(plan: Plan, weights: Weights, cache_type: str) -> CudaProgram:
    """The program without memory."""
    driver.set_active(_NoDriver())
    hash_kernels()
    with _shapes_alone():
        return CudaProgram(
            plan, weights, page_counts=[1] * len(plan.groups), device="meta", cache_type=cache_type
        )


@contextmanager
def _shapes_alone() -> Iterator[None]:
    """Without memory, torch joins tensors in Python, and imports its compiler for that: for seconds."""

    def cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
        shape = list(tensors[0].shape)
        shape[dim] = sum(each.shape[dim] for each in tensors)
        dtype = reduce(torch.promote_types, (each.dtype for each in tensors))
        return tensors[0].new_empty(shape, dtype=dtype)

    def stack(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
        return cat([each.unsqueeze(dim) for each in tensors], dim)

    kept = torch.cat, torch.stack
    torch.cat, torch.stack = cat, stack  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.cat, torch.stack = kept


def first_kernels(program: CudaProgram, context: int) -> dict[Any, Kernel]:
    """Those of one sequence: prompts of up to 128 rows, and chains that draw in any common way."""
    executable = program.executable
    with recorded() as found:
        for rows in (16, 32, 64, PREFILL_STEP):
            Forward(executable, _prompt(executable, rows)).run()
        for end in _ends(context):
            Forward(executable, _decode(executable, 1, end)).run()
        for sampled, by_histogram, adjusted in _WAYS:
            _chain(executable, sampled, by_histogram, adjusted).launch()
    return found


def later_kernels(program: CudaProgram, context: int) -> dict[Any, Kernel]:
    """Those of longer prompts, of several sequences, and of log-probabilities."""
    executable = program.executable
    with recorded() as found:
        for rows in range(2 * PREFILL_STEP, CHUNK + 1, PREFILL_STEP):
            Forward(executable, _prompt(executable, rows)).run()
        for outputs in _powers(2, MAX_OUTPUTS):
            Forward(executable, _prompt(executable, 16 if outputs <= 16 else outputs, outputs)).run()
        for rows, end, alone in product(_powers(1, DECODE_ROWS), _ends(context), (True, False)):
            Forward(executable, _decode(executable, rows, end, alone)).run()
        for by_histogram, adjusted in product((False, True), repeat=2):
            _chain(executable, True, by_histogram, adjusted, reported=True).launch()
        if any(getattr(op, "bidirectional", False) for op in executable.plan.ops):
            last = torch.empty(PREFILL_STEP, dtype=torch.int32, device=META)
            Forward(executable, _prompt(executable, PREFILL_STEP)).run(last=last)
    return found


def _powers(first: int, last: int) -> Iterator[int]:
    while first <= last:
        yield first
        first *= 2


def _ends(context: int) -> Iterator[int]:
    return _powers(end_after(0), end_after(context - 1))


def _tables(executable: Executable) -> tuple[tuple[int, int], ...]:
    return tuple((1, 16) for _ in executable.plan.groups)


def _prompt(executable: Executable, rows: int, outputs: int = 1) -> Shape:
    return Shape(rows, True, outputs, power_of_two(-(-rows // ROWS)), 0, False, _tables(executable))


def _decode(executable: Executable, rows: int, end: int, alone: bool = True) -> Shape:
    return Shape(rows, False, None, 0, end, alone, _tables(executable))


def _chain(
    executable: Executable, sampled: bool, by_histogram: bool, adjusted: bool, reported: bool = False
) -> Chain:
    shape = _decode(executable, 1, end_after(0))
    return Chains(executable).of(ChainKind(shape, sampled, by_histogram, adjusted, False, reported))
