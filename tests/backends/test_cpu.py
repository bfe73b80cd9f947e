"""The CPU backend against the reference backend, and bit for bit against itself."""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from olivine import models
from olivine.backends.cpu import CpuProgram
from olivine.backends.reference import ReferenceProgram
from olivine.errors import OlivineError, RequestError
from olivine.models import decoder
from olivine.models.fields import LONGEST_HEAD
from oracles import published, running
from oracles.isas import ISAS, error, here, use

TOKENS = [int(t) for t in np.random.default_rng(7).integers(0, published.VOCABULARY, 150)]

# Head sizes and lengths that the tile kernels take, beside the odd ones that the shared cases have.
SHAPES = (
    published._gemma(
        "heads-of-32", head_dim=32, query_pre_attn_scalar=32, num_key_value_heads=2, sliding_window=40
    ),
    published._qwen("heads-of-64", head_dim=64, num_attention_heads=6, num_key_value_heads=2),
    published._gemma4(
        "heads-of-512",
        head_dim=256,
        global_head_dim=512,
        num_attention_heads=16,
        num_hidden_layers=3,
        sliding_window=40,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        **published._K_EQ_V,
    ),
    published._llama("heads-of-128", head_dim=128, num_attention_heads=3, num_key_value_heads=3),
    published._qwen(
        "longest-heads",
        head_dim=LONGEST_HEAD,
        num_attention_heads=32,
        num_key_value_heads=1,
        num_hidden_layers=1,
    ),
    published._qwen(
        "shared-by-10", head_dim=16, num_attention_heads=10, num_key_value_heads=1, hidden_size=64
    ),
)
# Mixtures of so many layers that more than one row in ten meets another expert, which a rounding chose, or
# attends to such a row. Half of the rows stay within the bounds, and nine in ten where all experts are taken.
DEEP_MIXTURES = ("gemma4-26b-a4b", "gemma4-everything")


def every_expert(case: published.Case) -> published.Case:
    options = {**case.options, "top_k_experts": case.options["num_experts"]}
    return replace(case, name=f"{case.name}-every-expert", options=options)


DENSE_MIXTURES = [every_expert(published.case(name)) for name in DEEP_MIXTURES]
CASES = {case.name: case for case in (*published.CASES, *SHAPES, *DENSE_MIXTURES)}
ALL_ISAS = {case.name for case in (*SHAPES, *DENSE_MIXTURES)}
# Random small models multiply rounding errors as trained ones do not: the deepest one, and those with
# per-layer embeddings or large scores before the softmax.
ROOM = {"gemma3-27b-layers": 3, "gemma4-e2b": 2, "heads-of-512": 2, "gemma4-everything-every-expert": 2}


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    with use(request.param):
        yield request.param


@functools.cache
def model_of(name: str) -> tuple[models.Model, np.ndarray]:
    """The model, and the reference backend's logits of TOKENS."""
    with tempfile.TemporaryDirectory() as folder:  # the map outlives the file's name
        published.save(CASES[name].make(), Path(folder))
        return running.build(Path(folder)), running.chunked(running.reference(Path(folder)), TOKENS, [64])


def program_of(name: str, threads: int = 2, cache_type: str = "BF16") -> CpuProgram:
    model, _ = model_of(name)
    return CpuProgram(
        model.plan,
        model.weights,
        page_counts=[20] * len(model.plan.groups),
        threads=threads,
        cache_type=cache_type,
    )


def on_some_isas() -> list[Any]:
    """Every other case in plain C++, the rest in turn on the other instruction sets that this CPU has;
    exhaustively on all."""
    found = []
    others = here()[1:] or ["plain"]
    for number, name in enumerate(CASES):
        chosen = "plain" if number % 2 else others[number // 2 % len(others)]
        for isa in ISAS:
            sampled = name in ALL_ISAS or isa == chosen
            found.append(pytest.param(name, isa, marks=() if sampled else pytest.mark.exhaustive))
    return found


def test_every_case_runs_on_a_set_of_this_cpu() -> None:
    sampled = [param.values for param in on_some_isas() if not param.marks]
    assert {name for name, isa in sampled if isa in here()} == set(CASES)


@pytest.mark.parametrize(("name", "isa"), on_some_isas(), indirect=["isa"])
def test_logits_agree_with_the_reference_backend(name: str, isa: str) -> None:
    """Bounds: 1 % for generated rows (a cache in bfloat16), 4 % for prompt rows (bfloat16 products too).

    Nothing is rounded in generated rows over a cache in float32: they are the reference's.
    """
    _, theirs = model_of(name)
    room, share = ROOM.get(name, 1), 0.5 if name in DEEP_MIXTURES else 0.9
    ours = program_of(name)
    assert error(running.chunked(ours, TOKENS, [1], generated=True), theirs, share) < 0.01 * room
    assert error(running.chunked(ours, TOKENS, [len(TOKENS)]), theirs, share) < 0.04 * room
    exact = program_of(name, cache_type="F32")
    assert error(running.chunked(exact, TOKENS, [1], generated=True), theirs) < 1e-4


@pytest.mark.parametrize("cache_type", ["BF16", "F32", "Q8_0"])
@pytest.mark.parametrize("name", ["heads-of-32", "heads-of-64", "heads-of-128"])
def test_every_cache_type_agrees_with_the_reference_and_with_itself(
    name: str, cache_type: str, isa: str
) -> None:
    """The reference rounds keys and values to the cache type too, so only the kernels can differ."""
    model, exact = model_of(name)
    counts = [96] * len(model.plan.groups)
    reference = ReferenceProgram(
        model.plan, model.weights, page_counts=counts, page_size=running.PAGE, cache_type=cache_type
    )
    theirs = running.chunked(reference, TOKENS, [64])
    assert (error(theirs, exact) == 0) == (cache_type == "F32")
    ours = program_of(name, cache_type=cache_type)
    one_by_one = running.chunked(ours, TOKENS, [1], generated=True)
    assert error(one_by_one, theirs) < (0.002 if cache_type == "F32" else 0.01)
    whole = running.chunked(ours, TOKENS, [len(TOKENS)])
    assert error(whole, theirs) < 0.04
    for sizes in ([7], [64, 3, 17]):
        np.testing.assert_array_equal(running.chunked(ours, TOKENS, sizes, seed=sizes[0]), whole)
    alone = program_of(name, 1, cache_type)
    np.testing.assert_array_equal(running.chunked(alone, TOKENS, [1], generated=True), one_by_one)


def test_an_unsupported_cache_type_is_refused() -> None:
    with pytest.raises(RequestError, match="multiple of 32"):
        program_of("shared-by-10", cache_type="Q8_0")
    with pytest.raises(RequestError, match="no cache type 'F8'; known: BF16, F32, Q8_0"):
        program_of("heads-of-32", cache_type="F8")


INVARIANT = ("heads-of-32", "heads-of-64", "heads-of-512", "shared-by-10", "qwen3moe-normalized",
             "gemma3-mqa-small-window", "gemma4-e2b", "gemma4-everything", "qwen3-sliding",
             "llama-biases")  # fmt: skip


def test_heads_that_kernels_have_no_room_for_are_refused_whoever_made_the_plan(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(decoder, "LONGEST_HEAD", 2 * LONGEST_HEAD)
    case = published._qwen("too-long", head_dim=2 * LONGEST_HEAD, num_hidden_layers=1)
    published.save(case.make(), tmp_path)
    model = running.build(tmp_path)
    with pytest.raises(OlivineError, match=f"heads of more than {LONGEST_HEAD} columns"):
        CpuProgram(model.plan, model.weights, page_counts=[8], threads=1)


@pytest.mark.parametrize("name", INVARIANT)
def test_a_row_has_the_same_bits_in_any_chunk(name: str, isa: str) -> None:
    ours = program_of(name)
    whole = running.chunked(ours, TOKENS, [len(TOKENS)])
    for sizes in ([1], [7], [32], [64, 3, 17], [149, 1]):
        np.testing.assert_array_equal(running.chunked(ours, TOKENS, sizes, seed=sizes[0]), whole)


@pytest.mark.parametrize("name", INVARIANT)
def test_a_row_has_the_same_bits_on_any_number_of_threads(name: str, isa: str) -> None:
    prompt = running.chunked(program_of(name, 1), TOKENS, [50])
    generated = running.chunked(program_of(name, 1), TOKENS[:40], [1], generated=True)
    for threads in (2, 3, 5):
        ours = program_of(name, threads)
        np.testing.assert_array_equal(running.chunked(ours, TOKENS, [50]), prompt)
        np.testing.assert_array_equal(running.chunked(ours, TOKENS[:40], [1], generated=True), generated)


@pytest.mark.parametrize("name", INVARIANT)
def test_a_row_has_the_same_bits_in_any_mixed_batch(name: str, isa: str) -> None:
    """Three sequences, prompt rows and generated rows in one batch, against each sequence alone."""
    sequences = [TOKENS[:70], TOKENS[30:95], TOKENS[50:120]]
    prompts = [33, 1, 48]  # the other rows of each sequence are generated rows

    def alone(which: int) -> np.ndarray:
        session = running.Session(program_of(name), 1, 80, seed=which)
        rows = session.step([(0, sequences[which][: prompts[which]])])
        for token in sequences[which][prompts[which] :]:
            rows += session.step([(0, [token])], generated=True)
        return np.concatenate(rows)

    session = running.Session(program_of(name), 3, 96, seed=9)
    mixer = random.Random(4)
    logits: list[list[np.ndarray]] = [[], [], []]
    done = [0, 0, 0]
    while any(done[i] < len(sequences[i]) for i in range(3)):
        parts: list[tuple[int, list[int], bool]] = []
        for i in mixer.sample(range(3), mixer.randint(1, 3)):
            left = sequences[i][done[i] :]
            if not left:
                continue
            in_prompt = done[i] < prompts[i]
            size = min(mixer.choice((1, 5, 20)), prompts[i] - done[i]) if in_prompt else 1
            parts.append((i, left[:size], not in_prompt))
            done[i] += size
        if not parts:
            continue
        for (i, _, _), rows in zip(parts, session.step_mixed(parts), strict=True):
            logits[i].append(rows)
    for i in range(3):
        np.testing.assert_array_equal(np.concatenate(logits[i]), alone(i))


def test_the_order_of_rows_in_a_batch_does_not_matter(isa: str) -> None:
    ours = program_of("heads-of-64")
    session = running.Session(ours, 2, 64, seed=1)
    parts: list[tuple[int, list[int], bool]] = [(0, TOKENS[:20], False), (1, TOKENS[20:50], False)]
    first = session.step_mixed(parts)
    again = running.Session(ours, 2, 64, seed=2).step_mixed(parts[::-1])
    np.testing.assert_array_equal(first[0], again[1])
    np.testing.assert_array_equal(first[1], again[0])


def test_an_injected_embedding_stands_in_for_its_token(isa: str) -> None:
    ours = program_of("heads-of-32")
    rng = np.random.default_rng(0)
    width = ours.plan.hidden.width
    batch = running.Session(ours, 1, 40).batch([(0, TOKENS[:20], False)])
    vectors = rng.standard_normal((2, width)).astype(np.float32)
    injected = replace(batch, embedding_rows=np.array([3, 11], np.int32), embeddings=vectors)
    model, _ = model_of("heads-of-32")
    from olivine.backends.reference import ReferenceProgram

    reference = ReferenceProgram(model.plan, model.weights, page_counts=[20] * 2, page_size=32)
    assert error(ours.step(injected).logits, reference.step(injected).logits) < 0.04
    assert error(ours.step(batch).logits, reference.step(injected).logits) > 0.1


def test_a_batch_out_of_bounds_is_refused_before_native_code_sees_it() -> None:
    from olivine.errors import RequestError

    ours = program_of("heads-of-32")
    batch = running.Session(ours, 1, 40).batch([(0, TOKENS[:20], False)])
    changes: list[dict[str, Any]] = [
        {"tokens": np.full(20, 10**6, np.int32)},
        {"positions": np.full(20, -1, np.int32)},
        {"outputs": np.array([20], np.int32)},
        {"tables": tuple(np.full_like(table, 20) for table in batch.tables)},
        {"sequences": np.full(20, 1, np.int32)},
    ]
    for change in changes:
        with pytest.raises(RequestError):
            ours.step(replace(batch, **change))


@pytest.mark.parametrize("name", ["gemma3-mqa-small-window", "llama-tied"])
def test_hidden_states_come_without_logits(name: str, isa: str) -> None:
    model, _ = model_of(name)
    counts = [40] * len(model.plan.groups)
    reference = ReferenceProgram(model.plan, model.weights, page_counts=counts, page_size=running.PAGE)
    for program in (program_of(name), reference):
        batch = running.Session(program, 1, 40).batch([(0, TOKENS[:33], False)])
        whole, part = program.step(batch), program.step(batch, logits=False)
        np.testing.assert_array_equal(part.hidden, whole.hidden)
        assert part.logits.shape == (33, 0)


def test_nan_stays_nan_under_a_softcap(isa: str) -> None:
    """Sampling reports NaN logits, so a softcap must not hide them."""
    model, _ = model_of("gemma3-softcap-untied")
    (norm,) = model.weights["output_norm.weight"]
    spoiled = np.full(norm.shape, np.nan, np.float32).view(np.uint8)
    weights = {**model.weights, "output_norm.weight": (replace(norm, data=spoiled),)}
    ours = CpuProgram(model.plan, weights, page_counts=[20] * len(model.plan.groups), threads=1)
    assert np.isnan(running.chunked(ours, TOKENS[:3], [3])).all()


def test_weights_that_are_read_whole_prefer_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an embedding a token reads one row: huge pages would only take memory there. Shared with the head,
    it is read whole."""
    asked: list[int] = []
    monkeypatch.setattr(
        "olivine.backends.cpu.program.prefer_huge_pages",
        lambda parts: asked.extend(data.ctypes.data for data in parts),
    )
    for name, others in (("llama-tied", set()), ("llama-untied-mqa", {"token_embd.weight"})):
        asked.clear()
        program_of(name).close()
        model, _ = model_of(name)
        at = {w.name: model.weights[w.name][0].data.ctypes.data for w in model.plan.weights}
        assert {name for name in at if at[name] not in asked} == others
