"""OLMo 2 and 3: a norm behind each branch and none before it; Q and K are normalized over all their heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from olivine.models import decoder, rope
from olivine.models.architecture import Architecture, GgufForm, attention_biases
from olivine.models.decoder import DecoderConfig, attend, head, mlp, qkv
from olivine.models.fields import Fields
from olivine.models.rope import Rope
from olivine.plan import Trace, Value

_PERIOD = 4  # in OLMo 3 every fourth layer is a full one, the others slide
# What the published configurations have where a key is missing.
_WINDOW = 4096
_THETA = {"olmo2": 10_000.0, "olmo3": 500_000.0}


@dataclass(frozen=True)
class OlmoConfig(DecoderConfig):
    """`rope` is that of full layers."""

    local_rope: Rope  # of sliding layers, which are not scaled


def from_hf(config: Fields) -> OlmoConfig:
    kind, layers = config.text("model_type"), config.integer("num_hidden_layers", high=1024)
    windows: tuple[int | None, ...] = (None,) * layers
    if kind == "olmo3":
        window = decoder.window_from_hf(config, _WINDOW)
        usual = decoder.windows_by_period(window or 1, layers, _PERIOD)
        windows = decoder.windows_from_hf(config, window or 1, usual)
        if window is None and any(windows):
            raise config.refuse("sliding_window", "leaves the layers that slide without a window")
    c = decoder.from_hf(config, theta=_THETA[kind], layer_type="full_attention", windows=windows)
    if kind == "olmo3":
        _refuse_doubtful_rope(config, c)
    return OlmoConfig(**vars(c), local_rope=rope.local_from_hf(config, c.head_dim, c.rope.theta))


def _refuse_doubtful_rope(config: Fields, c: DecoderConfig) -> None:
    """The published code of OLMo 3 reads sections of `rope_parameters` and nothing else there. For sliding
    layers without one, one version has the usual base, and another that of the full layers."""
    usual = Rope(c.head_dim, _THETA["olmo3"])
    told = config.section("rope_parameters")
    if told is not None and not told.has("full_attention") and c.rope != usual:
        raise config.refuse("rope_parameters", "must have a section full_attention")
    slides = any(c.windows) and c.rope.theta != usual.theta
    if slides and (told is None or not told.has("sliding_attention")):
        raise config.refuse("rope_parameters", "must have a section sliding_attention")


def from_gguf(meta: Fields) -> OlmoConfig:
    c = decoder.from_gguf(meta, windows=decoder.windows_from_gguf(meta, _PERIOD))
    return OlmoConfig(**vars(c), local_rope=Rope(c.head_dim, c.rope.theta))


def to_gguf(c: OlmoConfig) -> GgufForm:
    keys: dict[str, Any] = {}
    if window := next(filter(None, c.windows), None):
        keys["attention.sliding_window"] = window
        keys["attention.sliding_window_pattern"] = decoder.window_pattern(c.windows)
    return decoder.to_gguf("olmo2", c, keys, has_windows=True)


def forward(t: Trace, c: OlmoConfig) -> None:
    x = t.embed("token_embd", c.width)  # [T, D]
    for i, window in enumerate(c.windows):
        x = block(t.scope(f"blk.{i}"), c, x, window)
    x = t.rms_norm(t.take_outputs(x), "output_norm", c.eps)
    t.finish(hidden=x, logits=head(t, x, tied=c.tied))


def block(t: Trace, c: OlmoConfig, x: Value, window: int | None) -> Value:
    q, k, v = qkv(t, c, x)
    q, k = t.rms_norm(q, "attn_q_norm", c.eps), t.rms_norm(k, "attn_k_norm", c.eps)  # of the whole row
    rotary = c.rope if window is None else c.local_rope
    a = attend(t, c, q, k, v, rope=rotary, window=window)
    x = t.add(x, t.rms_norm(a, "post_attention_norm", c.eps))
    return t.add(x, t.rms_norm(mlp(t, c, x), "post_ffw_norm", c.eps))


ARCHITECTURE = Architecture(
    name="OLMo",
    from_hf=from_hf,
    from_gguf=from_gguf,
    to_gguf=to_gguf,
    forward=forward,
    biases=attention_biases,
    block_names={
        "post_attention_layernorm": "post_attention_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
)
