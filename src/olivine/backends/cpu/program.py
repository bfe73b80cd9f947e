"""A plan run by the native library: one call a step."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from olivine.backends.base import Batch, Result, Weights
from olivine.backends.cpu import library as native
from olivine.backends.cpu.lower import KINDS, array_of, lower, native_plan
from olivine.plan import Plan, ops

PAGE_SIZE = 32


class CpuProgram:
    """A plan with its weights, which stay where they are mapped, and a KV cache in bfloat16."""

    def __init__(self, plan: Plan, weights: Weights, *, page_counts: Sequence[int], threads: int) -> None:
        self.plan = plan
        self.page_size = PAGE_SIZE
        self.page_counts = tuple(page_counts)
        self._vocabulary = min(op.weight.shape[0] for op in plan.ops if isinstance(op, ops.Embed))
        self._lowered = lower(plan, weights)
        self._pool = native.Pool(threads)
        # The library keeps the arenas of a program from step to step, so steps take turns.
        self._turn = threading.Lock()
        self._handle = native.library().olv_program_new(
            self._pool.handle, ctypes.byref(native_plan(plan, self._lowered, self.page_counts, PAGE_SIZE))
        )
        native.check(not self._handle)

    @property
    def threads(self) -> int:
        return self._pool.threads

    def step(self, batch: Batch) -> Result:
        """Runs one forward over the batch's rows and writes their keys and values into the cache."""
        batch.check(self.plan, self._vocabulary, self.page_counts, self.page_size)
        rows, outputs = len(batch.tokens), len(batch.outputs)
        hidden = np.empty((outputs, self.plan.hidden.width), np.float32)
        logits = np.empty((outputs, self.plan.logits.width), np.float32)
        tables = [_ints(table) for table in batch.tables]
        arrays = [_ints(a) for a in (batch.tokens, batch.sequences, batch.positions, batch.outputs)]
        generated = None if batch.generated is None else np.ascontiguousarray(batch.generated, np.uint8)
        injected = batch.embeddings is not None and batch.embedding_rows is not None
        embedding_rows = _ints(batch.embedding_rows) if batch.embedding_rows is not None else None
        embeddings = np.ascontiguousarray(batch.embeddings, np.float32) if injected else None
        raw = native.Batch(
            rows=rows,
            outputs=outputs,
            sequences=tables[0].shape[0] if tables else 0,
            tokens=arrays[0].ctypes.data,
            sequence=arrays[1].ctypes.data,
            position=arrays[2].ctypes.data,
            generated=None if generated is None else generated.ctypes.data,
            output_rows=arrays[3].ctypes.data,
            tables=array_of(ctypes.c_void_p, [table.ctypes.data for table in tables]),
            table_pages=array_of(ctypes.c_int64, [table.shape[1] for table in tables]),
            embeddings=0 if embeddings is None else len(embeddings),
            embedding_rows=None if embedding_rows is None else embedding_rows.ctypes.data,
            embedding=None if embeddings is None else embeddings.ctypes.data,
        )
        with self._turn:
            failed = native.library().olv_step(
                self._handle, ctypes.byref(raw), hidden.ctypes.data, logits.ctypes.data
            )
        native.check(failed)
        return Result(hidden, logits)

    def profile(self) -> dict[str, float]:
        """Seconds spent in each kind of op since the last call."""
        seconds = (ctypes.c_double * len(KINDS))()
        native.library().olv_profile(self._handle, seconds)
        return {kind.__name__: value for kind, value in zip(KINDS, seconds, strict=True)}

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            native.library().olv_program_free(self._handle)
            self._handle = None


def _ints(values: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    return np.ascontiguousarray(values, np.int32)
