"""Kernels of the CPU backend over a table of types and shapes, on every instruction set that this CPU has."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from olivine.backends import cpu
from olivine.backends.cpu import default_threads, native
from olivine.backends.cpu import threads as threads_module
from olivine.backends.reference import dequantize
from olivine.dtypes import DTYPES, grouped_int8
from olivine.tensor import Tensor
from oracles.blocks import random_blocks
from oracles.isas import BFLOAT16, INT8, ISAS, SAME_BITS

FLOATS = ("F32", "F16", "BF16")
GROUPS = (2, 6, 16, 32, 48, 64, 128)


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = native.lib().olv_isa()
    if native.lib().olv_set_isa(request.param.encode()):
        pytest.skip(f"this CPU has no {request.param}")
    yield request.param
    native.lib().olv_set_isa(before)


def tensor_of(kind: str, n: int, k: int) -> Tensor:
    rng = np.random.default_rng(zlib.crc32(f"{kind}{n}{k}".encode()))
    if kind.startswith("G"):
        group = int(kind[1:])
        codes = rng.integers(-127, 128, (n, k), dtype=np.int8)
        scales = rng.uniform(0.001, 0.02, n * k // group).astype(np.float32)
        # Three bytes off, because nothing in that format aligns the scales.
        shifted = np.concatenate([np.zeros(3, np.uint8), scales.view(np.uint8)])[3:]
        return Tensor("w", grouped_int8(group), (n, k), codes.view(np.uint8).reshape(-1), shifted)
    raw = np.ascontiguousarray(random_blocks(kind, (n, k), rng, scale=k**-0.5)).view(np.uint8).reshape(-1)
    # Exactly as long as the tensor: a kernel that reads beyond its end is caught by the sanitizers.
    return Tensor("w", DTYPES[kind], (n, k), raw.copy())


def linear(tensor: Tensor, x: np.ndarray, generated: bool, threads: int = 2) -> np.ndarray:
    pool = native.Pool(threads)
    y = np.full((len(x), tensor.shape[0]), np.nan, np.float32)
    weight = native.weight_of(tensor)
    x = np.ascontiguousarray(x, np.float32)
    native.check(
        native.lib().olv_linear(
            pool.handle, ctypes.byref(weight), x.ctypes.data, len(x), int(generated), y.ctypes.data
        )
    )
    return y


def shapes(kind: str) -> list[tuple[int, int]]:
    """Sizes that are multiples of the type's block and of nothing else."""
    if kind in FLOATS:
        return [(1, 1), (3, 7), (33, 100), (50, 257), (17, 32)]
    if kind.startswith("G"):
        group = int(kind[1:])
        return [(5, group), (19, group * 7), (34, group * 21)]
    block = DTYPES[kind].block_size
    return [(1, block), (7, 3 * block), (37, 9 * block if block == 32 else 2 * block)]


def in_super_blocks(kind: str) -> bool:
    """Whether dot products with int8 activations are defined for the type."""
    return int(kind[1:]) % 16 == 0 if kind.startswith("G") else kind not in FLOATS


def code_bits(kind: str) -> int:
    """Bits of a code as kernels unpack it: the digit in the name of Q4_0 or Q6_K, 8 for looked-up values."""
    return 5 if kind == "MXFP4" else int(kind[1]) if kind.startswith("Q") else 8


KINDS = [*DTYPES, *(f"G{group}" for group in GROUPS)]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_dequantize_as_in_the_reference(kind: str, isa: str) -> None:
    for n, k in shapes(kind):
        tensor = tensor_of(kind, n, k)
        weight = native.weight_of(tensor)
        expected = dequantize(tensor)
        for row in {0, n // 2, n - 1}:
            y = np.empty(k, np.float32)
            native.check(native.lib().olv_dequantize(ctypes.byref(weight), row, y.ctypes.data))
            np.testing.assert_allclose(y, expected[row], rtol=2e-6, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("generated", [True, False])
def test_linear_agrees_with_the_reference(kind: str, generated: bool, isa: str) -> None:
    """Generated rows: float32 for float weights, else int8 activations (1 %). Prompt rows: bfloat16
    with matrix products (1 %), else int8 activations too or float32."""
    exact = isa not in BFLOAT16 or generated
    if generated or code_bits(kind) <= INT8.get(isa, 0):
        exact = exact and not in_super_blocks(kind)
    bound = 2e-6 if exact else 0.01
    rng = np.random.default_rng(5)
    for n, k in shapes(kind):
        tensor = tensor_of(kind, n, k)
        weights = dequantize(tensor).astype(np.float64)
        for rows in (1, 2, 5, 8, 9, 16, 17, 40):
            x = rng.standard_normal((rows, k)).astype(np.float32)
            expected = x.astype(np.float64) @ weights.T
            # The magnitude of the sum without cancellation, which rounding errors are relative to.
            scale = (
                np.sqrt(np.square(x).sum(axis=1))[:, None] * np.sqrt(np.square(weights).sum(axis=1))[None, :]
            )
            error = np.abs(linear(tensor, x, generated) - expected) / (scale + 1e-30)
            assert error.max() < bound, (n, k, rows)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "BF16", "G64", "IQ3_S"])
def test_a_row_has_the_same_bits_whatever_the_other_rows(kind: str, isa: str) -> None:
    tensor = tensor_of(kind, 70, 768)
    x = np.random.default_rng(1).standard_normal((45, 768)).astype(np.float32)
    for generated in (True, False):
        together = linear(tensor, x, generated)
        for rows in (slice(0, 1), slice(7, 15), slice(30, 45)):
            np.testing.assert_array_equal(linear(tensor, x[rows], generated, threads=3), together[rows])


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q5_1", "IQ4_NL", "MXFP4"])
def test_rows_that_end_in_half_a_super_block(kind: str, isa: str) -> None:
    """A generated row alone may take two weight rows at once: an odd number of them, and 1,152 columns."""
    for n, k in ((1, 1152), (37, 1152), (6, 384), (5, 128)):
        tensor = tensor_of(kind, n, k)
        x = np.random.default_rng(k).standard_normal((3, k)).astype(np.float32)
        together = linear(tensor, x, generated=True)
        expected = x @ dequantize(tensor).T
        np.testing.assert_allclose(together, expected, rtol=0, atol=0.02 * np.abs(expected).max())
        for row in range(3):
            np.testing.assert_array_equal(linear(tensor, x[row : row + 1], generated=True)[0], together[row])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if in_super_blocks(kind)])
def test_a_prompt_row_in_int8_has_the_bits_of_a_generated_row(kind: str, isa: str) -> None:
    if isa not in SAME_BITS:
        pytest.skip("prompt rows are computed in another way")
    for n, k in [(n, k) for n, k in shapes(kind) if k % 32 == 0]:
        tensor = tensor_of(kind, n, k)
        x = np.random.default_rng(2).standard_normal((23, k)).astype(np.float32)
        generated = linear(tensor, x, generated=True)
        for rows in (1, 8, 9, 11, 23):
            np.testing.assert_array_equal(linear(tensor, x[:rows], generated=False), generated[:rows])


def test_activations_of_any_magnitude(isa: str) -> None:
    """Zeros give zeros, and the largest and smallest floats do not affect other rows."""
    tensor = tensor_of("Q8_0", 9, 256)
    x = np.zeros((3, 256), np.float32)
    x[1] = 1e30
    x[2] = 1e-30
    y = linear(tensor, x, generated=True)
    assert (y[0] == 0).all() and np.isfinite(y).all()


def test_an_unknown_instruction_set_is_refused() -> None:
    assert native.lib().olv_set_isa(b"mmx") == 1


@pytest.mark.parametrize("name", [*ISAS, "mmx"])
def test_the_environment_chooses_the_instruction_set_or_is_refused(name: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", "from olivine.backends.cpu import isa; print(isa())"],
        env={**os.environ, "OLIVINE_ISA": name},
        capture_output=True,
        text=True,
    )
    if run.returncode == 0:
        assert run.stdout.strip() == name != "mmx"
    else:
        assert f"OLIVINE_ISA asks for '{name}', which this CPU or this build does not have" in run.stderr
        assert name != "plain"


def test_default_threads_are_within_the_process_limits(tmp_path: Path) -> None:
    assert 1 <= default_threads() <= 4096
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert threads_module.cpu_quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert threads_module.cpu_quota(tmp_path) is None
    assert threads_module.cpu_quota(tmp_path / "nowhere") is None


def test_peaks_are_of_the_types_that_kernels_compute_in(isa: str) -> None:
    peaks = cpu.arithmetic_peak(1, repeats=1)
    floats = "bf16" if isa in BFLOAT16 else "f32"
    assert set(peaks) == ({"int8", floats} if isa in (*BFLOAT16, *INT8) else {floats})
    for size in (1, 3 << 20):
        assert cpu.read_bandwidth(1, size, repeats=1) > 0
