"""Rotary embeddings from every spelling of a configuration: plain or scaled in one of several ways.

A `Rope` holds what a file says; its `rotation` is what a plan computes with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from olivine.models.fields import Fields
from olivine.plan import Rotation

_STILL = 1e30  # the divisor of a pair that does not rotate


@dataclass(frozen=True)
class Rope:
    """The plain rotary embedding: frequencies theta^(-2i/d), d columns rotated. Subclasses scale them."""

    head_dim: int
    theta: float
    interleaved: bool = field(default=False, kw_only=True)  # pairs are (2i, 2i + 1), not (i, i + d/2)
    unrotated: int = field(default=0, kw_only=True)  # columns at the end of a head that stay as they are

    @property
    def rotated(self) -> int:
        return self.head_dim - self.unrotated

    @cached_property
    def plain(self) -> tuple[float, ...]:
        return tuple(self.theta ** (-2 * i / self.rotated) for i in range(self.rotated // 2))

    @cached_property
    def frequencies(self) -> tuple[float, ...]:
        return self.plain

    @cached_property
    def rotation(self) -> Rotation:
        return Rotation(self.frequencies, self._magnitude, self.interleaved, self.unrotated)

    @property
    def _magnitude(self) -> float:
        return 1.0

    @property
    def divisors(self) -> tuple[float, ...]:
        """What the plain frequencies are divided by."""
        pairs = zip(self.plain, self.frequencies, strict=True)
        return tuple(f / scaled if scaled else _STILL for f, scaled in pairs)

    def to_gguf(self) -> dict[str, Any]:
        """The metadata keys. Where GGUF has none for a kind of scaling, what is read back differs."""
        return {"rope.freq_base": self.theta}


@dataclass(frozen=True)
class Proportional(Rope):
    """Only the first `share` of the pairs rotate; their frequencies are those of a whole head."""

    share: float
    factor: float = 1.0

    @cached_property
    def frequencies(self) -> tuple[float, ...]:
        rotating = int(self.share * self.head_dim // 2)
        return tuple(f / self.factor if i < rotating else 0.0 for i, f in enumerate(self.plain))


@dataclass(frozen=True)
class Linear(Rope):
    factor: float

    @cached_property
    def frequencies(self) -> tuple[float, ...]:
        return tuple(f / self.factor for f in self.plain)

    def to_gguf(self) -> dict[str, Any]:
        return {**super().to_gguf(), "rope.scaling.type": "linear", "rope.scaling.factor": self.factor}


@dataclass(frozen=True)
class Llama3(Rope):
    """Short wavelengths stay, long ones are divided by `factor`, those between are blended."""

    factor: float
    low: float
    high: float
    original: float  # the context before scaling

    @cached_property
    def frequencies(self) -> tuple[float, ...]:
        return tuple(map(self._scaled, self.plain))

    def _scaled(self, f: float) -> float:
        rotations = self.original * f / (2 * math.pi)  # of this pair within the original context
        if rotations > self.high:
            return f
        if rotations < self.low:
            return f / self.factor
        smooth = (rotations - self.low) / (self.high - self.low)
        return f * ((1 - smooth) / self.factor + smooth)


@dataclass(frozen=True)
class Yarn(Rope):
    """Pairs that rotate over `fast` times in the original context stay, those under `slow` have f / factor,
    and between the two it is a blend."""

    factor: float
    original: float  # the context before scaling
    magnitude: float
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True

    @cached_property
    def frequencies(self) -> tuple[float, ...]:
        low, high = self._pair_with(self.fast), self._pair_with(self.slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.rotated - 1)
        if low == high:
            high += 0.001
        ramps = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(self.rotated // 2)]
        pairs = zip(self.plain, ramps, strict=True)
        return tuple(f * (1 - ramp) + f / self.factor * ramp for f, ramp in pairs)

    @property
    def _magnitude(self) -> float:
        return self.magnitude

    def _pair_with(self, rotations: float) -> float:
        """The pair that rotates so often within the original context, as a real number."""
        wavelengths = math.log(self.original / (2 * math.pi * rotations))
        return self.rotated * wavelengths / (2 * math.log(self.theta))

    def to_gguf(self) -> dict[str, Any]:
        keys = {
            **super().to_gguf(),
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": self.factor,
            "rope.scaling.original_context_length": round(self.original),
            "rope.scaling.yarn_attn_factor": self.magnitude,
        }
        if (self.fast, self.slow) != (32.0, 1.0):
            keys["rope.scaling.yarn_beta_fast"] = self.fast
            keys["rope.scaling.yarn_beta_slow"] = self.slow
        return keys


@dataclass(frozen=True)
class LongRope(Rope):
    """A factor for each pair, by which its frequency is divided. Models have two sets of them."""

    factors: tuple[float, ...] = ()  # none: those of the file's tensors, or 1
    magnitude: float = 1.0

    @cached_property
    def frequencies(self) -> tuple[float, ...]:
        if not self.factors:
            return self.plain
        return tuple(f / factor for f, factor in zip(self.plain, self.factors, strict=True))

    @property
    def _magnitude(self) -> float:
        return self.magnitude


def yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    """What queries and keys are multiplied by where a file does not say otherwise."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


# The length that a model was made for before its scaling.
_ORIGINAL = "original_max_position_embeddings"


def parameters(config: Fields, theta: float = 10_000.0, layer_type: str = "") -> Fields:
    """What config.json says: `rope_parameters`, flat or by layer type, or `rope_theta` and `rope_scaling`.

    `rope_theta` (`theta`, where the file has none) and `rope_type` are always there.
    """
    told, scaling = config.section("rope_parameters"), config.section("rope_scaling")
    nested = told is not None and bool(layer_type) and told.has(layer_type)
    if told is not None and nested:
        told = told.section(layer_type)
    if layer_type != "sliding_attention":  # what is beside these sections is that of the full layers
        theta = config.number("rope_theta", theta)
        if told is not None and scaling is not None and _typed(scaling).contradicts(_typed(told)):
            # The published code takes one of the two, and not always the same.
            raise config.refuse("rope_scaling", "contradicts rope_parameters: merge them")
    told = _typed(told or scaling or Fields({})).with_defaults({"rope_theta": theta})
    if not nested and config.has(_ORIGINAL):  # which the published code prefers to the section's own
        told = told.with_values({_ORIGINAL: config.number(_ORIGINAL)})
    return told


def _typed(section: Fields) -> Fields:
    """With `rope_type`, which older files call `type`."""
    kind = section.text("rope_type", section.text("type", "default"))
    return section.with_values({"rope_type": kind, "type": None})


def from_hf(config: Fields, head_dim: int, *, theta: float = 10_000.0, layer_type: str = "") -> Rope:
    """From config.json."""
    scaling = parameters(config, theta, layer_type)
    theta, kind = scaling.number("rope_theta"), scaling.text("rope_type")
    told = scaling if scaling.has("partial_rotary_factor") else config
    share = told.number("partial_rotary_factor", 1.0, high=1.0)
    # The published code of these families rotates whole heads: it ignores a share, or fails beside scaling.
    if share != 1.0 and kind not in ("default", "proportional"):
        raise told.refuse("partial_rotary_factor", f"{kind} scaling does not support for this architecture")
    match kind:
        case "default" | "dynamic":  # which is the plain one within the context, and nothing runs beyond it
            return Rope(head_dim, theta)
        case "proportional":
            return Proportional(head_dim, theta, share, scaling.number("factor", 1.0))
        case "linear":
            return Linear(head_dim, theta, scaling.number("factor"))
        case "llama3":
            return Llama3(
                head_dim,
                theta,
                factor=scaling.number("factor"),
                low=scaling.number("low_freq_factor"),
                high=scaling.number("high_freq_factor"),
                original=scaling.number(_ORIGINAL),
            )
        case "yarn":
            scaling.number("rope_theta", low=1.0)  # its logarithm divides
            return _yarn_from_hf(config, scaling, head_dim, theta)
        case other:
            raise scaling.refuse(
                "rope_type",
                f"is not supported ({other}); known: default, dynamic, linear, llama3, proportional, yarn",
            )


def local_from_hf(config: Fields, head_dim: int, theta: float) -> Rope:
    """Of sliding layers, which are not scaled unless `rope_parameters` has a section of their own."""
    parameters = config.section("rope_parameters")
    if parameters is not None and parameters.has("sliding_attention"):
        return from_hf(config, head_dim, theta=theta, layer_type="sliding_attention")
    return Rope(head_dim, theta)


def _yarn_from_hf(config: Fields, scaling: Fields, head_dim: int, theta: float) -> Yarn:
    factor = scaling.number("factor")
    magnitude = yarn_magnitude(factor)
    if scaling.has("mscale") and scaling.has("mscale_all_dim"):
        magnitude = yarn_magnitude(factor, scaling.number("mscale"))
        magnitude /= yarn_magnitude(factor, scaling.number("mscale_all_dim"))
    longest = config.integer("max_position_embeddings", high=1 << 31)
    whole = config.section("rope_parameters") or scaling  # the published code reads no layer type's own here
    return Yarn(
        head_dim,
        theta,
        factor=factor,
        original=scaling.number(_ORIGINAL, longest),
        magnitude=scaling.number("attention_factor", magnitude),
        fast=scaling.number("beta_fast", 32.0),
        slow=scaling.number("beta_slow", 1.0),
        truncate=whole.flag("truncate", True),
    )


def from_gguf(meta: Fields, head_dim: int, *, theta: float = 10_000.0, interleaved: bool = False) -> Rope:
    """From GGUF metadata. llama3 scaling is not there: its divisors are the tensor `rope_freqs.weight`."""
    theta = meta.number("rope.freq_base", theta)
    kind = meta.text("rope.scaling.type", "linear" if meta.has("rope.scale_linear") else "none")
    old_factor = meta.number("rope.scale_linear", 1.0)
    # Writers put 0 for "no scaling".
    factor = meta.number("rope.scaling.factor", old_factor, low=-1e-9) or 1.0
    match kind:
        case "none":
            return Rope(head_dim, theta, interleaved=interleaved)
        case "linear":
            return Linear(head_dim, theta, factor, interleaved=interleaved)
        case "yarn":
            theta = meta.number("rope.freq_base", theta, low=1.0)  # its logarithm divides
            magnitude = meta.number("rope.scaling.yarn_attn_factor", 1.0)
            return Yarn(
                head_dim,
                theta,
                factor=factor,
                original=meta.number("rope.scaling.original_context_length"),
                # 1 is what writers put for "the usual".
                magnitude=yarn_magnitude(factor) if magnitude == 1.0 else magnitude,
                fast=meta.number("rope.scaling.yarn_beta_fast", 32.0),
                slow=meta.number("rope.scaling.yarn_beta_slow", 1.0),
                interleaved=interleaved,
            )
        case _:
            raise meta.refuse("rope.scaling.type", "is not supported; known: none, linear, yarn")
