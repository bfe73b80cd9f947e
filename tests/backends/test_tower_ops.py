"""The ops of towers, against PyTorch's; and what a batch for a tower may be."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from olivine.backends import Batch, Program
from olivine.backends.cpu import CpuProgram
from olivine.backends.reference import ReferenceProgram
from olivine.dtypes import F32
from olivine.errors import RequestError
from olivine.plan import Rotation, Trace, Value, trace
from olivine.tensor import Tensor
from oracles.isas import ISAS, error, use

LENGTHS = (6, 1, 9)  # three images or sounds
ROWS = sum(LENGTHS)
Weights = dict[str, np.ndarray]
Op = Callable[[Trace, Value], Value]
Run = Callable[..., np.ndarray]


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def make(kind: type, op: Op, width: int, weights: Weights, **input: float) -> Program:
    """A tower of that op alone."""

    def forward(t: Trace, c: None) -> None:
        y = op(t, t.input(width, **input))
        t.finish(hidden=y if y.rows == "outputs" else t.take_outputs(y))

    plan = trace("op", forward, None, {name: value.shape for name, value in weights.items()})
    assert {weight.name: weight.shape for weight in plan.weights} == {n: v.shape for n, v in weights.items()}
    found = {
        name: (Tensor(name, F32, value.shape, np.ascontiguousarray(value).view(np.uint8).reshape(-1)),)
        for name, value in weights.items()
    }
    options: dict[type, dict[str, Any]] = {
        ReferenceProgram: {"page_size": 4},
        CpuProgram: {"threads": 2, "cache_type": "F32"},
    }
    return kind(plan, found, page_counts=[9] * len(plan.groups), **options.get(kind, {"device": "cpu"}))


def batch_of(x: np.ndarray, coordinates: np.ndarray | None = None, outputs: Any = None) -> Batch:
    """The sequences of `LENGTHS`, over pages in no particular order."""
    positions = np.concatenate([np.arange(n) for n in LENGTHS]).astype(np.int32)
    sequences = np.repeat(np.arange(3), LENGTHS).astype(np.int32)
    return Batch(
        tokens=np.zeros(ROWS, np.int32),
        sequences=sequences,
        positions=positions,
        outputs=np.array(range(ROWS) if outputs is None else outputs, np.int32),
        tables=(),
        embeddings=x,
        coordinates=coordinates,
        last=np.array(LENGTHS, np.int32)[sequences] - np.int32(1),
    )


@pytest.fixture(params=["reference", *ISAS, "cuda"])
def backend(request: pytest.FixtureRequest) -> Iterator[type]:
    """A backend; of the CPU's, one for each instruction set. The CUDA one runs in Triton's interpreter."""
    if request.param == "reference":
        yield ReferenceProgram
    elif request.param == "cuda":
        pytest.importorskip("triton")
        if os.environ["TRITON_INTERPRET"] != "1":
            pytest.skip("this test runs in Triton's interpreter")
        from olivine.backends.cuda import CudaProgram

        yield CudaProgram
    else:
        with use(request.param):
            yield CpuProgram


@pytest.fixture
def run(backend: type) -> Run:
    def of(
        op: Op,
        x: np.ndarray,
        weights: Weights | None = None,
        coordinates: np.ndarray | None = None,
        outputs: Any = None,
        **input: float,
    ) -> np.ndarray:
        program = make(backend, op, x.shape[1], weights or {}, **input)
        result = program.step(batch_of(x, coordinates, outputs))
        assert result.logits.shape == (len(result.hidden), 0)
        return result.hidden

    return of


def close(found: np.ndarray, expected: torch.Tensor | np.ndarray) -> None:
    np.testing.assert_allclose(found, np.asarray(expected), rtol=2e-5, atol=2e-5)


def close_products(found: np.ndarray, expected: torch.Tensor) -> None:
    """Of a GEMM, which is in bfloat16 on CUDA and some instruction sets: the bound that prompt rows have."""
    assert error(found, expected.numpy()) < 0.02


def each_sequence(x: np.ndarray) -> list[torch.Tensor]:
    return list(torch.from_numpy(x).split(LENGTHS))


def test_input(run: Run) -> None:
    x = random(ROWS, 10)
    close(run(lambda t, x: x, x, scale=2.0, shift=-1.0), 2 * (x - 0.5))


@pytest.mark.parametrize("with_bias", [True, False])
def test_layer_norm(run: Run, with_bias: bool) -> None:
    x = random(ROWS, 24) + 3
    weights = {"n.weight": random(8, seed=1)} | ({"n.bias": random(8, seed=2)} if with_bias else {})
    torch_weights = [torch.from_numpy(value) for value in weights.values()]
    expected = functional.layer_norm(torch.from_numpy(x).view(ROWS, 3, 8), (8,), *torch_weights, eps=1e-3)
    close(run(lambda t, x: t.layer_norm(x, "n", 1e-3, size=8), x, weights), expected.reshape(ROWS, 24))


ACTIVATIONS: dict[Any, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(run: Run, name: Any) -> None:
    x = random(ROWS, 30) * 4
    x[0, :4] = [0, -200, 200, -1e-30]
    expected = ACTIVATIONS[name](torch.from_numpy(x))
    close(run(lambda t, x: t.activate(x, name), x), expected)
    found = run(lambda t, x: t.gate(t.columns(x, 0, 15), t.columns(x, 15, 15), name), x)
    close(found, expected[:, :15] * torch.from_numpy(x[:, 15:]))


@pytest.mark.parametrize(("low", "high"), [(-0.5, 0.25), (None, 0.25), (-0.5, None), (-np.inf, np.inf)])
def test_clamp(run: Run, low: float | None, high: float | None) -> None:
    x = random(ROWS, 10)
    weights = {name: np.array([v], np.float32) for name, v in (("l", low), ("h", high)) if v is not None}
    names = [name if value is not None else None for name, value in (("l", low), ("h", high))]
    close(run(lambda t, x: t.clamp(x, *names), x, weights), np.clip(x, low, high))


@pytest.mark.parametrize("alike", [True, False])
def test_linear_ops_with_limits(run: Run, alike: bool) -> None:
    """Limits before and after each, of a value that others read too; with a gate and a bias after it."""
    x = 2 * random(ROWS, 40)
    limits = {"a": (-1.0, 0.5), "b": (-1.0, 0.5) if alike else (-0.25, 1.5), "c": (-2.0, np.inf)}
    weights = {"a.weight": random(33, 40, seed=1), "b.weight": random(33, 40, seed=2)}
    weights |= {
        "c.weight": random(20, 33, seed=3),
        "c.bias": random(20, seed=4),
        "d.weight": random(20, 40, seed=5),
    }
    for name, (low, high) in limits.items():
        weights |= {f"{name}.{end}": np.array([v], np.float32) for end, v in (("low", low), ("high", high))}

    def limited(t: Trace, x: Value, name: str, width: int) -> Value:
        names = f"{name}.low", f"{name}.high"
        return t.clamp(t.linear(t.clamp(x, *names), name, width), *names)

    def op(t: Trace, x: Value) -> Value:
        y = limited(t, t.gate(limited(t, x, "a", 33), limited(t, x, "b", 33), "gelu_tanh"), "c", 20)
        return t.add(y, t.linear(x, "d", 20))

    def expected(value: torch.Tensor, name: str) -> torch.Tensor:
        low, high = limits[name]
        bias = torch.from_numpy(weights["c.bias"]) if name == "c" else None
        weight = torch.from_numpy(weights[f"{name}.weight"])
        return functional.linear(value.clamp(low, high), weight, bias).clamp(low, high)

    given = torch.from_numpy(x)
    gated = functional.gelu(expected(given, "a"), approximate="tanh") * expected(given, "b")
    unlimited = functional.linear(given, torch.from_numpy(weights["d.weight"]))
    close_products(run(op, x, weights), expected(gated, "c") + unlimited)
    # What is below the limit comes out as the limit itself.
    found = run(lambda t, x: limited(t, x, "a", 33), x, {n: w for n, w in weights.items() if n[0] == "a"})
    at_limit = expected(given, "a").numpy() == np.float32(-1.0)
    assert at_limit.mean() > 0.2 and (found[at_limit] == -1.0).mean() > 0.95 and found.min() == -1.0


def test_limits_around_norms_sums_and_activations(run: Run) -> None:
    """Limits that do not have 0 between them, and heads that are no power of two."""
    x = random(ROWS, 40)
    weights = {
        "heads.weight": random(5, seed=1),
        "post.weight": random(40, seed=2),
        "norm.weight": random(40, seed=3),
    }
    limits = {"a": (0.2, 0.9), "b": (0.1, 0.8), "c": (0.15, 0.6), "d": (0.3, 0.5), "e": (0.4, 2.0)}
    for name, (low, high) in limits.items():
        weights |= {f"{name}.low": np.array([low], np.float32), f"{name}.high": np.array([high], np.float32)}

    def clamp(t: Trace, x: Value, name: str) -> Value:
        return t.clamp(x, f"{name}.low", f"{name}.high")

    def op(t: Trace, x: Value) -> Value:
        heads = t.rms_norm(clamp(t, x, "a"), "heads", 1e-3, size=5)
        branch = clamp(t, t.activate(clamp(t, x, "b"), "silu"), "c")
        branch = t.rms_norm(clamp(t, t.scale(branch, factor=2.0), "d"), "post", 1e-3)
        return t.add(clamp(t, t.rms_norm(t.add(x, branch), "norm", 1e-3), "e"), heads)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        weight = torch.from_numpy(weights[f"{name}.weight"])
        groups = x.view(ROWS, -1, len(weight))
        return functional.rms_norm(groups, weight.shape, weight, eps=1e-3).view(ROWS, -1)

    given = torch.from_numpy(x)
    branch = 2 * functional.silu(given.clamp(*limits["b"])).clamp(*limits["c"])
    total = given + norm(branch.clamp(*limits["d"]), "post")
    expected = norm(total, "norm").clamp(*limits["e"]) + norm(given.clamp(*limits["a"]), "heads")
    close(run(op, x, weights), expected)


def test_standardize(run: Run) -> None:
    x, mean, scale = random(ROWS, 10), random(10, seed=1), random(10, seed=2)
    found = run(lambda t, x: t.standardize(x, "mean", "scale"), x, {"mean": mean, "scale": scale})
    close(found, (x - mean) * scale)


def grid() -> np.ndarray:
    at = np.random.default_rng(5).integers(0, 4, (ROWS, 2)).astype(np.int32)
    at[:2] = [[0, 0], [3, 3]]
    return at


def test_position_embed(run: Run) -> None:
    x, table, at = random(ROWS, 10), random(2, 4, 10, seed=1), grid()

    def of(strides: tuple[int, int], start: int) -> np.ndarray:
        def op(t: Trace, x: Value) -> Value:
            return t.position_embed(x, "table", (2, 4, 10), strides=strides, start=start)

        return run(op, x, {"table.weight": table}, at)

    close(of((1, 0), 0), x + table[0, at[:, 0]])
    close(of((0, 1), 4), x + table[1, at[:, 1]])
    at = at % np.array([4, 2], np.int32)
    close(of((1, 4), 0), x + table.reshape(8, 10)[at[:, 1] * 4 + at[:, 0]])


def test_grid_rope(run: Run) -> None:
    """Halves of a head are heads themselves, rotated by a position that is a coordinate."""
    rotation, x, at = Rotation((1.0, 0.3, 0.07)), random(ROWS, 36), grid() * 50
    found = run(lambda t, x: t.grid_rope(x, rotation), x, coordinates=at).reshape(ROWS, 3, 2, 2, 3)
    angles = at.astype(np.float32)[:, :, None] * np.array(rotation.frequencies, np.float32)  # [T, 2, 3]
    halves = x.reshape(ROWS, 3, 2, 2, 3)
    turned = (halves[..., 0, :] + 1j * halves[..., 1, :]) * np.exp(1j * angles)[:, None]
    close(found, np.stack([turned.real, turned.imag], axis=-2))


def test_pool(run: Run) -> None:
    x, outputs = random(ROWS, 10), [3, 0, 13, 7]
    found = run(lambda t, x: t.pool(x, 3), x, outputs=outputs)
    close(found, [x[first : first + 3].mean(0) for first in outputs])
    with pytest.raises(RequestError, match="an output of 3 rows is of two images"):
        run(lambda t, x: t.pool(x, 3), x, outputs=[0, 4])
    with pytest.raises(RequestError, match="an output of 3 rows reaches beyond the batch"):
        run(lambda t, x: t.pool(x, 3), x, outputs=[14])


@pytest.mark.parametrize("last_frames", [1, 2, 3, 4])
def test_conv(run: Run, last_frames: int) -> None:
    """Two convolutions, of four frames a row and then of two, against Conv2d over a whole sound."""
    x = random(ROWS, 4 * 8)
    first, second = random(6, 1, 3, 3, seed=1), random(5, 6, 3, 3, seed=2)
    at = np.zeros((ROWS, 2), np.int32)
    at[:, 0] = 4
    at[np.cumsum(LENGTHS) - 1, 0] = last_frames  # what comes after it is no 0, and must not count

    def op(t: Trace, x: Value) -> Value:
        x = t.activate(t.conv(x, "first", 1, 6, steps=4, frames=4), "sigmoid")  # nothing stays 0
        return t.conv(x, "second", 6, 5, steps=2, frames=4)

    found = run(op, x, {"first.weight": first, "second.weight": second}, at)
    expected = []
    for sound in each_sequence(x):
        frames = sound.reshape(-1, 8)[: 4 * len(sound) - 4 + last_frames]
        y = torch.sigmoid(functional.conv2d(frames[None, None], torch.from_numpy(first), stride=2, padding=1))
        y = functional.conv2d(y, torch.from_numpy(second), stride=2, padding=1)  # [1, 5, T, 2]
        expected.append(y[0].permute(1, 2, 0).reshape(len(sound), -1))
    close_products(found, torch.cat(expected))


def test_depthwise_conv(run: Run) -> None:
    x, kernel = random(ROWS, 12), random(12, 5, seed=1)
    found = run(lambda t, x: t.depthwise_conv(x, "w", 5), x, {"w.weight": kernel})
    expected = [
        functional.conv1d(
            functional.pad(sound.T[None], (4, 0)), torch.from_numpy(kernel)[:, None], groups=12
        )[0].T
        for sound in each_sequence(x)
    ]
    close(found, torch.cat(expected))


def test_relative_attention(run: Run) -> None:
    x, relative, heads, span, cap = random(ROWS, 36) * 3, random(4, 12, seed=1), 3, 4, 5.0

    def op(t: Trace, x: Value) -> Value:
        q, k, v = (t.columns(x, 12 * i, 12) for i in range(3))
        return t.relative_attention(q, k, v, "relative", heads=heads, span=span, cap=cap)

    found = run(op, x, {"relative.weight": relative})
    expected = []
    for sound in each_sequence(x):
        q, k, v = sound.reshape(-1, 3, heads, 4).permute(1, 2, 0, 3)  # [heads, n, 4]
        n = q.shape[1]
        back = torch.arange(n)[:, None] - torch.arange(n)
        seen = (back >= 0) & (back < span)
        keys = torch.from_numpy(relative).view(span, heads, 4)[back.clamp(0, span - 1)]  # [n, n, heads, 4]
        scores = q @ k.mT + torch.einsum("hid,ijhd->hij", q, keys)
        scores = torch.where(seen, cap * torch.tanh(scores / cap), -torch.inf)
        expected.append((scores.softmax(-1) @ v).permute(1, 0, 2).reshape(n, -1))
    close(found, torch.cat(expected))


# ---- bidirectional attention, with one cache for all layers


def layers(t: Trace, x: Value) -> Value:
    cache = t.cache(2, 4)
    for _ in range(2):
        q, k, v = t.columns(x, 0, 16), t.columns(x, 16, 8), t.columns(x, 24, 8)
        t.store(cache, k, v)
        a = t.attention(q, cache, scale=0.5, bidirectional=True)
        x = t.add(x, t.linear(a, "out", 32))
    return x


def with_pages(batch: Batch, program: Program) -> Batch:
    pages = -(-max(LENGTHS) // program.page_size)
    return replace(batch, tables=(np.arange(9)[::-1][: 3 * pages].reshape(3, pages).astype(np.int32),))


def test_images_see_all_of_themselves_and_nothing_of_each_other(backend: type) -> None:
    x, weight = random(ROWS, 32), random(32, 16, seed=1) / 4
    program = make(backend, layers, 32, {"out.weight": weight})
    found = program.step(with_pages(batch_of(x), program)).hidden
    expected = []
    for image in each_sequence(x):
        for _ in range(2):
            q, k, v = (
                image[:, :16].view(-1, 4, 4),
                image[:, 16:24].view(-1, 2, 4),
                image[:, 24:].view(-1, 2, 4),
            )
            k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
            shares = (torch.einsum("ihd,jhd->hij", q, k) * 0.5).softmax(-1)
            a = torch.einsum("hij,jhd->ihd", shares, v).reshape(-1, 16)
            image = image + a @ torch.from_numpy(weight).T
        expected.append(image)
    close_products(found, torch.cat(expected))


def test_a_decoder_writes_a_cache_once() -> None:
    def forward(t: Trace, c: None) -> None:
        layers(t, t.embed("token_embd", 32))

    with pytest.raises(ValueError, match="cache0 is written once a step"):
        trace("op", forward, None, {})
    with pytest.raises(ValueError, match="a decoder has logits, and a tower has none"):
        trace("op", lambda t, c: t.finish(hidden=t.take_outputs(t.embed("e", 4))), None, {})


# ---- what is refused


def test_batches_that_are_refused() -> None:
    x, weights = random(ROWS, 12), {"t.weight": random(16, 12), "w.weight": random(1, 1, 3, 3)}

    def op(t: Trace, x: Value) -> Value:
        x = t.position_embed(x, "t", (16, 12), strides=(1, 4))
        return t.conv(x, "w", 1, 1, steps=2, frames=4)

    program = make(ReferenceProgram, op, 12, weights)
    batch = batch_of(x, grid())
    program.step(batch)

    def refused(match: str, **changes: Any) -> None:
        with pytest.raises(RequestError, match=match):
            program.step(replace(batch, **changes))

    refused("an embedding of 12 columns for each row", embeddings=x[1:])
    refused("an embedding of 12 columns for each row", embeddings=x[:, 1:])
    refused("an embedding of 12 columns for each row", embeddings=None)
    refused("an embedding of 12 columns for each row", embedding_rows=np.arange(ROWS, dtype=np.int32))
    refused("a tower has no generated rows", generated=np.arange(ROWS) == 3)
    for wrong in (None, grid()[1:], grid()[:, :1]):
        refused("position_embed needs two coordinates a row", coordinates=wrong)
    for wrong in ([4, 3], [-1, 1], [0, -1], [1 << 30, 1 << 30], [0, (1 << 31) - 1]):
        at = grid()
        at[5] = wrong
        refused("outside of the 16 positions that t.weight has", coordinates=at)
    at = grid()
    at[4] = [5, 0]
    refused("0 to 4 valid frames", coordinates=at)
    whole = "each of its sequences whole, with its rows in order"
    refused(whole, positions=batch.positions + np.int32(1))
    refused(whole, sequences=np.zeros(ROWS, np.int32))
    swapped = batch.positions.copy()
    swapped[[1, 2]] = swapped[[2, 1]]
    refused(whole, positions=swapped)


def test_last_positions_that_are_refused() -> None:
    x = random(ROWS, 32)
    program = make(ReferenceProgram, layers, 32, {"out.weight": random(32, 16)})
    batch = with_pages(batch_of(x), program)
    assert batch.last is not None

    def refused(match: str, row: int, value: int) -> None:
        last = batch.last.copy()
        last[row] = value
        with pytest.raises(RequestError, match=match):
            program.step(replace(batch, last=last))

    refused("lies before its own", 3, 2)
    refused("sequence 0 attends to positions that come after this batch", 3, 6)
    refused("sequence 1 attends to positions that come after this batch", 6, (1 << 31) - 1)
    with pytest.raises(RequestError, match="one last position a row"):
        program.step(replace(batch, last=batch.last[1:]))
