"""The order in which `tall_gemv` takes the steps of a product: for each sum that of `gemv`."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("these tests run in Triton's interpreter", allow_module_level=True)

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.tall_gemv import _first_step, _step_after
from oracles.matrices import CPU


@triton.jit
def _write_steps(out, STEPS: tl.constexpr, COUNT: tl.constexpr, PREFETCH: tl.constexpr, UNROLL: tl.constexpr):
    at = _first_step(tl.program_id(0), PREFETCH, UNROLL)
    for i in range(STEPS):
        step = at[0]
        is_last, at = _step_after(at, STEPS, COUNT, PREFETCH, UNROLL)
        tl.store(out + 2 * i, step)
        tl.store(out + 2 * i + 1, is_last.to(tl.int32))


def chains_of(steps: int, count: int, prefetch: int, unroll: int) -> list[list[int]]:
    """The steps of each chain, as `gemv` adds them: prefetched steps go to the chains in turn, and so do
    those of every round, from the first chain on."""
    chains: list[list[int]] = [[] for _ in range(count)]
    for start, end in [(0, prefetch)] + [(s, s + unroll) for s in range(prefetch, steps, unroll)]:
        for step in range(start, end):
            chains[(step - start) % count].append(step)
    return [chain for chain in chains if chain]


@pytest.mark.parametrize("count", [1, 4])
def test_each_chain_has_its_steps_in_order(count: int) -> None:
    """Also where a round has fewer steps than there are chains, and where there is no round."""
    for prefetch in (1, 2, 3, 4, 5, 8, 10):
        for unroll in (1, 2, 3, 4, 6, 8):
            for rounds in (0, 1, 2, 5):
                steps = prefetch + rounds * unroll
                out = torch.full((steps, 2), -1, dtype=torch.int32, device=CPU)
                _write_steps[(1,)](out, steps, count, prefetch, unroll)
                wanted = [
                    (step, int(step == chain[-1]))
                    for chain in chains_of(steps, count, prefetch, unroll)
                    for step in chain
                ]
                assert list(map(tuple, out.tolist())) == wanted, (steps, prefetch, unroll)
