"""Sampling in native code, and chains of tokens: the same tokens as step by step in Python."""

from __future__ import annotations

import ctypes
import random
from pathlib import Path

import numpy as np
import pytest

from olivine.backends import Choice
from olivine.backends.cpu import CpuProgram, native
from olivine.engine import Engine, Sampling
from olivine.engine.noise import gumbel
from olivine.engine.sampling import sample
from olivine.errors import OlivineError, RequestError
from oracles import published, running


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> CpuProgram:
    folder = published.save(
        published.case("gemma3-mqa-small-window").make(), tmp_path_factory.mktemp("gemma")
    )
    model = running.build(folder)
    return CpuProgram(model.plan, model.weights, page_counts=[12] * len(model.plan.groups), threads=2)


def native_sample(logits: np.ndarray, choice: Choice, position: int) -> int:
    how = native.Sampling(choice.temperature, choice.top_k, choice.top_p, choice.min_p, choice.seed)
    token = ctypes.c_int32()
    logits = np.ascontiguousarray(logits, np.float32)
    native.check(
        native.lib().olv_sample(
            logits.ctypes.data, len(logits), ctypes.byref(how), position, ctypes.addressof(token)
        )
    )
    return token.value


def test_the_noise_has_the_bits_of_its_definition() -> None:
    tokens = np.concatenate([np.arange(50_000), [2**32 - 1, 2**31]]).astype(np.uint32)
    for seed, position in ((0, 0), (7, 12345), (0x0123_4567_89AB_CDEF, 42), (2**64 - 1, 2**32 - 1)):
        ours = np.empty(len(tokens), np.float32)
        native.lib().olv_noise(seed, position, tokens.ctypes.data, len(tokens), ours.ctypes.data)
        np.testing.assert_array_equal(ours.view(np.uint32), gumbel(seed, position, tokens).view(np.uint32))


@pytest.mark.parametrize("vocabulary", [1, 50, 3000])
def test_a_draw_is_the_definitions_draw(vocabulary: int) -> None:
    rng = np.random.default_rng(vocabulary)
    chooser = random.Random(vocabulary)
    for trial in range(300):
        logits = (rng.standard_normal(vocabulary) * chooser.choice((0.1, 1, 6))).astype(np.float32)
        if trial % 3 == 0:
            logits = np.round(logits)  # many ties
        if trial % 5 == 0:
            logits[rng.random(vocabulary) < 0.3] = -np.inf
            logits[chooser.randrange(vocabulary)] = 1.0
        how = Sampling(
            temperature=chooser.choice((0.0, 0.3, 1.0, 1.7)),
            top_k=chooser.choice((0, 1, 5, 40, 10_000)),
            top_p=chooser.choice((1.0, 0.95, 0.5, 1e-6)),
            min_p=chooser.choice((0.0, 0.02, 0.5, 1.0)),
            seed=chooser.getrandbits(64),
        )
        position = chooser.randrange(100_000)
        assert native_sample(logits, how.choice, position) == sample(logits, how, position), how


def test_what_cannot_be_sampled_is_an_error() -> None:
    with pytest.raises(OlivineError, match="NaN"):
        native_sample(np.array([0.0, np.nan]), Choice(), 0)
    with pytest.raises(OlivineError, match="no token is allowed"):
        native_sample(np.array([-np.inf, -np.inf]), Choice(), 0)


CHOICES = (
    Choice(),
    Choice(temperature=1.0, seed=3),
    Choice(temperature=0.8, top_k=20, top_p=0.9, seed=2**40 + 5),
)
PROMPTS = ([5, 3, 90, 17, 64, 2], [41, 8, 8], [70, 1, 33, 12])


def alone(program: CpuProgram, which: int, n: int) -> list[int]:
    """Token by token: a step, a draw in Python, the next step."""
    session = running.Session(program, 1, 64, seed=which)
    logits = session.step([(0, PROMPTS[which])])[0][-1]
    tokens: list[int] = []
    how = Sampling(**vars(CHOICES[which]))
    for _ in range(n):
        tokens.append(sample(logits, how, len(PROMPTS[which]) + len(tokens)))
        logits = session.step([(0, [tokens[-1]])], generated=True)[0][-1]
    return tokens


def test_a_chain_makes_the_tokens_of_single_steps(program: CpuProgram) -> None:
    """Three sequences at once, each with a way of its own to choose, in chains of several lengths."""
    expected = [alone(program, which, 24) for which in range(3)]
    for lengths in ([23], [1, 2, 4, 16], [5, 5, 5, 5, 3]):
        session = running.Session(program, 3, 64, seed=8)
        first = session.step([(i, PROMPTS[i]) for i in range(3)])
        made = [[sample(first[i][-1], Sampling(**vars(CHOICES[i])), len(PROMPTS[i]))] for i in range(3)]
        for n in lengths:
            batch = session.batch([(i, [made[i][-1]], True) for i in range(3)])
            chain = program.chain(batch, n, CHOICES, stop=[])
            for i in range(3):
                made[i] += chain.tokens[i]
                session.position[i] += n - 1
        assert made == expected


def test_a_chain_ends_a_sequence_at_its_stop_token_and_goes_on_with_the_others(program: CpuProgram) -> None:
    expected = [alone(program, which, 20) for which in range(3)]
    # A token that the second sequence makes in the middle of the chain, and the others do not before.
    at = next(i for i in range(3, 19) if expected[1][i] not in expected[1][:i])
    stop = expected[1][at]
    session = running.Session(program, 3, 64, seed=8)
    session.step([(i, PROMPTS[i]) for i in range(3)])
    batch = session.batch([(i, [expected[i][0]], True) for i in range(3)])
    chain = program.chain(batch, 19, CHOICES, stop=[stop])
    assert chain.stopped[1] and chain.tokens[1] == expected[1][1:at]
    for i in (0, 2):
        rest = expected[i][1:]
        ends = rest.index(stop) if stop in rest else len(rest)
        assert chain.tokens[i] == rest[:ends] and chain.stopped[i] == (stop in rest)


def test_a_chain_without_pages_or_sense_is_refused(program: CpuProgram) -> None:
    session = running.Session(program, 1, 32)
    batch = session.batch([(0, [5], True)])
    for n, choices in ((0, [Choice()]), (1, []), (33, [Choice()]), (10**6, [Choice()]), (2**40, [Choice()])):
        with pytest.raises(RequestError):
            program.chain(batch, n, choices, stop=[])


def test_a_chain_needs_the_pages_in_its_middle(program: CpuProgram) -> None:
    """A window of 5 sees neither end of a gap that a long chain would have to write into."""
    session = running.Session(program, 1, 96)
    for table in session.tables:
        table[0, 1] = -1
    batch = session.batch([(0, [5], True)])
    program.chain(batch, 32, [Choice()], stop=[])
    with pytest.raises(RequestError, match="lacks a page"):
        program.chain(batch, 90, [Choice()], stop=[])


def test_the_engine_gives_the_same_text_with_and_without_chains(tmp_path: Path) -> None:
    folder = published.save(published.case("qwen3-tied").make(), tmp_path)
    model = running.build(folder)

    class Stepwise:
        """The same program without its chains."""

        def __init__(self, program: CpuProgram) -> None:
            self.plan, self.step = program.plan, program.step
            self.page_size, self.page_counts = program.page_size, program.page_counts

    cpu = CpuProgram(model.plan, model.weights, page_counts=[8], threads=2)
    for how in (Sampling(), Sampling(temperature=1.0, top_k=30, seed=9)):
        chained = list(Engine(cpu, 200).generate([5, 3, 90], how, 150))
        assert len(chained) == 150
        assert list(Engine(Stepwise(cpu), 200).generate([5, 3, 90], how, 150)) == chained
        stop = {next(t for i, t in enumerate(chained) if i > 3 and t not in chained[:i])}
        until = list(Engine(cpu, 200).generate([5, 3, 90], how, 150, stop))
        assert until == chained[: chained.index(next(iter(stop)))]
