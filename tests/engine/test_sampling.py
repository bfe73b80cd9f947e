"""The sampling pipeline against closed forms, and its draws against the distribution they claim to follow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from olivine.backends import Draw, Sampling
from olivine.engine.noise import gumbel, gumbel_of_hash, hash_of, log
from olivine.engine.sampling import adjust, draw, exp, keep, sample, temper, weights
from olivine.errors import ModelError, RequestError

SIGNIFICANCE = 1e-6
PINNED_BITS = [1102511529, 1101935539, 1095509907, 1052485525, 3212588482, 3224629321]
PINNED_WEIGHTS = [3886247168, 1580030208, 158412000, 194991, 9]
PINNED_HASH = [966413662, 3367088423, 1023311005, 3777694549]


def logits(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def survivors(x: np.ndarray, **options: Any) -> list[int]:
    return [int(i) for i in np.flatnonzero(~np.isneginf(keep(x, Sampling(temperature=1.0, **options))))]


def test_temperature_zero_takes_the_first_of_the_largest() -> None:
    assert sample(logits(1, 3, 3, 2), Sampling(), position=0) == 1


def test_top_k_keeps_exactly_k_and_the_lowest_ids_of_a_tie() -> None:
    x = logits(1, 2, 2, 2, 5)
    assert survivors(x, top_k=3) == [1, 2, 4]
    assert survivors(x, top_k=0) == survivors(x, top_k=5) == survivors(x, top_k=99) == [0, 1, 2, 3, 4]


def test_top_p_keeps_the_shortest_prefix_that_reaches_p() -> None:
    x = np.log(logits(0.1, 0.4, 0.3, 0.2))
    assert survivors(x, top_p=0.39) == [1]
    assert survivors(x, top_p=0.41) == [1, 2]
    assert survivors(x, top_p=0.69) == [1, 2]
    assert survivors(x, top_p=0.71) == [1, 2, 3]
    assert survivors(x, top_p=1e-9) == [1]
    assert survivors(logits(0, 0, 0, 0), top_p=0.5) == [0, 1], "ties go to the lowest ids"


def test_top_p_counts_only_what_top_k_left() -> None:
    x = np.log(logits(0.1, 0.4, 0.3, 0.2))
    assert survivors(x, top_k=2, top_p=0.57) == [1]  # 0.4 / 0.7 = 0.571
    assert survivors(x, top_k=2, top_p=0.58) == [1, 2]


def test_min_p_is_relative_to_the_likeliest() -> None:
    x = np.log(logits(0.1, 0.4, 0.3, 0.2))
    assert survivors(x, min_p=0.6) == [1, 2]
    assert survivors(x, min_p=0.26) == [1, 2, 3]
    assert survivors(x, min_p=1.0) == [1]


def test_penalties_count_each_distinct_token_once() -> None:
    x = logits(2, -2, 1, 3)
    r = adjust(x, Sampling(repetition_penalty=2.0), prompt=[0, 0, 1], output=[1])
    np.testing.assert_array_equal(r, logits(1, -4, 1, 3))
    window = adjust(x, Sampling(repetition_penalty=2.0, repeat_last_n=1), prompt=[0, 0, 1], output=[3])
    np.testing.assert_array_equal(window, logits(2, -2, 1, 1.5))
    fp = adjust(x, Sampling(frequency_penalty=0.5, presence_penalty=0.25), prompt=[0], output=[2, 2, 3])
    np.testing.assert_array_equal(fp, logits(2, -2, -0.25, 2.25))


def test_bias_and_mask() -> None:
    biased = adjust(logits(0, 0, 0), Sampling(logit_bias={1: 5.0}))
    np.testing.assert_array_equal(biased, logits(0, 5, 0))
    words = np.array([0b101], np.int32)
    masked = adjust(logits(0, 5, 0), Sampling(), mask=words)
    np.testing.assert_array_equal(masked, logits(0, -math.inf, 0))
    wide = adjust(np.zeros(40, np.float32), Sampling(), mask=np.array([0, 1 << 3], np.int32))
    assert [int(i) for i in np.flatnonzero(np.isfinite(wide))] == [35]


def test_what_cannot_be_sampled_is_an_error_of_its_request() -> None:
    with pytest.raises(RequestError, match="no token is allowed"):
        sample(logits(0, 0), Sampling(), 0, mask=np.zeros(1, np.int32))
    with pytest.raises(ModelError, match="NaN"):
        sample(logits(0, math.nan), Sampling(), 0)
    with pytest.raises(RequestError, match="logit_bias names token 7"):
        sample(logits(0, 0), Sampling(logit_bias={7: 1.0}), 0)


@pytest.mark.parametrize(
    "options",
    [{"temperature": -1}, {"temperature": math.nan}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.1},
     {"min_p": -0.1}, {"repetition_penalty": 0}, {"seed": -1}, {"seed": 1 << 64}],
)  # fmt: skip
def test_parameters_out_of_range_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=next(iter(options))):
        Sampling(**options)


def draws(x: np.ndarray, options: dict[str, Any], count: int) -> np.ndarray:
    """`count` draws at successive positions; the noise is what differs, so filters are applied once."""
    sampling = Sampling(**options)
    kept = keep(temper(adjust(x, sampling), sampling), sampling)
    alive = np.flatnonzero(~np.isneginf(kept)).astype(np.uint32)
    found = []
    for positions in np.split(np.arange(count, dtype=np.uint32), 100):
        noise = gumbel(sampling.seed, positions[:, None], alive[None, :])
        found.append(alive[np.argmax(kept[alive] + noise, axis=1)])
    return np.concatenate(found)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 20},
        {"temperature": 1.3, "top_p": 0.9},
        {"temperature": 1.0, "top_k": 40, "top_p": 0.95, "min_p": 0.02},
    ],
)
@pytest.mark.parametrize("vocabulary", [50, 262_144])
def test_draws_follow_the_filtered_distribution(vocabulary: int, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal(vocabulary) * (2 if vocabulary < 100 else 4.5)).astype(np.float32)
    if vocabulary > 100 and "top_k" not in options:
        options = {**options, "top_k": 500}  # keeps the test quick; every token is still drawn from the whole
    options = {**options, "seed": 0x1234_5678_9ABC_DEF0}
    found = draws(x, options, 100_000)
    sampling = Sampling(**options)
    kept = keep(temper(x, sampling), sampling).astype(np.float64)
    exact = np.exp(kept - kept.max())
    exact /= exact.sum()
    expected = exact * len(found)
    large = expected >= 10
    observed = np.bincount(found, minlength=vocabulary)
    assert observed[exact == 0].sum() == 0, "a filtered token was drawn"
    observed = np.append(observed[large], observed[~large].sum())
    expected = np.append(expected[large], expected[~large].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    assert stats.chisquare(observed, expected).pvalue > SIGNIFICANCE


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_a_draw_over_a_whole_large_vocabulary(count: int) -> None:
    """Noise over all 262,144 tokens, unfiltered: the tail decides, so the noise must not be coarse there."""
    vocabulary = 262_144
    x = np.zeros(vocabulary, np.float32)
    x[: vocabulary // 2] += np.float32(math.log(3.0))
    tokens = np.arange(vocabulary, dtype=np.uint32)
    found = [int(np.argmax(x + gumbel(9, position, tokens))) for position in range(count)]
    heavy = sum(token < vocabulary // 2 for token in found)
    assert stats.binomtest(heavy, count, 0.75).pvalue > SIGNIFICANCE
    assert len(set(found)) > count * 0.97


def test_the_same_seed_gives_the_same_token_and_another_seed_another() -> None:
    x = np.zeros(1000, np.float32)
    tokens = [sample(x, Sampling(temperature=1.0, seed=5), position) for position in range(20)]
    assert tokens == [sample(x, Sampling(temperature=1.0, seed=5), position) for position in range(20)]
    for other in (6, 5 + (1 << 32), 5 + (1 << 63)):  # the upper half of the seed counts too
        assert tokens != [sample(x, Sampling(temperature=1.0, seed=other), p) for p in range(20)]


def test_a_tiny_temperature_is_nearly_zero_and_nothing_overflows() -> None:
    x = logits(-30, -10, -10.5, -math.inf)
    for temperature in (1e-3, 1e-30, 1e-44, 1e-60):
        for options in ({}, {"top_p": 0.9}, {"top_k": 2}, {"min_p": 0.1}):
            assert sample(x, Sampling(temperature=temperature, **options), position=0) == 1


def test_the_masses_of_top_p_are_integers_that_follow_the_exponential() -> None:
    z = -np.linspace(0, 40, 100_001).astype(np.float32)
    exact = np.exp(z.astype(np.float64))
    near = z > -32
    assert (np.abs(exp(z) - exact)[near] <= 1.2e-7 * exact[near]).all()
    assert exp(logits(0.0))[0] == 1
    assert weights(logits(0.0, -math.log(2), -23, -math.inf)).tolist() == [1 << 32, 1 << 31, 0, 0]
    # Other backends must give these very numbers.
    assert weights(logits(-0.1, -1, -3.3, -10, -20)).tolist() == PINNED_WEIGHTS


def test_a_history_may_hold_what_is_no_token() -> None:
    x = logits(2, -2, 1, 3)
    how = Sampling(repetition_penalty=2.0, presence_penalty=1.0)
    np.testing.assert_array_equal(adjust(x, how, [-1, 0, 4], [99, 3]), adjust(x, how, [0], [3]))


def test_a_draw_stops_reports_and_forces() -> None:
    x = np.log(logits(0.1, 0.4, 0.3, 0.2))
    assert draw(x, Draw(Sampling(), stop=[1]), 0).stopped
    assert draw(x, Draw(Sampling(), stop=[1, 7], at_least=1), 0).tokens == [2]
    report = draw(x, Draw(Sampling(), logprobs=2), 0).logprobs[0]
    assert report.logprob == pytest.approx(math.log(0.4), abs=1e-6)
    assert report.top_tokens == [1, 2]
    forced = draw(x, Draw(Sampling(), forced=0, stop=[0], logprobs=0), 0)
    assert forced.tokens == [0] and forced.logprobs[0].logprob == pytest.approx(math.log(0.1), abs=1e-6)
    for how, message in (
        (Draw(Sampling(), forced=4), "cannot be forced"),
        (Draw(Sampling(), mask=lambda: np.zeros(0, np.int32)), "does not reach"),
        (Draw(Sampling(), mask=lambda: np.zeros(1, np.int32)), "no token is allowed"),
        (Draw(Sampling(logit_bias={9: 1.0})), "logit_bias"),
    ):
        assert message in (draw(x, how, 0).error or "")


def uniform(h: np.ndarray) -> np.ndarray:
    return (h.astype(np.float64) + 0.5) / 2**32


def test_noise_is_uniform_over_seeds_positions_and_tokens() -> None:
    ids = np.arange(200_000, dtype=np.uint32)
    one = np.zeros(1, np.uint32)
    streams = [
        hash_of(1, 0, ids),
        hash_of(1, np.arange(200_000, dtype=np.uint32), one),
        np.concatenate([hash_of(seed, 0, one) for seed in range(30_000)]),
        np.concatenate([hash_of(seed << 32, 0, one) for seed in range(30_000)]),
    ]
    for stream in streams:
        assert stats.kstest(uniform(stream), "uniform").pvalue > SIGNIFICANCE


def test_neighbouring_positions_and_tokens_are_independent() -> None:
    ids = np.arange(100_000, dtype=np.uint32)
    here = uniform(hash_of(1, 7, ids))
    for other in (
        uniform(hash_of(1, 8, ids)),
        uniform(hash_of(2, 7, ids)),
        uniform(hash_of(1, 7, ids + np.uint32(1))),
        uniform(hash_of(1, 8, ids + np.uint32(1))),
    ):
        table, _, _ = np.histogram2d(here, other, bins=16)
        assert stats.chisquare(table.reshape(-1)).pvalue > SIGNIFICANCE
    # No position's noise is a shifted or permuted copy of another's.
    sets = [set(hash_of(1, position, ids).tolist()) for position in range(6)]
    for i, a in enumerate(sets):
        assert all(len(a & b) < 100 for b in sets[:i])


def test_the_logarithm_is_good_and_its_bits_are_pinned() -> None:
    x = np.exp(np.linspace(-70, 70, 20_001)).astype(np.float32)
    exact = np.log(x.astype(np.float64))
    assert (np.abs(log(x) - exact) <= 1.2e-7 * np.abs(exact) + 1e-7).all()  # one last place
    near_one = np.linspace(0.7, 1.4, 20_001).astype(np.float32)
    assert np.abs(log(near_one) - np.log(near_one.astype(np.float64))).max() < 1e-7
    # Other backends must give these very bits.
    h = np.array([0, 1, 12345, 1 << 31, 4_000_000_000, (1 << 32) - 1], np.uint32)
    bits = [int(b) for b in gumbel_of_hash(h).view(np.uint32)]
    assert bits == PINNED_BITS
    assert [int(v) for v in hash_of(0x0123_4567_89AB_CDEF, 42, np.arange(4, dtype=np.uint32))] == PINNED_HASH


def test_the_noise_is_gumbel_to_float32_accuracy() -> None:
    h = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32)
    w = uniform(h)
    exact = -np.log(-np.log1p(-w))
    good = w < 0.999  # where w is near 1, float32 cannot tell neighbours apart, and the noise is small anyway
    assert np.abs(gumbel_of_hash(h) - exact)[good].max() < 2e-5
    smallest = gumbel_of_hash(np.arange(1000, dtype=np.uint32))
    assert np.isfinite(smallest).all() and (np.diff(smallest) < 0).all()
