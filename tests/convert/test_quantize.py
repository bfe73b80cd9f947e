"""The quantizers against the gguf library's, llama.cpp's, and closed forms."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from olivine.backends.cpu import native
from olivine.backends.reference.dequantize import dequantize
from olivine.convert.stream import in_type
from olivine.dtypes import DTYPES
from olivine.errors import OlivineError
from olivine.formats import open_checkpoint
from olivine.tensor import Tensor
from oracles import sampled
from oracles.blocks import random_blocks
from oracles.isas import ISAS
from oracles.real_models import QWEN_CODER

TYPES = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
BLOCKS = TYPES[2:]
SUPER = ("Q4_K", "Q5_K", "Q6_K")
# What llama.cpp's quantizers lose of each distribution below: root mean square error over that of the values.
# Made once with ggml 0.25.3 (llama-cpp-python 0.3.36), 1024 × 1024 values, seed 1.
LLAMA_CPP = {
    "normal": {"Q4_K": 0.071369, "Q5_K": 0.036133, "Q6_K": 0.017777},
    "student": {"Q4_K": 0.086794, "Q5_K": 0.043941, "Q6_K": 0.022897},
    "offset": {"Q4_K": 0.029818, "Q5_K": 0.014824, "Q6_K": 0.012769},
    "uniform": {"Q4_K": 0.054588, "Q5_K": 0.027616, "Q6_K": 0.013256},
    "laplace": {"Q4_K": 0.084656, "Q5_K": 0.042798, "Q6_K": 0.021676},
}
# The same of the first 512 rows of Qwen2.5-Coder-0.5B's tensors, as blocks of 256.
LLAMA_CPP_REAL = {
    "blk.0.ffn_down.weight": {"Q4_K": 0.074916, "Q5_K": 0.037817, "Q6_K": 0.000798},
    "blk.3.attn_v.weight": {"Q4_K": 0.074324, "Q5_K": 0.037582, "Q6_K": 0.018866},
    "token_embd.weight": {"Q4_K": 0.070566, "Q5_K": 0.030813, "Q6_K": 0.010679},
}


def values_of(name: str, shape: tuple[int, int] = (256, 1024)) -> np.ndarray:
    rng = np.random.default_rng(1)
    made = {
        "normal": lambda: rng.standard_normal(shape) * 0.02,
        "student": lambda: rng.standard_t(4, shape) * 0.02,
        "offset": lambda: rng.standard_normal(shape) * 0.02 + 0.05,
        "uniform": lambda: rng.uniform(-1, 1, shape),
        "laplace": lambda: rng.laplace(0, 0.02, shape),
    }
    return made[name]().astype(np.float32)


def tensor_of(values: np.ndarray) -> Tensor:
    data = np.ascontiguousarray(values, np.float32).view(np.uint8).reshape(-1)
    return Tensor("values", DTYPES["F32"], values.shape, data)


def quantized(values: np.ndarray, kind: str) -> Tensor:
    return Tensor("made", DTYPES[kind], values.shape, in_type(tensor_of(values), DTYPES[kind]))


def loss(found: np.ndarray, values: np.ndarray) -> float:
    exact = values.astype(np.float64)
    return float(np.sqrt(((found - exact) ** 2).mean() / (exact**2).mean()))


def library_loss(values: np.ndarray, kind: str) -> float:
    number = gguf.GGMLQuantizationType[kind]
    return loss(gguf.quants.dequantize(gguf.quants.quantize(values, number), number), values)


@pytest.mark.parametrize("name", LLAMA_CPP)
@pytest.mark.parametrize("kind", TYPES)
def test_no_more_is_lost_than_by_other_quantizers(name: str, kind: str) -> None:
    values = values_of(name)
    other = LLAMA_CPP[name][kind] if kind in SUPER else library_loss(values, kind)
    # Floats have one right answer; blocks of one or two scales leave room, which llama.cpp leaves unused.
    assert loss(dequantize(quantized(values, kind)), values) <= other * (0.99 if kind in BLOCKS else 1 + 1e-9)


@pytest.mark.parametrize("name", LLAMA_CPP_REAL)
@pytest.mark.parametrize("kind", sampled.every(2, BLOCKS))
def test_no_more_is_lost_of_real_weights(name: str, kind: str) -> None:
    tensor = open_checkpoint(QWEN_CODER.path()).tensors[name]
    values = dequantize(tensor.rows(0, min(tensor.row_count, 512))).reshape(-1, 256)
    other = LLAMA_CPP_REAL[name][kind] if kind in SUPER else library_loss(values, kind)
    assert loss(dequantize(quantized(values, kind)), values) <= other


@pytest.mark.parametrize("kind", TYPES)
def test_every_instruction_set_writes_the_same_bytes(kind: str) -> None:
    values = np.concatenate([values_of("student", (64, 512)), values_of("offset", (64, 512))])
    before = native.lib().olv_isa()
    made = {}
    try:
        for isa in ISAS:
            if native.lib().olv_set_isa(isa.encode()) == 0:
                made[isa] = quantized(values, kind).data.tobytes()
    finally:
        native.lib().olv_set_isa(before)
    assert set(made.values()) == {made["plain"]}


@pytest.mark.parametrize("kind", ["F32", *TYPES])
def test_what_a_type_can_hold_exactly_comes_back(kind: str) -> None:
    """Random blocks as values: the search has to find scales that lose next to nothing."""
    raw = random_blocks(kind, (32, 512), np.random.default_rng(5), 0.1)
    values = dequantize(Tensor("raw", DTYPES[kind], (32, 512), raw.view(np.uint8).reshape(-1)))
    found = dequantize(quantized(values, kind))
    if kind in BLOCKS:
        # Codes seldom reach both ends in a random block, so the very scales are not always found.
        uniform = values_of("uniform")
        share = 1.0 if kind == "Q8_0" else 0.5  # whose largest code is taken to be 127
        assert loss(found, values) < share * loss(dequantize(quantized(uniform, kind)), uniform)
    else:
        np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize(
    "values",
    [np.zeros(256), np.full(256, 0.7), np.full(256, -3.0), np.full(256, 1e-30), np.full(256, 6e4),
     np.eye(1, 256, 17)[0] * 5, np.linspace(-1, 1, 256), np.full(256, 1e-42),
     np.full(256, -6e-5), np.linspace(-3e-6, 3e-6, 256)],
    ids=["zeros", "ones-sign", "negative", "tiny", "huge", "spike", "line", "subnormal", "small",
         "small-line"],
)  # fmt: skip
def test_odd_blocks(kind: str, values: np.ndarray) -> None:
    found = dequantize(quantized(values.reshape(1, 256).astype(np.float32), kind))[0]
    assert np.isfinite(found).all()
    # No value is further off than half a step of the coarsest type would put it, nor than halves can tell.
    reach = np.abs(values).max()
    assert np.abs(found - values).max() <= max(0.075 * reach, 1e-7)


@pytest.mark.parametrize("kind", BLOCKS)
def test_small_weights_lose_no_more_than_others(kind: str) -> None:
    """Down to where a half can tell next to nothing; below that, they become no larger than they were."""
    values = values_of("normal", (64, 512)) / 0.02
    usual = loss(dequantize(quantized(values, kind)), values)
    for size in (1e-2, 1e-3, 3e-4, 1e-4, 4e-5, 1e-5):
        small = values * np.float32(size)
        assert loss(dequantize(quantized(small, kind)), small) <= 1.3 * usual, size
    for size in (1e-6, 1e-7, 1e-8, 1e-12):
        small = values * np.float32(size)
        assert loss(dequantize(quantized(small, kind)), small) <= 1.0, size


def test_floats_are_rounded_to_nearest_even() -> None:
    rng = np.random.default_rng(2)
    bits = rng.integers(0, 1 << 32, 40_000, dtype=np.uint32)
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = np.concatenate([-halves[::-1], halves])
    between = ((halves[1:].astype(np.float64) + halves[:-1]) / 2).astype(np.float32)
    values = np.concatenate([bits.view(np.float32), halves, between, np.nextafter(between, np.float32(0))])
    values = values[np.isfinite(values) & (np.abs(values) <= 65504)].reshape(1, -1)
    made = in_type(tensor_of(values), DTYPES["F16"]).view(np.float16)
    np.testing.assert_array_equal(made.view(np.uint16), values[0].astype(np.float16).view(np.uint16))
    made = in_type(tensor_of(values), DTYPES["BF16"])
    expected = gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)
    np.testing.assert_array_equal(made, expected.reshape(-1))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_are_refused(kind: str, bad: float) -> None:
    values = np.ones((2, 256), np.float32)
    values[1, 77] = bad
    with pytest.raises(OlivineError, match="not a number, or infinite"):
        quantized(values, kind)


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind != "BF16"])
def test_values_beyond_a_type_are_refused(kind: str) -> None:
    with pytest.raises(OlivineError, match="beyond the reach"):
        quantized(np.full((1, 256), 7e4, np.float32), kind)


@pytest.mark.parametrize("kind", ["Q2_K", "IQ4_NL", "MXFP4"])
def test_types_that_nothing_is_converted_to(kind: str) -> None:
    with pytest.raises(OlivineError, match="nothing is converted"):
        quantized(np.ones((1, 256), np.float32), kind)


@pytest.mark.parametrize("kind", [*DTYPES])
def test_every_type_can_be_read(kind: str) -> None:
    raw = random_blocks(kind, (3, 512), np.random.default_rng(6), 0.1).view(np.uint8).reshape(-1)
    source = Tensor("raw", DTYPES[kind], (3, 512), raw)
    found = in_type(source, DTYPES["F32"]).view(np.float32).reshape(3, 512)
    np.testing.assert_array_equal(found, dequantize(source))
