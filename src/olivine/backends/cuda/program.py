"""A plan on one GPU: batches run op by op, decode steps as CUDA graphs that sample and go on alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import torch

from olivine.backends.base import Batch, Draw, Drawn, Result, Weights, refuse_cache_type
from olivine.backends.cuda.chain import Chain
from olivine.backends.cuda.draws import drawn_by_the_host, is_adjusted, needs_no_host
from olivine.backends.cuda.kernels.attention import Scratch
from olivine.backends.cuda.kernels.prompt_attention import tiles_of
from olivine.backends.cuda.steps import Lowering, Rows
from olivine.backends.cuda.weights import Progress, load
from olivine.errors import RequestError
from olivine.plan import Plan, ops

PAGE_SIZE = 32
MOST_CHAINS = 32  # each keeps a graph and the buffers of a step


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
        self.page_size = PAGE_SIZE
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
        self._scratch = Scratch(self.device)
        self._chains: dict[tuple[int, int, bool, bool, bool, tuple[int, ...]], Chain] = {}
        # Steps share the cache and the graphs' inputs, so they take turns.
        self._turn = threading.Lock()

    def describe(self) -> list[str]:
        """The steps, as they run."""
        return [str(step) for step in self._steps]

    def step(self, batch: Batch, *, logits: bool = True) -> Result:
        """Runs one forward over the batch's rows and writes their keys and values into the cache."""
        batch.check(self.plan, self._vocabulary, self.page_counts, self.page_size)
        if not len(batch.tokens):
            empty = np.zeros((0, self.plan.logits.width if logits else 0), np.float32)
            return Result(np.zeros((0, self.plan.hidden.width), np.float32), empty)
        with self._turn:
            rows, back = self._rows(batch)
            self.run(rows, logits)
            hidden = rows.values[self.plan.hidden.id][back].cpu().numpy()
            if not logits:
                return Result(hidden, np.zeros((len(batch.outputs), 0), np.float32))
            return Result(hidden, rows.values[self.plan.logits.id][back].float().cpu().numpy())

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
        with self._turn:
            if not len(draws):
                rows, _ = self._rows(batch)
                self.run(rows)
                torch.cuda.synchronize() if self.device.type == "cuda" else None
                return []
            if any(refused) or not all(needs_no_host(draw) for draw in draws):
                return drawn_by_the_host(self, batch, draws, n, refused)
            return self._generate(batch, draws, n)

    def logits_of(self, batch: Batch) -> torch.Tensor:
        """The logits of the batch's output rows, in their order, left on the device."""
        rows, back = self._rows(batch)
        self.run(rows)
        return rows.values[self.plan.logits.id][back].float()

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
            chain.begin(batch.tokens, batch.sequences, batch.positions, batch.tables, draws, n)
            return chain.go(n)
        # The batch itself runs op by op; from its logits on, the chain takes over.
        logits = self.logits_of(batch)
        at = np.asarray(batch.outputs)
        chain.begin(batch.tokens[at], batch.sequences[at], batch.positions[at], batch.tables, draws, n)
        chain.draw_from(logits)
        return chain.go(n - 1)

    def _chain(self, batch: Batch, draws: Sequence[Draw], n: int) -> Chain:
        rows = len(batch.outputs)
        bucket = 1 << (rows - 1).bit_length()
        # Grids of attention are made for positions up to an end; powers of two keep the graphs few.
        end = max(256, 1 << (int(batch.positions[batch.outputs].max()) + n - 1).bit_length())
        sampled = any(draw.sampling.temperature > 0 for draw in draws)
        adjusted = any(is_adjusted(draw) for draw in draws)
        shapes = tuple(int(size) for table in batch.tables for size in table.shape)
        masked = any(draw.mask is not None for draw in draws)
        key = (bucket, end, sampled, adjusted, masked, shapes)
        if key not in self._chains:
            if len(self._chains) == MOST_CHAINS:
                self._chains.pop(next(iter(self._chains)))  # the one longest unused
            self._chains[key] = Chain(
                self, bucket, end, sampled, adjusted, masked, [table.shape for table in batch.tables]
            )
        self._chains[key] = self._chains.pop(key)
        return self._chains[key]

    def _rows(self, batch: Batch) -> tuple[Rows, torch.Tensor]:
        """The batch on the device, prompt rows first, and where each output row's result is then found."""
        count = len(batch.tokens)
        generated = np.zeros(count, bool) if batch.generated is None else np.asarray(batch.generated, bool)
        # Prompt rows by sequence and position: attention takes neighbors together.
        order = np.lexsort((batch.positions, batch.sequences, generated))
        place = np.empty(count, np.int64)
        place[order] = np.arange(count)
        outputs = place[np.asarray(batch.outputs, np.int64)]
        arranged = np.argsort(outputs, kind="stable")
        back = np.empty(len(outputs), np.int64)
        back[arranged] = np.arange(len(outputs))
        prompt = int(count - generated.sum())
        wanted = outputs[arranged]
        positions = np.ascontiguousarray(batch.positions[order], np.int32)
        sequences = np.ascontiguousarray(batch.sequences[order], np.int32)
        tiles = tiles_of(sequences[:prompt], positions[:prompt])
        injected = None
        if batch.embedding_rows is not None and batch.embeddings is not None:
            where = place[np.asarray(batch.embedding_rows, np.int64)]
            injected = (self._put(where), self._put(np.ascontiguousarray(batch.embeddings, np.float32)))
        rows = Rows(
            tokens=self._put(np.ascontiguousarray(batch.tokens[order], np.int32)),
            positions=self._put(positions),
            sequences=self._put(sequences),
            outputs=self._put(wanted),
            tables=[self._put(np.ascontiguousarray(table, np.int32)) for table in batch.tables],
            prompt=prompt,
            prompt_outputs=int((wanted < prompt).sum()),
            tiles=self._put(tiles) if len(tiles) else None,
            longest=int(positions[prompt:].max()) if prompt < count else 0,
            scratch=self._scratch,
            alone=len(np.unique(sequences[prompt:])) == count - prompt
            and not np.isin(sequences[prompt:], sequences[:prompt]).any(),
            injected=injected,
        )
        return rows, self._put(back)

    def _put(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)
