"""Soft tokens on the CPU, on each instruction set: what rows of an image see, the same bits in any batch."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest

from olivine import models
from olivine.backends.cpu import CpuProgram
from oracles import published, running, soft
from oracles.isas import ISAS, error, use
from oracles.recording import Noisy

# Shorter and longer than a block of keys, than the windows, and at both ends.
SPANS = ((0, 9), (20, 100), (121, 3), (143, 7))
LENGTH = 150
CASES = {
    case.name: case
    for case in (
        published.case("gemma3-odd-heads-window-1"),
        published._gemma(
            "heads-of-32", head_dim=32, query_pre_attn_scalar=32, num_key_value_heads=2, sliding_window=40
        ),
        published._gemma4(
            "heads-of-128",
            head_dim=64,
            global_head_dim=128,
            num_attention_heads=8,
            num_hidden_layers=3,
            sliding_window=40,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
            **published._K_EQ_V,
        ),
    )
}
GIVEN = soft.prompt(LENGTH, SPANS, 36)


@functools.cache
def model_of(name: str) -> tuple[models.Model, np.ndarray]:
    """The model, and the reference backend's logits."""
    with tempfile.TemporaryDirectory() as folder:  # the map outlives the file's name
        published.save(CASES[name].make(), Path(folder))
        reference = running.reference(Path(folder))
        return running.build(Path(folder)), soft.logits_of(reference, GIVEN, [LENGTH])


@functools.cache
def rounded(name: str) -> float:
    """What the reference is off by if its products take operands of bfloat16, as tiles do."""
    model, theirs = model_of(name)
    pages = [96] * len(model.plan.groups)
    noisy = Noisy(model.plan, model.weights, seed=1, int8=False, page_counts=pages, page_size=running.PAGE)
    return error(soft.logits_of(noisy, GIVEN, [LENGTH]), theirs)


def program_of(name: str, threads: int = 2, cache_type: str = "BF16") -> CpuProgram:
    model, _ = model_of(name)
    pages = [20] * len(model.plan.groups)
    return CpuProgram(model.plan, model.weights, page_counts=pages, threads=threads, cache_type=cache_type)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", CASES)
def test_rows_of_an_image_see_all_of_it(name: str, isa: str) -> None:
    """Within the bound of prompt rows, 4 % of the logits' spread; causal ones are elsewhere.

    Norms of heads of 128 make more than that of bfloat16's roundings: 6 to 7 %.
    """
    _, theirs = model_of(name)
    bound = max(0.04, 1.2 * rounded(name)) if isa in ("amx", "i8mm") else 0.04
    with use(isa):
        ours = program_of(name)
        assert error(soft.logits_of(ours, GIVEN, [LENGTH]), theirs) < bound
        causal = soft.prompt(LENGTH, SPANS, 36, bidirectional=False)
        assert error(soft.logits_of(ours, causal, [LENGTH]), theirs) > 0.3


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("name", "cache_type"), [*((name, "BF16") for name in CASES), ("heads-of-32", "Q8_0")]
)
def test_the_bits_depend_on_no_chunk_batch_or_thread(name: str, cache_type: str, isa: str) -> None:
    other, text = soft.prompt(90, [(5, 40), (50, 11)], 36, seed=1), soft.prompt(61, [], 36, seed=2)
    with use(isa):
        alone = soft.logits_of(program_of(name, 2, cache_type), GIVEN, [LENGTH])
        for threads, sizes in ((1, [7, 33, 1]), (3, [64])):
            np.testing.assert_array_equal(
                soft.logits_of(program_of(name, threads, cache_type), GIVEN, sizes), alone
            )
        program = program_of(name, 2, cache_type)
        session = running.Session(program, 3, LENGTH)
        batch = soft.batch_of(session, [(1, other, 0, 90), (0, GIVEN, 0, 120), (2, text, 0, 61)])
        mixed = program.step(batch).logits
        np.testing.assert_array_equal(mixed[90:210], alone[:120])
        np.testing.assert_array_equal(
            mixed[:90], soft.logits_of(program_of(name, 2, cache_type), other, [90])
        )
        np.testing.assert_array_equal(
            mixed[210:], soft.logits_of(program_of(name, 2, cache_type), text, [61])
        )
        rest = program.step(soft.batch_of(session, [(0, GIVEN, 120, LENGTH)])).logits
        np.testing.assert_array_equal(rest, alone[120:])
