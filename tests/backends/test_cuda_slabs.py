"""Slabs that are expanded on a stream of their own: on a simulated GPU, whose streams run in any order that
their events allow, every GEMM reads the slab that it was given."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("these tests run in Triton's interpreter", allow_module_level=True)

import torch

from olivine.backends.cuda import slabs
from olivine.backends.cuda.formats import Format
from olivine.backends.cuda.kernels.gemm import gemm
from olivine.backends.cuda.slabs import Ring, RingSlabs, ring_of
from olivine.backends.cuda.weights import Planes
from oracles.matrices import matrix_of, rows_of, tensor_of

CPU = torch.device("cpu")


@dataclass
class Event:
    capture: int
    done: bool = False


class Stream:
    """A queue of work: calls, and events to wait for."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.queue: deque[Event | Callable[[], None]] = deque()

    def record_event(self) -> Event:
        event = Event(self._gpu.capture)
        self.queue.append(lambda: setattr(event, "done", True))
        return event

    def wait_event(self, event: Event) -> None:
        assert event.capture == self._gpu.capture, "a graph may not wait for what is not in it"
        self.queue.append(event)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def is_ready(self) -> bool:
        return bool(self.queue) and (not isinstance(self.queue[0], Event) or self.queue[0].done)

    def run_one(self) -> None:
        work = self.queue.popleft()
        if not isinstance(work, Event):
            work()


@dataclass
class Gpu:
    """Two streams; `capture` counts graphs."""

    capture: int = 0
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.main, self.side = Stream(self), Stream(self)
        self.current = self.main

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def launch(self, name: str, work: Callable[[], None]) -> None:
        def run() -> None:
            work()
            self.done.append(name)

        self.current.queue.append(run)

    def run(self, choose: Callable[[list[Stream]], Stream]) -> None:
        """Until the first stream is empty."""
        while self.main.queue:
            ready = [stream for stream in (self.main, self.side) if stream.is_ready()]
            assert ready, "both streams wait"
            choose(ready).run_one()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: made.side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: made.current)
    monkeypatch.setattr(torch.cuda, "stream", made.stream)
    monkeypatch.setattr(slabs, "SLAB_BYTES", 2 * 32 * 100)
    return made


@pytest.fixture
def numbered(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """Slabs are filled with a number, when their turn comes."""
    count = iter(range(1, 1 << 30))

    def expand(weight: Planes, first: int, out: torch.Tensor) -> Planes:
        number = next(count)
        gpu.launch("expand", lambda: out.fill_(number))  # type: ignore[arg-type, return-value]
        return replace(weight, format=Format.FLOAT, n=len(out), codes=out, group=number)

    monkeypatch.setattr(slabs, "expand", expand)
    return gpu


def weight_of(n: int, k: int = 32) -> Planes:
    return Planes(Format.Q4_K, n, k, torch.zeros(1, 1, dtype=torch.uint8))


def forward(gpu: Gpu, ring: Ring, weights: list[Planes], count: int = 1000) -> list[int]:
    """Multiplies all of them with so many rows; the rows of the slabs."""
    rows, taken = [], RingSlabs(ring, count)
    gpu.capture += 1
    for weight in weights:
        for _, slab in taken.expanded(weight):

            def multiply(slab: Planes = slab) -> None:
                assert (slab.codes == slab.group).all(), "it reads another slab than it was given"

            gpu.launch("gemm", multiply)
            rows.append(slab.n)
    return rows


@pytest.mark.parametrize("order", ["main first", "side first", *map(str, range(20))])
def test_a_gemm_reads_its_slab_whichever_stream_runs_first(numbered: Gpu, order: str) -> None:
    rng = np.random.default_rng(0 if " " in order else int(order))
    weights = [
        weight_of(int(n), int(k)) for n, k in zip(rng.integers(1, 30, 40) * 8, [32, 60] * 20, strict=True)
    ]
    ring = Ring(2 * int(rng.choice([3200, 6400, 10000])), CPU)

    def choose(ready: list[Stream]) -> Stream:
        if " " in order:
            return ready[0 if order == "main first" else -1]
        return ready[int(rng.integers(len(ready)))]

    for _ in range(3):  # without a pause: what another forward still reads is not overwritten
        rows = forward(numbered, ring, weights)
        assert sum(rows) == sum(weight.n for weight in weights)
        assert max(rows) <= 96 and len(rows) > len(weights)  # large ones in parts
    numbered.run(choose)
    assert not numbered.side.queue, "a graph would end before its last slab"
    assert numbered.done.count("gemm") == numbered.done.count("expand") == 3 * len(rows)


def test_slabs_are_expanded_as_far_ahead_as_there_is_room(numbered: Gpu) -> None:
    ring = Ring(2 * 32 * 100, CPU)
    forward(numbered, ring, [weight_of(n) for n in (32, 48, 16, 64)])
    numbered.run(lambda ready: ready[-1])
    assert numbered.done[:4] == ["expand"] * 3 + ["gemm"]


def test_slabs_for_few_rows_lie_in_a_part_of_the_ring(numbered: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """In slabs of about as many rows each."""
    monkeypatch.setattr(slabs, "CACHED_BYTES", 2 * 32 * 50)
    ring = Ring(2 * 32 * 200, CPU)
    numbered.capture += 1

    def taken(count: int) -> list[tuple[int, int]]:
        made, start = RingSlabs(ring, count), ring.memory.data_ptr()
        found = [slab for n in (96, 40, 16) for _, slab in made.expanded(weight_of(n))]
        return [((slab.codes.data_ptr() - start) // 64, slab.n) for slab in found]

    assert taken(slabs.FEW_ROWS) == [(0, 48), (0, 48), (0, 40), (0, 16)]
    assert taken(slabs.FEW_ROWS + 1) == [(0, 96), (96, 40), (136, 16)]
    forward(numbered, ring, [weight_of(n) for n in (16, 96, 32, 80, 16)], 16)
    numbered.run(lambda ready: ready[-1])


@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0"])
def test_products_have_the_same_bits_in_a_ring(gpu: Gpu, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slabs of 32 rows, which lie in two places of the ring in turn; the kernels run at once."""
    monkeypatch.setattr(slabs, "SLAB_BYTES", 32 * 2 * 256)
    weight, x = matrix_of(tensor_of(kind, 70, 256), 256), torch.from_numpy(rows_of(9, 256))
    ring = RingSlabs(Ring(70 * 2 * 256, CPU), 1000)
    for activation, width in ((None, 72), (0, 36)):
        plain, other = (torch.full((9, width), float("nan")) for _ in range(2))
        gemm(x, weight, plain, activation=activation)
        gemm(x, weight, other, activation=activation, slabs=ring)
        assert torch.equal(plain, other) and plain.isfinite().all()


def test_a_ring_has_room_for_the_largest_slab(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """And for four of them, if those are no more than two of SLAB_BYTES."""

    def nbytes(*weights: Planes) -> int:
        made: list[int] = []
        with monkeypatch.context() as patch:
            patch.setattr(torch, "empty", lambda size, dtype, device: made.append(2 * size))
            ring_of(weights, torch.device("cuda"))
        return sum(made)

    assert nbytes(weight_of(8), weight_of(16)) == 4 * 2 * 16 * 32
    assert nbytes(weight_of(96)) == nbytes(weight_of(1000)) == 2 * slabs.SLAB_BYTES
    assert nbytes(weight_of(16, 9000)) == 2 * 16 * 9024, "a slab has sixteen rows at least"


def test_there_is_no_ring_without_quantized_weights_or_a_gpu() -> None:
    assert ring_of([replace(weight_of(96), format=Format.FLOAT)], torch.device("cuda")) is None
    assert ring_of([weight_of(96)], CPU) is None
