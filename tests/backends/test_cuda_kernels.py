"""The other kernels of the CUDA backend in Triton's interpreter, against plain definitions: attention, heads,
norms.

The interpreter is chosen in conftest.py, and these files are skipped where a GPU was chosen instead. Shapes
are small: the interpreter runs a program at a time.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("these tests run in Triton's interpreter", allow_module_level=True)

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels import (
    activations,
    branch_norms,
    decode_attention,
    embed,
    gemv,
    heads,
    norm,
    pdl,
    prefill_attention,
)
from olivine.backends.cuda.kernels.paged import PagedCache, RowPlaces
from olivine.backends.cuda.tiles import gemv_tiles
from olivine.backends.devices import HOPPER
from olivine.backends.reference import dequantize
from olivine.backends.reference import kernels as plain
from olivine.plan import Rotation
from oracles.attending import in_every_way, off_by
from oracles.matrices import CPU, close, matrix_of, rows_of, tensor_of


def test_attention_of_a_program_with_several_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are many rows, one program has all splits of a row; none of its bits depends on that."""
    monkeypatch.setattr(decode_attention, "LONG", 256)  # from there on splits are longer
    groups, share, d, page = 2, 3, 16, 32
    rng = np.random.default_rng(4)
    positions = [5, 63, 64, 255, 600, -1]
    table = torch.from_numpy(rng.permutation(120).astype(np.int32).reshape(6, 20))
    q = torch.from_numpy(rng.standard_normal((6, groups * share * d))).bfloat16()
    keys, values = (torch.from_numpy(rng.standard_normal((120, page, groups, d))).bfloat16() for _ in "kv")
    for window in (None, 100):
        found = []
        for processors in (1, 20, 1 << 20):
            monkeypatch.setattr(decode_attention, "multiprocessors", lambda device, count=processors: count)
            out = torch.full((6, groups * share * d), 7.0)
            places = RowPlaces(torch.tensor(positions, dtype=torch.int32), torch.arange(6, dtype=torch.int32))
            decode_attention.decode_attention(
                q, out, PagedCache(keys, values, table), places, scale=0.3, window=window, max_position=600,
                scratch=decode_attention.Scratch(CPU),
            )  # fmt: skip
            found.append(out)
        assert torch.equal(found[0], found[2])
        assert torch.equal(found[1], found[2])
        assert (found[0][-1] == 7).all()  # a padding row
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
    "groups, share, d, window, rotated, interleaved",
    [
        (2, 2, 16, None, None, False),
        (1, 3, 48, 90, None, False),
        (1, 5, 64, 90, None, True),
        (1, 8, 256, None, None, False),
        (3, 1, 100, None, None, False),
        (1, 3, 100, None, 76, False),
        (1, 1, 64, None, 48, False),
    ],
)
def test_attention_alone_and_among_others(
    groups: int,
    share: int,
    d: int,
    window: int | None,
    rotated: int | None,
    interleaved: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row is right, and has the same bits, whether the attention rotates and stores it by itself or not."""
    monkeypatch.setattr(decode_attention, "LONG", 256)  # from there on splits are longer
    positions = [0, 31, 63, 64, 255, 256, 577] if d < 100 else [0, 63, 64, 300]
    (alone, *others), expected = in_every_way(groups, share, d, window, positions, CPU, rotated, interleaved)
    assert all(torch.equal(a, b) for other in others for a, b in zip(alone, other, strict=True))
    assert off_by(alone[0], expected) < 0.02


@pytest.mark.parametrize("share, d, parts", [(8, 256, 1), (8, 64, 4), (12, 32, 2)])
def test_programs_have_all_queries_of_a_kv_head_or_some(
    share: int, d: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU with the same bits (benches/gpu_right.py); here NumPy multiplies, which has its own order."""
    taken = []
    monkeypatch.setattr(decode_attention, "_parts", lambda *given: taken.append(parts) or parts)
    ways, expected = in_every_way(2, share, d, None, [0, 63, 130], CPU)
    assert taken and all(off_by(way[0], expected) < 0.02 for way in ways)


@pytest.mark.parametrize(
    "d, window, room",
    [
        (16, None, 227),
        (16, 40, 227),
        (40, 99, 227),
        (72, None, 227),
        (256, 100, 227),
        (512, None, 227),
        (512, 50, 99),
    ],
)
def test_attention_of_a_prompt(
    d: int, window: int | None, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sequences, one from position 70 on; a tile is one program, or two, or four on a smaller GPU."""
    monkeypatch.setattr(prefill_attention, "shared_memory", lambda device: room << 10)
    groups, share, page = 2 if d < 256 else 1, 2, 32
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
    tiles = torch.from_numpy(prefill_attention.prefill_tiles(sequences, positions))
    where = [torch.from_numpy(a.astype(np.int32)) for a in (positions, sequences)]
    prefill_attention.prefill_attention(
        q, out, PagedCache(keys, values, table), RowPlaces(*where), tiles, scale=0.3, window=window
    )
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


@pytest.mark.parametrize(("d", "window"), [(16, None), (16, 40), (256, 100)])
def test_attention_of_an_image(d: int, window: int | None) -> None:
    """Rows see up to the end of their block, beyond their tile; and other rows keep their bits."""
    rows, share, page = 300, 2, 32
    rng = np.random.default_rng(d)
    positions, sequences = np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32)
    last = positions.copy()
    last[20:200], last[250:] = 199, 299
    table = torch.from_numpy(rng.permutation(10).astype(np.int32)[None])
    q, keys, values = (
        torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).bfloat16()
        for shape in ((rows, share * d), (10, page, 1, d), (10, page, 1, d))
    )
    tiles = torch.from_numpy(prefill_attention.prefill_tiles(sequences, positions))
    places = RowPlaces(torch.from_numpy(positions), torch.from_numpy(sequences))

    def attend(last: np.ndarray | None) -> torch.Tensor:
        out = torch.full((rows, share * d), float("nan"))
        given = None if last is None else torch.from_numpy(last)
        cache = PagedCache(keys, values, table)
        prefill_attention.prefill_attention(
            q, out, cache, places, tiles, scale=0.3, window=window, last=given
        )
        return out

    plain, out = attend(None), attend(last)
    text = last == positions
    assert torch.equal(out[text], plain[text])
    assert torch.equal(attend(positions), plain)
    for row in (0, 19, 20, 21, 127, 128, 198, 199, 200, 250, 299):
        first = 0 if window is None else max(0, row - window + 1)
        seen = np.arange(first, last[row] + 1)
        pages = table[0].long()[seen // page]
        k, v = (plane[pages, seen % page, 0].float().numpy() for plane in (keys, values))
        scores = q[row].float().numpy().reshape(share, d) @ k.T * 0.3
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        assert close(out[row], (weights / weights.sum(-1, keepdims=True) @ v).reshape(-1), 0.01), row


@pytest.mark.parametrize(
    ("n", "unrotated", "interleaved"),
    [(8, 0, False), (48, 32, False), (3, 1, False), (6, 4, True), (1, 30, True)],
)
@pytest.mark.parametrize("rows", [3, 70])
def test_heads_rotate_as_in_the_reference(n: int, unrotated: int, interleaved: bool, rows: int) -> None:
    """Whole heads and the first columns of them, with and without a norm before."""
    d = 2 * n + unrotated
    rng = np.random.default_rng(d)
    x = rng.standard_normal((rows, 2 * d)).astype(np.float32)
    weight = rng.uniform(0.5, 2, d).astype(np.float32)
    frequencies = (0.1 ** (np.arange(n) / n)).astype(np.float32)
    positions = rng.integers(0, 3000, rows).astype(np.int32)
    rotation = Rotation(tuple(map(float, frequencies)), 1.3, interleaved, unrotated)
    rotary = heads.Rotary(torch.from_numpy(frequencies), 1.3, interleaved)
    angles = heads.rotary_angles(torch.from_numpy(positions), [rotary])[0]
    for normalized in (False, True):
        before = plain.rms_norm(x, weight, d, 1e-6, 0.0) if normalized else x
        scale = norm.NormWeight(torch.from_numpy(weight), 1e-6, 0.0) if normalized else None
        out = torch.full((rows, 2 * d), float("nan"))
        heads.transform_heads(torch.from_numpy(x), out, d, heads.HeadTransform(scale, rotary), angles)
        expected = plain.rope(before, positions, rotation, None)
        np.testing.assert_allclose(out.numpy(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["BF16", "Q6_K"])
def test_an_embedding_makes_angles_on_its_way(kind: str) -> None:
    """Those that a launch of its own makes, of several rotary embeddings; rows are as without them."""
    table, width = tensor_of(kind, 7, 512), 512
    positions, tokens = torch.tensor([0, 90_000, -1]), torch.tensor([6, 0, 2], dtype=torch.int32)
    rotaries = [
        heads.Rotary(torch.from_numpy((0.1 ** (np.arange(n) / n)).astype(np.float32)), magnitude, False)
        for n, magnitude in ((32, 1.0), (5, 1.25))
    ]
    angles = heads.Angles.of(positions.int(), rotaries)
    out, plainly = torch.full((3, width), float("nan")), torch.full((3, width), float("nan"))
    embed.embed(tokens, matrix_of(table, width), out, 2.0, angles)
    embed.embed(tokens, matrix_of(table, width), plainly, 2.0)
    assert torch.equal(out, plainly)
    for made, expected in zip(angles.outs, heads.rotary_angles(positions.int(), rotaries), strict=True):
        assert torch.equal(made, expected)


def test_heads_of_many_rows_are_those_of_single_rows() -> None:
    """From 64 rows on a program has eight of them; padding rows store nothing."""
    d, groups, rows, page = 16, 2, 70, 32
    rng = np.random.default_rng(5)
    x = torch.from_numpy(rng.standard_normal((rows, 8 * d)).astype(np.float32))
    weight = norm.NormWeight(torch.from_numpy(rng.uniform(0.5, 2, d).astype(np.float32)), 1e-6, 0.0)
    rotary = heads.Rotary(torch.from_numpy((0.1 ** np.arange(d // 2)).astype(np.float32)), 1.0, False)
    transform = heads.HeadTransform(weight, rotary)
    positions = torch.arange(rows, dtype=torch.int32)
    positions[-1] = -1
    angles = heads.rotary_angles(positions, [rotary])[0]
    sequences, table = torch.zeros(rows, dtype=torch.int32), torch.tensor([[2, 0, 1]], dtype=torch.int32)

    def stored(slices: list[slice]) -> tuple[torch.Tensor, ...]:
        out = torch.full((rows, 4 * d), float("nan"))
        alone = torch.full((rows, 8 * d), float("nan"))
        caches = [torch.zeros(3, page, groups, d) for _ in range(2)]
        for at in slices:
            heads.transform_heads(x[at], alone[at], d, transform, angles[at])
            heads.store_kv(
                x[at, : 4 * d], x[at, 4 * d : 6 * d], x[at, 6 * d :], out[at], PagedCache(*caches, table),
                RowPlaces(positions[at], sequences[at]),
                heads.QkvTransform(transform, transform, weight, angles[at]),
            )  # fmt: skip
        by_position = [cache[[2, 0, 1]].reshape(3 * page, -1)[:rows] for cache in caches]
        return alone, out, *by_position

    some = [0, 7, 8, 37, 69]  # the last one is padding
    together, single = stored([slice(0, rows)]), stored([slice(row, row + 1) for row in some])
    for ours, theirs in zip(together, single, strict=True):
        assert torch.equal(ours[some], theirs[some])
    assert torch.equal(together[0][:, : 4 * d], together[1])
    for cache in together[2:]:
        assert (cache[: rows - 1].abs().sum(-1) > 0).all() and cache[rows - 1 :].abs().sum() == 0


def test_dependent_launches_are_for_gpus_that_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not pdl._supported()  # in the interpreter
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    for capability, wanted in (((8, 0), False), ((8, 9), False), ((9, 0), True), ((12, 0), True)):
        gpu = replace(HOPPER, capability=capability)
        monkeypatch.setattr(pdl, "gpu_at", lambda _, gpu=gpu: gpu)
        assert pdl._supported() is wanted


def test_every_head_size_gives_a_power_of_two_of_warps() -> None:
    """The interpreter takes any number of them; compilers do not."""
    for size in range(2, 513, 2):
        for rows in (1, 63, 64, 4096):
            warps = heads._rows_per_program(rows, size)["num_warps"]
            assert warps & (warps - 1) == 0 and 1 <= warps <= 32


@triton.jit
def _sums(x, more, out, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    found = norm.exact_sum(tl.load(x + at), tl.load(more + at))
    tl.store(out + tl.arange(0, ROWS), tl.reshape(found, (ROWS,)))


def test_sums_have_the_same_bits_in_any_order() -> None:
    """Numbers of all sizes in one row, and of one size; a row of zeros, and those near the ends of floats."""
    rng = np.random.default_rng(11)
    x = rng.standard_normal((8, 1024)) * 10.0 ** rng.integers(-6, 6, (8, 1024))
    x[1] = rng.standard_normal(1024)
    x[2] = 0
    x[3] *= 1e-33
    x[4] *= 1e24
    x[5] = np.nextafter(np.float32(2), np.float32(0))  # as large integers as there can be, and all of them
    x = x.astype(np.float32)
    found = []
    for order in (np.arange(1024), np.arange(1024)[::-1], rng.permutation(1024)):
        given = [torch.from_numpy(np.ascontiguousarray(part)) for part in np.split(x[:, order], 2, axis=1)]
        out = torch.zeros(8)
        _sums[(1,)](*given, out, 8, 512)
        found.append(out.numpy())
    assert all(np.array_equal(each, found[0]) for each in found)
    off = np.abs(found[0] - x.astype(np.float64).sum(1))
    assert (off <= 1024 * 2.0**-20 * np.abs(x).max(1) + 1e-37).all() and found[0][5] == 2048


@pytest.mark.parametrize("d", [7, 50, 1024, 1100, 2562, 5376])
def test_residual_sum_and_norms(d: int) -> None:
    """In eight warps or sixteen, which have a part of the row or several."""
    partials, residual = rows_of(6, d).reshape(2, 3, d), rows_of(3, d)
    weights = rows_of(2, d)
    total, out = torch.empty((3, d)), torch.empty((3, d))
    copies = torch.empty((3, d), dtype=torch.bfloat16), torch.empty((3, d), dtype=torch.bfloat16)
    post, after = (norm.NormWeight(torch.from_numpy(w), 1e-6, 1.0) for w in weights)
    norm.add_norm(
        torch.from_numpy(partials),
        residual=torch.from_numpy(residual),
        total=total,
        post_norm=post,
        norm=after,
        out=out,
        rounded=copies,
    )
    assert torch.equal(copies[0], total.bfloat16()) and torch.equal(copies[1], out.bfloat16())
    expected = residual + plain.rms_norm(partials.sum(0), weights[0], d, 1e-6, 1.0)
    np.testing.assert_allclose(total.numpy(), expected, rtol=1e-5, atol=1e-5)
    expected = plain.rms_norm(expected, weights[1], d, 1e-6, 1.0)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_a_norm_may_leave_its_factor_to_the_product() -> None:
    x, weights = rows_of(3, 64) * 5, rows_of(1, 64)
    tensor = tensor_of("BF16", 24, 64)
    planes = matrix_of(tensor, 64)
    rows, inv_rms, out = torch.empty((3, 64)), torch.empty(3), torch.empty((3, 24))
    norm.add_norm(
        torch.from_numpy(x), norm=norm.NormWeight(torch.from_numpy(weights[0]), 1e-6, 1.0), out=rows,
        inv_rms=inv_rms,
    )  # fmt: skip
    gemv.gemv(rows, planes, out, gemv_tiles(planes, False), inv_rms=inv_rms)
    assert close(out, plain.rms_norm(x, weights[0], 64, 1e-6, 1.0) @ dequantize(tensor).T, 0.01)


def test_gate_and_softcap_alone() -> None:
    a, b = rows_of(2, 70), rows_of(2, 71)[:, :70].copy()
    out = torch.empty((2, 70))
    activations.gate(torch.from_numpy(a), torch.from_numpy(b), out, "gelu_tanh")
    assert close(out, plain.gate(a, b, "gelu_tanh"), 1e-5)
    activations.softcap(torch.from_numpy(a), out, 2.0)
    assert close(out, plain.softcap(a, 2.0), 1e-5)


@pytest.mark.parametrize(("width", "parts", "factor"), [(72, (1, 3), 0.5), (256, (2, 1), None)])
def test_norms_of_two_branches_and_several_of_their_sum(
    width: int, parts: tuple[int, int], factor: float | None
) -> None:
    """As Gemma 4's mixtures have them; and of one branch, without a norm of its own."""
    rng = np.random.default_rng(width)
    terms = [rng.standard_normal((count, 5, width)).astype(np.float32) for count in parts]
    residual = rng.standard_normal((5, width)).astype(np.float32)
    weights = [rng.random(width, np.float32) for _ in range(5)]

    def normed(x: np.ndarray, which: int) -> np.ndarray:
        return plain.rms_norm(x, weights[which], width, 1e-6, 0.25)

    first, second, post, *after = (
        norm.NormWeight(torch.from_numpy(weight), 1e-6, 0.25) for weight in weights
    )
    for two in (True, False):
        total = torch.empty(5, width)
        outs = [torch.empty(5, width, dtype=kind) for kind in (torch.float32, torch.bfloat16)]
        given = [torch.from_numpy(t if len(t) > 1 else t[0]) for t in terms[: 2 if two else 1]]
        branch_norms.branch_norms(
            given, torch.from_numpy(residual), total,
            branch_norms=(first, second) if two else None, post_norm=post if two else None,
            scale=None if factor is None else norm.ResidualScale(torch.tensor([3.0]), factor),
            norms=after, outs=outs,
        )  # fmt: skip
        y = terms[0].sum(0)
        if two:
            y = normed(normed(y, 0) + normed(terms[1].sum(0), 1), 2)
        expected = (residual + y) * (1 if factor is None else 3 * factor)
        assert close(total, expected, 1e-5)
        assert close(outs[0], normed(expected, 3), 1e-5)
        assert close(outs[1], normed(expected, 4), 0.01)
