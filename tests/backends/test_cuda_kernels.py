"""Every kernel of the CUDA backend on the CPU, by Triton's interpreter, against the reference backend.

The interpreter is chosen in conftest.py, and the whole file is skipped where a GPU was chosen instead. Shapes
are small: the interpreter runs a program at a time.
"""

from __future__ import annotations

import math
import os
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("these tests run in Triton's interpreter", allow_module_level=True)

import torch

from olivine.backends import Batch, Draw, Sampling
from olivine.backends.cuda import CudaProgram, tiles
from olivine.backends.cuda.draws import is_adjusted, needs_no_host
from olivine.backends.cuda.kernels import (
    activations,
    attention,
    embed,
    few,
    floats,
    heads,
    launches,
    linear,
    norm,
    prompt_attention,
)
from olivine.backends.cuda.kernels import sampling as kernels
from olivine.backends.cuda.kernels.grouped import Grouped
from olivine.backends.cuda.tiles import few_tiles
from olivine.backends.cuda.weights import Planes, arrange, interleave, planes_of
from olivine.backends.reference import dequantize
from olivine.backends.reference import kernels as plain
from olivine.dtypes import DTYPES, grouped_int8
from olivine.engine import sampling as definition
from olivine.tensor import Tensor
from oracles import published, routing, running
from oracles.attending import in_every_way
from oracles.blocks import random_blocks

CPU = torch.device("cpu")
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL")


def tensor_of(kind: str, n: int, k: int, which: int = 0) -> Tensor:
    rng = np.random.default_rng([zlib.crc32(f"{kind}{n}{k}".encode()), which])
    if kind == "G64":
        codes = rng.integers(-127, 128, (n, k), dtype=np.int8)
        scales = rng.uniform(0.001, 0.02, n * k // 64).astype(np.float32)
        return Tensor("w", grouped_int8(64), (n, k), codes.view(np.uint8).reshape(-1), scales.view(np.uint8))
    raw = np.ascontiguousarray(random_blocks(kind, (n, k), rng, scale=k**-0.5)).view(np.uint8).reshape(-1)
    return Tensor("w", DTYPES[kind], (n, k), raw.copy())


def rows_of(count: int, width: int) -> np.ndarray:
    return np.random.default_rng(count + width).standard_normal((count, width)).astype(np.float32)


def close(ours: torch.Tensor, theirs: np.ndarray, bound: float) -> bool:
    difference = np.linalg.norm(ours.float().numpy() - theirs) / np.linalg.norm(theirs)
    return bool(difference < bound)


def matrix_of(tensor: Tensor, k: int) -> Planes:
    return arrange(planes_of(tensor, k, CPU))


@pytest.mark.parametrize("kind", [*TYPES, "G64"])
def test_products_agree_with_the_reference(kind: str) -> None:
    """Prompt rows; and generated rows alone, a few and many, in one piece and in several splits and steps."""
    tensor = tensor_of(kind, 40, 1536)
    x = rows_of(9, 1536)
    weight = matrix_of(tensor, 1536)
    expected = x @ dequantize(tensor).T
    given = torch.from_numpy(x)
    out = torch.full((9, 40), float("nan"))
    linear.linear(given, weight, out)
    assert close(out, expected, 0.01)
    for summed, rows in ((True, 1), (False, 1), (True, 3), (False, 9)):
        cut = few_tiles(weight, summed)
        parts = torch.full((cut.splits, rows, 40), float("nan"))
        few.few(given[:rows], weight, parts, cut)
        assert close(parts.sum(0), expected[:rows], 0.01)
        assert (cut.splits > 1) == summed


@pytest.mark.parametrize("kind", [*TYPES, "G64"])
def test_products_of_few_columns_are_fetched_whole(kind: str) -> None:
    k = 1280 if kind.endswith("_K") else 1152
    tensor = tensor_of(kind, 24, k)
    x, weight = rows_of(2, k), matrix_of(tensor, k)
    cut = few_tiles(weight, False)
    assert (cut.ahead == cut.steps) == (kind not in ("F32", "Q5_1") and not kind.endswith("_K")), (
        "as registers allow"
    )
    out = torch.full((2, 24), float("nan"))
    few.few(torch.from_numpy(x), weight, out, cut)
    assert close(out, x @ dequantize(tensor).T, 0.01)


@pytest.mark.parametrize(
    ("dtype", "k"),
    [
        (torch.bfloat16, 512),
        (torch.bfloat16, 200),
        (torch.bfloat16, 2048),
        (torch.float16, 384),
        (torch.float32, 136),
    ],
)
def test_a_row_has_the_same_bits_among_many(dtype: torch.dtype, k: int) -> None:
    """Many rows take another kernel, with other tiles; neither fills them, in rows nor in columns.

    Sums over a unit of columns are exact here, so that only the order of the others decides.
    """
    rng = np.random.default_rng(k)
    sizes = np.repeat(2.0 ** rng.integers(0, 15, k // 64 + 1), 64)[:k]
    values = torch.from_numpy(rng.integers(-15, 16, (96, k)) * sizes / 2**10).to(dtype)
    x = torch.from_numpy(rng.integers(-15, 16, (20, k))).bfloat16()
    weight, bias = arrange(Planes(0, 96, k, values)), torch.from_numpy(rows_of(1, 96)[0])
    factors = torch.linspace(0.5, 2, 20)
    for summed in (True, False):
        cut = replace(few_tiles(weight, summed), batch=16, eights=8)
        given: dict[str, Any] = {"bias": bias} if summed else {"activation": 0}
        alone, among = torch.full((2, cut.splits, 20, 96 if summed else 48), float("nan"))
        for at in (slice(0, 8), slice(8, 14), slice(14, 20)):
            few.few(x[at], weight, alone[:, at], cut, factors=factors[at], **given)
        few.few(x, weight, among, cut, factors=factors, **given)
        assert torch.equal(among, alone)  # which are numbers, then
        few.few(x, weight, among.zero_(), replace(cut, eights=32), factors=factors, **given)
        assert torch.equal(among, alone)


def test_rows_that_fill_no_whole_step() -> None:
    tensor = tensor_of("Q8_0", 24, 1152 + 32)
    x = rows_of(2, 1184)
    weight = matrix_of(tensor, 1184)
    out = torch.full((2, 24), float("nan"))
    few.few(torch.from_numpy(x), weight, out, few_tiles(weight, False))
    assert close(out, x @ dequantize(tensor).T, 0.01)


@pytest.mark.parametrize("kind", ["BF16", "Q8_0", "Q4_K"])
def test_gate_and_up_in_one_product(kind: str) -> None:
    gate, up = tensor_of(kind, 28, 256), tensor_of(kind, 28, 256, 1)
    x = rows_of(2, 256)
    planes = arrange(interleave(*(planes_of(tensor, 256, CPU) for tensor in (gate, up))))
    for name, number in activations.ACTIVATIONS.items():
        expected = plain.gate(x @ dequantize(gate).T, x @ dequantize(up).T, name)  # type: ignore[arg-type]
        out = torch.full((2, 28), float("nan"))
        few.few(torch.from_numpy(x), planes, out, few_tiles(planes, False), activation=number)
        assert close(out, expected, 0.02)
        out = torch.full((2, 28), float("nan"))
        linear.linear(torch.from_numpy(x), planes, out, activation=number)
        assert close(out, expected, 0.02)


def test_experts_are_chosen_by_row() -> None:
    pair = [tensor_of("BF16", 3 * 20, 64, which) for which in range(2)]
    x = rows_of(4, 64)
    chosen = torch.tensor([2, 0, 1, 1, 0, 2, 2, 1], dtype=torch.int32)
    gate, up = (
        np.stack([experts[e] @ x[i // 2] for i, e in enumerate(chosen.tolist())])
        for experts in (dequantize(tensor).reshape(3, 20, 64) for tensor in pair)
    )
    planes = arrange(planes_of(pair[0], 64, CPU), 3)
    out = torch.full((8, 20), float("nan"))
    few.few(torch.from_numpy(x), planes, out, few_tiles(planes, False), chosen=chosen, share=2)
    assert close(out, gate, 0.01)
    both = arrange(interleave(*(planes_of(tensor, 64, CPU) for tensor in pair), experts=3), 3)
    few.few(torch.from_numpy(x), both, out, few_tiles(both, False), chosen=chosen, share=2, activation=0)
    assert close(out, plain.gate(gate, up, "silu"), 0.02)


@pytest.mark.parametrize("kind", TYPES)
def test_embedding_rows_are_decoded(kind: str) -> None:
    tensor = tensor_of(kind, 7, 512)
    out = torch.full((3, 512), float("nan"))
    embed.embed(torch.tensor([5, 0, 6], dtype=torch.int32), matrix_of(tensor, 512), out, 2.0)
    bound = 1e-6 if kind != "IQ4_NL" else 0.01  # the last is held in BF16
    assert close(out, dequantize(tensor)[[5, 0, 6]] * 2, bound)


def test_attention_of_a_program_with_several_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are many rows, one program has all splits of a row; none of its bits depends on that."""
    groups, share, d, page = 2, 3, 16, 32
    rng = np.random.default_rng(4)
    positions = [5, 63, 64, 2047, 2300, -1]
    table = torch.from_numpy(rng.permutation(432).astype(np.int32).reshape(6, 72))
    q = torch.from_numpy(rng.standard_normal((6, groups * share * d))).bfloat16()
    keys, values = (torch.from_numpy(rng.standard_normal((432, page, groups, d))).bfloat16() for _ in "kv")
    for window in (None, 100):
        found = []
        for processors in (1, 20, 1 << 20):
            monkeypatch.setattr(attention, "multiprocessors", lambda device, count=processors: count)
            out = torch.full((6, groups * share * d), 7.0)
            attention.attend(
                q, keys, values, out, torch.tensor(positions, dtype=torch.int32),
                torch.arange(6, dtype=torch.int32), table, scale=0.3, window=window, longest=2300,
                scratch=attention.Scratch(CPU),
            )  # fmt: skip
            found.append(out)
        assert torch.equal(found[0], found[2])
        assert torch.equal(found[1], found[2])
        assert (found[0][-1] == 7).all()  # a row that is not there
        for row, at in enumerate(positions[:-1]):
            first = 0 if window is None else max(0, at - window + 1)
            places = [(int(table[row, i // page]), i % page) for i in range(first, at + 1)]
            k, v = (np.stack([c.float().numpy()[p] for p in places]) for c in (keys, values))
            heads = q[row].float().numpy().reshape(groups, share, d)
            scores = np.einsum("gsd,tgd->gst", heads, k) * 0.3
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            expected = np.einsum("gst,tgd->gsd", weights / weights.sum(-1, keepdims=True), v)
            assert close(found[0][row], expected.reshape(-1), 0.01)


@pytest.mark.parametrize(
    "groups, share, d, window", [(2, 2, 16, None), (1, 3, 48, 90), (1, 8, 256, None), (3, 1, 100, None)]
)
def test_attention_alone_and_among_others(groups: int, share: int, d: int, window: int | None) -> None:
    """A row has the same bits, whether the attention turns and stores it by itself or not."""
    positions = [0, 1, 31, 32, 63, 64, 65, 300, 577]
    if d < 100:
        positions += [2047, 2048, 2400]
    alone, *others = in_every_way(groups, share, d, window, positions, CPU)
    assert all(torch.equal(a, b) for other in others for a, b in zip(alone, other, strict=True))
    assert not alone[0].isnan().any()


@pytest.mark.parametrize(
    "d, window, room", [(16, None, 227), (16, 40, 227), (256, 100, 227), (512, None, 227), (512, 50, 99)]
)
def test_attention_of_a_prompt(
    d: int, window: int | None, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sequences, one of them from position 70 on; a tile has one part, two, or four in a smaller GPU."""
    monkeypatch.setattr(prompt_attention, "shared_memory", lambda device: room << 10)
    groups, share, page = 2, 2, 32
    rng = np.random.default_rng(d)
    positions = np.concatenate([np.arange(70, 70 + 150), np.arange(9)])
    sequences = np.concatenate([np.zeros(150, np.int32), np.ones(9, np.int32)])
    table = torch.from_numpy(rng.permutation(20).astype(np.int32).reshape(2, 10))
    q, keys, values = (
        torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).bfloat16()
        for shape in ((159, groups * share * d), (20, page, groups, d), (20, page, groups, d))
    )
    # What no row may see must not matter, whatever it is.
    last = {0: 219, 1: 8}
    for sequence in (0, 1):
        for position in range(last[sequence] + 1, 10 * page):
            at = table[sequence, position // page], position % page
            keys[at] = values[at] = float("nan")
    out = torch.full((159, groups * share * d), float("nan"))
    tiles = torch.from_numpy(prompt_attention.tiles_of(sequences, positions))
    where = [torch.from_numpy(a.astype(np.int32)) for a in (positions, sequences)]
    prompt_attention.attend_prompt(q, keys, values, out, tiles, *where, table, scale=0.3, window=window)
    for row in (0, 1, 63, 64, 127, 128, 149, 150, 158):
        first = 0 if window is None else max(0, positions[row] - window + 1)
        seen = np.arange(first, positions[row] + 1)
        pages = table[sequences[row]].long()[seen // page]
        k, v = (plane[pages, seen % page].float().numpy() for plane in (keys, values))
        query = q[row].float().numpy().reshape(groups, share, d)
        scores = np.einsum("gsd,ngd->gsn", query, k) * 0.3
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        expected = np.einsum("gsn,ngd->gsd", weights / weights.sum(-1, keepdims=True), v)
        assert close(out[row], expected.reshape(-1), 0.01), row


def test_heads_of_many_rows_are_those_of_single_rows() -> None:
    """From 64 rows on a program has eight of them; rows that are over store nothing."""
    d, groups, rows, page = 16, 2, 70, 32
    rng = np.random.default_rng(5)
    x = torch.from_numpy(rng.standard_normal((rows, 8 * d)).astype(np.float32))
    weight = norm.NormWeight(torch.from_numpy(rng.uniform(0.5, 2, d).astype(np.float32)), 1e-6, 0.0)
    turn = heads.Turn(torch.from_numpy((0.1 ** np.arange(d // 2)).astype(np.float32)), 1.0, False)
    chain = heads.Chain(weight, turn)
    positions = torch.arange(rows, dtype=torch.int32)
    positions[-1] = -1
    turns = heads.angles(positions, turn)
    sequences, table = torch.zeros(rows, dtype=torch.int32), torch.tensor([[2, 0, 1]], dtype=torch.int32)

    def stored(step: int) -> tuple[torch.Tensor, ...]:
        out = torch.full((rows, 4 * d), float("nan"))
        alone = torch.full((rows, 8 * d), float("nan"))
        caches = [torch.zeros(3, page, groups, d) for _ in range(2)]
        for start in range(0, rows, step):
            at = slice(start, start + step)
            heads.heads(x[at], alone[at], d, chain, turns[at])
            heads.store(
                x[at, : 4 * d], x[at, 4 * d : 6 * d], x[at, 6 * d :], out[at], *caches, positions[at],
                sequences[at], table, chain, chain, weight, turns[at],
            )  # fmt: skip
        return alone, out, *caches

    together, single = stored(rows), stored(1)
    for ours, theirs in zip(together, single, strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(together[0][:, : 4 * d], together[1])
    assert together[2].abs().sum() > 0 and together[2][1, 5:].abs().sum() == 0


@pytest.mark.parametrize("gated", [False, True])
def test_prompt_rows_and_weight_rows_of_several_blocks(gated: bool) -> None:
    """Nine blocks of the weight and two of rows, none of them whole, nor the last step of columns."""
    n, k, rows = (1060, 72, 130) if gated else (2101, 72, 130)
    x, bias = rows_of(rows, k), rows_of(1, n)[0]
    tensors = [tensor_of("BF16", n, k, which) for which in range(2 if gated else 1)]
    out = torch.full((rows, n), float("nan"))
    if gated:
        weight = arrange(interleave(*(planes_of(tensor, k, CPU) for tensor in tensors)))
        linear.linear(torch.from_numpy(x), weight, out, activation=0)
        expected = plain.gate(*(x @ dequantize(tensor).T for tensor in tensors), "silu")
    else:
        linear.linear(torch.from_numpy(x), matrix_of(tensors[0], k), out, bias=torch.from_numpy(bias))
        expected = x @ dequantize(tensors[0]).T + bias
    assert close(out, expected, 0.02)
    assert close(out[128:], expected[128:], 0.02) and close(out[:, 1024:], expected[:, 1024:], 0.02)


@pytest.mark.parametrize("rows, n, k", [(70, 300, 200), (150, 140, 72)])
def test_prompt_rows_in_every_tile(rows: int, n: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = tensor_of("BF16", n, k)
    x, weight = rows_of(rows, k), matrix_of(tensor, k)
    for tile in tiles.FLOAT_TILES:
        monkeypatch.setattr(floats, "float_tiles", lambda *given, tile=tile: tile)
        out = torch.full((rows, n), float("nan"))
        linear.linear(torch.from_numpy(x), weight, out)
        assert close(out, x @ dequantize(tensor).T, 0.01), tile


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("rows", [30, 40, 140])
def test_prompt_rows_of_blocks_in_every_tile(kind: str, rows: int) -> None:
    tensor = tensor_of(kind, 70, 512)
    out = torch.full((rows, 70), float("nan"))
    linear.linear(torch.from_numpy(rows_of(rows, 512)), matrix_of(tensor, 512), out)
    assert close(out, rows_of(rows, 512) @ dequantize(tensor).T, 0.01)


def test_short_prompts_have_smaller_tiles() -> None:
    def tile(rows: int, n: int) -> tuple[int, int]:
        cut = tiles.float_tiles(Planes(0, n, 64, torch.zeros(1, 1, dtype=torch.bfloat16)), rows)
        return cut.block_m, cut.block_n

    assert [tile(rows, 2560) for rows in (16, 128, 512, 4096)] == [(64, 32), (64, 64), (128, 128), (128, 256)]
    assert tile(1, 262144) == (128, 256)
    few_bits = Planes(4, 70, 512, torch.zeros(1, 1, dtype=torch.uint8))
    assert [tiles.block_tiles(few_bits, False, rows).block_m for rows in (32, 33, 129)] == [32, 64, 128]
    assert [tiles.block_tiles(few_bits, True, rows).block_m for rows in (32, 33, 129)] == [32, 128, 128]


def test_dependent_launches_are_for_gpus_that_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not launches._on()  # in the interpreter
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, wanted in (((8, 0), False), ((8, 9), False), ((9, 0), True), ((12, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda c=capability: c)
        assert launches._on() is wanted


def test_every_head_size_gives_a_power_of_two_of_warps() -> None:
    """The interpreter takes any number of them; compilers do not."""
    for size in range(2, 513, 2):
        for rows in (1, 63, 64, 4096):
            warps = heads._together(rows, size)["num_warps"]
            assert warps & (warps - 1) == 0 and 1 <= warps <= 32


def test_prompt_rows_of_a_mixture_go_to_their_experts() -> None:
    """By floats and by blocks, with columns that fill no whole step and experts that nobody chose."""
    for kind, k in (("BF16", 200), ("F32", 72), ("Q8_0", 96)):
        tensor = tensor_of(kind, 3 * 24, k)
        each = dequantize(tensor).reshape(3, 24, k)
        x = rows_of(75, k)
        chosen = np.array([0, 2] * 75, np.int32)
        grouped = Grouped(torch.from_numpy(chosen), 3, 2)
        out = torch.full((150, 24), float("nan"))
        linear.linear(torch.from_numpy(x), arrange(planes_of(tensor, k, CPU), 3), out, grouped=grouped)
        expected = np.stack([each[c] @ x[i // 2] for i, c in enumerate(chosen)])
        assert close(out, expected, 0.01), kind
        pair = [tensor_of(kind, 3 * 27, k, which) for which in range(2)]  # eight do not go into 27 rows
        both = arrange(interleave(*(planes_of(tensor, k, CPU) for tensor in pair), experts=3), 3)
        out = torch.full((150, 27), float("nan"))
        linear.linear(torch.from_numpy(x), both, out, activation=0, grouped=grouped)
        gate, up = (dequantize(tensor).reshape(3, 27, k) for tensor in pair)
        expected = np.stack(
            [plain.gate(gate[c] @ x[i // 2], up[c] @ x[i // 2], "silu") for i, c in enumerate(chosen)]
        )
        assert close(out, expected, 0.02), kind


def test_residual_sum_and_norms() -> None:
    terms, stream = rows_of(6, 50).reshape(2, 3, 50), rows_of(3, 50)
    weights = rows_of(2, 50)
    total, out = torch.empty((3, 50)), torch.empty((3, 50))
    post, after = (norm.NormWeight(torch.from_numpy(w), 1e-6, 1.0) for w in weights)
    norm.join(
        torch.from_numpy(terms), stream=torch.from_numpy(stream), total=total, post=post, norm=after, out=out
    )
    expected = stream + plain.rms_norm(terms.sum(0), weights[0], 50, 1e-6, 1.0)
    np.testing.assert_allclose(total.numpy(), expected, rtol=1e-5, atol=1e-5)
    expected = plain.rms_norm(expected, weights[1], 50, 1e-6, 1.0)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_a_norm_may_leave_its_factor_to_the_product() -> None:
    x, weights = rows_of(3, 64) * 5, rows_of(1, 64)
    tensor = tensor_of("BF16", 24, 64)
    planes = matrix_of(tensor, 64)
    rows, factors, out = torch.empty((3, 64)), torch.empty(3), torch.empty((3, 24))
    norm.join(
        torch.from_numpy(x), norm=norm.NormWeight(torch.from_numpy(weights[0]), 1e-6, 1.0), out=rows,
        factors=factors,
    )  # fmt: skip
    few.few(rows, planes, out, few_tiles(planes, False), factors=factors)
    assert close(out, plain.rms_norm(x, weights[0], 64, 1e-6, 1.0) @ dequantize(tensor).T, 0.01)


def test_gate_and_softcap_alone() -> None:
    a, b = rows_of(2, 70), rows_of(2, 71)[:, :70].copy()
    out = torch.empty((2, 70))
    activations.gate(torch.from_numpy(a), torch.from_numpy(b), out, "gelu_tanh")
    assert close(out, plain.gate(a, b, "gelu_tanh"), 1e-5)
    activations.softcap(torch.from_numpy(a), out, 2.0)
    assert close(out, plain.softcap(a, 2.0), 1e-5)


HOWS = (
    Sampling(),
    Sampling(temperature=1.0, seed=5),
    Sampling(temperature=0.7, top_k=4, top_p=0.95, seed=6),
    Sampling(temperature=1.0, top_p=0.9, seed=9),
    Sampling(temperature=1.0, min_p=0.05, seed=(1 << 63) + 7),
    Sampling(temperature=1.0, top_k=1, seed=11),
    Sampling(temperature=1.3, top_k=300, top_p=0.8, seed=12),
)


def test_draws_are_those_of_the_definition() -> None:
    size, rows = 700, len(HOWS)
    logits = rows_of(rows, size) * 3
    logits[2] = np.round(logits[2])  # ties
    logits[4, :300] = -np.inf
    how = kernels.Choices.empty(rows, CPU)
    how.temperature.copy_(torch.tensor([s.temperature for s in HOWS]))
    how.top_k.copy_(torch.tensor([s.top_k for s in HOWS]))
    how.top_p.copy_(torch.tensor([s.top_p for s in HOWS], dtype=torch.float64))
    how.log_min_p.copy_(torch.tensor([math.log(s.min_p) if s.min_p else -math.inf for s in HOWS]))
    how.seed.copy_(
        torch.from_numpy(np.array([s.seed for s in HOWS], np.uint64).view(np.int32).reshape(-1, 2).copy())
    )
    space = kernels.Workspace(rows, size, CPU)
    for position in (0, 77):
        tokens, ends = torch.zeros(rows, dtype=torch.int32), torch.zeros(rows, dtype=torch.int32)
        at = torch.full((rows,), position, dtype=torch.int32)
        kernels.choose(torch.from_numpy(logits), how, at, tokens, ends, space)
        expected = [definition.sample(logits[i], s, position + 1) for i, s in enumerate(HOWS)]
        assert tokens.tolist() == expected
        assert not ends.any()


def test_broken_and_empty_logits_end_their_row_alone() -> None:
    logits = rows_of(3, 600)
    logits[0, 5] = np.nan
    logits[1] = -np.inf
    tokens, ends = torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    space, how = kernels.Workspace(3, 600, CPU), kernels.Choices.empty(3, CPU)
    kernels.choose(torch.from_numpy(logits), how, torch.zeros(3, dtype=torch.int32), tokens, ends, space)
    assert ends.tolist() == [kernels.BROKEN, kernels.NOTHING, kernels.OPEN]
    assert int(tokens[2]) == int(logits[2].argmax())


TOKENS = [int(t) for t in np.random.default_rng(7).integers(0, published.VOCABULARY, 40)]


# Few layers, because the interpreter is slow: Gemma 4's are one that writes and one that reads, of each kind.
LAYERS = {
    "gemma3-mqa-small-window": {"num_hidden_layers": 2},
    "llama-biases": {"num_hidden_layers": 2},
    "qwen3moe-normalized": {"num_hidden_layers": 2},
    "gemma4-everything": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    },
}


@pytest.mark.parametrize("name", LAYERS)
def test_logits_agree_with_the_reference_backend(name: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A whole model: prompt rows, then generated rows, then a chain. The bound, 4 %, is that of bfloat16.

    It holds for rows that take the reference's experts, and two logits within it choose other ones up to 8 %.
    """
    case = published.case(name)
    small = replace(case, options={**case.options, **LAYERS[name]})
    published.save(small.make(), tmp_path)
    model = running.build(tmp_path)
    counts = [4] * len(model.plan.groups)
    reference = routing.Recording(model.plan, model.weights, page_counts=counts, page_size=32)
    ours = CudaProgram(model.plan, model.weights, page_counts=counts, device="cpu")
    theirs = running.chunked(reference, TOKENS[:10], [10])
    session = running.Session(ours, 1, 64)
    with routing.same_experts(ours, reference) as gaps:
        for part, generated in ((slice(0, 9), False), (slice(9, 10), True)):
            mine = session.step([(0, TOKENS[part])], generated=generated)[0]
            rows = np.sqrt(np.mean(np.square(mine - theirs[part]), axis=1)) / theirs[part].std()
            assert np.quantile(rows, 0.9) < 0.04
    assert max(gaps, default=0) < 0.08
    start = Batch(
        np.array(TOKENS[10:11], np.int32), np.zeros(1, np.int32), np.array([10], np.int32),
        np.zeros(1, np.int32), session.tables, np.ones(1, bool),
    )  # fmt: skip
    chained = ours.generate(start, [Draw(Sampling(temperature=0.8, top_k=9, seed=3))], 2)[0].tokens
    again: list[int] = []
    token = TOKENS[10]
    for step in range(2):
        batch = replace(start, tokens=np.array([token], np.int32), positions=np.array([10 + step], np.int32))
        token = definition.sample(
            ours.step(batch).logits[0], Sampling(temperature=0.8, top_k=9, seed=3), 11 + step
        )
        again.append(token)
    assert chained == again


def test_penalties_bias_and_mask_in_a_chain(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Chains that adjust logits draw what the definition draws, step by step, and without the host."""
    case = published.case("llama-biases")
    published.save(replace(case, options={**case.options, "num_hidden_layers": 1}).make(), tmp_path)
    model = running.build(tmp_path)
    program = CudaProgram(model.plan, model.weights, page_counts=[16], device="cpu")
    size = model.plan.logits.width
    mask = np.zeros(-(-size // 32), np.int32)
    mask[1] = 0x0000FF00
    draws = [
        Draw(
            Sampling(repetition_penalty=1.7, frequency_penalty=0.3, presence_penalty=0.2), prompt=TOKENS[:3]
        ),
        Draw(Sampling(repetition_penalty=3.0, repeat_last_n=2, logit_bias={5: 2.5}), prompt=TOKENS[:3]),
        Draw(Sampling(temperature=0.9, top_k=9, seed=2), prompt=TOKENS[:3], mask=lambda: mask),
        Draw(Sampling(), prompt=TOKENS[:3], mask=lambda: mask[:1]),
        Draw(Sampling(), prompt=TOKENS[:3], stop=tuple(range(0, 96, 3)), at_least=2),
        Draw(Sampling(), prompt=TOKENS[:3], stop=tuple(range(30)), at_least=2),
    ]
    session = running.Session(program, len(draws), 64)
    batch = session.batch([(i, TOKENS[:3], False) for i in range(len(draws))])
    ends = np.arange(1, len(draws) + 1, dtype=np.int32) * 3 - 1
    assert all(needs_no_host(draw) and is_adjusted(draw) for draw in draws)
    found = program.generate(replace(batch, outputs=ends), draws, 5)
    assert found[3].tokens == [] and "does not reach" in (found[3].error or "")
    for i, draw in enumerate(draws):
        if i == 3:
            continue
        alone = running.Session(program, 1, 64)
        logits = alone.step([(0, TOKENS[:3])])[0][-1]
        output: list[int] = []
        stopped = False
        for step in range(5):
            illegal = draw.stop if step < draw.at_least else ()
            x = definition.adjust(
                logits, draw.sampling, TOKENS[:3], output, mask if draw.mask and step == 0 else None, illegal
            )
            token = definition.choose(x, draw.sampling, 3 + step)
            if token in draw.stop:
                stopped = True
                break
            output.append(token)
            logits = alone.step([(0, [token])], generated=True)[0][0]
        assert (found[i].tokens, found[i].stopped) == (output, stopped), i
    assert found[2].tokens[0] in range(40, 48)


def test_draws_that_need_the_host(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Log-probabilities, forced tokens, more stop tokens than a chain holds, and refusals, as defined."""
    case = published.case("llama-tied")
    published.save(replace(case, options={**case.options, "num_hidden_layers": 1}).make(), tmp_path)
    model = running.build(tmp_path)
    program = CudaProgram(model.plan, model.weights, page_counts=[16], device="cpu")
    penal = Sampling(
        temperature=0.8, seed=4, repetition_penalty=1.4, presence_penalty=0.3, logit_bias={7: 3.0}
    )
    draws = [
        Draw(Sampling(), logprobs=3),
        Draw(penal, prompt=TOKENS[:3], logprobs=0),
        Draw(Sampling(), forced=11, logprobs=2),
        Draw(Sampling(), logprobs=2, mask=lambda: np.full(99, 0x0F0F, np.int32)),
        Draw(Sampling(), stop=tuple(range(0, 120, 3)), at_least=1),
        Draw(Sampling(logit_bias={10**6: 1.0})),
    ]
    session = running.Session(program, len(draws), 64)
    batch = session.batch([(i, TOKENS[:3], False) for i in range(len(draws))])
    logits = program.step(batch).logits[2::3]
    ends = np.arange(1, len(draws) + 1, dtype=np.int32) * 3 - 1
    found = program.generate(replace(batch, outputs=ends), draws)
    for drawn, draw, row in zip(found[:5], draws, logits, strict=False):
        expected = definition.draw(row, draw, 3)
        assert (drawn.tokens, drawn.stopped, drawn.error) == (expected.tokens, expected.stopped, None)
        for ours, theirs in zip(drawn.logprobs, expected.logprobs, strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-6)
            assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]
    assert found[5].error is not None and "logit_bias names token 1000000" in found[5].error
