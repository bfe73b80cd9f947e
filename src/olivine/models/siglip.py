"""SigLIP, the vision tower of Gemma 3: an image of one size becomes one number of soft tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

from olivine.errors import ModelError
from olivine.models.fields import Fields
from olivine.models.tower import Shapes, Stored, TowerArchitecture
from olivine.models.tower_tables import GEMMA3_VISION
from olivine.plan import Trace, Value


@dataclass(frozen=True)
class SiglipConfig:
    layers: int
    width: int  # D
    hidden: int  # F
    heads: int  # H
    eps: float
    image: int  # pixels of a side
    patch: int
    pool: int  # patches of a side of a soft token
    projected: int  # the text model's width
    norm_offset: float  # of the norm before the projection

    @property
    def side(self) -> int:
        """Patches of a side."""
        return self.image // self.patch

    @property
    def rows_per_token(self) -> int:
        return self.pool * self.pool

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ModelError(f"the vision tower has {self.heads} heads, which must divide {self.width}")
        if self.image % self.patch or self.side % self.pool:
            raise ModelError(
                f"the vision tower cuts an image of {self.image} pixels in patches of {self.patch} and "
                f"{self.pool} × {self.pool} of them, which does not come out even"
            )


def from_hf(c: Fields, config: Fields, width: int) -> SiglipConfig:
    side = c.integer("image_size") // c.integer("patch_size")
    return SiglipConfig(
        layers=c.integer("num_hidden_layers", high=1024),
        width=c.integer("hidden_size"),
        hidden=c.integer("intermediate_size"),
        heads=c.integer("num_attention_heads"),
        eps=c.number("layer_norm_eps", 1e-6, high=1.0),
        image=c.integer("image_size"),
        patch=c.integer("patch_size"),
        pool=max(1, side // math.isqrt(config.integer("mm_tokens_per_image", 256))),
        projected=width,
        norm_offset=1.0,
    )


def from_gguf(meta: Fields, shapes: Shapes) -> SiglipConfig:
    return SiglipConfig(
        layers=meta.integer("block_count", high=1024),
        width=meta.integer("embedding_length"),
        hidden=meta.integer("feed_forward_length"),
        heads=meta.integer("attention.head_count"),
        eps=meta.number("attention.layer_norm_epsilon", 1e-6, high=1.0),
        image=meta.integer("image_size"),
        patch=meta.integer("patch_size"),
        pool=meta.integer("projector.scale_factor", GEMMA3_VISION.pooling),
        projected=meta.integer("projection_dim"),
        norm_offset=0.0,  # GGUF has it in the weight
    )


def derive(c: SiglipConfig, stored: Stored) -> None:
    stored.as_matrix("v.patch_embd.weight")
    # It is stored as [in, out].
    old = (c.width, c.projected)
    stored.rearrange("mm.input_projection.weight", old, old[::-1], lambda values: values.T)
    first = stored.tensors.get("v.blk.0.ffn_down.weight")
    if first is not None and first.shape == (c.hidden, c.width) and c.hidden != c.width:
        # Old converters gave each of the two the other's name.
        for i in range(c.layers):
            for kind in ("weight", "bias"):
                up, down = f"v.blk.{i}.ffn_up.{kind}", f"v.blk.{i}.ffn_down.{kind}"
                if up in stored and down in stored:
                    tensors = stored.tensors
                    tensors[up], tensors[down] = tensors[down], tensors[up]


def forward(t: Trace, c: SiglipConfig) -> None:
    x = t.linear(t.input(3 * c.patch * c.patch), "v.patch_embd", c.width)  # [T, D]
    x = t.position_embed(x, "v.position_embd", (c.side * c.side, c.width), strides=(1, c.side))
    cache = t.cache(c.heads, c.width // c.heads)
    for i in range(c.layers):
        layer = t.scope(f"v.blk.{i}")
        h = layer.layer_norm(x, "ln1", c.eps)
        q, k, v = (layer.linear(h, name, c.width) for name in ("attn_q", "attn_k", "attn_v"))
        layer.store(cache, k, v)
        a = layer.attention(q, cache, scale=(c.width // c.heads) ** -0.5, bidirectional=True)
        x = layer.add(x, layer.linear(a, "attn_out", c.width))
        x = layer.add(x, mlp(layer, c, layer.layer_norm(x, "ln2", c.eps)))
    x = t.pool(t.layer_norm(x, "v.post_ln", c.eps), c.rows_per_token)  # [R, D]
    x = t.rms_norm(x, "mm.soft_emb_norm", c.eps, offset=c.norm_offset)
    t.finish(hidden=t.linear(x, "mm.input_projection", c.projected))


def mlp(t: Trace, c: SiglipConfig, x: Value) -> Value:
    return t.linear(t.activate(t.linear(x, "ffn_up", c.hidden), "gelu_tanh"), "ffn_down", c.width)


TOWER = TowerArchitecture("SigLIP", GEMMA3_VISION, from_hf, from_gguf, derive, forward)
