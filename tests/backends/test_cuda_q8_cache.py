"""The Q8_0 cache of the CUDA backend in Triton's interpreter, against the reference backend's rounding."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("these tests run in Triton's interpreter", allow_module_level=True)

import torch

from olivine.backends.cuda import CudaProgram
from olivine.backends.cuda.kernels.decode_attention import Scratch, can_transform, decode_attention
from olivine.backends.cuda.kernels.heads import HeadTransform, QkvTransform, store_kv
from olivine.backends.cuda.kernels.paged import PagedCache, RowPlaces
from olivine.backends.cuda.kernels.prefill_attention import prefill_attention, prefill_tiles
from olivine.backends.reference import ReferenceProgram
from olivine.backends.reference.kernels import CACHE_ROUNDING
from olivine.errors import RequestError
from oracles import published, running
from oracles.isas import error

PAGE, GROUPS, SHARE, POSITIONS = 8, 2, 2, 37
NOTHING = HeadTransform(None, None)


def cache_of(d: int) -> PagedCache:
    pages = -(-POSITIONS // PAGE)
    shape = (pages, PAGE, GROUPS, d)
    codes = [torch.zeros(shape, dtype=torch.int8) for _ in range(2)]
    scales = [torch.zeros((*shape[:3], d // 32)) for _ in range(2)]
    order = np.random.default_rng(3).permutation(pages).astype(np.int32)
    return PagedCache(*codes, torch.from_numpy(order)[None], *scales)


def stored(codes: torch.Tensor, scales: torch.Tensor, table: torch.Tensor) -> np.ndarray:
    """[positions, KV heads, d]"""
    values = codes.numpy().astype(np.float32).reshape(*scales.shape, 32) * scales.numpy()[..., None]
    return values.reshape(codes.shape)[table[0].numpy()].reshape(-1, *codes.shape[2:])[:POSITIONS]


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> np.ndarray:
    """Of rows at the last positions, each of which sees its own and those before."""
    out = np.zeros_like(q)
    for row in range(len(q)):
        last = POSITIONS - len(q) + row + 1
        for head in range(q.shape[1]):
            scores = k[:last, head // SHARE] @ q[row, head] * scale
            weights = np.exp(scores - scores.max())
            out[row, head] = weights @ v[:last, head // SHARE] / weights.sum()
    return out


@pytest.mark.parametrize("d", [64, 96])
def test_keys_and_values_are_stored_and_read_as_codes(d: int) -> None:
    """One at a time and many; a head of 96 is read in two parts. A row of zeros has a scale of zero."""
    rng = np.random.default_rng(d)
    k, v = rng.standard_normal((2, POSITIONS, GROUPS * d)).astype(np.float32)
    k[3] = 0
    cache = cache_of(d)
    at = torch.arange(POSITIONS, dtype=torch.int32)
    transform = QkvTransform(NOTHING, NOTHING, None, None)
    none = torch.zeros((POSITIONS, 0))
    for rows in (slice(0, 1), slice(1, POSITIONS)):
        places = RowPlaces(at[rows], torch.zeros_like(at[rows]))
        given = (torch.from_numpy(x[rows]) for x in (k, v))
        store_kv(none[rows], *given, none[rows], cache, places, transform)
    assert cache.k_scales is not None and cache.v_scales is not None
    keys, values = (
        stored(codes, scales, cache.table)
        for codes, scales in ((cache.k, cache.k_scales), (cache.v, cache.v_scales))
    )
    for ours, given in ((keys, k), (values, v)):
        expected = CACHE_ROUNDING["Q8_0"](given.reshape(POSITIONS, GROUPS, d))
        assert np.abs(ours - expected).max() < 1e-6
    rows = 5
    q = rng.standard_normal((rows, GROUPS * SHARE, d)).astype(np.float32)
    expected = attention(q, keys, values, d**-0.5).reshape(rows, -1)
    given = torch.from_numpy(q.reshape(rows, -1)).bfloat16()
    places = RowPlaces(at[-rows:], torch.zeros(rows, dtype=torch.int32))
    tiles = torch.from_numpy(prefill_tiles(np.zeros(rows), at[-rows:].numpy()))
    prompt, generated, projected = torch.zeros((3, rows, expected.shape[1]))
    prefill_attention(given, prompt, cache, places, tiles, scale=d**-0.5, window=None)
    by_itself = transform if can_transform(transform.q, d) else None
    for out, by_attention in ((generated, None), (projected, by_itself)):
        decode_attention(
            given, out, cache, places, scale=d**-0.5, window=None, max_position=63,
            scratch=Scratch(torch.device("cpu")), transform=by_attention,
        )  # fmt: skip
    assert torch.equal(projected, generated)
    for ours in (prompt, generated):
        assert np.linalg.norm(ours.numpy() - expected) / np.linalg.norm(expected) < 0.01


def test_a_model_with_codes_in_its_cache(tmp_path: Path) -> None:
    """Alone and in a batch the same bits: no row attends to a key that is not rounded yet."""
    case = published.case("qwen3-tied")
    options = {"num_hidden_layers": 1, "vocab_size": 32, "intermediate_size": 16, "head_dim": 32}
    published.save(replace(case, options={**case.options, **options}).make(), tmp_path)
    model = running.build(tmp_path)
    counts = [16] * len(model.plan.groups)
    tokens = [int(t) for t in np.random.default_rng(7).integers(0, 32, 11)]
    plain = ReferenceProgram(model.plan, model.weights, page_counts=counts, page_size=32, cache_type="Q8_0")
    theirs = running.chunked(plain, tokens, [11])
    ours = CudaProgram(model.plan, model.weights, page_counts=counts, device="cpu", cache_type="Q8_0")
    whole = running.chunked(ours, tokens, [11])
    assert error(whole, theirs) < 0.04
    assert np.array_equal(running.chunked(ours, tokens, [8, 3]), whole)
    session = running.Session(ours, 2, 64)
    alone = [session.step([(0, [token])], generated=True)[0][0] for token in tokens[:3]]
    assert error(np.stack(alone), theirs[:3]) < 0.04
    session.step([(1, [tokens[0]])], generated=True)
    together = session.step_mixed([(1, tokens[1:3], True), (0, tokens[3:4], True)])
    assert np.array_equal(together[0], np.stack(alone[1:]))
    with pytest.raises(RequestError, match="BF16 or Q8_0, and F32 was asked for"):
        CudaProgram(model.plan, model.weights, page_counts=counts, device="cpu", cache_type="F32")
