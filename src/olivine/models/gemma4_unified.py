"""The embedders of Gemma 4 12B, which has no towers: patches of pixels and of a waveform are projected."""

from __future__ import annotations

from dataclasses import dataclass

from olivine.models.fields import Fields
from olivine.models.tower import Shapes, Stored, TowerArchitecture
from olivine.models.tower_tables import UNIFIED_AUDIO, UNIFIED_VISION, channels_last
from olivine.plan import Trace

_NORM_EPS = 1e-5  # of the layer norms


@dataclass(frozen=True)
class UnifiedVisionConfig:
    width: int  # D
    eps: float
    patch: int  # pixels of a side of the patches that are merged
    pool: int  # patches of a side of a soft token
    positions: int  # columns, and rows, that have an embedding
    by_position: bool  # the table has column and row of a position together: [positions, 2, D]
    projected: int  # the text model's width
    rows_per_token: int = 1

    @property
    def pixels(self) -> int:
        return 3 * (self.patch * self.pool) ** 2


def vision_from_hf(c: Fields, config: Fields, width: int) -> UnifiedVisionConfig:
    return UnifiedVisionConfig(
        width=c.integer("mm_embed_dim"),
        eps=c.number("rms_norm_eps", 1e-6, high=1.0),
        patch=c.integer("patch_size"),
        pool=c.integer("pooling_kernel_size"),
        positions=c.integer("mm_posemb_size"),
        by_position=True,
        projected=width,
    )


def vision_from_gguf(meta: Fields, shapes: Shapes) -> UnifiedVisionConfig:
    return UnifiedVisionConfig(
        width=meta.integer("embedding_length"),
        eps=meta.number("attention.layer_norm_epsilon", 1e-6, high=1.0),
        patch=meta.integer("patch_size"),
        pool=meta.integer("projector.scale_factor", UNIFIED_VISION.pooling),
        positions=shapes.get("v.position_embd.weight", (2, 0, 0))[1],
        by_position=False,
        projected=meta.integer("projection_dim"),
    )


def derive_vision(c: UnifiedVisionConfig, stored: Stored) -> None:
    if stored.naming == "gguf":  # pixels are (row, column, channel) here, and channels first there
        stored.rearrange("v.patch_embd.weight", (c.width, c.pixels), (c.width, c.pixels), channels_last)
        for kind in ("weight", "bias"):
            stored.rearrange(f"v.patch_norm.1.{kind}", (c.pixels,), (c.pixels,), channels_last)


def vision(t: Trace, c: UnifiedVisionConfig) -> None:
    x = t.layer_norm(t.input(c.pixels), "v.patch_norm.1", _NORM_EPS)
    x = t.layer_norm(t.linear(x, "v.patch_embd", c.width), "v.patch_norm.2", _NORM_EPS)
    shape = (c.positions, 2, c.width) if c.by_position else (2, c.positions, c.width)
    step, second = (2, 1) if c.by_position else (1, c.positions)
    x = t.position_embed(x, "v.position_embd", shape, strides=(step, 0))
    x = t.position_embed(x, "v.position_embd", shape, strides=(0, step), start=second)
    x = t.take_outputs(t.layer_norm(x, "v.patch_norm.3", _NORM_EPS))
    t.finish(hidden=t.linear(t.rms_norm(x, None, c.eps), "mm.input_projection", c.projected))


@dataclass(frozen=True)
class UnifiedAudioConfig:
    width: int  # samples in a row
    projected: int
    rows_per_token: int = 1


def audio_from_hf(c: Fields, config: Fields, width: int) -> UnifiedAudioConfig:
    return UnifiedAudioConfig(c.integer("audio_embed_dim"), width)


def audio_from_gguf(meta: Fields, shapes: Shapes) -> UnifiedAudioConfig:
    return UnifiedAudioConfig(meta.integer("embedding_length"), meta.integer("projection_dim"))


def audio(t: Trace, c: UnifiedAudioConfig) -> None:
    x = t.rms_norm(t.take_outputs(t.input(c.width)), None, 1e-6)
    t.finish(hidden=t.linear(x, "mm.a.input_projection", c.projected))


VISION = TowerArchitecture(
    "Gemma 4 unified vision", UNIFIED_VISION, vision_from_hf, vision_from_gguf, derive_vision, vision
)
AUDIO = TowerArchitecture(
    "Gemma 4 unified audio", UNIFIED_AUDIO, audio_from_hf, audio_from_gguf, lambda c, stored: None, audio
)
