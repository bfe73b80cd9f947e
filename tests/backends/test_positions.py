"""Ops that depend on a row's position, on every backend: rotary embeddings of heads and of parts of them, and
the scale of queries. Against the published code where there is some, and the closed form elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale
from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb

from olivine.backends import Batch, Program
from olivine.backends.cpu import CpuProgram, native
from olivine.backends.reference import ReferenceProgram
from olivine.dtypes import F32
from olivine.plan import Rotation, Trace, Value, trace
from olivine.tensor import Tensor
from oracles.isas import ISAS

POSITIONS = np.array([0, 1, 2, 3, 17, 63, 64, 127, 128, 1000, 4095, 4096, 65536, 131071], np.int32)
HEADS = 3
BACKENDS = ("reference", *ISAS)
Run = Callable[[Callable[[Trace, Value], Value], np.ndarray], np.ndarray]


def frequencies(n: int) -> tuple[float, ...]:
    return tuple(10_000 ** (-i / n) for i in range(n))


def program(name: str, op: Callable[[Trace, Value], Value], x: np.ndarray) -> Program:
    """A plan of that op alone, applied to rows of an embedding."""
    shape = (len(x), x.shape[1])

    def forward(t: Trace, c: None) -> None:
        y = t.take_outputs(op(t, t.embed("token_embd", x.shape[1])))
        t.finish(hidden=y, logits=y)

    plan = trace("op", forward, None, {"token_embd.weight": shape})
    weights = {"token_embd.weight": (Tensor("w", F32, shape, x.view(np.uint8).reshape(-1)),)}
    if name == "reference":
        return ReferenceProgram(plan, weights, page_counts=())
    return CpuProgram(plan, weights, page_counts=(), threads=2)


@pytest.fixture(params=BACKENDS)
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs an op on rows at POSITIONS."""
    before = native.lib().olv_isa()
    if request.param != "reference" and native.lib().olv_set_isa(request.param.encode()):
        pytest.skip(f"this CPU has no {request.param}")

    def of(op: Callable[[Trace, Value], Value], x: np.ndarray) -> np.ndarray:
        rows = np.arange(len(x), dtype=np.int32)
        batch = Batch(rows, np.zeros(len(x), np.int32), POSITIONS, rows, ())
        return program(request.param, op, x).step(batch).logits

    yield of
    native.lib().olv_set_isa(before)


def rows(width: int) -> np.ndarray:
    return np.random.default_rng(width).standard_normal((len(POSITIONS), width)).astype(np.float32)


@pytest.mark.parametrize(
    ("n", "unrotated"), [(64, 0), (48, 32), (3, 0), (3, 1), (5, 22), (16, 32), (17, 6), (1, 31)]
)
def test_the_first_columns_rotate_as_the_published_code_rotates_them(
    run: Run, n: int, unrotated: int
) -> None:
    """Phi-4-mini rotates 96 of 128 columns; the others stay, and a magnitude is not for them."""
    rotation = Rotation(frequencies(n), magnitude=1.19, unrotated=unrotated)
    assert rotation.head_dim == 2 * n + unrotated
    x = rows(HEADS * rotation.head_dim)
    angles = torch.from_numpy(POSITIONS)[:, None].float() * torch.tensor(frequencies(n))
    angles = torch.cat((angles, angles), dim=-1)
    heads = torch.from_numpy(x).reshape(len(x), HEADS, -1)
    theirs, _ = apply_rotary_pos_emb(heads, heads, angles.cos() * 1.19, angles.sin() * 1.19)
    ours = run(lambda t, v: t.rope(v, rotation), x).reshape(heads.shape)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=2e-5)
    np.testing.assert_array_equal(ours[:, :, 2 * n :], heads[:, :, 2 * n :].numpy())


@pytest.mark.parametrize(("n", "unrotated"), [(4, 0), (12, 8), (17, 6), (1, 31)])
def test_interleaved_pairs_are_complex_numbers_that_rotate(run: Run, n: int, unrotated: int) -> None:
    rotation = Rotation(frequencies(n), interleaved=True, unrotated=unrotated)
    x = rows(HEADS * rotation.head_dim)
    heads = x.reshape(len(x), HEADS, -1)
    pairs = heads[..., 0 : 2 * n : 2] + 1j * heads[..., 1 : 2 * n : 2]
    angles = POSITIONS.astype(np.float32)[:, None] * np.array(frequencies(n), np.float32)
    rotated = pairs * np.exp(1j * angles.astype(np.float64))[:, None]
    theirs = np.concatenate(
        [np.stack([rotated.real, rotated.imag], -1).reshape(*heads.shape[:2], 2 * n), heads[..., 2 * n :]], -1
    )
    ours = run(lambda t, v: t.rope(v, rotation), x).reshape(heads.shape)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("beta", "length"), [(0.1, 64), (0.7, 4096), (0.1, 1 << 20)])
def test_queries_are_scaled_by_position_as_the_published_code_scales_them(
    run: Run, beta: float, length: int
) -> None:
    x = rows(40)
    factors = get_llama_4_attn_scale(torch.from_numpy(POSITIONS)[None], beta, length).reshape(-1, 1).numpy()
    ours = run(lambda t, v: t.position_scale(v, beta=beta, length=length), x)
    np.testing.assert_allclose(ours, x * factors, rtol=1e-6, atol=0)
    before = length > POSITIONS
    np.testing.assert_array_equal(ours[before], x[before])


def test_rows_without_a_position_have_no_rotation() -> None:
    """From `take_outputs` on, rows are no longer those that positions are given for."""
    for op in (
        lambda t, v: t.rope(t.take_outputs(v), Rotation((1.0,))),
        lambda t, v: t.position_scale(t.take_outputs(v), beta=0.1, length=8),
    ):
        with pytest.raises(ValueError, match="rows that have a position"):
            program("reference", op, rows(4))


def test_plans_say_which_columns_rotate() -> None:
    assert str(Rotation((1.0, 0.5))) == "[halves, f1=0.5]"
    assert str(Rotation((1.0, 0.5), unrotated=4)) == "[halves, f1=0.5, 4 of 8 columns]"
