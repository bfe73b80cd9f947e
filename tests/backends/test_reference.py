"""The reference backend's own rules: what a batch may hold, what it gives back, what it must not touch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from olivine.backends import Batch
from olivine.backends.reference import ReferenceProgram, dequantize
from olivine.errors import RequestError
from oracles import published, running

TOKENS = np.array([5, 3, 90, 17, 64, 2, 2, 41], np.int32)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> ReferenceProgram:
    folder = tmp_path_factory.mktemp("gemma")
    published.save(published.case("gemma3-mqa-small-window").make(), folder)
    return running.reference(folder, pages=6)


@pytest.fixture
def batch() -> Batch:
    tables = np.array([[4, 1, -1], [2, 0, 5]], np.int32)
    return Batch(
        tokens=TOKENS,
        sequences=np.zeros(8, np.int32),
        positions=np.arange(8, dtype=np.int32),
        outputs=np.arange(8, dtype=np.int32),
        tables=(tables, tables),
    )


def test_only_the_wanted_rows_are_given_in_the_order_asked(program: ReferenceProgram, batch: Batch) -> None:
    everything = program.step(batch)
    some = program.step(replace(batch, outputs=np.array([6, 1], np.int32)))
    np.testing.assert_allclose(some.logits, everything.logits[[6, 1]], atol=1e-5)
    np.testing.assert_allclose(some.hidden, everything.hidden[[6, 1]], atol=1e-5)
    none = program.step(replace(batch, outputs=np.zeros(0, np.int32)))
    assert none.logits.shape == (0, published.VOCABULARY)


def test_an_empty_batch_is_a_batch(program: ReferenceProgram, batch: Batch) -> None:
    nothing = np.zeros(0, np.int32)
    empty = replace(batch, tokens=nothing, sequences=nothing, positions=nothing, outputs=nothing)
    assert program.step(empty).logits.shape == (0, published.VOCABULARY)


def test_the_order_of_rows_does_not_matter(program: ReferenceProgram, batch: Batch) -> None:
    order = np.array([3, 0, 7, 1, 6, 2, 5, 4])
    shuffled = replace(batch, tokens=TOKENS[order], positions=batch.positions[order])
    np.testing.assert_allclose(
        program.step(shuffled).logits, program.step(batch).logits[order], rtol=0, atol=1e-5
    )


def test_an_injected_embedding_stands_in_for_its_token(program: ReferenceProgram, batch: Batch) -> None:
    """Rows of the scaled embedding, injected, give what their tokens give; and they are not scaled again."""
    (table,) = program._weights["token_embd.weight"]
    width = program.plan.hidden.width
    vectors = dequantize(table)[TOKENS[[1, 4]]] * np.float32(width**0.5)
    injected = replace(
        batch,
        tokens=np.where(np.isin(np.arange(8), [1, 4]), 0, TOKENS).astype(np.int32),
        embedding_rows=np.array([1, 4], np.int32),
        embeddings=vectors,
    )
    np.testing.assert_allclose(program.step(injected).logits, program.step(batch).logits, atol=1e-5)
    plain = program.step(replace(injected, embedding_rows=None, embeddings=None)).logits
    assert np.abs(plain - program.step(batch).logits).max() > 0.1


def test_sequences_do_not_see_each_other(program: ReferenceProgram, batch: Batch) -> None:
    alone = program.step(batch).logits
    other = replace(batch, sequences=np.ones(8, np.int32), tokens=TOKENS[::-1].copy())
    program.step(other)
    again = program.step(replace(batch, tokens=TOKENS[-1:], positions=np.array([7], np.int32),
                                 sequences=np.zeros(1, np.int32), outputs=np.zeros(1, np.int32)))  # fmt: skip
    np.testing.assert_allclose(again.logits[0], alone[-1], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": np.full(8, 97, np.int32)}, "token ids must lie in 0..96, and one is 97"),
        ({"tokens": np.full(8, -1, np.int32)}, "one is -1"),
        ({"tokens": TOKENS[:3]}, "one token, sequence and position a row"),
        ({"sequences": np.full(8, 2, np.int32)}, "sequences must lie in 0..1"),
        ({"positions": np.arange(8, 16, dtype=np.int32)}, "positions must lie in 0..11"),
        ({"positions": np.arange(4, 12, dtype=np.int32)}, "sequence 0 lacks a page"),
        ({"outputs": np.array([8], np.int32)}, "output rows must lie in 0..7"),
        ({"tables": (np.zeros((2, 3), np.int32),)}, "1 page tables for 2 cache groups"),
        ({"tables": (np.full((2, 3), 6, np.int32),) * 2}, "names a page outside 0..5"),
        ({"generated": np.zeros(3, np.bool_)}, "one kind a row"),
        ({"embedding_rows": np.zeros(1, np.int32)}, "need the rows they stand for"),
        (
            {"embedding_rows": np.zeros(1, np.int32), "embeddings": np.zeros((1, 3), np.float32)},
            "must be \\[rows, 36\\]",
        ),
    ],
)
def test_a_batch_that_would_leave_its_bounds_is_refused(
    program: ReferenceProgram, batch: Batch, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        program.step(replace(batch, **change))


def test_pages_of_every_sequence_are_checked(program: ReferenceProgram, batch: Batch) -> None:
    table = np.array([[4, 1, -1], [2, 0, 99]], np.int32)
    with pytest.raises(RequestError, match=r"outside 0\.\.5"):
        program.step(replace(batch, tables=(table, table)))


def test_every_page_that_a_row_attends_to_must_be_there(program: ReferenceProgram, batch: Batch) -> None:
    """A window of 5 never looks at the first page from position 8 on; a global layer does."""
    step = replace(
        batch,
        tokens=TOKENS[:1],
        sequences=np.ones(1, np.int32),
        positions=np.array([9], np.int32),
        outputs=np.zeros(1, np.int32),
    )
    windows = [group.window for group in program.plan.groups]
    gone = np.array([[4, 1, -1], [-1, 0, 5]], np.int32)
    program.step(replace(step, tables=tuple(gone if window else batch.tables[0] for window in windows)))
    with pytest.raises(RequestError, match="sequence 1 lacks a page"):
        program.step(replace(step, tables=(gone, gone)))
    gone = np.array([[4, 1, -1], [2, -1, 5]], np.int32)
    with pytest.raises(RequestError, match="sequence 1 lacks a page"):
        program.step(replace(step, tables=(gone, batch.tables[0])))


def test_decoded_weights_are_kept_only_within_their_budget(tmp_path: Path) -> None:
    folder = published.save(published.case("qwen3moe-normalized").make(), tmp_path)
    model = running.build(folder)
    frugal = ReferenceProgram(model.plan, model.weights, page_counts=[8], page_size=4, keep_bytes=4096)
    lavish = ReferenceProgram(model.plan, model.weights, page_counts=[8], page_size=4)
    tokens = list(TOKENS)
    np.testing.assert_array_equal(running.chunked(frugal, tokens, [8]), running.chunked(lavish, tokens, [8]))
    assert sum(w.nbytes for w in frugal._kept.values()) <= 4096
