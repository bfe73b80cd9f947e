"""Rotary frequencies from every spelling of a configuration: plain, proportional, linear, llama3 and YaRN."""

from __future__ import annotations

import math

from olivine.models.fields import Fields
from olivine.plan import Rotation


def from_hf(config: Fields, head_dim: int, *, theta: float = 10_000.0, layer_type: str = "") -> Rotation:
    """From config.json: `rope_parameters`, flat or by layer type, or `rope_theta` and `rope_scaling`."""
    scaling = config.section("rope_parameters")
    if scaling is not None and layer_type and scaling.has(layer_type):
        scaling = scaling.section(layer_type)
    if scaling is None:
        scaling = config.section("rope_scaling")
        theta = config.number("rope_theta", theta)
    if scaling is None:
        return plain(theta, head_dim)
    theta = scaling.number("rope_theta", theta)
    kind = scaling.text("rope_type" if scaling.has("rope_type") else "type", "default")
    told = scaling if scaling.has("partial_rotary_factor") else config
    share = told.number("partial_rotary_factor", 1.0, high=1.0)
    # The published code of these families turns whole heads: it passes over a share, or fails beside scaling.
    if share != 1.0 and kind not in ("default", "proportional"):
        raise told.refuse("partial_rotary_factor", f"{kind} scaling does not support for this architecture")
    match kind:
        case "default":
            return plain(theta, head_dim)
        case "proportional":
            return proportional(theta, head_dim, share, factor=scaling.number("factor", 1.0))
        case "linear":
            return linear(theta, head_dim, scaling.number("factor"))
        case "llama3":
            return llama3(
                theta,
                head_dim,
                factor=scaling.number("factor"),
                low=scaling.number("low_freq_factor"),
                high=scaling.number("high_freq_factor"),
                original=scaling.number("original_max_position_embeddings"),
            )
        case "yarn":
            original = scaling.number(
                "original_max_position_embeddings", config.integer("max_position_embeddings", high=1 << 31)
            )
            factor = scaling.number("factor")
            magnitude = _yarn_magnitude(factor)
            if scaling.has("mscale") and scaling.has("mscale_all_dim"):
                magnitude = _yarn_magnitude(factor, scaling.number("mscale"))
                magnitude /= _yarn_magnitude(factor, scaling.number("mscale_all_dim"))
            return yarn(
                theta,
                head_dim,
                factor=factor,
                original=original,
                fast=scaling.number("beta_fast", 32.0),
                slow=scaling.number("beta_slow", 1.0),
                magnitude=scaling.number("attention_factor", magnitude),
                truncate=scaling.flag("truncate", True),
            )
        case other:
            raise scaling.refuse(
                "rope_type", f"is not supported ({other}); known: default, linear, llama3, proportional, yarn"
            )


def from_gguf(meta: Fields, head_dim: int) -> Rotation:
    """From GGUF metadata. llama3 scaling is not there: its divisors are the tensor `rope_freqs.weight`."""
    theta = meta.number("rope.freq_base", 10_000.0)
    kind = meta.text("rope.scaling.type", "linear" if meta.has("rope.scale_linear") else "none")
    old_factor = meta.number("rope.scale_linear", 1.0)
    # Writers put 0 for "no scaling".
    factor = meta.number("rope.scaling.factor", old_factor, low=-1e-9) or 1.0
    match kind:
        case "none":
            return plain(theta, head_dim)
        case "linear":
            return linear(theta, head_dim, factor)
        case "yarn":
            return yarn(
                theta,
                head_dim,
                factor=factor,
                original=meta.number("rope.scaling.original_context_length"),
                fast=meta.number("rope.scaling.yarn_beta_fast", 32.0),
                slow=meta.number("rope.scaling.yarn_beta_slow", 1.0),
                magnitude=_yarn_magnitude(factor) * meta.number("rope.scaling.yarn_attn_factor", 1.0),
                truncate=True,
            )
        case _:
            raise meta.refuse("rope.scaling.type", "is not supported; known: none, linear, yarn")


def plain(theta: float, head_dim: int) -> Rotation:
    return Rotation(_frequencies(theta, head_dim))


def proportional(theta: float, head_dim: int, share: float, *, factor: float = 1.0) -> Rotation:
    """Only the first `share` of the pairs turn; their frequencies are those of a whole head."""
    turning = int(share * head_dim // 2)
    frequencies = _frequencies(theta, head_dim)
    return Rotation(tuple(f / factor if i < turning else 0.0 for i, f in enumerate(frequencies)))


def linear(theta: float, head_dim: int, factor: float) -> Rotation:
    return Rotation(tuple(f / factor for f in _frequencies(theta, head_dim)))


def llama3(
    theta: float, head_dim: int, *, factor: float, low: float, high: float, original: float
) -> Rotation:
    """Short wavelengths stay, long ones are divided by `factor`, those between are blended."""

    def scaled(f: float) -> float:
        turns = original * f / (2 * math.pi)  # how often this pair turns within the original context
        if turns > high:
            return f
        if turns < low:
            return f / factor
        smooth = (turns - low) / (high - low)
        return f * ((1 - smooth) / factor + smooth)

    return Rotation(tuple(scaled(f) for f in _frequencies(theta, head_dim)))


def yarn(
    theta: float,
    head_dim: int,
    *,
    factor: float,
    original: float,
    fast: float,
    slow: float,
    magnitude: float,
    truncate: bool,
) -> Rotation:
    """Pairs that turn over `fast` times in the original context stay, under `slow` f / factor; or a blend."""

    def pair_with(turns: float) -> float:
        return head_dim * math.log(original / (2 * math.pi * turns)) / (2 * math.log(theta))

    low, high = pair_with(fast), pair_with(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramps = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(head_dim // 2)]
    blended = (
        f * (1 - r) + f / factor * r for f, r in zip(_frequencies(theta, head_dim), ramps, strict=True)
    )
    return Rotation(tuple(blended), magnitude=magnitude)


def _frequencies(theta: float, head_dim: int) -> tuple[float, ...]:
    return tuple(theta ** (-2 * i / head_dim) for i in range(head_dim // 2))


def _yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
