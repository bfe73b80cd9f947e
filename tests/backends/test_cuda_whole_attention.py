"""Attention of towers, which reads keys and values from the rows of the batch, in Triton's interpreter."""

from __future__ import annotations

import os

import numpy as np
import pytest

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("these tests run in Triton's interpreter", allow_module_level=True)

import torch

from olivine.backends.cuda.kernels.prefill_attention import prefill_tiles
from olivine.backends.cuda.kernels.whole_attention import takes, whole_attention

LENGTHS = (70, 3, 130)


def attend(
    qkv: torch.Tensor, lengths: tuple[int, ...], last: np.ndarray, heads: tuple[int, int], d: int
) -> torch.Tensor:
    """Of queries, keys and values side by side."""
    q, k, v = qkv.split([heads[0] * d, heads[1] * d, heads[1] * d], 1)
    assert takes(k, v, d)
    positions = np.concatenate([np.arange(n) for n in lengths]).astype(np.int32)
    tiles = prefill_tiles(np.repeat(np.arange(len(lengths)), lengths), positions)
    places = (torch.from_numpy(x) for x in (tiles, positions, last.astype(np.int32)))
    out = torch.full(q.shape, 7.0, dtype=torch.bfloat16)
    whole_attention(q, k, v, out, *places, head_dim=d, scale=d**-0.5)
    return out


def definition(qkv: torch.Tensor, last: np.ndarray, heads: tuple[int, int], d: int) -> torch.Tensor:
    """One sequence."""
    q, k, v = (
        part.float().view(len(qkv), -1, d).transpose(0, 1)
        for part in qkv.split([heads[0] * d, heads[1] * d, heads[1] * d], 1)
    )
    k, v = (x.repeat_interleave(heads[0] // heads[1], 0) for x in (k, v))
    seen = torch.arange(len(qkv)) <= torch.from_numpy(last)[:, None]
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    return y.transpose(0, 1).reshape(len(qkv), -1)


@pytest.mark.parametrize(("heads", "d"), [((2, 2), 72), ((2, 1), 64), ((1, 1), 16), ((2, 2), 40)])
@pytest.mark.parametrize("causal", [False, True])
def test_each_sequence_is_attended_to_as_defined(heads: tuple[int, int], d: int, causal: bool) -> None:
    rng = np.random.default_rng(0)
    qkv = torch.from_numpy(rng.standard_normal((sum(LENGTHS), (heads[0] + 2 * heads[1]) * d))).bfloat16()
    last = np.concatenate([np.arange(n) if causal else np.full(n, n - 1) for n in LENGTHS])
    found = attend(qkv, LENGTHS, last, heads, d)
    start = 0
    for length in LENGTHS:
        rows = slice(start, start + length)
        expected = definition(qkv[rows], last[rows], heads, d)
        assert (found[rows].float() - expected).abs().max() < 0.03
        alone = attend(qkv[rows].clone(), (length,), last[rows], heads, d)
        assert torch.equal(alone, found[rows])
        start += length


@pytest.mark.parametrize("larger", [1, 30])
def test_scores_far_above_those_of_the_first_keys(larger: int) -> None:
    """Their exponentials, with the first keys' maximum for that of all, overflow: 2^127 and more."""
    rng = np.random.default_rng(0)
    qkv = torch.from_numpy(rng.standard_normal((300, 3 * 64))).bfloat16()
    qkv[150:, 64:128] *= larger
    last = np.full(300, 299)
    expected = definition(qkv, last, (1, 1), 64)
    assert (attend(qkv, (300,), last, (1, 1), 64).float() - expected).abs().max() < 0.03


def test_what_is_infinite_in_an_image_stays_in_it() -> None:
    rng = np.random.default_rng(0)
    qkv = torch.from_numpy(rng.standard_normal((sum(LENGTHS), 3 * 72))).bfloat16()
    last = np.concatenate([np.full(n, n - 1) for n in LENGTHS])
    before = attend(qkv, LENGTHS, last, (1, 1), 72)
    qkv[LENGTHS[0] : LENGTHS[0] + LENGTHS[1]] = float("inf")
    after = attend(qkv, LENGTHS, last, (1, 1), 72)
    others = [*range(LENGTHS[0]), *range(LENGTHS[0] + LENGTHS[1], sum(LENGTHS))]
    assert torch.equal(before[others], after[others])


def test_keys_and_values_that_a_descriptor_does_not_take() -> None:
    k = torch.zeros((4, 24), dtype=torch.bfloat16)
    assert takes(k[:, :16], k[:, 8:], 16)
    assert not takes(k[:, :16], k[:, 4:20], 16)  # where it begins
    assert not takes(k.float(), k.float(), 16)
    assert not takes(torch.zeros((4, 20), dtype=torch.bfloat16), k, 4)  # how far rows are apart
