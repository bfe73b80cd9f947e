"""The kernels of the CUDA backend pass Triton's compiler. Its interpreter, in which the other tests run,
takes more than that. Nothing runs here."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("launches are recorded in Triton's interpreter", allow_module_level=True)

import torch

from olivine.backends import Batch, Draw, Sampling
from olivine.backends.cuda import CudaProgram
from olivine.backends.cuda.formats import Format
from olivine.backends.cuda.kernels import gemm, gemv, gemv_alone
from olivine.backends.cuda.kernels.decode_attention import Scratch, can_transform, decode_attention
from olivine.backends.cuda.kernels.expert_blocks import expert_blocks
from olivine.backends.cuda.kernels.gemv import GemvExperts
from olivine.backends.cuda.kernels.gemv_pair import RowProduct, gemv_pair
from olivine.backends.cuda.kernels.heads import HeadTransform, QkvTransform, Rotary, store_kv
from olivine.backends.cuda.kernels.norm import NormWeight, add_norm
from olivine.backends.cuda.kernels.paged import PagedCache, RowPlaces
from olivine.backends.cuda.kernels.prefill_attention import prefill_attention
from olivine.backends.cuda.kernels.tall_gemv import tall_gemv
from olivine.backends.cuda.tiles import AloneTiles, TallTiles, gemv_tiles
from olivine.backends.cuda.weights import planes_of, repack
from olivine.dtypes import DTYPES
from olivine.tensor import Tensor
from oracles import compiling, published, running

K = 1280  # columns
KINDS = (
    "Q8_0", "BF16", "F32", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_NL",
    "IQ4_XS", "MXFP4",
)  # fmt: skip
# Rows of a program whose units are linked (`AloneTiles`), by type.
LINKED = {"Q4_K": 32, "Q6_K": 32, "Q8_0": 16, "Q2_K": 16, "Q3_K": 16}
MODELS = ("qwen3moe-normalized", "gemma4-everything", "phi4-mini")


def test_products_of_every_form() -> None:
    """A float type, and super-blocks, which have most in them; a second kind of these in a pair."""
    compile_products(("BF16", "Q4_K"), ("BF16", "Q4_K"), every=False, beside="Q3_K")


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_products_become_machine_code(kind: str) -> None:
    compile_products((kind,), (kind,), every=True)


def weight_of(kind: str, k: int = K) -> Any:
    raw = np.zeros(DTYPES[kind].nbytes(32 * k), np.uint8)
    return repack(planes_of(Tensor("w", DTYPES[kind], (32, k), raw), k, torch.device("cpu")))


def compile_products(
    kinds: tuple[str, ...], gated: tuple[str, ...], every: bool, beside: str | None = None
) -> None:
    """Of these types, and of some as gates, too: what an epilogue does is alike for all. The last one in one
    launch with the type `beside` it, too."""
    with compiling.recorded() as launches:
        for kind in kinds:
            weight = weight_of(kind)
            x = torch.zeros(20, K)
            few = gemv_tiles(weight, False)
            many = replace(few, eight_row_limit=8)
            for rows, cut in ((1, few), (2, few), (20, many)):
                gemv.gemv(x[:rows], weight, torch.zeros(rows, 32), cut)
                if kind not in gated:
                    continue
                gemv.gemv(x[:rows], weight, torch.zeros(rows, 16), cut, activation=0)
                gemv.gemv(x[:rows], weight, torch.zeros(rows, 32), cut, activation=0, up=x[:rows, 64:96])
            gemm.gemm(x, weight, torch.zeros(20, 32))
            ids = torch.zeros(16, dtype=torch.int32)  # of two experts, one by one and in blocks
            for experts in (GemvExperts(ids, 1), expert_blocks(ids, 2, 8)):
                gemv.gemv(
                    x[:16], weight, torch.zeros(16, 16), gemv_tiles(weight, False), experts=experts,
                )  # fmt: skip
            gemm.gemm(
                x[:16], weight, torch.zeros(16, 16), experts=expert_blocks(ids, 2, 64), row_scale=x[:, 0]
            )
            if kind in LINKED:  # as large weights have it
                with pytest.MonkeyPatch.context() as patch:
                    tile = AloneTiles(0, False, 168, LINKED[kind], True)
                    patch.setattr(gemv_alone, "alone_tiles", lambda *given, tile=tile: tile)
                    gemv.gemv(x[:1], weight, torch.zeros(1, 32), gemv_tiles(weight, False))
            if weight.format is not Format.FLOAT:
                split = gemv_tiles(weight, True)
                each = RowProduct(x[:1], weight, torch.zeros(4, 8), None, gemv_tiles(weight, False))
                shared = RowProduct(x[:1], weight, torch.zeros(split.splits, 1, 32), x[0], split)
                gemv_pair(each, shared, activation=0, experts=(ids[:4], 4))
        if beside is not None:
            first, second = (
                RowProduct(torch.zeros(1, K), one, torch.zeros(1, 32), None, gemv_tiles(one, False))
                for one in (weight, weight_of(beside))
            )
            gemv_pair(first, second)
    found = compiling.compiled(launches, every)
    forms = len(kinds) + 2 * len(gated)
    assert found["_gemv"] >= forms
    quantized = len(set(kinds) - {"BF16", "F32"})
    assert found.get("_gemv_alone", 0) >= 2 * quantized and found.get("_gemv_pair", 0) >= quantized
    many = found.get("_tall_gemv", 0) + found.get("_batched_gemv", 0)
    assert many == forms + len(kinds)  # and those of experts in blocks


@pytest.mark.parametrize(("prefetch", "unroll"), [(2, 4), pytest.param(4, 6, marks=pytest.mark.exhaustive)])
def test_what_only_large_shapes_have(prefetch: int, unroll: int) -> None:
    """Rounds that are loaded in halves, two steps at once, and norms in sixteen warps."""
    k = 2560
    weight = weight_of("Q4_K", k)
    cut = replace(gemv_tiles(weight, False), prefetch=prefetch, unroll=unroll, loaded=unroll // 2)
    x, out = torch.zeros(20, k), torch.zeros(20, 32)
    with compiling.recorded() as launches:
        for rows in (1, 2):
            gemv.gemv(x[:rows], weight, out[:rows], cut)
        tall_gemv(x, weight, out, cut, tall=TallTiles(32, 2, 255, 2))
        norm = NormWeight(x[0], 1e-6, 1.0)
        add_norm(x[:2], residual=x[:2], total=x[:2], post_norm=norm, norm=norm, out=x[:2], inv_rms=x[0, :2])
    found = compiling.compiled(launches, False)
    assert found == {"_gemv_alone": 1, "_gemv": 1, "_tall_gemv": 1, "_add_norm": 1}


@pytest.mark.parametrize("interleaved", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_products_of_attention_sum_in_one_order(interleaved: bool) -> None:
    """Whether it transforms the queries or reads them: else a row would have other bits among many. (What
    they are on a GPU, benches/gpu_right.py compares.)"""
    keys = torch.zeros((2, 32, 1, 256)).bfloat16()
    cache = PagedCache(keys, keys.clone(), torch.zeros((1, 2), dtype=torch.int32))
    q, k, places = torch.zeros((1, 512)), torch.zeros((1, 256)), RowPlaces(*torch.zeros((2, 1)).int())
    transform = HeadTransform(NormWeight(torch.zeros(256), 1e-6, 0.0), Rotary(k[0, :128], 1.0, interleaved))
    by_attention = QkvTransform(transform, transform, None, torch.zeros((1, 256)))
    with compiling.recorded() as launches:
        for given, how, new in ((q.bfloat16(), None, None), (q, by_attention, (k, k))):
            decode_attention(
                given, q.bfloat16(), cache, places, scale=1.0, window=None, max_position=63,
                scratch=Scratch(torch.device("cpu")), transform=how, new_kv=new,
            )  # fmt: skip
    read, transformed = compiling.columns_of_products(launches)
    assert read and read == transformed


def test_a_product_of_one_row_decodes_its_weight_before_it_waits() -> None:
    """Codes of 1,024 columns in Q4_K take 64 permutations of bytes, which the compiler would do later."""
    raw = np.zeros(DTYPES["Q4_K"].nbytes(32 * 1024), np.uint8)
    weight = repack(planes_of(Tensor("w", DTYPES["Q4_K"], (32, 1024), raw), 1024, torch.device("cpu")))
    with compiling.recorded() as launches:
        gemv.gemv(torch.zeros(1, 1024).bfloat16(), weight, torch.zeros(1, 32), gemv_tiles(weight, False))
    code = compiling.after_the_wait(launches[0])
    if code is None:
        pytest.skip("this Triton has no disassembler")
    assert sum(name.startswith("HMMA") for name in code) >= 16
    assert sum(name.startswith("PRMT") for name in code) < 32


@pytest.mark.exhaustive
@pytest.mark.parametrize("d", [64, 96])
def test_attention_over_codes(d: int) -> None:
    """Heads of 96 are transformed before attention."""
    codes = torch.zeros((2, 2, 32, 2, d), dtype=torch.int8)
    scales = torch.zeros((2, 2, 32, 2, d // 32))
    cache = PagedCache(codes[0], codes[1], torch.zeros((1, 2), dtype=torch.int32), scales[0], scales[1])
    q, k, at = torch.zeros((3, 4 * d)).bfloat16(), torch.zeros((3, 2 * d)), torch.arange(3).int()
    places, nothing = RowPlaces(at, torch.zeros_like(at)), HeadTransform(None, None)
    tiles = torch.tensor([[0, 3]], dtype=torch.int32)
    transform = QkvTransform(nothing, nothing, None, None)
    ways = (None, transform) if can_transform(nothing, d) else (None,)
    with compiling.recorded() as launches:
        store_kv(q.float(), k, k, q.clone(), cache, places, transform)  # as projections give them
        prefill_attention(q, q.clone(), cache, places, tiles, scale=1.0, window=None)
        for end, by_attention in product((63, 4095), ways):
            decode_attention(
                q, q.clone(), cache, places, scale=1.0, window=None, max_position=end,
                scratch=Scratch(torch.device("cpu")), transform=by_attention,
            )  # fmt: skip
    found = compiling.compiled(launches, True)
    assert len(found) == 3 and found["_decode_attention"] == 2 * len(ways)


@pytest.mark.parametrize(
    ("names", "every"),
    [
        pytest.param(MODELS[:2], False, id="two"),
        *(pytest.param((name,), True, id=name, marks=pytest.mark.exhaustive) for name in MODELS),
    ],
)
def test_whole_models(names: tuple[str, ...], every: bool, tmp_path: Path) -> None:
    launches = [launch for name in names for launch in launches_of(name, tmp_path / name)]
    found = compiling.compiled(list(dict.fromkeys(launches)), every)
    assert {"_gemv", "_decode_attention", "_count", "_draw"} < set(found), found


def launches_of(name: str, folder: Path) -> list[str]:
    """Of prompts, of single steps, and of chains that draw the likeliest tokens and any."""
    published.save(published.case(name).make(), folder)
    model = running.build(folder)
    program = CudaProgram(model.plan, model.weights, page_counts=[8] * len(model.plan.groups), device="cpu")
    session = running.Session(program, 2, 64)
    start = Batch(
        np.ones(1, np.int32), np.zeros(1, np.int32), np.array([9], np.int32), np.zeros(1, np.int32),
        session.tables, np.ones(1, bool),
    )  # fmt: skip
    with compiling.recorded() as launches:
        session.step([(0, [1] * 9), (1, [1] * 3)])
        session.step([(0, [1]), (1, [1])], generated=True)
        for draw in (Sampling(), Sampling(temperature=1, top_k=64, top_p=0.95, min_p=0.1, seed=1)):
            program.generate(start, [Draw(draw)], 2)
        program.generate(start, [Draw(Sampling(), logprobs=3)], 2)
    return launches
