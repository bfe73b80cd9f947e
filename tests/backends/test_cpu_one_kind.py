"""Where a program says that it has one kind of rows, prompt rows have the bits of generated rows."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from olivine.backends import Weights
from olivine.backends.cpu import CpuProgram
from olivine.dtypes import DTYPES
from olivine.models import Model
from olivine.tensor import Tensor
from oracles import published, running
from oracles.blocks import random_blocks
from oracles.isas import ISAS, ONE_KIND, use

# Query heads of a KV head: 3, 8, 1, 10, 5; with a window; and experts. Widths are multiples of 32, for Q8_0.
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
CASES = {
    case.name: case
    for case in (
        published._qwen("3-of-64", head_dim=64, num_attention_heads=6, num_key_value_heads=2, **SIZES),
        published._qwen("8-of-80", head_dim=80, num_attention_heads=8, num_key_value_heads=1, **SIZES),
        published._llama("1-of-128", head_dim=128, num_attention_heads=2, num_key_value_heads=2, **SIZES),
        published._qwen("10-of-16", head_dim=16, num_attention_heads=10, num_key_value_heads=1, **SIZES),
        published._qwen("4-of-24", head_dim=24, num_attention_heads=8, num_key_value_heads=2, **SIZES),
        published._gemma(
            "2-in-a-window",
            head_dim=32,
            query_pre_attn_scalar=32,
            num_attention_heads=4,
            num_key_value_heads=2,
            sliding_window=40,
            **SIZES,
        ),
        published._moe("experts", **(SIZES | {"moe_intermediate_size": 32, "num_attention_heads": 4})),
    )
}
LENGTH = 1100  # more than two KV splits
TOKENS = np.random.default_rng(3).integers(0, published.VOCABULARY, LENGTH).tolist()
SPANS = ((0, 5), (120, 135), (505, 520), (1020, 1030))  # rows that are generated in one of two runs


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    with use(request.param):
        yield request.param


@functools.cache
def model_of(name: str) -> Model:
    with tempfile.TemporaryDirectory() as folder:  # the map outlives the file's name
        published.save(CASES[name].make(), Path(folder))
        return running.build(Path(folder))


def quantized(weights: Weights, kind: str = "Q8_0") -> Weights:
    """Matrices of random blocks of the type."""
    rng = np.random.default_rng(5)

    def blocks(tensor: Tensor) -> Tensor:
        if len(tensor.shape) < 2 or tensor.shape[-2] == 1:
            return tensor
        n, k = tensor.row_count, tensor.shape[-1]
        raw = np.ascontiguousarray(random_blocks(kind, (n, k), rng, scale=k**-0.5)).view(np.uint8).reshape(-1)
        return replace(tensor, dtype=DTYPES[kind], data=raw)

    return {name: [blocks(tensor) for tensor in tensors] for name, tensors in weights.items()}


def program_of(name: str, weights: Weights, cache_type: str = "BF16") -> CpuProgram:
    model = model_of(name)
    pages = [LENGTH // 32 + 3] * len(model.plan.groups)
    return CpuProgram(model.plan, weights, page_counts=pages, threads=2, cache_type=cache_type)


@pytest.mark.parametrize("cache_type", ["BF16", "F32", "Q8_0"])
@pytest.mark.parametrize("name", CASES)
def test_generated_rows_have_the_bits_of_prompt_rows(name: str, cache_type: str, isa: str) -> None:
    if cache_type == "Q8_0" and name not in ("3-of-64", "2-in-a-window"):
        pytest.skip("its heads are dequantized to bfloat16: two shapes are enough")
    program = program_of(name, quantized(model_of(name).weights), cache_type)
    assert program.one_kind == (isa in ONE_KIND)
    if not program.one_kind:
        return
    as_prompt = running.chunked(program, TOKENS, [300])
    session = running.Session(program, 1, LENGTH, seed=1)
    for start, end in SPANS:
        done = session.position[0]
        session.step([(0, TOKENS[done:start])] if done < start else [])
        for at in range(start, end):
            rows = session.step([(0, TOKENS[at : at + 1])], generated=True)
            np.testing.assert_array_equal(rows[0][0], as_prompt[at], err_msg=f"row {at}")


def test_float_weights_have_two_kinds_of_rows(isa: str) -> None:
    """Also one among quantized ones; but not where only logits depend on it."""
    model = model_of("1-of-128")
    codes = quantized(model.weights)
    assert not program_of("1-of-128", model.weights).one_kind
    for name, tensors in model.weights.items():
        if len(tensors[0].shape) < 2 or "token_embd" in name:
            continue
        one = {**codes, name: tensors}
        assert program_of("1-of-128", one).one_kind == (isa in ONE_KIND and name == "output.weight"), name
