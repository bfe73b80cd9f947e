"""A plan on one GPU: forwards are CUDA graphs; those of generated rows sample and go on alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from olivine.backends.base import Batch, Draw, Drawn, Result, Weights, refuse_cache_type
from olivine.backends.cuda.chain import Chain
from olivine.backends.cuda.draws import drawn_by_the_host, is_adjusted, needs_no_host
from olivine.backends.cuda.forward import Forward, MicroBatch, Shape, end_after, micro_batches, power_of_two
from olivine.backends.cuda.steps import Lowering, Rows
from olivine.backends.cuda.weights import Progress, load
from olivine.errors import RequestError
from olivine.plan import Plan, ops

Key = TypeVar("Key")
Kept = TypeVar("Kept")

PAGE_SIZE = 32
CHUNK = 2048  # prompt rows a step: fewer leave it to the weights how long it takes
MOST_CHAINS, MOST_FORWARDS = 32, 64  # that are kept: each has a graph


def device_name() -> str:
    return torch.cuda.get_device_name()


class CudaProgram:
    """A plan with its weights on the device, and a KV cache in BF16."""

    def __init__(
        self,
        plan: Plan,
        weights: Weights,
        *,
        page_counts: Sequence[int],
        device: str = "cuda",
        cache_type: str = "BF16",
        progress: Progress | None = None,
    ) -> None:
        refuse_cache_type(plan, cache_type)
        if cache_type != "BF16":
            raise RequestError(f"the KV cache of the CUDA backend is BF16, and {cache_type} was asked for")
        self.plan = plan
        self.page_size, self.chunk = PAGE_SIZE, CHUNK
        self.page_counts = tuple(page_counts)
        self.device = torch.device(device)
        self._vocabulary = min(op.weight.shape[0] for op in plan.ops if isinstance(op, ops.Embed))
        sizes = [
            (cache, (pages, PAGE_SIZE, group.kv_heads, group.head_dim))
            for group, pages in zip(plan.groups, self.page_counts, strict=True)
            for cache in group.caches
        ]
        reserve = sum(4 * int(np.prod(shape)) for _, shape in sizes)
        found = load(plan, weights, self.device, reserve, progress)
        self.weight_bytes = sum(planes.nbytes for planes in found.values())
        # Zeros, because a masked key still takes part in a product: nothing there may be NaN.
        caches = {
            cache.id: (self._zeros(shape, torch.bfloat16), self._zeros(shape, torch.bfloat16))
            for cache, shape in sizes
        }
        self._steps = Lowering(plan, found, weights, caches, self.device).lower()
        self._chains: dict[tuple[Shape, bool, bool, bool], Chain] = {}
        self._forwards: dict[Shape, Forward] = {}
        self._graph_memory: Any = None
        self.records = True  # graphs; off, forwards are launched kernel by kernel
        # Steps share the cache and the graphs' inputs, so they take turns.
        self._lock = threading.Lock()

    def describe(self) -> list[str]:
        """The steps, as they run."""
        return [str(step) for step in self._steps]

    def step(self, batch: Batch, *, logits: bool = True) -> Result:
        """Runs one forward over the batch's rows and writes their keys and values into the cache."""
        batch.check(self.plan, self._vocabulary, self.page_counts, self.page_size)
        if not len(batch.tokens):
            empty = np.zeros((0, self.plan.logits.width if logits else 0), np.float32)
            return Result(np.zeros((0, self.plan.hidden.width), np.float32), empty)
        with self._lock:
            hidden, found = self._results(batch, logits)
            none = np.zeros((len(batch.outputs), 0), np.float32)
            return Result(hidden.cpu().numpy(), none if found is None else found.cpu().numpy())

    def generate(self, batch: Batch, draws: Sequence[Draw], n: int = 1) -> list[Drawn]:
        """Runs the batch, draws up to n tokens for each of its output rows; the host waits once.

        Where log-probabilities are asked for or a token is forced, the host comes back for each token.
        """
        batch.check(self.plan, self._vocabulary, self.page_counts, self.page_size)
        if n < 1 or len(draws) != len(batch.outputs):
            raise RequestError("at least one token is drawn, and each output row needs a draw")
        if n > 1:
            batch.check_way_on(n, self.plan, self._vocabulary, self.page_counts, self.page_size)
        refused = [draw.refusal(self.plan.logits.width) for draw in draws]
        with self._lock:
            if not len(draws):
                self._results(batch)
                torch.cuda.synchronize() if self.device.type == "cuda" else None
                return []
            if any(refused) or not all(needs_no_host(draw) for draw in draws):
                return drawn_by_the_host(self, batch, draws, n, refused)
            return self._generate(batch, draws, n)

    def logits_of(self, batch: Batch) -> torch.Tensor:
        """The logits of the batch's output rows, in their order, left on the device until the next call."""
        logits = self._results(batch)[1]
        assert logits is not None
        return logits

    def graph_memory(self) -> Any:
        """What graphs are recorded with: one runs at a time, so they may all use the same memory."""
        if self._graph_memory is None:
            self._graph_memory = torch.cuda.graph_pool_handle()
        return self._graph_memory

    def run(self, rows: Rows, logits: bool = True) -> None:
        """All steps, or those up to the hidden states."""
        for step in self._steps:
            step.run(rows)
            if not logits and self.plan.hidden.id in rows.values:
                return
            for value in step.over:
                rows.values.pop(value, None)

    def _generate(self, batch: Batch, draws: Sequence[Draw], n: int) -> list[Drawn]:
        plain = batch.generated is not None and bool(batch.generated.all()) and batch.embeddings is None
        ordered = len(batch.outputs) == len(batch.tokens) and bool(
            (np.asarray(batch.outputs) == np.arange(len(batch.tokens))).all()
        )
        chain = self._chain(batch, draws, n)
        if plain and ordered:
            chain.begin(batch.tokens, batch.sequences, batch.positions, batch.tables, draws)
            return chain.go(n)
        logits = self.logits_of(batch)
        at = np.asarray(batch.outputs)
        chain.begin(batch.tokens[at], batch.sequences[at], batch.positions[at], batch.tables, draws)
        chain.draw_from(logits)
        return chain.go(n - 1)

    def _chain(self, batch: Batch, draws: Sequence[Draw], n: int) -> Chain:
        rows, sequences = len(batch.outputs), batch.sequences[batch.outputs].tolist()
        shape = Shape(
            rows=power_of_two(rows),
            prompt=False,
            outputs=None,
            tiles=0,
            end=end_after(int(batch.positions[batch.outputs].max()) + n - 1),
            alone=len(set(sequences)) == rows,
            tables=tuple(table.shape for table in batch.tables),
        )
        sampled = any(draw.sampling.temperature > 0 for draw in draws)
        adjusted = any(is_adjusted(draw) for draw in draws)
        masked = any(draw.mask is not None for draw in draws)
        return _kept(
            self._chains,
            (shape, sampled, adjusted, masked),
            MOST_CHAINS,
            lambda: Chain(self, shape, sampled, adjusted, masked),
        )

    def _results(self, batch: Batch, logits: bool = True) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Hidden states and, if wanted, logits of the output rows, in the order of the batch."""
        parts = list(micro_batches(batch))
        if len(parts) == 1:
            return self._part_results(batch, parts[0], logits)
        # A part's results are gone when the next part runs.
        count = len(batch.outputs)
        hidden = self._zeros((count, self.plan.hidden.width), torch.float32)
        found = self._zeros((count, self.plan.logits.width if logits else 0), torch.float32)
        for part in parts:
            some_hidden, some_logits = self._part_results(batch, part, logits)
            places = self._put(part.places)
            hidden.index_copy_(0, places, some_hidden)
            if some_logits is not None:
                found.index_copy_(0, places, some_logits)
        return hidden, found if logits else None

    def _part_results(
        self, batch: Batch, part: MicroBatch, logits: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        shape = part.shape(batch, logits)
        if shape.worth_recording:
            forward = _kept(self._forwards, shape, MOST_FORWARDS, lambda: Forward(self, shape))
        else:
            forward = Forward(self, shape)
        at = part.rows
        forward.fill(
            batch.tokens[at], batch.sequences[at], batch.positions[at], batch.tables, part.outputs, part.tiles
        )
        injected = self._injected(batch, part)
        hidden, found = forward.results() if injected is None else forward.run(injected)
        wanted = len(part.outputs)
        return hidden[:wanted], None if found is None else found[:wanted]

    def _injected(self, batch: Batch, part: MicroBatch) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Which of the part's rows have embeddings of their own, and those."""
        if batch.embedding_rows is None or batch.embeddings is None:
            return None
        place = np.full(len(batch.tokens), -1, np.int64)
        place[part.rows] = np.arange(len(part.rows))
        rows = place[np.asarray(batch.embedding_rows, np.int64)]
        given = np.ascontiguousarray(batch.embeddings[rows >= 0], np.float32)
        return (self._put(rows[rows >= 0]), self._put(given)) if len(given) else None

    def _put(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)


def _kept(known: dict[Key, Kept], key: Key, most: int, make: Callable[[], Kept]) -> Kept:
    """What is known by the key, or made for it; the one longest unused makes room."""
    if key not in known:
        if len(known) == most:
            known.pop(next(iter(known)))
        known[key] = make()
    known[key] = known.pop(key)
    return known[key]
