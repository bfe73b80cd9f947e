"""Kernels that draw, in Triton's interpreter: tokens of the definition, whatever filters and logits are."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("these tests run in Triton's interpreter", allow_module_level=True)

import torch
import triton
import triton.language as tl

from olivine.backends import Draw, Sampling
from olivine.backends.base import COLDEST
from olivine.backends.cuda.kernels import histogram
from olivine.backends.cuda.kernels import sampling as kernels
from olivine.backends.cuda.kernels.adjust import Adjustments
from olivine.backends.cuda.kernels.advance import BROKEN, NOTHING, OPEN, STOPPED, RowState
from olivine.backends.cuda.kernels.candidates import bound
from olivine.backends.cuda.kernels.reports import TOPS, Reports
from olivine.engine import sampling as definition
from olivine.engine.noise import gumbel_of_hash
from oracles.drawing import choices, is_defined
from oracles.matrices import CPU, rows_of
from oracles.sampled import every


def drawn(logits: np.ndarray, hows: Sequence[Sampling], first: int = 0, **options: bool) -> list[int]:
    return run(logits, hows, first, **options)[0]


def run(
    logits: np.ndarray, hows: Sequence[Sampling], first: int = 0, **options: bool
) -> tuple[list[int], kernels.Workspace]:
    """A token of each row, by the kernels, for positions from `first` + 1 on, and how they came to it."""
    rows, size = logits.shape
    space, state = kernels.Workspace.empty(rows, size, CPU), RowState.empty(rows, 1, CPU)
    space.histogram.fill_(-7)  # of an earlier step
    state.positions.copy_(torch.arange(rows, dtype=torch.int32) + first)
    kernels.choose(torch.from_numpy(logits), choices(hows, size, CPU), state, space, **options)
    assert not state.ends.any()
    return state.drawn[:, 0].tolist(), space


def defined(logits: np.ndarray, hows: Sequence[Sampling], first: int = 0) -> list[int]:
    return [definition.sample(x, s, first + i + 1) for i, (x, s) in enumerate(zip(logits, hows, strict=True))]


HOWS = (
    Sampling(),
    Sampling(temperature=1.0, seed=5),
    Sampling(temperature=0.7, top_k=4, top_p=0.95, seed=6),
    Sampling(temperature=0.7, top_k=2, top_p=0.95, seed=6),
    Sampling(temperature=1.0, top_p=0.9, seed=9),
    Sampling(temperature=1.0, min_p=0.05, seed=(1 << 63) + 7),
    Sampling(temperature=1.0, top_k=1, seed=11),
    Sampling(temperature=1.3, top_k=300, top_p=0.8, seed=12),
)


@pytest.mark.parametrize("by_histogram", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_draws_are_those_of_the_definition(by_histogram: bool) -> None:
    """With a histogram and, slower, without."""
    size, rows = 700, len(HOWS)
    logits = rows_of(rows, size) * 3
    logits[2] = np.round(logits[2])  # ties
    logits[5, :300] = -np.inf
    assert drawn(logits, HOWS, by_histogram=by_histogram) == defined(logits, HOWS)


def test_logits_that_are_equal_once_tempered() -> None:
    """What top-k keeps is decided after the temperature, which rounds: token 3 is then as likely as 7, and
    comes first."""
    x = np.full(1024, -30, np.float32)
    x[600], x[3], x[7] = 2.0, 0.1, np.nextafter(np.float32(0.1), np.float32(1))
    hows = [Sampling(temperature=1.0, top_k=2, seed=seed) for seed in range(24)]
    z = definition.temper(x, hows[0])
    assert z[3] == z[7] and x[3] < x[7]
    logits = np.tile(x, (len(hows), 1))
    assert drawn(logits, hows) == (want := defined(logits, hows)) and 3 in want


def test_broken_and_empty_logits_end_their_row_alone() -> None:
    logits = rows_of(4, 600)
    logits[0, 5] = np.nan
    logits[1] = -np.inf
    logits[3, 599] = np.inf
    space, how = kernels.Workspace.empty(4, 600, CPU), kernels.Choices.empty(4, CPU)
    how.temperature[3], how.top_p[3] = 1.0, 0.5
    for sampled, reported in product((False, True), repeat=2):
        rows = RowState.empty(4, 1, CPU)
        reports = Reports.empty(4, 600, CPU).with_room(1) if reported else None
        kernels.choose(torch.from_numpy(logits), how, rows, space, sampled, reports=reports)
        if reports is not None:
            assert not reports.count[[0, 1]].any()  # no list, which would be long
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = reports.read([1 - min(end, 1) for end in rows.ends.tolist()], [3] * 4)
            assert [len(each) for each in found] == [0, 0, 1, 0]
            assert is_defined(found[2][0], logits[2], int(logits[2].argmax()))
        assert rows.ends.tolist() == [BROKEN, NOTHING, OPEN, BROKEN]
        assert rows.positions.tolist() == [-1, -1, 1, -1] and rows.step.tolist() == [0, 0, 1, 0]
        assert int(rows.drawn[2, 0]) == int(logits[2].argmax())


@pytest.mark.parametrize("reported", [False, True])
@pytest.mark.parametrize("sampled", [False, True])
def test_a_token_is_written_down_unless_it_ends_its_row(sampled: bool, reported: bool) -> None:
    """By whichever kernel is the last: of a row that goes on, two that meet a stop token, and one that has
    ended. Of a sampled batch, two rows take the argmax."""
    size, how = 600, Sampling(temperature=0.9, top_k=3, seed=4)
    logits = rows_of(4, size) * 3
    hows = [Sampling(), how, Sampling(), how] if sampled else [Sampling()] * 4
    space, rows = kernels.Workspace.empty(4, size, CPU), RowState.empty(4, 3, CPU)
    expected = defined(logits, hows, first=10)
    rows.positions.copy_(torch.tensor([10, 11, 12, -1]))
    rows.ends[3], rows.stops[1, 31], rows.stops[2, 0] = STOPPED, expected[1], expected[2]
    rows.stops[0, :2] = torch.tensor([expected[1], expected[2]])
    reports = Reports.empty(4, size, CPU).with_room(3) if reported else None
    x = torch.from_numpy(logits)
    for step in range(2):
        kernels.choose(x, choices(hows, size, CPU), rows, space, sampled, reports=reports)
        assert rows.ends.tolist() == [OPEN, STOPPED, STOPPED, STOPPED]
        assert rows.positions.tolist() == [11 + step, -1, -1, -1]
        assert rows.step.tolist() == [1 + step, 0, 0, 0]
        assert rows.drawn[0].tolist() == [expected[0]] * (step + 1) + [0] * (2 - step)
        assert not rows.drawn[1:].any() and rows.inputs.tolist() == [expected[0], 0, 0, 0]
        if reports is not None:
            found = reports.read(rows.step.tolist(), [5, 0, 0, 0])
            assert all(is_defined(each, logits[0], expected[0]) for each in found[0])
            assert [len(each) for each in found] == rows.step.tolist()
            assert (reports.count > 0).tolist() == [True, step == 0, step == 0, False]


@pytest.mark.parametrize("way", ["greedy", "sampled", "reported"])
def test_a_token_that_is_written_down_is_counted(way: str) -> None:
    """In windows of some lengths: the token that leaves may be the one that enters, or be none."""
    size, windows = 40, (None, 0, 1, 3, 4)
    history = [-1, 3, 3, 5]
    draws = [
        Draw(
            Sampling(repetition_penalty=2.0, presence_penalty=1.0, repeat_last_n=last),
            prompt=history,
            at_least=2,
        )
        for last in windows
    ]
    draws += [Draw(draws[0].sampling, prompt=history, stop=(3,))]
    adjustments = Adjustments(len(draws), size, CPU)
    adjustments.begin(draws)
    adjustments.state.mask.fill_(-1)
    rows, space = RowState.empty(len(draws), 9, CPU), kernels.Workspace.empty(len(draws), size, CPU)
    rows.stops[-1, 0] = 3
    reports = Reports.empty(len(draws), size, CPU).with_room(9) if way == "reported" else None
    output = [3, 3, 5, 3, 7]
    for at, token in enumerate(output):
        adjustments.state.masked.fill_(1)
        x = torch.full((len(draws), size), -1.0)
        x[:, token] = 1.0
        how = choices([Sampling()] * len(draws), size, CPU)
        kernels.choose(x, how, rows, space, way == "sampled", reports=reports, adjustments=adjustments)
        seen = [*history, *output[: at + 1]]
        for row, last in enumerate(windows):
            recent = seen[len(seen) - min(len(seen), len(seen) if last is None else last) :]
            counts = np.bincount([each for each in recent if each >= 0], minlength=size)
            assert adjustments.state.recent_counts[row].tolist() == counts.tolist()
            counts = np.bincount(output[: at + 1], minlength=size)
            assert adjustments.state.output_counts[row].tolist() == counts.tolist()
        assert adjustments.state.at_least.tolist() == [1 - at] * len(windows) + [0]
        assert adjustments.state.masked.tolist() == [0] * len(windows) + [1]
    assert not adjustments.state.output_counts[-1].any() and rows.ends.tolist() == [OPEN] * 5 + [STOPPED]
    assert rows.drawn[0, :5].tolist() == output


@pytest.mark.parametrize("chunks", [33, 64, 600])
def test_a_bound_leaves_few_tokens_beside_the_top_k(chunks: int) -> None:
    """At least k of the chunks' maxima are above it or at it, and seldom many more; it is none where not as
    many chunks have a legal token."""
    x = rows_of(1, chunks)[0] * np.float32(3)
    far, few = x - 1000, np.where(np.arange(chunks) < 20, x, -np.inf)
    far[7] = 3e38
    maxima = np.stack([x, np.zeros_like(x), np.round(x), few, far, x * np.float32(1e-35)]).astype(np.float32)
    for k in (1, 2, 20, 31, TOPS, chunks - 1, chunks):
        bounds = torch.empty(len(maxima))
        _bounds[(len(maxima),)](
            torch.from_numpy(maxima), bounds, k, chunks, CHUNKS=triton.next_power_of_2(chunks)
        )
        reached = (maxima >= bounds.numpy()[:, None]).sum(1).tolist()
        finite = np.isfinite(maxima).sum(1)
        for row in range(len(maxima)):
            assert (bounds[row] > -np.inf) == (finite[row] >= k) and reached[row] >= min(k, chunks)
        assert reached[0] <= k + 2 + k // 8


@triton.jit
def _bounds(maxima, bounds, k, chunks, CHUNKS: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, CHUNKS)
    m = tl.load(maxima + row * chunks + c, mask=c < chunks, other=float("-inf"))
    tl.store(bounds + row, bound(m, tl.max(m, 0), k, chunks, CHUNKS))


SIZE = 1100
FILTERS: dict[str, dict[str, float]] = {
    "a tiny top-p": {"top_p": 1e-300},
    "top-p": {"top_p": 0.9},
    "almost all": {"top_p": 1 - 2.0**-53},
    "top-p and min-p": {"top_p": 0.8, "min_p": 0.02},
    "min-p": {"min_p": 0.3},
    "the largest min-p": {"min_p": 1.0},
    "a large top-k": {"top_k": 40},
    "a large top-k, top-p and min-p": {"top_k": 300, "top_p": 0.7, "min_p": 1e-4},
}
TEMPERATURES = (COLDEST, 0.1, 0.8, 1.5, 100.0)


def distributions() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal(SIZE)
    legal = rng.permutation(SIZE)
    edge = np.float32(-1 / 512)
    return {
        "all equal": np.zeros(SIZE),
        "flat": x * 0.003,
        "even": x,
        "peaked": x * 12,
        "ties": np.round(x * 2) / 2,
        "few legal": np.where(legal < 5, x, -np.inf),
        "most legal": np.where(legal < 5, -np.inf, x),
        "one legal": np.where(legal < 1, x, -np.inf),
        "on an edge of bins": np.where(x > 0, edge, np.nextafter(edge, np.float32(-1))) * (x < 2),
    }


@pytest.mark.parametrize(
    ("distribution", "name", "temperature"), every(23, product(distributions(), FILTERS, TEMPERATURES), 12)
)
def test_filters_of_every_distribution(distribution: str, name: str, temperature: float) -> None:
    logits = distributions()[distribution].astype(np.float32)[None]
    hows = [Sampling(temperature=temperature, seed=3, **FILTERS[name])]  # type: ignore[arg-type]
    tokens, space = run(logits, hows)
    assert tokens == defined(logits, hows)
    if kernels.needs_histogram(hows[0], SIZE):
        check_cut(definition.temper(logits[0], hows[0]), replace(hows[0], min_p=0.0), space)


def check_cut(z: np.ndarray, how: Sampling, space: kernels.Workspace) -> None:
    """What top-k and top-p keep lies above the list or in it: a single draw would rarely show a wrong cut."""
    bins = np.minimum(z * np.float32(-512), histogram.BINS - 1).astype(np.int32)
    first = replace(how, top_p=1.0) if how.top_k else how  # the filter that the histogram is for
    kept = np.flatnonzero(np.isfinite(definition.keep(z, first)) & (bins < histogram.BINS - 1))
    listed = np.sort(space.found_ids[0, : int(space.count[0])].numpy())
    if how.top_k and how.top_p < 1:
        assert set(kept) <= set(listed)
        assert (bins[np.setdiff1d(listed, kept)] == bins[listed].max()).all()
    else:
        above = np.flatnonzero(bins < int(space.kept_above[0]))
        order = listed[np.argsort(-z[listed], kind="stable")]
        mass = definition.weights(z[order])
        if how.top_k:
            order = order[: int(space.top_k[0])]
        else:
            order = order[np.cumsum(mass) - mass < int(space.wanted[0])]
        assert sorted([*above, *order]) == kept.tolist()


@pytest.mark.parametrize(
    "size", [70, kernels.SHORT, kernels.SHORT + 2, pytest.param(2500, marks=pytest.mark.exhaustive)]
)
def test_lists_of_any_length(size: int) -> None:
    """Without a histogram all tokens are listed, so that each filter cuts the list: of even logits, of steep
    ones, whose first rows are tried in vain, and of many or only equal ones."""
    x = rows_of(1, size)[0]
    shapes = (x, x * 30, np.round(x * 2), np.zeros_like(x), np.where(np.arange(size) % 3, x, -np.inf))
    filters = [(k, p) for k in (0, 2, 7, size - 1) for p in (1.0, 0.97, 0.5, 0.5, 0.5, 1e-9)]
    logits = np.repeat(np.stack(shapes).astype(np.float32), len(filters), 0)
    hows = [
        Sampling(temperature=1.5, top_k=k, top_p=p, min_p=0.01 * (seed % 3 == 0), seed=seed)
        for seed, (k, p) in enumerate(filters * len(shapes))
    ]
    assert drawn(logits, hows, by_histogram=False) == defined(logits, hows)


@pytest.mark.parametrize("top_p", [1.0, 0.99])
@pytest.mark.parametrize("top_k", [31, 200])
def test_a_large_top_k_ends_within_a_bin(top_k: int, top_p: float) -> None:
    """Tokens above the bin are drawn from without the list, but for a top-p, which may keep fewer."""
    rows, size = 12, 600
    x = rows_of(1, size)[0] * np.float32(1e-4)
    x[::20] += 3 + np.arange(30, dtype=np.float32) / 30
    hows = [Sampling(temperature=1.0, top_k=top_k, top_p=top_p, seed=seed) for seed in range(rows)]
    logits = np.tile(x, (rows, 1))
    tokens, space = run(logits, hows)
    assert tokens == defined(logits, hows)
    check_cut(definition.temper(x, hows[0]), hows[0], space)
    assert (int(space.kept_above[0]) > 0) == (top_p == 1)


@pytest.mark.parametrize("top_p", [0.8, 0.9, 0.999, 1 - 1e-6])
def test_a_cut_among_tokens_of_little_mass(top_p: float) -> None:
    """Those of so little that the cut cannot be there are not put into bins."""
    size, rows = 1100, 8
    lowest = np.log((1 - top_p) / 2 / size)
    x = np.linspace(lowest - 1.001, lowest + 2.5, size).astype(np.float32)  # none at the limit itself
    x[77] = 0
    hows = [Sampling(temperature=1.0, top_p=top_p, seed=seed) for seed in range(rows)]
    tokens, space = run(np.tile(x, (rows, 1)), hows)
    assert tokens == defined(np.tile(x, (rows, 1)), hows)
    check_cut(definition.temper(x, hows[0]), hows[0], space)
    kept = np.isfinite(definition.keep(x, hows[0]))
    bins, masses = space.histogram[0].numpy(), definition.weights(x)
    binned = x >= (np.float32(lowest) if lowest > -20 else -32)
    counted = np.bincount((x[binned] * np.float32(-512)).astype(int), masses[binned], histogram.BINS)
    counted[-1] += masses[~binned].sum()
    assert (bins == counted).all()
    assert (x < lowest).sum() > 300 and not kept[x < lowest].any() and kept.sum() > 50


@pytest.mark.parametrize("size", [6000, pytest.param(262_144, marks=pytest.mark.exhaustive)])
def test_top_p_of_a_large_vocabulary(size: int) -> None:
    """The list of a bin is sorted, or bisected where it is long."""
    spreads = (1.0, 0.002)
    logits = np.stack([rows_of(1, size)[0] * spread for spread in spreads])
    hows = [Sampling(temperature=0.8, top_p=0.9, seed=i) for i in range(len(spreads))]
    assert drawn(logits, hows) == defined(logits, hows)


@pytest.mark.exhaustive
def test_tokens_of_top_p_come_as_often_as_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against softmax in float64; the nucleus ends within a bin."""
    monkeypatch.setattr(kernels, "SHORT", 16)  # which the interpreter sorts faster
    count, p = 400, 0.8
    x = np.full(600, -np.inf, np.float32)
    x[::60] = np.log(np.array([30, 22, 15, 10, 5.003, 5.002, 5.001, 5, 2, 1]))
    hows = [Sampling(temperature=1.0, top_p=p, seed=4)] * count
    found = drawn(np.tile(x, (count, 1)), hows, first=1000)
    mass = np.exp(x[::60].astype(np.float64))
    inside = np.cumsum(mass) - mass < p * mass.sum()
    assert set(found) == {0, 60, 120, 180, 240}
    seen = np.bincount(np.array(found) // 60, minlength=10)
    expected = mass[inside] / mass[inside].sum() * count
    assert stats.chisquare(seen[inside], expected).pvalue > 1e-4


def test_what_needs_a_histogram() -> None:
    def needs(vocabulary: int = 151_936, **how: float) -> bool:
        return kernels.needs_histogram(Sampling(**{"temperature": 1.0, **how}), vocabulary)  # type: ignore[arg-type]

    assert needs(top_p=0.9) and needs(top_p=0.9, top_k=200_000) and needs(top_k=298)
    assert needs(top_k=64, vocabulary=32_000) and needs(top_p=0.9, min_p=0.1)
    assert not needs() and not needs(min_p=0.1) and not needs(top_k=64, top_p=0.9) and not needs(top_k=297)
    assert not needs(top_p=0.9, temperature=0.0) and not needs(top_k=200_000)


def test_a_token_below_the_bins_has_no_mass_and_no_chance() -> None:
    lowest = np.float32(-(histogram.BINS - 1) / 512)
    assert definition.weights(np.array([lowest])) == [0]
    most, least = gumbel_of_hash(np.array([0, (1 << 32) - 1], np.uint32))
    assert lowest + most < least
