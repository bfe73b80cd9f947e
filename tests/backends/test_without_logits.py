"""A step that computes no logits ends with the hidden states; but it writes all of the KV cache."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from olivine.backends import Program
from olivine.backends.cpu import CpuProgram
from olivine.backends.reference import ReferenceProgram
from olivine.dtypes import F32
from olivine.plan import Plan, Trace, trace
from olivine.tensor import Tensor
from oracles import running

D, HEAD = 16, 8
TOKENS = [3, 1, 4, 1, 5]


def plan_of(hidden: str) -> Plan:
    """A cache that only the logits need, written before or after the hidden states. These are a norm or a
    linear op, which fusing and grouping move up to the sum or to the other linear op of its input."""

    def forward(t: Trace, _: None) -> None:
        x = t.embed("table", D)
        y = t.take_outputs(x)
        total = t.add(y, t.linear(y, "first", D))
        early = t.rms_norm(total, "norm", 1e-6) if hidden == "before" else None
        cache = t.cache(1, HEAD)
        t.store(cache, t.linear(x, "k", HEAD), t.linear(x, "v", HEAD))
        a = t.attention(t.linear(x, "q", HEAD), cache, scale=0.3)
        if hidden == "linear":
            late = t.linear(y, "second", D)
        else:
            late = t.rms_norm(total, "norm", 1e-6)
        t.finish(hidden=early or late, logits=t.linear(t.take_outputs(a), "head", 11))

    return trace("late", forward, None, {"table.weight": (11, D)})


def cpu(plan: Plan, weights: Any, **options: Any) -> Program:
    return CpuProgram(plan, weights, threads=1, **options)


def cuda(plan: Plan, weights: Any, **options: Any) -> Program:
    pytest.importorskip("triton")
    if os.environ["TRITON_INTERPRET"] != "1":
        pytest.skip("runs in Triton's interpreter")
    from olivine.backends.cuda import CudaProgram

    return CudaProgram(plan, weights, device="cpu", **options)


@pytest.mark.parametrize("hidden", ["before", "norm", "linear"])
@pytest.mark.parametrize("backend", [cpu, cuda])
def test_the_cache_is_written_whole(backend: Any, hidden: str) -> None:
    plan, rng = plan_of(hidden), np.random.default_rng(1)
    weights = {}
    for weight in plan.weights:
        values = (rng.standard_normal(weight.shape) * D**-0.5).astype(np.float32)
        weights[weight.name] = (Tensor(weight.name, F32, weight.shape, values.view(np.uint8).reshape(-1)),)
    results = []
    for make in (ReferenceProgram, backend):
        size = {"page_size": 32} if make is ReferenceProgram else {}
        program = make(plan, weights, page_counts=[1], **size)
        session = running.Session(program, 1, 32)
        silent = program.step(session.batch([(0, TOKENS, False)]), logits=False)
        assert silent.logits.shape == (len(TOKENS), 0)
        (after,) = session.step([(0, [2])], generated=True)
        results.append(np.concatenate([silent.hidden.ravel(), after.ravel()]))
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=0.05)
