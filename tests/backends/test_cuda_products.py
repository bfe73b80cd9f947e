"""Products and lookups of the CUDA backend in Triton's interpreter, for every kind of weight, against the
reference backend."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("these tests run in Triton's interpreter", allow_module_level=True)

import torch

from olivine.backends.cuda import slabs, tiles
from olivine.backends.cuda.formats import LAYOUTS, Format
from olivine.backends.cuda.kernels import (
    activations,
    embed,
    gemm,
    gemm_float,
    gemv,
    gemv_alone,
    gemv_pair,
    tall_gemv,
)
from olivine.backends.cuda.kernels.expert_blocks import expert_blocks
from olivine.backends.cuda.kernels.gemv import GemvExperts
from olivine.backends.cuda.tiles import gemv_tiles
from olivine.backends.cuda.weights import Planes, interleave, planes_of, repack
from olivine.backends.reference import dequantize
from olivine.backends.reference import kernels as plain
from oracles.matrices import CPU, close, matrix_of, rows_of, tensor_of

FLOATS = ("F32", "F16", "BF16")
SIMPLE = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4")
SUPER = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")  # blocks of 256
TYPES = (*FLOATS, *SIMPLE, *SUPER, "IQ3_S")  # the last is held in BF16


# A float type, and one of each layout of blocks.
EVERY_DAY = ("BF16", "Q8_0", "Q4_K", "Q6_K", "Q5_0", "G64", "Q2_K", "Q3_K", "IQ4_XS", "MXFP4")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in EVERY_DAY else pytest.mark.exhaustive)
        for kind in (*TYPES, "G64")
    ],
)
def test_products_agree_with_the_reference(kind: str) -> None:
    """Prefill rows; decode rows: one with split-K, few and many without, in prefetched and later steps."""
    tensor = tensor_of(kind, 24, 1536)
    x = rows_of(9, 1536)
    weight = matrix_of(tensor, 1536)
    expected = x @ dequantize(tensor).T
    given = torch.from_numpy(x)
    out = torch.full((9, 24), float("nan"))
    gemm.gemm(given, weight, out)
    assert close(out, expected, 0.01)
    for split_k, rows in ((True, 1), (False, 3), (False, 9)):
        cut = replace(gemv_tiles(weight, split_k), eight_row_limit=8)
        parts = torch.full((cut.splits, rows, 24), float("nan"))
        gemv.gemv(given[:rows], weight, parts, cut)
        assert close(parts.sum(0), expected[:rows], 0.01)
        assert (cut.splits > 1) == split_k
        assert split_k or cut.prefetch < cut.steps


def test_columns_are_loaded_in_few_rounds() -> None:
    """Prefetched, and then at once: 2816 columns of Q4_K are 11 steps, of which no more than 4 are, or 6 of
    ten where there are many programs."""

    def rounds(n: int, k: int, format: Format, split_k: bool) -> tuple[int, int, int, int]:
        cut = gemv_tiles(Planes(format, n, k, torch.zeros(1, 1, dtype=torch.float32)), split_k)
        return cut.splits, cut.steps // cut.splits, cut.prefetch, cut.unroll

    assert rounds(4096, 2816, Format.Q4_K, False) == (1, 11, 3, 4)
    assert rounds(4096, 2560, Format.Q4_K, False) == (1, 10, 4, 3)
    assert rounds(20480, 2560, Format.Q4_K, False) == (1, 10, 4, 6)
    assert rounds(13824, 1152, Format.Q5_0, False) == (1, 9, 3, 3)
    assert rounds(12288, 1536, Format.Q4_K, False) == (1, 6, 3, 3)
    assert rounds(128, 2816, Format.FLOAT, True) == (11, 2, 1, 1)  # a router's few rows


@pytest.mark.parametrize("kind", [*TYPES, "G64"])
def test_products_of_few_columns_are_prefetched_whole(kind: str) -> None:
    k = 1280 if kind in (*SUPER, "IQ3_S") else 1152
    tensor = tensor_of(kind, 16, k)
    x, weight = rows_of(2, k), matrix_of(tensor, k)
    cut = gemv_tiles(weight, False)
    assert (cut.prefetch == cut.steps) == (kind not in ("F32", "Q5_1", *SUPER)), "as registers allow"
    out = torch.full((2, 16), float("nan"))
    gemv.gemv(torch.from_numpy(x), weight, out, cut)
    assert close(out, x @ dequantize(tensor).T, 0.01)


@pytest.mark.parametrize(
    ("dtype", "n", "k", "split_k"),
    [
        (torch.bfloat16, 80, 512, True),
        (torch.bfloat16, 32, 200, False),
        (torch.bfloat16, 16, 2048, False),
        (torch.float16, 32, 384, False),
        (torch.float32, 32, 136, True),
    ],
)
def test_a_row_has_the_same_bits_among_many(dtype: torch.dtype, n: int, k: int, split_k: bool) -> None:
    """Many rows take another kernel, with other tiles; neither fills them, in rows nor in columns.

    Sums over a unit of columns are exact here, so that only the order of the others decides.
    """
    rng = np.random.default_rng(k)
    sizes = np.repeat(2.0 ** rng.integers(0, 15, k // 64 + 1), 64)[:k]
    values = torch.from_numpy(rng.integers(-15, 16, (n, k)) * sizes / 2**10).to(dtype)
    x = torch.from_numpy(rng.integers(-15, 16, (20, k))).bfloat16()
    weight, bias = repack(Planes(Format.FLOAT, n, k, values)), torch.from_numpy(rows_of(1, n)[0])
    inv_rms = torch.linspace(0.5, 2, 20)
    cut = replace(gemv_tiles(weight, split_k), max_rows=16, eight_row_limit=8)
    given: dict[str, Any] = {"bias": bias} if split_k else {"activation": 0}
    alone, among = torch.full((2, cut.splits, 20, n if split_k else n // 2), float("nan"))
    for at in (slice(0, 6), slice(6, 12), slice(12, 20)):
        gemv.gemv(x[at], weight, alone[:, at], cut, inv_rms=inv_rms[at], **given)
    gemv.gemv(x, weight, among, cut, inv_rms=inv_rms, **given)
    assert torch.equal(among, alone)  # which are numbers, then
    gemv.gemv(x, weight, among.zero_(), replace(cut, eight_row_limit=32), inv_rms=inv_rms, **given)
    assert torch.equal(among, alone)


@pytest.mark.parametrize(
    ("kind", "gated"),
    [
        pytest.param(kind, gated, marks=() if kind in often else pytest.mark.exhaustive)
        for gated, often in ((False, EVERY_DAY), (True, ("Q8_0", "Q4_K", "Q6_K")))
        for kind in (*SIMPLE, *SUPER, "G64", "F16")
    ],
)
def test_a_row_of_blocks_has_the_same_bits_among_many(
    kind: str, gated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several tiles of the weight and many rows, which fill neither the last program nor, of some kinds, the
    last step. Sums over a group of columns are exact here, so that only the order of the others decides."""
    n, k = 48, 768 if kind in SUPER else 960 if gated else 512
    tensor = tensor_of(kind, n, k)
    weight, bias = matrix_of(tensor, k), torch.from_numpy(rows_of(1, n)[0])
    x = torch.from_numpy(np.random.default_rng(k).integers(-15, 16, (20, k))).bfloat16()
    inv_rms = torch.linspace(0.5, 2, 20)
    cut = replace(gemv_tiles(weight, not gated), eight_row_limit=8)
    given: dict[str, Any] = {"activation": 0} if gated else {"bias": bias}
    alone, among = torch.full((2, cut.splits, 20, n // 2 if gated else n), float("nan"))
    for at in (slice(0, 6), slice(6, 12), slice(12, 20)):
        gemv.gemv(x[at], weight, alone[:, at], cut, inv_rms=inv_rms[at], **given)
    if not gated:
        expected = x.float().numpy() @ dequantize(tensor).T * inv_rms[:, None].numpy() + bias.numpy()
        assert close(alone.sum(0), expected, 0.01)
    for at in (slice(0, 1), slice(7, 8)):
        one = torch.full((cut.splits, 1, alone.shape[2]), float("nan"))
        gemv.gemv(x[at], weight, one, cut, inv_rms=inv_rms[at], **given)
        assert torch.equal(one, alone[:, at])
    monkeypatch.setattr(gemv, "tiling_is_bit_exact", lambda device: False)
    for batch, tall, at_once in ((16, 4, 1), (32, 2, 2), (16, 2, 3)):
        tile = tiles.TallTiles(batch, tall, 255, at_once)
        monkeypatch.setattr(tall_gemv, "tall_tiles", lambda *given, tile=tile: tile)
        gemv.gemv(x, weight, among.fill_(float("nan")), cut, inv_rms=inv_rms, **given)
        assert torch.equal(among, alone), tile


@pytest.mark.parametrize(
    "kind, k",
    [("Q8_0", 2848), ("Q4_K", 2816), ("Q6_K", 2816), ("Q5_0", 2816), ("Q2_K", 2816), ("Q3_K", 2816)],
)
def test_a_row_alone_has_the_same_bits_in_every_tile(
    kind: str, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row has a kernel of its own, whose last round is not full here, or whose last unit is none; the
    reference is eight rows."""
    n = 24
    weight = matrix_of(tensor_of(kind, n, k), k)
    x = torch.from_numpy(np.random.default_rng(k).integers(-15, 16, (2, k))).bfloat16()
    cut = gemv_tiles(weight, False)
    rounds = (cut.steps - cut.prefetch) // cut.unroll
    assert rounds > 0
    both, one = torch.full((2, n), float("nan")), torch.full((1, n), float("nan"))
    gemv.gemv(x, weight, both, cut)
    ways = [(0, False, 128, 16), (rounds, True, 168, 16), (rounds, False, 168, 16), (rounds, False, 168, 32)]
    for tile in ((*way, linked) for way in ways for linked in (False, True)):
        monkeypatch.setattr(gemv_alone, "alone_tiles", lambda *given, tile=tile: tiles.AloneTiles(*tile))
        gemv.gemv(x[1:], weight, one.fill_(float("nan")), cut)
        assert torch.equal(one, both[1:]), tile


def test_rounds_that_eight_rows_load_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten steps of Q4_K, where there are many programs: all ways to multiply have the same bits."""
    n, k = 24, 2560
    tensor = tensor_of("Q4_K", n, k)
    weight = matrix_of(tensor, k)
    monkeypatch.setattr(tiles, "MULTIPROCESSORS", 0)
    cut = gemv_tiles(weight, False)
    assert (cut.prefetch, cut.unroll, cut.loaded) == (4, 6, 3)
    x = torch.from_numpy(np.random.default_rng(k).integers(-15, 16, (11, k))).bfloat16()
    one, few, many = (torch.full((11, n), float("nan")) for _ in range(3))
    for i, ahead in ((0, False), (5, True), (10, False)):
        tile = tiles.AloneTiles(1, ahead, 96)
        monkeypatch.setattr(gemv_alone, "alone_tiles", lambda *given, tile=tile: tile)
        gemv.gemv(x[i : i + 1], weight, one[i : i + 1], cut)
    for at in (slice(0, 6), slice(6, 11)):
        gemv.gemv(x[at], weight, few[at], cut)
    tall_gemv.tall_gemv(x, weight, many, cut, tall=tiles.TallTiles(16, 1, 128, 3))
    assert close(few, x.float().numpy() @ dequantize(tensor).T, 0.01)
    assert torch.equal(one[::5], few[::5])
    assert torch.equal(many, few)


@pytest.mark.parametrize("kinds", [("Q4_K", "Q6_K"), ("Q5_0", "Q8_0")])
def test_two_products_in_one_launch_have_the_bits_of_two(kinds: tuple[str, str]) -> None:
    x = torch.from_numpy(rows_of(1, 768)).bfloat16()
    inv_rms, bias = torch.tensor([0.7]), torch.from_numpy(rows_of(1, 40)[0])
    weights = [matrix_of(tensor_of(kind, n, 768), 768) for kind, n in zip(kinds, (40, 24), strict=True)]
    cuts = [gemv_tiles(weight, False) for weight in weights]
    outs, expected = ([torch.full((1, n), float("nan")) for n in (40, 24)] for _ in range(2))
    for weight, cut, out, b in zip(weights, cuts, expected, (bias, None), strict=True):
        gemv.gemv(x, weight, out, cut, inv_rms=inv_rms, bias=b)
    first, second = (
        gemv_pair.RowProduct(x, *each) for each in zip(weights, outs, (bias, None), cuts, strict=True)
    )
    gemv_pair.gemv_pair(first, second, inv_rms=inv_rms)
    assert all(torch.equal(out, other) for out, other in zip(outs, expected, strict=True))


@pytest.mark.parametrize("split_k", [False, True])
@pytest.mark.parametrize(("kinds", "gated"), [(("Q4_K", "Q8_0"), True), (("Q8_0", "Q5_0"), False)])
def test_a_product_beside_experts_has_the_bits_of_its_own_launch(
    kinds: tuple[str, str], gated: bool, split_k: bool
) -> None:
    """The other product has another x, of other columns, and may be divided into splits."""
    pair = [tensor_of(kinds[0], 3 * 20, 768, which) for which in range(2)]
    if gated:
        first = repack(interleave(*(planes_of(tensor, 768, CPU) for tensor in pair), experts=3), 3)
    else:
        first = repack(planes_of(pair[0], 768, CPU), 3)
    second, bias = matrix_of(tensor_of(kinds[1], 40, 512), 512), torch.from_numpy(rows_of(1, 40)[0])
    x, other_x = (torch.from_numpy(rows_of(1, k)).bfloat16() for k in (768, 512))
    cut, other_cut = gemv_tiles(first, False), gemv_tiles(second, split_k)
    chosen = torch.tensor([2, 0, 1, 2, 2], dtype=torch.int32)
    assert (other_cut.splits > 1) == split_k
    outs, expected = (
        (torch.full((5, 20), float("nan")).bfloat16(), torch.full((other_cut.splits, 1, 40), float("nan")))
        for _ in range(2)
    )
    activation = activations.ACTIVATIONS["gelu_tanh"] if gated else None
    gemv.gemv(x, first, expected[0], cut, activation=activation, experts=GemvExperts(chosen, 5))
    gemv.gemv(other_x, second, expected[1], other_cut, bias=bias)
    gemv_pair.gemv_pair(
        gemv_pair.RowProduct(x, first, outs[0], None, cut),
        gemv_pair.RowProduct(other_x, second, outs[1], bias, other_cut),
        activation=activation,
        experts=(chosen, 5),
    )
    assert all(torch.equal(out, other) for out, other in zip(outs, expected, strict=True))


def test_tiles_of_one_row() -> None:
    def tile(format: Format, n: int, k: int, split_k: bool = False) -> tiles.AloneTiles:
        weight = Planes(format, n, k, torch.zeros(1, 1, dtype=torch.uint8))
        cut = gemv_tiles(weight, split_k)
        part = cut.steps // cut.splits
        return tiles.alone_tiles(weight, cut, part, -(-n // tiles.BLOCK_N) * cut.splits)

    def early(format: Format, n: int, k: int, split_k: bool = False) -> bool:
        return tile(format, n, k, split_k).decodes_early

    assert tile(Format.Q4_K, 4096, 2560) == tiles.AloneTiles(2, True, 168, decodes_early=True)
    # Programs of twice the rows, where they fill the device: 352, and not 400; but none of ten or six steps.
    assert tile(Format.Q4_K, 11264, 2816) == tiles.AloneTiles(2, False, 168, 32, True)
    assert tile(Format.Q4_K, 2560, 10240, True) == tiles.AloneTiles(1, False, 168)
    assert tile(Format.Q4_K, 20480, 2560) == tiles.AloneTiles(1, False, 96)
    assert tile(Format.Q4_K, 12288, 1536) == tiles.AloneTiles(1, False, 80)
    assert tile(Format.Q4_K, 1536, 12288, True).registers == 96  # so that 576 fit at once
    assert tile(Format.Q5_0, 13824, 1152) == tiles.AloneTiles(2, False, 72)  # and 864
    assert tile(Format.Q5_0, 1280, 1152) == tiles.AloneTiles(0, False, 168, decodes_early=True)
    assert tile(Format.Q6_K, 151936, 1024) == tiles.AloneTiles(0, False, 168, 32, True)
    assert tile(Format.Q6_K, 17408, 1024) == tiles.AloneTiles(0, False, 168, 16, True)
    assert tile(Format.Q6_K, 262144, 1536) == tiles.AloneTiles(1, True, 128, 16, True)
    assert tile(Format.INT8, 20480, 2560) == tiles.AloneTiles(4, False, 96, 16, True)
    assert tile(Format.INT8, 4096, 2560) == tiles.AloneTiles(4, True, 168, decodes_early=True)
    # 648 programs fit at once; so do 576, but not if each has 16 scales a row; nor 800 and 864.
    assert early(Format.Q4_K, 1152, 6912, True) and early(Format.Q6_K, 1152, 6912, True)
    assert early(Format.Q4_K, 1536, 6144, True) and not early(Format.Q6_K, 1536, 6144, True)
    assert not early(Format.Q4_K, 2560, 10240, True) and not early(Format.Q5_0, 13824, 1152)


def test_rows_of_an_expert_come_in_blocks_that_most_of_them_fill() -> None:
    assert [tiles.decode_block(8 * rows, 128) for rows in (16, 64, 191, 192, 256)] == [8, 8, 8, 16, 16]
    assert [tiles.expert_tiles(rows).tiles for rows in (8, 16)] == [4, 2]


def test_programs_of_many_rows_are_as_tall_as_there_are_enough_of_them() -> None:
    def tile(n: int, rows: int, format: Format = Format.Q4_K) -> tuple[int, int, int, int]:
        weight = Planes(format, n, 2560, torch.zeros(1, 1, dtype=torch.uint8))
        found = tiles.tall_tiles(weight, gemv_tiles(weight, False), rows, 1)
        return found.batch, found.tiles, found.registers, found.at_once

    tall = (32, 2, 255, 2)
    assert [tile(20480, rows) for rows in (9, 32, 64)] == [(16, 4, 255, 1), tall, tall]
    assert [tile(n, 64) for n in (1024, 4096, 8448)] == [(32, 1, 128, 1), tall, tall]
    assert tile(5120, 64) == (32, 2, 168, 1)  # 320 programs run at once
    assert tile(4096, 64, Format.Q3_K) == (32, 2, 255, 1)
    assert [tile(n, 64, Format.Q6_K)[1] for n in (4096, 20480)] == [2, 4]


@pytest.mark.parametrize(("kind", "k"), [("Q8_0", 1184), ("Q3_K", 768), ("Q2_K", 256), ("MXFP4", 160)])
def test_rows_that_fill_no_whole_step(kind: str, k: int) -> None:
    tensor = tensor_of(kind, 24, k)
    x = rows_of(2, k)
    weight = matrix_of(tensor, k)
    out = torch.full((2, 24), float("nan"))
    gemv.gemv(torch.from_numpy(x), weight, out, gemv_tiles(weight, False))
    assert close(out, x @ dequantize(tensor).T, 0.01)


@pytest.mark.parametrize("kind", ["BF16", "Q8_0", "Q4_K"])
def test_gate_and_up_in_one_product(kind: str) -> None:
    gate, up = tensor_of(kind, 28, 256), tensor_of(kind, 28, 256, 1)
    x = rows_of(2, 256)
    planes = repack(interleave(*(planes_of(tensor, 256, CPU) for tensor in (gate, up))))
    for name, number in activations.ACTIVATIONS.items():
        expected = plain.gate(x @ dequantize(gate).T, x @ dequantize(up).T, name)  # type: ignore[arg-type]
        out = torch.full((2, 28), float("nan"))
        gemv.gemv(torch.from_numpy(x), planes, out, gemv_tiles(planes, False), activation=number)
        assert close(out, expected, 0.02)
        out = torch.full((2, 28), float("nan"))
        gemm.gemm(torch.from_numpy(x), planes, out, activation=number)
        assert close(out, expected, 0.02)


@pytest.mark.parametrize("kind", ["BF16", "Q8_0", "Q4_K"])
def test_a_gate_in_the_epilogue_of_its_product(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the product and the gate one after another, in every kernel: of many rows, of eight, and of one."""
    tensor = tensor_of(kind, 24, 256)
    weight, x, bias = matrix_of(tensor, 256), rows_of(9, 256), rows_of(1, 24)[0]
    up = torch.from_numpy(rows_of(9, 104))[:, 32:56]  # columns of something wider
    cut = replace(gemv_tiles(weight, False), max_rows=16, eight_row_limit=8)
    given: dict[str, Any] = {"bias": torch.from_numpy(bias)}
    ways = ((9, True), (9, False), (5, True), (1, True))
    for (name, number), (rows, exact) in zip(activations.ACTIVATIONS.items(), ways, strict=True):
        monkeypatch.setattr(gemv, "tiling_is_bit_exact", lambda device, exact=exact: exact)
        given["inv_rms"] = inv_rms = torch.linspace(0.5, 2, rows)
        y, apart, out = torch.full((3, rows, 24), float("nan"))
        gemv.gemv(torch.from_numpy(x[:rows]), weight, y, cut, **given)
        activations.gate(y, up[:rows], apart, name)
        gemv.gemv(torch.from_numpy(x[:rows]), weight, out, cut, activation=number, up=up[:rows], **given)
        gate = x[:rows] @ dequantize(tensor).T * inv_rms[:, None].numpy() + bias
        assert close(out, plain.gate(gate, up[:rows].numpy(), name), 0.02)  # type: ignore[arg-type]
        assert torch.equal(out, apart), (name, rows, exact)


@pytest.mark.parametrize("kind", ["BF16", "Q8_0"])
@pytest.mark.parametrize("block", [None, 8, 16])
def test_experts_are_chosen_by_row(block: int | None, kind: str) -> None:
    """One by one, and in blocks of rows of an expert."""
    pair = [tensor_of(kind, 3 * 20, 64, which) for which in range(2)]
    x = rows_of(11, 64)
    chosen = torch.tensor([2, 0, 0, 2, *[2] * 18], dtype=torch.int32)  # 20 rows of one, and none of another
    gate, up = (
        np.stack([experts[e] @ x[i // 2] for i, e in enumerate(chosen.tolist())])
        for experts in (dequantize(tensor).reshape(3, 20, 64) for tensor in pair)
    )
    experts = GemvExperts(chosen, 2) if block is None else expert_blocks(chosen, 3, block, 2)
    planes = repack(planes_of(pair[0], 64, CPU), 3)
    out = torch.full((22, 20), float("nan"))
    given = torch.from_numpy(x)
    gemv.gemv(given, planes, out, gemv_tiles(planes, False), experts=experts)
    assert close(out, gate, 0.01)
    both = repack(interleave(*(planes_of(tensor, 64, CPU) for tensor in pair), experts=3), 3)
    scale = torch.linspace(0.5, 2, 22)
    gemv.gemv(given, both, out, gemv_tiles(both, False), inv_rms=scale, experts=experts, activation=0)
    scaled = (gate * scale[:, None].numpy(), up * scale[:, None].numpy())
    assert close(out, plain.gate(*scaled, "silu"), 0.02)


@pytest.mark.parametrize("kind", TYPES)
def test_embedding_rows_are_decoded(kind: str) -> None:
    tensor = tensor_of(kind, 7, 512)
    out = torch.full((3, 512), float("nan"))
    embed.embed(torch.tensor([5, 0, 6], dtype=torch.int32), matrix_of(tensor, 512), out, 2.0)
    bound = 1e-6 if kind != "IQ3_S" else 0.01  # the last is held in BF16
    assert close(out, dequantize(tensor)[[5, 0, 6]] * 2, bound)


@pytest.mark.parametrize("gated", [False, True])
def test_prompt_rows_and_weight_rows_of_several_blocks(gated: bool) -> None:
    """Nine blocks of the weight and two of rows, none of them whole, nor the last step of columns."""
    n, k, rows = (1060, 72, 130) if gated else (2101, 72, 130)
    x, bias = rows_of(rows, k), rows_of(1, n)[0]
    tensors = [tensor_of("BF16", n, k, which) for which in range(2 if gated else 1)]
    out = torch.full((rows, n), float("nan"))
    if gated:
        weight = repack(interleave(*(planes_of(tensor, k, CPU) for tensor in tensors)))
        gemm.gemm(torch.from_numpy(x), weight, out, activation=0)
        expected = plain.gate(*(x @ dequantize(tensor).T for tensor in tensors), "silu")
    else:
        gemm.gemm(torch.from_numpy(x), matrix_of(tensors[0], k), out, bias=torch.from_numpy(bias))
        expected = x @ dequantize(tensors[0]).T + bias
    assert close(out, expected, 0.02)
    assert close(out[128:], expected[128:], 0.02) and close(out[:, 1024:], expected[:, 1024:], 0.02)


@pytest.mark.parametrize("rows, n, k", [(70, 300, 200), (150, 140, 72)])
def test_prompt_rows_in_every_tile(rows: int, n: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = tensor_of("BF16", n, k)
    x, weight = rows_of(rows, k), matrix_of(tensor, k)
    for tile in tiles.GEMM_FLOAT_TILES:
        monkeypatch.setattr(gemm_float, "gemm_float_tiles", lambda *given, tile=tile: tile)
        out = torch.full((rows, n), float("nan"))
        gemm.gemm(torch.from_numpy(x), weight, out)
        assert close(out, x @ dequantize(tensor).T, 0.01), tile


@pytest.mark.parametrize(
    "kind",
    [
        "Q8_0",
        "Q4_K",
        "Q6_K",
        "Q5_0",
        *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in ("Q2_K", "Q3_K", "IQ4_XS", "MXFP4")),
    ],
)
@pytest.mark.parametrize("rows", [30, pytest.param(40, marks=pytest.mark.exhaustive), 140])
def test_prompt_rows_of_blocks_in_every_tile(kind: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded in registers, and expanded in slabs."""
    tensor, weight = tensor_of(kind, 70, 512), matrix_of(tensor_of(kind, 70, 512), 512)
    x, bias = rows_of(rows, 512), rows_of(1, 72)[0, :70]
    monkeypatch.setattr(slabs, "SLAB_BYTES", 32 * 2 * 512)
    for multiprocessors in (1, 132):
        monkeypatch.setattr(tiles, "multiprocessors", lambda device, n=multiprocessors: n)
        cut = tiles.gemm_quantized_tiles(weight, False, rows)
        assert (cut is None) == (rows > 128 or multiprocessors > 1)
        out = torch.full((rows, 70), float("nan"))
        gemm.gemm(torch.from_numpy(x), weight, out, bias=torch.from_numpy(bias))
        assert close(out, x @ dequantize(tensor).T + bias, 0.01)


def test_short_prompts_have_smaller_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that changes no bit."""

    def tile(rows: int, n: int) -> tuple[int, int]:
        cut = tiles.gemm_float_tiles(
            Planes(Format.FLOAT, n, 64, torch.zeros(1, 1, dtype=torch.bfloat16)), rows
        )
        return cut.block_m, cut.block_n

    assert [tile(rows, 2560) for rows in (16, 128, 512, 4096)] == [(64, 32), (64, 64), (128, 128), (128, 256)]
    assert tile(1, 262144) == (128, 256)
    few_bits = Planes(Format.Q4_K, 70, 512, torch.zeros(1, 1, dtype=torch.uint8))
    assert tiles.gemm_quantized_tiles(few_bits, False, 16) is None, "too few tiles: it is expanded"
    few_bits = replace(few_bits, n=20480)

    def block(rows: int, gated: bool) -> int | None:
        cut = tiles.gemm_quantized_tiles(few_bits, gated, rows)
        return None if cut is None else cut.block_m

    assert [block(rows, False) for rows in (32, 33, 129)] == [32, 64, None]
    assert [block(rows, True) for rows in (32, 33, 129)] == [32, 128, None]
    monkeypatch.setattr(tiles, "tiling_is_bit_exact", lambda device: False)
    assert tile(16, 2560) == tile(4096, 2560)
    assert block(16, False) is None


@pytest.mark.parametrize(("size", "expanded"), [(16, False), (64, True)])
def test_prompt_rows_of_a_mixture_go_to_their_experts(
    size: int, expanded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By floats, and by blocks that are decoded in registers or expanded, some experts at a time; with
    columns that fill no whole step and experts that nobody chose."""
    monkeypatch.setattr(gemm, "EXPERT_SLAB_BYTES", 2 * 24 * 96 * 2)
    for each in (Format.INT8, Format.Q5_0):
        layout = replace(LAYOUTS[each], expert_rows=50 if expanded else 51)
        monkeypatch.setitem(LAYOUTS, each, layout)
    for kind, k in (("BF16", 200), ("F32", 72), ("Q8_0", 96), ("Q5_0", 96)):
        if size < 64 and kind in ("BF16", "F32"):
            continue
        tensor = tensor_of(kind, 3 * 24, k)
        each = dequantize(tensor).reshape(3, 24, k)
        x = rows_of(75, k)
        chosen = np.array([0, 2] * 75, np.int32)
        blocks = expert_blocks(torch.from_numpy(chosen), 3, size, 2)
        out = torch.full((150, 24), float("nan"))
        scale = torch.linspace(0.5, 2, 150)
        gemm.gemm(
            torch.from_numpy(x), repack(planes_of(tensor, k, CPU), 3), out, experts=blocks, row_scale=scale
        )
        expected = np.stack([each[c] @ x[i // 2] for i, c in enumerate(chosen)])
        assert close(out, expected * scale[:, None].numpy(), 0.01), kind
        pair = [tensor_of(kind, 3 * 27, k, which) for which in range(2)]  # eight do not go into 27 rows
        both = repack(interleave(*(planes_of(tensor, k, CPU) for tensor in pair), experts=3), 3)
        out = torch.full((150, 27), float("nan"))
        gemm.gemm(torch.from_numpy(x), both, out, activation=0, experts=blocks)
        gate, up = (dequantize(tensor).reshape(3, 27, k) for tensor in pair)
        expected = np.stack(
            [plain.gate(gate[c] @ x[i // 2], up[c] @ x[i // 2], "silu") for i, c in enumerate(chosen)]
        )
        assert close(out, expected, 0.02), kind
