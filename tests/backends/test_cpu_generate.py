"""Sampling in native code, single draws and chains: the same tokens as step by step in Python."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from olivine.backends import Batch, Draw, DrawingProgram, Drawn, Sampling
from olivine.backends.cpu import CpuProgram, native
from olivine.backends.cpu.draws import NativeDraws
from olivine.engine import sampling as definition
from olivine.engine.noise import gumbel
from olivine.errors import RequestError
from oracles import published, running, sampled
from oracles.isas import here, use


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> CpuProgram:
    folder = published.save(
        published.case("gemma3-mqa-small-window").make(), tmp_path_factory.mktemp("gemma")
    )
    model = running.build(folder)
    return CpuProgram(model.plan, model.weights, page_counts=[12] * len(model.plan.groups), threads=2)


def native_draw(logits: np.ndarray, how: Draw, position: int) -> Drawn:
    draws = NativeDraws([how], 1, len(logits))
    draws.take_masks()
    x = np.array(logits, np.float32)  # a copy: drawing changes it
    native.check(native.lib().olv_sample(x.ctypes.data, len(x), draws.how, position, ctypes.byref(draws.out)))
    return draws.result()[0]


def assert_same(ours: Drawn, expected: Drawn, what: object) -> None:
    assert (ours.tokens, ours.stopped, ours.error) == (expected.tokens, expected.stopped, expected.error), (
        what
    )
    assert len(ours.logprobs) == len(expected.logprobs), what
    for a, b in zip(ours.logprobs, expected.logprobs, strict=True):
        assert a.logprob == pytest.approx(b.logprob, abs=1e-6), what
        assert a.top_tokens == b.top_tokens, what
        assert a.top_logprobs == pytest.approx(b.top_logprobs, abs=1e-6), what


def test_the_noise_has_the_bits_of_its_definition() -> None:
    tokens = np.concatenate([np.arange(50_000), [2**32 - 1, 2**31]]).astype(np.uint32)
    for seed, position in ((0, 0), (7, 12345), (0x0123_4567_89AB_CDEF, 42), (2**64 - 1, 2**32 - 1)):
        ours = np.empty(len(tokens), np.float32)
        native.lib().olv_noise(seed, position, tokens.ctypes.data, len(tokens), ours.ctypes.data)
        np.testing.assert_array_equal(ours.view(np.uint32), gumbel(seed, position, tokens).view(np.uint32))


class Cases:
    """Random logits and random draws from them, rich in ties, exclusions and edges."""

    def __init__(self, vocabulary: int, seed: int = 0) -> None:
        self.vocabulary = vocabulary
        self.rng = np.random.default_rng(vocabulary + seed)
        self.chooser = random.Random(vocabulary + seed)

    def logits(self) -> np.ndarray:
        rng, pick, v = self.rng, self.chooser, self.vocabulary
        x = (rng.standard_normal(v) * pick.choice((0.0, 0.1, 1, 6, 40))).astype(np.float32)
        shape = pick.randrange(8)
        if shape < 2:
            x = np.round(x)  # many ties
        elif shape == 2:
            x.sort()
        elif shape == 3:
            x[rng.random(v) < 0.3] = -np.inf
            x[pick.randrange(v)] = 1.0
        elif shape == 4:
            x = (x * np.float32(1e-6) + 17).astype(np.float32)  # ties that only the temperature makes
        if pick.random() < 0.02:
            x[pick.randrange(v)] = pick.choice((np.nan, np.inf))
        return x

    def tokens(self, most: int) -> list[int]:
        # Few distinct ones, so that they repeat, and some that the vocabulary does not have.
        among = [self.chooser.randrange(-1, self.vocabulary + 2) for _ in range(12)]
        return [self.chooser.choice(among) for _ in range(self.chooser.randrange(most))]

    def sampling(self) -> Sampling:
        pick = self.chooser
        return Sampling(
            temperature=pick.choice((0.0, 0.01, 0.3, 1.0, 1.0, 1.7, 60.0, 1e-30, 1e-44, 1e-60)),
            top_k=pick.choice((0, 0, 0, 1, 2, 5, 40, 300, 10_000)),
            top_p=pick.choice((1.0, 1.0, 0.999999, 0.95, 0.5, 0.1, 1e-6, 1e-300)),
            min_p=pick.choice((0.0, 0.0, 0.0, 0.02, 0.5, 1.0)),
            repetition_penalty=pick.choice((1.0, 1.0, 1.1, 0.7, 3.0)),
            presence_penalty=pick.choice((0.0, 0.0, 0.3, -1.5)),
            frequency_penalty=pick.choice((0.0, 0.0, 0.1, -0.7)),
            repeat_last_n=pick.choice((None, None, 0, 1, 7, 1000)),
            logit_bias={
                pick.randrange(self.vocabulary): pick.choice((-np.inf, -100.0, 0.1, 3.0, 100.0))
                for _ in range(pick.choice((0, 0, 1, 5)))
            },
            seed=pick.getrandbits(64),
        )

    def draw(self) -> Draw:
        pick, v = self.chooser, self.vocabulary
        mask = None
        if pick.random() < 0.3:
            share = pick.choice((0.0, 0.05, 0.5, 0.999, 1.0))
            bits = self.rng.random(-(-v // 32) * 32) < share
            mask = np.packbits(bits, bitorder="little").view(np.int32)
        return Draw(
            self.sampling(),
            prompt=self.tokens(30),
            output=self.tokens(30),
            mask=None if mask is None else lambda: mask,
            stop=[pick.randrange(-1, v + 1) for _ in range(pick.choice((0, 1, 4)))],
            at_least=pick.choice((0, 0, 1, 5)),
            logprobs=pick.choice((None, None, 0, 1, 5, 20, 5000)),
            forced=pick.choice((None, None, None, pick.randrange(v))),
        )


@pytest.mark.parametrize("vocabulary", [1, 2, 50, 128, 3000])
def test_a_draw_is_the_definitions_draw(vocabulary: int) -> None:
    compare_draws(vocabulary, 300)


def test_a_draw_from_a_large_vocabulary_is_the_definitions_draw() -> None:
    compare_draws(262_144, 20)


def compare_draws(vocabulary: int, count: int) -> None:
    """On each instruction set, beside one draw by the definition, which is slow."""
    cases, isas = Cases(vocabulary), here()
    for _ in range(count):
        logits, how, position = cases.logits(), cases.draw(), cases.chooser.randrange(100_000)
        expected = definition.draw(logits, how, position)
        for isa in isas:
            with use(isa):
                assert_same(native_draw(logits, how, position), expected, (how, isa))


@pytest.mark.parametrize("spread", sampled.every(2, [2.0, 0.0, 6.0, 0.5]))
def test_every_way_through_the_filters_of_a_large_vocabulary(spread: float) -> None:
    """Flat and peaked: top-p finds its cut among the first candidates, in the histogram, or not at all.

    On each instruction set, beside one draw by the definition, which is slow.
    """
    rng, isas = np.random.default_rng(5), here()
    for top_k, top_p, min_p in (
        *((0, p, m) for p in (1.0, 0.99, 0.6, 0.05, 1e-4) for m in (0.0, 0.1)),
        *((k, p, 0.0) for k in (64, 5000, 200_000) for p in (1.0, 0.9)),
    ):
        logits = (rng.standard_normal(200_001) * spread).astype(np.float32)
        if top_p == 0.6:
            logits = np.round(logits * 4) / 4
        for temperature in (0.8, 1.3):
            how = Draw(Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=9))
            expected = definition.draw(logits, how, 3)
            for isa in isas:
                with use(isa):
                    assert_same(native_draw(logits, how, 3), expected, (how, spread, isa))


def test_draws_agree_at_many_positions_when_few_tokens_are_kept_of_many() -> None:
    """The winner among all tokens is rarely in the nucleus, so the cut decides."""
    logits = np.random.default_rng(0).standard_normal(60_000).astype(np.float32)
    for position in range(60):
        for top_p in (0.02, 0.3):
            how = Draw(Sampling(temperature=1.0, top_p=top_p, seed=1))
            assert_same(native_draw(logits, how, position), definition.draw(logits, how, position), position)


def test_a_draw_that_is_impossible_is_an_error_with_the_reason() -> None:
    for logits, what in (
        ([0.0, np.nan], "NaN"),
        ([0.0, np.inf], "NaN"),
        ([-np.inf] * 2, "no token is allowed"),
    ):
        drawn = native_draw(np.array(logits, np.float32), Draw(Sampling()), 0)
        assert what in (drawn.error or "") and drawn.tokens == []


PROMPTS = ([5, 3, 90, 17, 64, 2], [41, 8, 8], [70, 1, 33, 12], [9, 9, 4, 60, 71])
DRAWS = (
    Draw(Sampling(), prompt=PROMPTS[0]),
    Draw(Sampling(temperature=1.0, seed=3), prompt=PROMPTS[1], logprobs=3),
    Draw(
        Sampling(
            temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.4, repeat_last_n=5, seed=2**40 + 5
        ),
        prompt=PROMPTS[2],
        logprobs=0,
    ),
    Draw(
        Sampling(temperature=1.2, presence_penalty=0.6, frequency_penalty=0.4, logit_bias={7: 2.0}, seed=77),
        prompt=PROMPTS[3],
        forced=11,
    ),
)


def stepwise(program: CpuProgram, prompt: Sequence[int], how: Draw, n: int, seed: int) -> Drawn:
    """Token by token: a step, a draw in Python, the next step."""
    session = running.Session(program, 1, 96, seed=seed)
    logits = session.step([(0, prompt)])[0][-1]
    made = Drawn()
    for _ in range(n):
        one = definition.draw(logits, how, len(prompt) + len(made.tokens))
        made.tokens += one.tokens
        made.logprobs += one.logprobs
        made.stopped, made.error = one.stopped, one.error
        if one.stopped or one.error:
            break
        how = replace(
            how,
            output=[*how.output, *one.tokens],
            mask=None,
            forced=None,
            at_least=max(0, how.at_least - 1),
        )
        logits = session.step([(0, one.tokens)], generated=True)[0][-1]
    return made


def last_rows(batch: Batch) -> Batch:
    """The batch with an output for the last row of each sequence."""
    last = {int(sequence): row for row, sequence in enumerate(batch.sequences)}
    return replace(batch, outputs=np.array(list(last.values()), np.int32))


def follow(how: Draw, drawn: Drawn) -> Draw:
    made = len(drawn.tokens)
    return replace(
        how,
        output=[*how.output, *drawn.tokens],
        mask=None,
        forced=None,
        at_least=max(0, how.at_least - made),
    )


def test_a_cpu_program_draws(program: CpuProgram) -> None:
    assert isinstance(program, DrawingProgram)


@pytest.mark.parametrize("lengths", [[24], [1, 2, 4, 16, 1], [5, 5, 5, 9]])
def test_many_tokens_at_once_are_those_of_single_steps(program: CpuProgram, lengths: list[int]) -> None:
    """A prompt, then a chain: four sequences, each with its own sampling parameters."""
    expected = [stepwise(program, PROMPTS[i], DRAWS[i], 24, i) for i in range(4)]
    session = running.Session(program, 4, 64, seed=8)
    draws, made = list(DRAWS), [Drawn() for _ in DRAWS]
    batch = session.batch([(i, PROMPTS[i], False) for i in range(4)])
    for n in lengths:
        for i, drawn in enumerate(program.generate(last_rows(batch), draws, n)):
            made[i].tokens += drawn.tokens
            made[i].logprobs += drawn.logprobs
            draws[i] = follow(draws[i], drawn)
            session.position[i] += n - 1
        batch = session.batch([(i, [made[i].tokens[-1]], True) for i in range(4)])
    for i in range(4):
        assert_same(made[i], expected[i], i)


def test_a_chain_after_a_mixed_batch(program: CpuProgram) -> None:
    """One sequence in the middle of its output, one at the end of its prompt, one still in its prompt."""
    expected = [stepwise(program, PROMPTS[i], DRAWS[i], 12, i) for i in range(3)]
    session = running.Session(program, 3, 64, seed=4)
    first = program.generate(last_rows(session.batch([(1, PROMPTS[1], False)])), [DRAWS[1]])[0]
    batch = session.batch([(2, PROMPTS[2][:3], False), (1, first.tokens, True), (0, PROMPTS[0], False)])
    outputs = np.array([len(batch.tokens) - 1, 3], np.int32)  # the prompt's end first: outputs need no order
    draws = [DRAWS[0], follow(DRAWS[1], first)]
    prompt, generated = program.generate(replace(batch, outputs=outputs), draws, 11)
    assert prompt.tokens == expected[0].tokens[:11]
    assert first.tokens + generated.tokens == expected[1].tokens
    # The third continues its prompt.
    rest = last_rows(session.batch([(2, PROMPTS[2][3:], False)]))
    assert_same(program.generate(rest, [DRAWS[2]], 12)[0], expected[2], 2)


def test_a_stop_token_ends_its_sequence_and_the_others_continue(program: CpuProgram) -> None:
    # Hot enough that the second sequence is noise and does not repeat itself, whatever the logits' last bits.
    hot = [*DRAWS[:1], replace(DRAWS[1], sampling=Sampling(temperature=60.0, seed=3)), *DRAWS[2:]]
    free = stepwise(program, PROMPTS[1], hot[1], 20, 1).tokens
    at = next(i for i in range(3, 19) if free[i] not in free[:i])  # a token that comes in the middle
    for least in (0, at, at + 1, 40):
        draws = [replace(how, stop=[free[at], 200_000, -1], at_least=least) for how in hot]
        expected = [stepwise(program, PROMPTS[i], draws[i], 20, i) for i in range(4)]
        assert (expected[1].stopped and len(expected[1].tokens) == at) == (least <= at)
        session = running.Session(program, 4, 64, seed=8)
        batch = last_rows(session.batch([(i, PROMPTS[i], False) for i in range(4)]))
        for i, drawn in enumerate(program.generate(batch, draws, 20)):
            assert_same(drawn, expected[i], (i, least))


def test_random_draws_for_many_rows_at_once(program: CpuProgram) -> None:
    """Several output rows of a sequence, and several draws of a row: allowed for single draws."""
    vocabulary = program.plan.logits.width
    cases = Cases(vocabulary, seed=3)
    session = running.Session(program, 2, 64)
    batch = session.batch([(0, PROMPTS[0], False), (1, PROMPTS[1], True)])
    logits = program.step(batch).logits
    rows = np.array([cases.chooser.randrange(len(batch.tokens)) for _ in range(200)], np.int32)
    draws = [cases.draw() for _ in rows]
    for row, how, drawn in zip(
        rows, draws, program.generate(replace(batch, outputs=rows), draws), strict=True
    ):
        position = int(batch.positions[row]) + 1
        assert_same(drawn, definition.draw(logits[row], how, position), how)


def test_random_chains_are_single_steps(program: CpuProgram) -> None:
    cases = Cases(program.plan.logits.width, seed=4)
    for trial in range(12):
        draws = [replace(cases.draw(), prompt=prompt) for prompt in PROMPTS]
        expected = [stepwise(program, PROMPTS[i], draws[i], 9, trial) for i in range(4)]
        session = running.Session(program, 4, 64, seed=trial)
        batch = last_rows(session.batch([(i, PROMPTS[i], False) for i in range(4)]))
        for i, drawn in enumerate(program.generate(batch, draws, 9)):
            assert_same(drawn, expected[i], draws[i])


def test_injected_embeddings_replace_tokens_of_the_first_step_only(program: CpuProgram) -> None:
    width = program.plan.hidden.width
    features = np.random.default_rng(2).standard_normal((2, width)).astype(np.float32)
    where = np.array([1, 2], np.int32)

    def batch(session: running.Session) -> Batch:
        return replace(
            last_rows(session.batch([(0, PROMPTS[0], False)])), embedding_rows=where, embeddings=features
        )

    session = running.Session(program, 1, 64)
    how, expected = DRAWS[1], Drawn()
    step = batch(session)
    for _ in range(6):
        drawn = program.generate(step, [how])[0]
        expected.tokens += drawn.tokens
        expected.logprobs += drawn.logprobs
        how = follow(how, drawn)
        step = session.batch([(0, drawn.tokens, True)])
    at_once = program.generate(batch(running.Session(program, 1, 64)), [DRAWS[1]], 6)[0]
    assert_same(at_once, expected, "embeddings")
    assert at_once.logprobs[0] != stepwise(program, PROMPTS[0], DRAWS[1], 1, 0).logprobs[0]


def test_an_error_is_of_its_row_alone(program: CpuProgram) -> None:
    vocabulary = program.plan.logits.width
    expected = stepwise(program, PROMPTS[1], DRAWS[1], 8, 0)
    words = -(-vocabulary // 32)
    bad: dict[str, Draw] = {
        "no token is allowed": replace(DRAWS[0], mask=lambda: np.zeros(words, np.int32)),
        "logit_bias names token": Draw(Sampling(logit_bias={vocabulary: 1.0})),
        "logit_bias names token -1": Draw(Sampling(logit_bias={-1: 1.0})),
        "cannot be forced": replace(DRAWS[0], forced=vocabulary),
        "does not reach": replace(DRAWS[0], mask=lambda: np.zeros(words - 1, np.int32)),
        "the mask failed: KeyError": replace(DRAWS[0], mask=lambda: {}["mask"]),
        "logprobs must be": replace(DRAWS[0], logprobs=-1),
    }
    for message, how in bad.items():
        session = running.Session(program, 2, 64)
        batch = last_rows(session.batch([(0, PROMPTS[0], False), (1, PROMPTS[1], False)]))
        broken, fine = program.generate(batch, [how, DRAWS[1]], 8)
        assert message in (broken.error or "") and broken.tokens == [] and not broken.stopped
        assert_same(fine, expected, message)


def test_masks_are_requested_between_forward_and_draw(program: CpuProgram) -> None:
    asked = []

    def mask() -> np.ndarray:
        asked.append(program.profile()["Linear"])
        return np.array([1 << 7] + [0] * 99, np.int32)

    program.profile()
    session = running.Session(program, 1, 64)
    batch = last_rows(session.batch([(0, PROMPTS[0], False)]))
    (drawn,) = program.generate(batch, [replace(DRAWS[0], mask=mask)], 4)
    assert len(asked) == 1 and asked[0] > 0
    assert drawn.tokens[0] == 7 and len(drawn.tokens) == 4


def test_broken_input_is_an_error_of_its_sequence_alone(program: CpuProgram) -> None:
    features = np.full((1, program.plan.hidden.width), np.nan, np.float32)
    session = running.Session(program, 2, 64)
    batch = last_rows(session.batch([(0, PROMPTS[0], False), (1, PROMPTS[1], False)]))
    batch = replace(batch, embedding_rows=np.array([5], np.int32), embeddings=features)
    broken, fine = program.generate(batch, [DRAWS[0], DRAWS[1]], 5)
    assert "NaN" in (broken.error or "") and not broken.tokens
    assert fine.tokens == stepwise(program, PROMPTS[1], DRAWS[1], 5, 0).tokens


def test_without_outputs_nothing_is_drawn(program: CpuProgram) -> None:
    session = running.Session(program, 1, 64)
    batch = replace(session.batch([(0, PROMPTS[0][:4], False)]), outputs=np.zeros(0, np.int32))
    assert program.generate(batch, [], 3) == []
    drawn = program.generate(last_rows(session.batch([(0, PROMPTS[0][4:], False)])), [DRAWS[0]], 4)
    assert drawn[0].tokens == stepwise(program, PROMPTS[0], DRAWS[0], 4, 0).tokens


def test_missing_pages_and_invalid_chains_are_refused(program: CpuProgram) -> None:
    session = running.Session(program, 2, 32)
    batch = session.batch([(0, [5], True)])
    how = Draw(Sampling())
    for n, draws in ((0, [how]), (1, []), (33, [how]), (10**6, [how]), (2**40, [how]), (10**30, [how])):
        with pytest.raises(RequestError):
            program.generate(batch, draws, n)
    program.generate(batch, [how], 32)
    session = running.Session(program, 2, 32)
    batch = session.batch([(0, [5, 6], False), (1, [7], False)])
    for outputs, message in (
        ([0], "last row"),
        ([0, 1], "of their own"),
        ([1, 1], "of their own"),
        ([3], "output"),
    ):
        with pytest.raises(RequestError, match=message):
            program.generate(replace(batch, outputs=np.array(outputs, np.int32)), [how] * len(outputs), 2)


def test_only_sequences_of_the_chain_need_further_pages(program: CpuProgram) -> None:
    session = running.Session(program, 2, 64)
    for table in session.tables:
        table[1, 1] = -1
    batch = session.batch([(0, [5, 6], False), (1, [7], False)])
    how = Draw(Sampling())
    program.generate(replace(batch, outputs=np.array([1], np.int32)), [how], 40)
    with pytest.raises(RequestError, match="lacks a page"):
        program.generate(replace(batch, outputs=np.array([1, 2], np.int32)), [how] * 2, 40)


def test_the_pages_in_the_middle_are_needed(program: CpuProgram) -> None:
    """A window of 5 sees neither end of a gap that a long run would have to write into."""
    session = running.Session(program, 1, 96)
    for table in session.tables:
        table[0, 1] = -1
    batch = session.batch([(0, [5], True)])
    program.generate(batch, [Draw(Sampling())], 32)
    with pytest.raises(RequestError, match="lacks a page"):
        program.generate(batch, [Draw(Sampling())], 90)
