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
def _gate(gate, up, out, width, gate_stride, up_stride, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < width
    begin()
    y = activate(tl.load(gate + row * gate_stride + at, mask=there, other=0.0).to(tl.float32), ACTIVATION)
    if up is not None:
        y *= tl.load(up + row * up_stride + at, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, y.to(out.dtype.element_ty), mask=there)


def gate(g: torch.Tensor, up: torch.Tensor | None, out: torch.Tensor, activation: str) -> None:
    """out = activation(g) · up, for a gate and an up that are not fused with their product; or without up."""
    rows, width = out.shape
    if rows:
        _gate[(rows, -(-width // 1024))](
            g,
            up,
            out,
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
