"""The activations of layers, by themselves and with a gate."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.pdl import LAUNCH, begin

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "relu": 2, "sigmoid": 3}
_SILU: tl.constexpr = tl.constexpr(ACTIVATIONS["silu"])
_RELU: tl.constexpr = tl.constexpr(ACTIVATIONS["relu"])
_SIGMOID: tl.constexpr = tl.constexpr(ACTIVATIONS["sigmoid"])


@triton.jit
def tanh(x):
    # From e^(−2|x|), which neither overflows nor cancels where it matters.
    e = tl.exp(-2.0 * tl.abs(x))
    y = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0, -y, y)


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == _SILU:
        return x / (1.0 + tl.exp(-x))
    if ACTIVATION == _RELU:
        return tl.maximum(x, 0.0)
    if ACTIVATION == _SIGMOID:
        return 1.0 / (1.0 + tl.exp(-x))
    return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@triton.jit
def limited(y, limits):
    """y, at least the first and at most the second of the limits, which may be None."""
    if limits is not None:
        y = tl.minimum(tl.maximum(y, tl.load(limits)), tl.load(limits + 1))
    return y


@triton.jit
def _gate(
    gate, up, out, gate_limits, up_limits, limits, width, gate_stride, up_stride,
    ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < width
    begin()
    y = tl.load(gate + row * gate_stride + at, mask=there, other=0.0).to(tl.float32)
    y = activate(limited(y, gate_limits), ACTIVATION)
    if up is not None:
        y *= limited(tl.load(up + row * up_stride + at, mask=there, other=0.0).to(tl.float32), up_limits)
    tl.store(out + row * width + at, limited(y, limits).to(out.dtype.element_ty), mask=there)


Limits = torch.Tensor | None  # two float32: the least and the most


def gate(
    g: torch.Tensor,
    up: torch.Tensor | None,
    out: torch.Tensor,
    activation: str,
    limits: tuple[Limits, Limits, Limits] = (None, None, None),
) -> None:
    """out = activation(g) · up, for a gate and an up that are not fused with their product; or without up.
    `limits` are those of g, of up and of the result."""
    rows, width = out.shape
    if rows:
        _gate[(rows, -(-width // 1024))](
            g,
            up,
            out,
            *limits,
            width,
            g.stride(0),
            0 if up is None else up.stride(0),
            ACTIVATION=ACTIVATIONS[activation],
            BLOCK=1024,
            **LAUNCH,
        )


@triton.jit
def _softcap(x, out, width, cap, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < width
    begin()
    v = tl.load(x + row * width + at, mask=there, other=0.0)
    tl.store(out + row * width + at, tanh(v / cap) * cap, mask=there)


def softcap(x: torch.Tensor, out: torch.Tensor, cap: float) -> None:
    rows, width = out.shape
    if rows:
        _softcap[(rows, -(-width // 1024))](x, out, width, cap, BLOCK=1024, **LAUNCH)
