"""The audio tower of Gemma 4, a conformer: two convolutions halve time and frequency twice, then each layer
attends to the last rows and convolves over five of them. A row is four mel frames and becomes one soft token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from olivine.errors import ModelError
from olivine.models.fields import Fields
from olivine.models.tower import Shapes, Stored, TowerArchitecture, clipped_linear
from olivine.models.tower_tables import GEMMA4_AUDIO
from olivine.plan import Trace, Value

_EPS = 1e-6  # of every norm; some files name another by mistake
_MELS = 128
_FRAMES = 4  # mel frames in a row
_MOST_CHANNELS = 4096  # of a convolution
_SPAN = 12  # rows that a row attends to, itself among them
_CAP = 50.0
_RESIDUAL = 0.5


@dataclass(frozen=True)
class Gemma4AudioConfig:
    layers: int
    width: int  # D
    hidden: int  # F
    heads: int  # H
    channels: tuple[int, int]  # of the two convolutions
    kernel: int  # rows of a layer's convolution
    outputs: int  # columns before the projection
    projected: int  # the text model's width
    rows_per_token: int = 1

    def __post_init__(self) -> None:
        if self.width % self.heads or self.width % 2:
            raise ModelError(f"the audio tower has {self.heads} heads, which must divide {self.width}")
        if max(self.channels) > _MOST_CHANNELS:  # kernels gather nine times as many
            raise ModelError(
                f"the audio tower has {max(self.channels)} channels, and at most {_MOST_CHANNELS}"
            )


def from_hf(c: Fields, config: Fields, width: int) -> Gemma4AudioConfig:
    first, second = c.per_layer("subsampling_conv_channels", 2)
    return Gemma4AudioConfig(
        layers=c.integer("num_hidden_layers", high=1024),
        width=c.integer("hidden_size"),
        hidden=4 * c.integer("hidden_size"),
        heads=c.integer("num_attention_heads"),
        channels=(first, second),
        kernel=c.integer("conv_kernel_size", high=1024),
        outputs=c.integer("output_proj_dims"),
        projected=width,
    )


def from_gguf(meta: Fields, shapes: Shapes) -> Gemma4AudioConfig:
    if meta.integer("num_mel_bins", _MELS) != _MELS:
        raise meta.refuse("num_mel_bins", f"is not supported; only {_MELS} is")
    first, second = (shapes.get(f"a.conv1d.{i}.weight", (0,))[0] for i in (0, 1))
    return Gemma4AudioConfig(
        layers=meta.integer("block_count", high=1024),
        width=meta.integer("embedding_length"),
        hidden=meta.integer("feed_forward_length"),
        heads=meta.integer("attention.head_count"),
        channels=(first, second),
        kernel=shapes.get("a.blk.0.conv_dw.weight", (0, 1))[-1],
        outputs=shapes.get("a.pre_encode.out.weight", (0,))[0],
        projected=meta.integer("projection_dim"),
    )


def derive(c: Gemma4AudioConfig, stored: Stored) -> None:
    def scales(values: np.ndarray) -> np.ndarray:
        """Of all heads. GGUF has the softplus of them."""
        values = values.reshape(-1)
        return np.tile(np.logaddexp(values, np.float32(0)) if stored.naming == "hf" else values, c.heads)

    def distances(values: np.ndarray) -> np.ndarray:
        return (values @ _sinusoids(c.width)).T

    for i in range(c.layers):
        name = f"a.blk.{i}.per_dim_scale.weight"
        if name in stored:
            stored.change(name, (c.heads * stored.tensors[name].size,), scales)
        name = f"a.blk.{i}.attn_k_rel.weight"
        if name in stored and stored.tensors[name].shape == (c.width, c.width):
            stored.change(name, (_SPAN, c.width), distances)
        old = (c.width, 1, c.kernel)
        stored.rearrange(f"a.blk.{i}.conv_dw.weight", old, (c.width, c.kernel), lambda values: values[:, 0])


def _sinusoids(width: int) -> np.ndarray:
    """Of the distances 0, 1, … between rows: sines, then cosines. [D, span]"""
    scales = width // 2
    step = math.log(10_000) / max(scales - 1, 1)
    angles = np.exp(np.arange(scales, dtype=np.float32) * np.float32(-step))[:, None] * np.arange(
        _SPAN, dtype=np.float32
    )
    return np.concatenate([np.sin(angles), np.cos(angles)])


def forward(t: Trace, c: Gemma4AudioConfig) -> None:
    x, channels = t.input(_FRAMES * _MELS), 1  # [T, 4 · 128]
    for i, wanted in enumerate(c.channels):  # 4 steps a row, then 2
        x = t.conv(x, f"a.conv1d.{i}", channels, wanted, steps=_FRAMES >> i, frames=_FRAMES)
        x = t.activate(t.layer_norm(x, f"a.conv1d.{i}.norm", _EPS, size=wanted), "relu")
        channels = wanted
    x = t.linear(x, "a.input_projection", c.width)  # [T, D]
    for i in range(c.layers):
        layer = t.scope(f"a.blk.{i}")
        x = feed_forward(layer, c, x, "")
        a = attention(layer, c, layer.rms_norm(x, "attn_pre_norm", _EPS))
        x = layer.add(x, layer.rms_norm(a, "attn_post_norm", _EPS))
        x = layer.add(x, convolution(layer, c, layer.rms_norm(x, "conv_norm", _EPS)))
        x = feed_forward(layer, c, x, "_1")
        x = layer.rms_norm(x, "ln2", _EPS)
    x = t.take_outputs(t.linear(x, "a.pre_encode.out", c.outputs))
    t.finish(hidden=t.linear(t.rms_norm(x, None, _EPS), "mm.a.input_projection", c.projected))


def feed_forward(t: Trace, c: Gemma4AudioConfig, x: Value, which: str) -> Value:
    h = t.rms_norm(x, f"ffn_norm{which}", _EPS)
    h = t.activate(clipped_linear(t, h, f"ffn_up{which}", c.hidden), "silu")
    h = t.rms_norm(clipped_linear(t, h, f"ffn_down{which}", c.width), f"ffn_post_norm{which}", _EPS)
    return t.add(x, t.scale(h, factor=_RESIDUAL))


def attention(t: Trace, c: Gemma4AudioConfig, x: Value) -> Value:
    q, k, v = (clipped_linear(t, x, f"attn_{name}", c.width) for name in "qkv")
    head_dim = c.width // c.heads
    q = t.scale(q, "per_dim_scale.weight", size=c.width, factor=head_dim**-0.5 / math.log(2))
    k = t.scale(k, factor=math.log(1 + math.e) / math.log(2))
    a = t.relative_attention(q, k, v, "attn_k_rel", heads=c.heads, span=_SPAN, cap=_CAP)
    return clipped_linear(t, a, "attn_out", c.width)


def convolution(t: Trace, c: Gemma4AudioConfig, x: Value) -> Value:
    u = clipped_linear(t, x, "conv_pw1", 2 * c.width)
    u = t.gate(t.columns(u, c.width, c.width), t.columns(u, 0, c.width), "sigmoid")
    u = t.rms_norm(t.depthwise_conv(u, "conv_dw", c.kernel), "norm_conv", _EPS)
    return clipped_linear(t, t.activate(u, "silu"), "conv_pw2", c.width)


TOWER = TowerArchitecture("Gemma 4 audio", GEMMA4_AUDIO, from_hf, from_gguf, derive, forward)
