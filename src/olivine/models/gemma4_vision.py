"""The vision tower of Gemma 4: images of any shape, rotary embeddings in two dimensions, pooled patches."""

from __future__ import annotations

from dataclasses import dataclass

from olivine.errors import ModelError
from olivine.models.fields import Fields
from olivine.models.tower import Shapes, Stored, TowerArchitecture, clipped_linear
from olivine.models.tower_tables import GEMMA4_VISION, channels_last
from olivine.plan import Cache, Rotation, Trace, Value

_THETA = 100.0


@dataclass(frozen=True)
class Gemma4VisionConfig:
    layers: int
    width: int  # D
    hidden: int  # F
    heads: int  # H
    head_dim: int  # d
    eps: float
    patch: int  # pixels of a side
    pool: int  # patches of a side of a soft token
    positions: int  # columns, and rows, that have an embedding
    standardize: bool
    projected: int  # the text model's width

    @property
    def rows_per_token(self) -> int:
        return self.pool * self.pool

    @property
    def rotation(self) -> Rotation:
        """Of half a head: the other half has its own coordinate."""
        half = self.head_dim // 2
        return Rotation(tuple(_THETA ** (-2 * i / half) for i in range(half // 2)))

    def __post_init__(self) -> None:
        if self.head_dim % 4:
            raise ModelError(f"the vision tower has heads of {self.head_dim}, which must be a multiple of 4")


def from_hf(c: Fields, config: Fields, width: int) -> Gemma4VisionConfig:
    heads = c.integer("num_attention_heads")
    if c.integer("num_key_value_heads", heads) != heads:
        raise c.refuse("num_key_value_heads", f"must be {heads}, as many as there are heads")
    return Gemma4VisionConfig(
        layers=c.integer("num_hidden_layers", high=1024),
        width=c.integer("hidden_size"),
        hidden=c.integer("intermediate_size"),
        heads=heads,
        head_dim=c.integer("head_dim"),
        eps=c.number("rms_norm_eps", 1e-6, high=1.0),
        patch=c.integer("patch_size"),
        pool=c.integer("pooling_kernel_size"),
        positions=c.integer("position_embedding_size"),
        standardize=c.flag("standardize"),
        projected=width,
    )


def from_gguf(meta: Fields, shapes: Shapes) -> Gemma4VisionConfig:
    width, heads = meta.integer("embedding_length"), meta.integer("attention.head_count")
    return Gemma4VisionConfig(
        layers=meta.integer("block_count", high=1024),
        width=width,
        hidden=meta.integer("feed_forward_length"),
        heads=heads,
        head_dim=width // heads,
        eps=meta.number("attention.layer_norm_epsilon", 1e-6, high=1.0),
        patch=meta.integer("patch_size"),
        pool=meta.integer("projector.scale_factor", GEMMA4_VISION.pooling),
        positions=shapes.get("v.position_embd.weight", (2, 0, 0))[1],
        standardize="v.std_bias" in shapes,
        projected=meta.integer("projection_dim"),
    )


def derive(c: Gemma4VisionConfig, stored: Stored) -> None:
    if stored.naming == "gguf":  # pixels are (row, column, channel) here, and channels first there
        matrix = (c.width, 3 * c.patch * c.patch)
        stored.rearrange("v.patch_embd.weight", (c.width, 3, c.patch, c.patch), matrix, channels_last)


def forward(t: Trace, c: Gemma4VisionConfig) -> None:
    x = t.input(3 * c.patch * c.patch, scale=2.0, shift=-1.0)  # from 0…1 to -1…1
    x = t.linear(x, "v.patch_embd", c.width)  # [T, D]
    table = (2, c.positions, c.width)
    x = t.position_embed(x, "v.position_embd", table, strides=(1, 0))
    x = t.position_embed(x, "v.position_embd", table, strides=(0, 1), start=c.positions)
    cache = t.cache(c.heads, c.head_dim)
    for i in range(c.layers):
        layer = t.scope(f"v.blk.{i}")
        a = attention(layer, c, layer.rms_norm(x, "ln1", c.eps), cache)
        x = layer.add(x, layer.rms_norm(a, "attn_post_norm", c.eps))
        m = mlp(layer, c, layer.rms_norm(x, "ln2", c.eps))
        x = layer.add(x, layer.rms_norm(m, "ffn_post_norm", c.eps))
    x = t.scale(t.pool(x, c.rows_per_token), factor=c.width**0.5)  # [R, D]
    if c.standardize:
        x = t.standardize(x, "v.std_bias", "v.std_scale")
    t.finish(hidden=t.linear(t.rms_norm(x, None, c.eps), "mm.input_projection", c.projected))


def attention(t: Trace, c: Gemma4VisionConfig, x: Value, cache: Cache) -> Value:
    q, k, v = (clipped_linear(t, x, f"attn_{name}", c.heads * c.head_dim) for name in "qkv")
    q = t.grid_rope(t.rms_norm(q, "attn_q_norm", c.eps, size=c.head_dim), c.rotation)
    k = t.grid_rope(t.rms_norm(k, "attn_k_norm", c.eps, size=c.head_dim), c.rotation)
    t.store(cache, k, t.rms_norm(v, None, c.eps, size=c.head_dim))
    # The norms of queries and keys stand in for a scale.
    return clipped_linear(t, t.attention(q, cache, scale=1.0, bidirectional=True), "attn_out", c.width)


def mlp(t: Trace, c: Gemma4VisionConfig, x: Value) -> Value:
    gate, up = (clipped_linear(t, x, name, c.hidden) for name in ("ffn_gate", "ffn_up"))
    return clipped_linear(t, t.gate(gate, up, "gelu_tanh"), "ffn_down", c.width)


TOWER = TowerArchitecture("Gemma 4 vision", GEMMA4_VISION, from_hf, from_gguf, derive, forward)
