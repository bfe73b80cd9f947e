"""Every architecture against the published model code, on small random checkpoints.

Bound: 1e-4 on logits whose standard deviation is about 1 to 4, in float32.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles import gguf_twin, published, running

TOKENS = [int(t) for t in np.random.default_rng(7).integers(0, published.VOCABULARY, 37)]
OTHERS = [
    [int(t) for t in np.random.default_rng(seed).integers(0, published.VOCABULARY, n)]
    for seed, n in ((1, 12), (2, 29))
]


@functools.cache
def oracle(name: str) -> Any:
    return published.case(name).make()


@functools.cache
def expected(name: str, which: int) -> np.ndarray:
    return published.logits_of(oracle(name), [TOKENS, *OTHERS][which])


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp(request.param)
    published.save(oracle(request.param), folder)
    return request.param, running.reference(folder)


def close(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.shape == theirs.shape
    assert theirs.std() > 0.3, "an oracle whose logits are all alike shows nothing"
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


every_case = pytest.mark.parametrize(
    "program", [case.name for case in published.CASES], indirect=True, scope="module"
)


@every_case
def test_prefill_of_a_whole_prompt(program: Any) -> None:
    name, ours = program
    close(running.chunked(ours, TOKENS, [len(TOKENS)]), expected(name, 0))


@every_case
@pytest.mark.parametrize(
    ("chunks", "mixtures"),
    [((3, 8, 30), 1), pytest.param(range(2, len(TOKENS)), 3, marks=pytest.mark.exhaustive)],
    ids=["some", "every"],
)
def test_prefill_in_any_chunking(program: Any, chunks: Sequence[int], mixtures: int) -> None:
    name, ours = program
    for size in chunks:
        close(running.chunked(ours, TOKENS, [size], seed=size), expected(name, 0))
    mixed = random.Random(3)
    for seed in range(mixtures):
        sizes = [mixed.randint(1, 9) for _ in range(12)]
        close(running.chunked(ours, TOKENS, sizes, seed), expected(name, 0))


@every_case
def test_token_by_token(program: Any) -> None:
    name, ours = program
    close(running.chunked(ours, TOKENS, [1]), expected(name, 0))


@every_case
def test_three_sequences_in_mixed_batches(program: Any) -> None:
    """One decodes, one prefills in chunks, one comes late; parts of a batch come in any order."""
    name, ours = program
    sequences = [TOKENS, *OTHERS]
    session = running.Session(ours, 3, max(map(len, sequences)), seed=5)
    shuffle = random.Random(11)
    rest = [list(s) for s in sequences]
    logits: list[list[np.ndarray]] = [[], [], []]
    step = 0
    while any(rest):
        parts = []
        for which, size in ((0, 1 if step % 3 else 5), (1, 3), (2, 4 if step > 2 else 0)):
            if rest[which] and size:
                parts.append((which, rest[which][:size]))
                rest[which] = rest[which][size:]
        shuffle.shuffle(parts)
        for (which, _), part in zip(parts, session.step(parts), strict=True):
            logits[which].append(part)
        step += 1
    for which in range(3):
        close(np.concatenate(logits[which]), expected(name, which))


@pytest.mark.parametrize("name", [case.name for case in published.CASES if case.gguf])
def test_gguf_gives_the_same_logits_as_safetensors(name: str, tmp_path: Path) -> None:
    path = gguf_twin.write_gguf(oracle(name), tmp_path / "model.gguf")
    ours = running.chunked(running.reference(path), TOKENS, [11])
    close(ours, expected(name, 0))
    folder = published.save(oracle(name), tmp_path / "hf")
    theirs = running.chunked(running.reference(folder), TOKENS, [11])
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-5)
