"""Prompts and chains on the CUDA backend under the guard of oracles/guarding.py: no address outside the
tensors of a launch, no overflow, nothing read too early; and that the guard finds each of these."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("these tests run in Triton's interpreter", allow_module_level=True)

import torch
import triton
import triton.language as tl

from olivine.backends import Draw, Sampling
from olivine.backends.cuda import CudaProgram
from olivine.backends.cuda.kernels.pdl import begin, release, release_stored, wait
from oracles import guarding, running
from synthetic import SHAPES
from synthetic.in_memory import model_in_memory
from synthetic.shapes import Shape

VOCABULARY = 32
EXHAUSTIVE = pytest.mark.exhaustive
SAMPLED = Sampling(temperature=1.0, top_k=5, top_p=0.9, repetition_penalty=1.1, seed=3)


# Few and small products, each some 25 ms a program in the interpreter.
MIXTURE = replace(
    SHAPES["tiny-qwen3moe"], layers=1, hidden=32, heads=2, kv_heads=1, head_dim=32, experts=5, vocabulary=32
)
DENSE = replace(
    SHAPES["tiny-qwen3"], layers=1, width=64, hidden=32, heads=2, kv_heads=1, head_dim=16, vocabulary=32
)


def tiny(name: str) -> Shape:
    return replace(SHAPES[name], vocabulary=VOCABULARY, layers=SHAPES[name].layers if "gemma" in name else 1)


@pytest.mark.parametrize(
    ("shape", "kind", "rows", "poison"),
    [
        pytest.param(MIXTURE, "Q4_K_M", 1, 0xFF, id="mixture"),
        pytest.param(DENSE, "BF16", 3, 0x7F, id="dense"),
        *(
            pytest.param(tiny(name), kind, rows, 0xFF, id=f"{name}-{kind}-{rows}", marks=EXHAUSTIVE)
            for name, kind, rows in (
                ("tiny-qwen3moe", "Q4_K_M", 16),
                ("tiny-gemma4", "Q4_K_M", 3),
                ("tiny-gemma3", "Q8_0", 3),
                ("tiny-qwen3", "Q4_0", 3),
                *(("tiny-llama", kind, 1) for kind in ("Q5_0", "Q2_K", "Q3_K", "IQ4_XS", "MXFP4")),
            )
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of what the poison becomes in products
def test_prompts_and_chains(shape: Shape, kind: str, rows: int, poison: int) -> None:
    """Some rows end at their first token, and go on as padding, like those that fill up a batch: attention
    leaves them what was in memory."""
    model = model_in_memory(shape, kind)
    ends = Draw(Sampling(), stop=tuple(range(VOCABULARY)))
    draws = [ends, Draw(SAMPLED, prompt=[1, 2]), Draw(Sampling(), logprobs=2)]
    with guarding.guarded(poison) as launched:
        counts = [2 * rows] * len(model.plan.groups)
        program = CudaProgram(model.plan, model.weights, page_counts=counts, device="cpu")
        session = running.Session(program, rows, 64)
        if rows > 1:
            session.step([(row, [1, 2]) for row in range(rows)])
        batch = session.batch([(row, [3], True) for row in range(rows)])
        drawn = program.generate(batch, [draws[row % 3] for row in range(rows)], 2)
    assert [len(each.tokens) for each in drawn] == [2 * (row % 3 > 0) for row in range(rows)]
    assert all(each.error is None for each in drawn)
    assert {"_gemv", "_decode_attention", "_draw"} < set(launched)


@triton.jit
def _copy(source, target, SIZE: tl.constexpr):
    begin()
    at = tl.arange(0, SIZE)
    tl.store(target + at, tl.load(source + at))


@triton.jit
def _multiply(target, number):
    begin()
    tl.store(target, number * number)


@triton.jit
def _copy_before(source, target):
    x = tl.load(source)
    release()
    wait()
    tl.store(target, x)


@triton.jit
def _copy_then_release(source, target, before: tl.constexpr, after: tl.constexpr):
    wait()
    at = tl.arange(0, 8)
    if before:
        tl.store(target + at, tl.load(source + at))
    release_stored()
    if after:
        tl.store(target + at, tl.load(source + at))


@triton.jit
def _store_before(target):
    tl.store(target, 1)
    begin()


@triton.jit
def _end_before(target):
    if tl.program_id(0) == 0:
        begin()


def test_what_the_guard_finds() -> None:
    x, y = torch.zeros(8, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    with guarding.guarded():
        _copy[(1,)](x, y[8:16], SIZE=8)
        with pytest.raises(Exception, match=r"_copy, test_cuda_guarded.py:\d+: 8 addresses in no tensor"):
            _copy[(1,)](x, y, SIZE=16)
        _multiply[(1,)](x, 46340)
        with pytest.raises(Exception, match="int32 overflows"):
            _multiply[(1,)](x, 46341)
        with pytest.raises(Exception, match="a write before the wait"):
            _store_before[(1,)](x)
        with pytest.raises(AssertionError, match="ends before the kernel before it"):
            _end_before[(2,)](x)


def test_what_may_be_read_before_the_wait() -> None:
    """Not what the kernel before writes, nor what was written before one that released early."""
    x, y, z = (torch.zeros(8, dtype=torch.int32) for _ in range(3))
    with guarding.guarded():
        _copy[(1,)](x, y, SIZE=8)
        with pytest.raises(Exception, match=r"_copy_before, .*: what is read may still be written"):
            _copy_before[(1,)](y, z)
        _copy[(1,)](x, y, SIZE=8)
        _copy_before[(1,)](x, z)
        with pytest.raises(Exception, match="may still be written"):
            _copy_before[(1,)](y, z)
        _copy[(1,)](x, y, SIZE=8)
        _copy[(1,)](x, z, SIZE=8)
        _copy_before[(1,)](y, x)  # the second copy had waited for the first one
        _copy_then_release[(1,)](x, y, before=True, after=False)
        _copy_before[(1,)](y, z)
        _copy_before[(1,)](y, z)
        _copy_then_release[(1,)](x, y, before=True, after=True)
        with pytest.raises(Exception, match="may still be written"):
            _copy_before[(1,)](y, z)
