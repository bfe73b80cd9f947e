"""Batches on the CUDA backend, in Triton's interpreter: how they are divided into micro-batches, and that
this changes no row. That graphs replay what was launched is tested on a GPU (benches/gpu.py)."""

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

from olivine.backends import Batch, Draw, Sampling
from olivine.backends.cuda import CudaProgram, forward, micro_batch
from olivine.backends.cuda.chain import Chains
from olivine.backends.cuda.executable import Executable
from olivine.backends.cuda.forward import Forward, KeptInputs
from olivine.backends.cuda.kernels import heads
from olivine.backends.cuda.micro_batch import micro_batches
from olivine.plan import ops
from oracles import published, running

TOKENS = [int(t) for t in np.random.default_rng(5).integers(0, 90, 24)]
TABLES = (np.zeros((4, 8), np.int32),)


def batch_of(sequences: list[int], positions: list[int], kinds: list[bool], outputs: list[int]) -> Batch:
    whole = [np.array(v, np.int32) for v in (range(len(kinds)), sequences, positions, outputs)]
    return Batch(whole[0], whole[1], whole[2], whole[3], TABLES, np.array(kinds, bool))


@pytest.fixture(autouse=True)
def many_rows_per_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a long prompt: the interpreter takes most of its time for each program, whatever its size."""
    monkeypatch.setattr(heads, "_rows_per_program", lambda rows, head_dim: {"ROWS": 8, "num_warps": 1})


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> CudaProgram:
    folder: Path = tmp_path_factory.mktemp("model")
    case = published.case("qwen3-tied")
    small = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    small |= {"hidden_size": 16, "intermediate_size": 12, "head_dim": 8}  # few programs: each takes 50 ms
    published.save(replace(case, options={**case.options, **small}).make(), folder)
    model = running.build(folder)
    return CudaProgram(model.plan, model.weights, page_counts=[16], device="cpu")


def test_a_micro_batch_has_one_kind_and_follows_what_it_attends_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batch, "DECODE_ROWS", 5)
    rng = np.random.default_rng(0)
    for _ in range(200):
        count = int(rng.integers(1, 20))
        sequences = rng.integers(0, 4, count)
        positions = np.zeros(count, int)
        for each in range(4):
            mine = sequences == each
            positions[mine] = rng.permutation(mine.sum()) + rng.integers(0, 9)
        kinds = rng.random(count) < rng.choice([0.0, 0.5, 1.0])
        outputs = rng.permutation(count)[: rng.integers(0, count + 1)]
        batch = batch_of(sequences.tolist(), positions.tolist(), kinds.tolist(), outputs.tolist())
        parts = list(micro_batches(batch))
        assert sorted(np.concatenate([part.rows for part in parts]).tolist()) == list(range(count))
        part_of = np.zeros(count, int)
        results = np.full(len(outputs), -1)
        for i, part in enumerate(parts):
            assert (kinds[part.rows] != part.prefill).all()
            part_of[part.rows] = i
            results[part.places] = part.rows[part.outputs]
        assert results.tolist() == outputs.tolist()
        for a in range(count):
            before = (sequences == sequences[a]) & (positions < positions[a])
            assert (part_of[before] <= part_of[a]).all()
        assert all(part.prefill or len(part.rows) <= 5 for part in parts)
        if not kinds.any():
            assert len(parts) == 1


def test_sizes_are_shared_by_many_batches() -> None:
    def rows(count: int, kind: bool) -> int:
        batch = batch_of([0] * count, list(range(count)), [kind] * count, [count - 1])
        part = next(micro_batches(batch))
        return part.shape(batch, True).rows

    assert [rows(count, False) for count in (1, 16, 17, 128, 129, 500, 2048)] == [
        16, 16, 32, 128, 256, 512, 2048,
    ]  # fmt: skip
    assert [rows(count, True) for count in (1, 2, 3, 64, 65, 129, 256, 257)] == [
        1, 2, 4, 64, 128, 192, 256, 256,
    ]  # fmt: skip


def test_chains_of_as_many_rows_draw_in_the_same_memory(program: CudaProgram) -> None:
    chains = Chains(program.executable)
    batches = [batch_of(list(range(n)), [0] * n, [True] * n, list(range(n))) for n in (3, 4, 5)]
    first, second, third = (chains.get(b, [Draw(Sampling())] * len(b.tokens), 1) for b in batches)
    sampled = chains.get(batches[1], [Draw(Sampling(temperature=1.0))] * 4, 1)
    assert first is second and sampled is not second
    assert sampled._space is second._space and third._space is not second._space


@pytest.fixture(scope="module")
def one_by_one(program: CudaProgram) -> tuple[list[int], np.ndarray]:
    """What four rows of a sequence give one by one, and the logits of the row after them."""
    alone = running.Session(program, 1, 64, seed=1)
    alone.step([(0, TOKENS[:4])])
    given = [int(alone.step([(0, [t])], generated=True)[0][0].argmax()) for t in TOKENS[4:8]]
    return given, alone.step([(0, [TOKENS[8]])], generated=True)[0]


@pytest.mark.parametrize("reverse", [False, True])
def test_drafts_are_verified_together(
    program: CudaProgram, one_by_one: tuple[list[int], np.ndarray], reverse: bool
) -> None:
    """In any order: a program that attends must not count on an earlier row's having stored its key.

    What the second layer stored shows in the row after them.
    """
    expected, after = one_by_one
    together = running.Session(program, 1, 64, seed=2 + reverse)  # pages that nobody has written
    together.step([(0, TOKENS[:4])])
    batch = together.batch([(0, TOKENS[4:8], True)])
    order = np.arange(4)[:: -1 if reverse else 1]
    batch = replace(batch, tokens=batch.tokens[order], positions=batch.positions[order])
    drawn = program.generate(batch, [Draw(Sampling())] * 4)
    assert [d.tokens for d in drawn] == [[expected[i]] for i in order]
    assert np.array_equal(together.step([(0, [TOKENS[8]])], generated=True)[0], after)


def test_prompt_and_generated_rows_of_one_sequence_run_in_order(program: CudaProgram) -> None:
    """A conversation that is read again has all its answers' rows as they were; others are beside it."""
    kinds = [(4, False), (3, True), (2, False), (1, True)]
    alone = running.Session(program, 1, 64, seed=3)
    expected = []
    for count, kind in kinds:
        start = alone.position[0]
        expected += alone.step([(0, TOKENS[start : start + count])], generated=kind)
    other = running.Session(program, 1, 64, seed=4).step([(0, TOKENS[:5])])[0]
    session = running.Session(program, 2, 64, seed=5)
    parts, start = [], 0
    for count, kind in kinds:
        parts.append((0, TOKENS[start : start + count], kind))
        start += count
    found = session.step_mixed([*parts[:2], (1, TOKENS[:5], False), *parts[2:]])
    assert np.array_equal(found.pop(2), other)
    assert np.array_equal(np.concatenate(found), np.concatenate(expected))


def test_results_are_copied_before_the_next_micro_batch_runs(
    program: CudaProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs share their memory: what one leaves there is gone when another runs."""
    left: list[object] = []
    plain = Forward.results

    def results(self: Forward) -> tuple[object, object]:
        for tensor in left:
            tensor.fill_(float("nan"))  # type: ignore[attr-defined]
        left[:] = found = plain(self)
        return found

    session = running.Session(program, 2, 64, seed=7)
    batch = session.batch([(0, TOKENS[:3], False), (1, TOKENS[:4], False), (1, TOKENS[4:6], True)])
    batch = replace(batch, outputs=np.array([2], np.int32))  # of the first micro-batch
    expected = program.step(batch)
    monkeypatch.setattr(Forward, "results", results)
    found = program.step(batch)
    assert np.array_equal(found.logits, expected.logits) and np.array_equal(found.hidden, expected.hidden)


def test_nothing_to_run_and_nothing_wanted(program: CudaProgram) -> None:
    nothing = batch_of([], [], [], [])
    assert program.generate(replace(nothing, tables=program_tables(program)), []) == []
    session = running.Session(program, 1, 64, seed=8)
    silent = replace(session.batch([(0, TOKENS[:3], False)]), outputs=np.zeros(0, np.int32))
    assert program.step(silent).logits.shape == (0, program.plan.logits.width)
    assert program.generate(silent, []) == []


def program_tables(program: CudaProgram) -> tuple[np.ndarray, ...]:
    return running.Session(program, 1, 64).tables


def test_embeddings_replace_tokens_in_prefill_and_decode(program: CudaProgram) -> None:
    session = running.Session(program, 2, 64, seed=6)
    batch = session.batch([(0, TOKENS[:3], False), (1, TOKENS[:2], True)])
    expected = program.step(batch).logits
    table = next(op.weight for op in program.plan.ops if type(op).__name__ == "Embed")
    assert table.shape[0] > max(TOKENS)
    embeddings = embedding_rows(program, [TOKENS[1], TOKENS[0]])
    changed = np.array(batch.tokens)
    changed[[1, 3]] = 0
    given = replace(
        batch, tokens=changed, embedding_rows=np.array([1, 3], np.int32), embeddings=embeddings
    )  # fmt: skip
    assert np.array_equal(program.step(given).logits, expected)
    assert not np.array_equal(program.step(replace(batch, tokens=changed)).logits, expected)


def embedding_rows(program: CudaProgram, tokens: list[int]) -> np.ndarray:
    """What the embedding gives for tokens."""
    import torch

    from olivine.backends.cuda.rows import Rows

    step = program.executable.steps[0]
    assert isinstance(step.op, ops.Embed)
    zeros = torch.zeros(len(tokens), dtype=torch.int32)
    rows = Rows(torch.tensor(tokens, dtype=torch.int32), zeros, zeros, None, [], True, None, 0, None, False)  # type: ignore[arg-type]
    step.run(rows)
    return next(iter(rows.values.values())).numpy()


def test_inputs_that_are_there_are_not_copied_again() -> None:
    kept, target = KeptInputs(), torch.zeros(4, dtype=torch.int32)
    for given in ([1, 2], [1, 2, 3], [1, 2]):
        kept.put(target, np.array(given), -1)
        assert target.tolist() == given + [-1] * (4 - len(given))
    target[0] = 7  # which shows whether it is copied
    kept.put(target, np.array([1, 2]), -1)
    assert target[0] == 7


def test_all_inputs_of_a_draw_are_there_before_the_prompt_runs(
    program: CudaProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each copy to the device waits for what runs there: after the prompt, the device would wait for them."""
    told: list[str] = []
    filled, run = forward._filled, Executable.run
    monkeypatch.setattr(forward, "_filled", lambda *given: told.append("copy") or filled(*given))
    monkeypatch.setattr(Executable, "run", lambda *given: told.append("run") or run(*given))
    session = running.Session(program, 1, 64, seed=9)
    batch = replace(session.batch([(0, TOKENS[:3], False)]), outputs=np.array([2], np.int32))
    program.generate(batch, [Draw(Sampling(temperature=1.0, top_k=3, repetition_penalty=1.1))])
    assert told[-1] == "run" and told.count("run") == 1 and "copy" in told


def test_a_chain_takes_the_draws_of_the_next_request(program: CudaProgram) -> None:
    """Of one kind, so that both run in the same chain: what was sent for the first must not stay."""
    batch = batch_of([0], [3], [True], [0])
    ways = [Sampling(temperature=t, seed=seed) for seed, t in ((1, 1.0), (2, 1.0), (1, 99.0))]
    found = [program.generate(batch, [Draw(way)])[0].tokens for way in ways]
    program._chains = Chains(program.executable)
    assert found[::-1] == [program.generate(batch, [Draw(way)])[0].tokens for way in reversed(ways)]
    assert found[0] != found[1] and found[0] != found[2]
