"""A plan run by the native library: one call per step."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from olivine.backends.base import (
    CHUNK,
    Batch,
    Collectives,
    Draw,
    Drawn,
    Result,
    Weights,
    refuse_cache_type,
)
from olivine.backends.cpu import native
from olivine.backends.cpu.draws import NativeDraws
from olivine.backends.cpu.lower import KINDS, array_of, lower, native_plan, refuse_unsupported
from olivine.backends.cpu.meet import Meetings
from olivine.backends.cpu.shm import ShmCollectives
from olivine.errors import ClosedError, RequestError
from olivine.pages import prefer_huge_pages
from olivine.plan import Plan, ops

PAGE_SIZE = 32


class CpuProgram:
    """A plan with its memory-mapped weights and a KV cache (BF16, F32 or Q8_0)."""

    def __init__(
        self,
        plan: Plan,
        weights: Weights,
        *,
        page_counts: Sequence[int],
        threads: int,
        cache_type: str = "BF16",
        collectives: Collectives | None = None,
    ) -> None:
        refuse_cache_type(plan, cache_type)
        refuse_unsupported(plan, alone=collectives is None)
        self.plan = plan
        self.page_size, self.chunk = PAGE_SIZE, CHUNK
        self.page_counts = tuple(page_counts)
        self._lowered = lower(plan, weights)
        _prefer_huge_pages(plan, weights)
        # Ranks that share memory meet in native code, without a way through Python.
        self._shm = collectives if isinstance(collectives, ShmCollectives) else None
        self._meetings = None
        if collectives is not None and self._shm is None:
            self._meetings = Meetings(self._lowered.meetings, collectives)
        self._pool = native.Pool(threads)
        # A program has one set of arenas, so only one step runs at a time.
        self._lock = threading.Lock()
        self._handle: int | None = native.lib().olv_program_new(
            self._pool.handle,
            ctypes.byref(
                native_plan(
                    plan,
                    self._lowered,
                    self.page_counts,
                    PAGE_SIZE,
                    cache_type,
                    None if self._meetings is None else self._meetings.callback,
                    None if self._shm is None else self._shm.handle,
                )
            ),
        )
        native.check(not self._handle)
        self.one_kind = bool(native.lib().olv_one_kind(self._handle))

    @property
    def threads(self) -> int:
        return self._pool.threads

    def step(self, batch: Batch, *, logits: bool = True) -> Result:
        """Runs one forward over the batch's rows and writes their keys and values into the cache."""
        self._pool.owner.check()
        batch.check(self.plan, self.plan.vocabulary, self.page_counts, self.page_size)
        rows = len(batch.outputs)
        hidden = np.empty((rows, self.plan.hidden.width), np.float32)
        found = np.empty((rows, self.plan.logits.width if logits else 0), np.float32)
        raw, _keep = _native_batch(batch)
        with self._lock:
            failed = native.lib().olv_step(
                self._open(), ctypes.byref(raw), hidden.ctypes.data, found.ctypes.data if logits else None
            )
        self._check(failed)
        return Result(hidden, found)

    def generate(self, batch: Batch, draws: Sequence[Draw], n: int = 1) -> list[Drawn]:
        """Runs the batch, draws up to n tokens for each of its output rows, all in one native call."""
        self._pool.owner.check()
        batch.check(self.plan, self.plan.vocabulary, self.page_counts, self.page_size)
        if n < 1 or len(draws) != len(batch.outputs):
            raise RequestError("at least one token is drawn, and each output row needs a draw")
        if n > 1:
            batch.check_chain(n, self.plan, self.plan.vocabulary, self.page_counts, self.page_size)
        native_draws = NativeDraws(draws, n, self.plan.logits.width)
        ready = native.Ready(native_draws.take_masks) if native_draws.masked else native.Ready()
        raw, _keep = _native_batch(batch)
        with self._lock:
            failed = native.lib().olv_generate(
                self._open(), ctypes.byref(raw), native_draws.how, n, ctypes.byref(native_draws.out), ready
            )
        self._check(failed)
        return native_draws.result()

    def profile(self) -> dict[str, float]:
        """Seconds spent in each kind of op since the last call."""
        seconds = (ctypes.c_double * len(KINDS))()
        native.lib().olv_profile(self._open(), seconds)
        return {kind.__name__: value for kind, value in zip(KINDS, seconds, strict=True)}

    def close(self) -> None:
        """Frees the KV cache and ends the threads. Does nothing while a step runs."""
        if self._pool.owner.here and self._lock.acquire(blocking=False):
            try:
                self._free()
                self._pool.close()
            finally:
                self._lock.release()

    def _check(self, failed: bool) -> None:
        """Raises what made a step fail: what another rank did, or the library's error."""
        if failed and self._meetings is not None and self._meetings.error is not None:
            raise self._meetings.error
        native.check(failed)

    def _open(self) -> int:
        if self._handle is None:
            raise ClosedError("the model was closed")
        return self._handle

    def _free(self) -> None:
        if getattr(self, "_handle", None) and self._pool.owner.here:
            native.lib().olv_program_free(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self._free()


def _native_batch(batch: Batch) -> tuple[native.Batch, list[object]]:
    """The batch as a struct of the library, and the arrays that must stay alive with it."""
    tables = [_ints(table) for table in batch.tables]
    arrays = [_ints(a) for a in (batch.tokens, batch.sequences, batch.positions, batch.outputs)]
    last = None if batch.last is None else _ints(batch.last)
    generated = None if batch.generated is None else np.ascontiguousarray(batch.generated, np.uint8)
    rows = None if batch.embedding_rows is None else _ints(batch.embedding_rows)
    coordinates = None if batch.coordinates is None else _ints(batch.coordinates)
    embeddings = None if batch.embeddings is None else np.ascontiguousarray(batch.embeddings, np.float32)
    raw = native.Batch(
        rows=len(batch.tokens),
        outputs=len(batch.outputs),
        sequences=tables[0].shape[0] if tables else 0,
        tokens=arrays[0].ctypes.data,
        sequence=arrays[1].ctypes.data,
        position=arrays[2].ctypes.data,
        last=None if last is None else last.ctypes.data,
        generated=None if generated is None else generated.ctypes.data,
        output_rows=arrays[3].ctypes.data,
        tables=array_of(ctypes.c_void_p, [table.ctypes.data for table in tables]),
        table_pages=array_of(ctypes.c_int64, [table.shape[1] for table in tables]),
        embeddings=0 if embeddings is None else len(embeddings),
        embedding_rows=None if rows is None else rows.ctypes.data,
        embedding=None if embeddings is None else embeddings.ctypes.data,
        coordinates=None if coordinates is None else coordinates.ctypes.data,
    )
    return raw, [tables, arrays, last, generated, rows, embeddings, coordinates]


def _ints(values: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    return np.ascontiguousarray(values, np.int32)


def _prefer_huge_pages(plan: Plan, weights: Weights) -> None:
    """For all weights but embeddings, of which a token reads a row."""
    names = {w.name for op in plan.ops if not isinstance(op, ops.Embed) for w in op.weights()}
    prefer_huge_pages(part.data for name in names for part in weights[name])
