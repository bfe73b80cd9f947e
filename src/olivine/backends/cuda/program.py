"""A plan on one GPU: forwards are CUDA graphs; chains of decode steps sample without the host."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import torch

from olivine.backends.base import (
    CACHE_TYPES,
    Batch,
    Collectives,
    Draw,
    Drawn,
    Progress,
    Result,
    Weights,
    refuse_cache_type,
)
from olivine.backends.cuda.chain import Chains, fits_chain
from olivine.backends.cuda.draws import draw_on_host
from olivine.backends.cuda.executable import Executable
from olivine.backends.cuda.forward import Forwards
from olivine.backends.cuda.graphs import GraphRecorder
from olivine.backends.cuda.kernels.paged import GROUP
from olivine.backends.cuda.launch import refuse_unsupported, steps_of
from olivine.backends.cuda.lowering import Lowering
from olivine.backends.cuda.ranks import DeviceCollectives, on_device
from olivine.backends.cuda.slabs import ring_of
from olivine.backends.cuda.weights import load
from olivine.errors import RequestError
from olivine.plan import Plan, rank_ops
from olivine.plan.clamps import share_clamps
from olivine.plan.fuse import fuse

PAGE_SIZE = 32
CHUNK = 2048  # prompt rows a step: with fewer, reading the weights takes longer than the arithmetic

# Steps share the cache and the graphs' inputs; while a graph is recorded, nothing else may run on the device,
# neither a tower nor another model.
_LOCK = threading.Lock()


def device_name() -> str:
    return torch.cuda.get_device_name()


def _on_host(x: torch.Tensor) -> np.ndarray:
    """By way of pinned memory, into which the device copies several times as fast."""
    if x.device.type != "cuda":
        return x.cpu().numpy()
    staged = torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x)
    return torch.empty(x.shape, dtype=x.dtype).copy_(staged).numpy()


class CudaProgram:
    """A plan with its weights on the device, and a KV cache in BF16 or Q8_0."""

    one_kind = False

    def __init__(
        self,
        plan: Plan,
        weights: Weights,
        *,
        page_counts: Sequence[int],
        device: str = "cuda",
        cache_type: str = "BF16",
        progress: Progress | None = None,
        collectives: Collectives | DeviceCollectives | None = None,
    ) -> None:
        refuse_cache_type(plan, cache_type)
        if cache_type not in ("BF16", "Q8_0"):
            raise RequestError(
                f"the KV cache of the CUDA backend is BF16 or Q8_0, and {cache_type} was asked for"
            )
        refuse_unsupported(plan, alone=collectives is None)
        self.plan = plan
        self.page_size, self.chunk = PAGE_SIZE, CHUNK
        self.page_counts = tuple(page_counts)
        self.device = torch.device(device)
        sizes = [
            (cache, (pages, PAGE_SIZE, group.kv_heads, group.head_dim))
            for group, pages in zip(plan.groups, self.page_counts, strict=True)
            for cache in group.caches
        ]
        reserve = sum(int(2 * CACHE_TYPES[cache_type] * np.prod(shape)) for _, shape in sizes)
        found = load(plan, weights, self.device, reserve, progress)
        self.weight_bytes = sum(planes.nbytes for planes in found.values())
        # Zeros, because a masked key still takes part in a product: nothing there may be NaN.
        caches = {cache.id: self._empty_cache(shape, cache_type) for cache, shape in sizes}
        shared = share_clamps(plan, lambda weight: found[weight.name].codes.float().item())
        fused = fuse(shared, lambda a, b: found[a.name].stacks_with(found[b.name]))
        others = on_device(collectives, self.device)
        lowering = Lowering(fused, found, weights, caches, self.device, others)
        steps = steps_of(lowering)
        recorder = GraphRecorder(self.device)
        recorder.enabled &= others is None or others.in_graphs
        ring = ring_of(lowering.prompt_weights, self.device)
        self.executable = Executable(plan, steps, self.device, recorder, ring)
        self._forwards, self._chains = Forwards(self.executable), Chains(self.executable)
        self._is_stage = any(isinstance(op, rank_ops.Send | rank_ops.Receive) for op in plan.ops)
        # Ranks that are threads, as in tests, wait for each other within a step.
        self._lock = _LOCK if self.device.type == "cuda" else threading.Lock()

    def describe(self) -> list[str]:
        """The steps, as they run."""
        return [str(step) for step in self.executable.steps]

    def step(self, batch: Batch, *, logits: bool = True) -> Result:
        """Runs one forward over the batch's rows and writes their keys and values into the cache."""
        self._check(batch)
        if not len(batch.tokens):
            empty = np.zeros((0, self.plan.logits.width if logits else 0), np.float32)
            return Result(np.zeros((0, self.plan.hidden.width), np.float32), empty)
        with self._lock:
            hidden, found = self._forwards.results(batch, logits)
            none = np.zeros((len(batch.outputs), 0), np.float32)
            return Result(_on_host(hidden), none if found is None else _on_host(found))

    def generate(self, batch: Batch, draws: Sequence[Draw], n: int = 1) -> list[Drawn]:
        """Runs the batch, draws up to n tokens for each of its output rows; the host waits once.

        Where a token is forced (or see `fits_chain`), the host comes back for each token.
        """
        self._check(batch)
        if n < 1 or len(draws) != len(batch.outputs):
            raise RequestError("at least one token is drawn, and each output row needs a draw")
        if n > 1:
            batch.check_chain(n, self.plan, self.plan.vocabulary, self.page_counts, self.page_size)
        refused = [draw.refusal(self.plan.logits.width) for draw in draws]
        with self._lock:
            if not len(draws):
                self._forwards.results(batch)
                torch.cuda.synchronize() if self.device.type == "cuda" else None
                return []
            if any(refused) or not all(fits_chain(draw) for draw in draws):
                return draw_on_host(self._forwards, self._chains, batch, draws, n, refused)
            return self._generate(batch, draws, n)

    def _check(self, batch: Batch) -> None:
        batch.check(self.plan, self.plan.vocabulary, self.page_counts, self.page_size)

    def _generate(self, batch: Batch, draws: Sequence[Draw], n: int) -> list[Drawn]:
        decode = batch.generated is not None and bool(batch.generated.all()) and batch.embeddings is None
        ordered = len(batch.outputs) == len(batch.tokens) and bool(
            (np.asarray(batch.outputs) == np.arange(len(batch.tokens))).all()
        )
        chain = self._chains.get(batch, draws, n)
        if decode and ordered and not self._is_stage:  # all stages take a batch's rows in the same order
            chain.begin(batch.tokens, batch.sequences, batch.positions, batch.tables, draws)
            return chain.go(n)
        at = np.asarray(batch.outputs)
        # Before the forward, because each copy to the device waits for all that runs there.
        chain.begin(batch.tokens[at], batch.sequences[at], batch.positions[at], batch.tables, draws)
        chain.draw_from(self._forwards.logits(batch))
        return chain.go(n - 1)

    def _empty_cache(self, shape: tuple[int, ...], cache_type: str) -> tuple[torch.Tensor, ...]:
        """Keys and values, and their scales where they are codes."""
        made = [(shape, torch.bfloat16)]
        if cache_type == "Q8_0":
            made = [(shape, torch.int8), ((*shape[:-1], shape[-1] // GROUP), torch.float32)]
        return tuple(
            torch.zeros(each, dtype=dtype, device=self.device) for each, dtype in made for _ in range(2)
        )
