"""A published model written as GGUF with the format's own library, by the conversion rules of llama.cpp."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

_BLOCK = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "router.proj": "ffn_gate_inp",
    "shared_mlp.output_linear": "ffn_down",
}
_TOP = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
}
# Tensors of a layer that are no module's weight or bias.
_BARE = {
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
}
_ARCHITECTURES = {
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "gemma4_unified_text": "gemma4",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "qwen2": "qwen2",
    "llama": "llama",
    "olmo2": "olmo2",
    "olmo3": "olmo2",
    "exaone4": "exaone4",
    "granite": "granite",
    "granitemoehybrid": "granite",
    "ministral3": "mistral3",
    "phi3": "phi3",
    "smollm3": "smollm3",
}

# Model types whose norms of that name are behind the branches, and those with rows of Q and K in pairs.
_POST_NORMS = ("gemma3_text", "gemma4_text", "gemma4_unified_text", "olmo2", "olmo3", "exaone4")
_PAIRED = ("llama", "granite", "granitemoehybrid", "ministral3", "smollm3")

# Turns (GGUF name, float32 values) into (values or raw blocks, ggml type or None for float32).
Encoder = Callable[[str, np.ndarray], tuple[np.ndarray, gguf.GGMLQuantizationType | None]]


def plain(name: str, values: np.ndarray) -> tuple[np.ndarray, None]:
    return values, None


def write_gguf(model: Any, path: Path, encode: Encoder = plain, *, fused: bool = True) -> Path:
    """`fused`: experts of Gemma 4 with gate and up in one tensor, as its conversion has them."""
    config = model.config
    arch = _ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, arch)
    (_gemma4_metadata if arch == "gemma4" else _metadata)(writer, config, arch)
    for name, values in gguf_tensors(model, fused=fused).items():
        data, kind = encode(name, values)
        writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(writer: gguf.GGUFWriter, config: Any, arch: str) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(getattr(config, "shared_intermediate_size", config.intermediate_size))
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_string(f"{arch}.rope.scaling.type", rope["rope_type"])
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if arch in _OWN_METADATA:
        _OWN_METADATA[arch](writer, config)


def _gemma3_metadata(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_sliding_window(config.sliding_window)
    sliding = config.rope_parameters["sliding_attention"]
    writer.add_float32("gemma3.rope.freq_base_swa", sliding["rope_theta"])
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _qwen3moe_metadata(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def _olmo2_metadata(writer: gguf.GGUFWriter, config: Any) -> None:
    if config.model_type == "olmo3":
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
        full = config.rope_parameters["full_attention"]
        if "attention_factor" in full:
            writer.add_rope_scaling_yarn_attn_factor(full["attention_factor"])


def _exaone4_metadata(writer: gguf.GGUFWriter, config: Any) -> None:
    if config.sliding_window is not None:
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])


def _granite_metadata(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)
    if config.model_type == "granitemoehybrid":
        writer.add_rope_scaling_finetuned(config.position_embedding_type == "rope")


def _mistral3_metadata(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_rope_scaling_yarn_log_mul(config.rope_parameters["mscale_all_dim"])
    writer.add_attn_temperature_scale(config.rope_parameters["llama_4_scaling_beta"])


def _phi3_metadata(writer: gguf.GGUFWriter, config: Any) -> None:
    rope = config.rope_parameters
    head_dim = config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
    writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    writer.add_sliding_window(config.sliding_window or 0)
    if rope["rope_type"] == "longrope":
        scale = config.max_position_embeddings / config.original_max_position_embeddings
        factor = math.sqrt(1 + math.log(scale) / math.log(config.original_max_position_embeddings))
        writer.add_rope_scaling_attn_factors(factor)


# What an architecture has beyond the common keys.
_OWN_METADATA = {
    "exaone4": _exaone4_metadata,
    "gemma3": _gemma3_metadata,
    "granite": _granite_metadata,
    "olmo2": _olmo2_metadata,
    "mistral3": _mistral3_metadata,
    "phi3": _phi3_metadata,
    "qwen3moe": _qwen3moe_metadata,
}


def _gemma4_metadata(writer: gguf.GGUFWriter, config: Any, arch: str) -> None:
    """One number where all layers agree, and a list where they do not."""
    layers, kinds = range(config.num_hidden_layers), config.layer_types
    of_kind = {kind: config.per_layer_config[i] for i, kind in enumerate(kinds)}
    shared = config.num_hidden_layers - config.num_kv_shared_layers
    wide = [2 if config.use_double_wide_mlp and i >= shared else 1 for i in layers]
    hidden = [config.intermediate_size * w for w in wide]
    kv_heads = [config.per_layer_config[i].num_key_value_heads for i in layers]
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(hidden if len(set(hidden)) > 1 else hidden[0])
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(kv_heads if len(set(kv_heads)) > 1 else kv_heads[0])
    for suffix, kind in (("", "full_attention"), ("_swa", "sliding_attention")):
        for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
            writer.add_uint32(f"{arch}.{key}{suffix}", of_kind[kind].head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_sliding_window(config.sliding_window)
    writer.add_array(f"{arch}.attention.sliding_window_pattern", [k == "sliding_attention" for k in kinds])
    writer.add_uint32(f"{arch}.attention.shared_kv_layers", config.num_kv_shared_layers)
    per_layer = getattr(config, "hidden_size_per_layer_input", 0)
    writer.add_uint32(f"{arch}.embedding_length_per_layer_input", per_layer)
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    writer.add_float32(
        f"{arch}.rope.freq_base_swa", config.rope_parameters["sliding_attention"]["rope_theta"]
    )
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if getattr(config, "enable_moe_block", False):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def gguf_tensors(model: Any, *, fused: bool = True) -> dict[str, np.ndarray]:
    """Every tensor under its GGUF name, with the transformations that the conversion makes."""
    config = model.config
    gemma = config.model_type == "gemma3_text"
    gemma4 = config.model_type.startswith("gemma4")
    state = {name: value.float().numpy() for name, value in model.state_dict().items()}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    tensors: dict[str, np.ndarray] = {}
    for name, values in state.items():
        if gemma and name.endswith("norm.weight"):
            values = values + 1
        name = name.removeprefix("model.")
        if match := re.fullmatch(r"layers\.(\d+)\.(?:mlp\.)?experts\.(gate_up|down)_proj", name):
            layer, which = match.groups()
            if which == "down" or (gemma4 and fused):
                tensors[f"blk.{layer}.ffn_{which}_exps.weight"] = values
            else:
                half = values.shape[1] // 2
                tensors[f"blk.{layer}.ffn_gate_exps.weight"] = values[:, :half]
                tensors[f"blk.{layer}.ffn_up_exps.weight"] = values[:, half:]
            continue
        if match := re.fullmatch(r"layers\.(\d+)\.shared_mlp\.input_linear\.weight", name):
            gate, up = np.split(values, 2)
            tensors[f"blk.{match[1]}.ffn_gate.weight"] = gate
            tensors[f"blk.{match[1]}.ffn_up.weight"] = up
            continue
        if config.model_type in _PAIRED and ".q_proj." in name:
            values = _interleave(values, config.num_attention_heads)
        if config.model_type in _PAIRED and ".k_proj." in name:
            values = _interleave(values, config.num_key_value_heads)
        tensors[gguf_name(name, post_norms=config.model_type in _POST_NORMS)] = values
    if gemma4:
        turns = model.model.rotary_emb.full_attention_inv_freq.numpy() > 0
        tensors["rope_freqs.weight"] = np.where(turns, 1.0, 1e30).astype(np.float32)
    for kind in ("short", "long") if config.rope_parameters.get("rope_type") == "longrope" else ():
        factors = np.array(config.rope_parameters[f"{kind}_factor"], np.float32)
        tensors[f"rope_factors_{kind}.weight"] = factors
    if config.rope_parameters.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = _llama3_divisors(model)
    return tensors


def gguf_name(name: str, post_norms: bool = False) -> str:
    """The GGUF name of a tensor that is not an expert's."""
    name = name.removeprefix("model.")
    stem, _, kind = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    _, layer, rest = name.split(".", 2)
    if rest in _BARE:
        return f"blk.{layer}.{_BARE[rest]}"
    stem = rest.removesuffix(f".{kind}")
    if stem == "post_attention_layernorm":
        return f"blk.{layer}.{'post_attention_norm' if post_norms else 'ffn_norm'}.{kind}"
    return f"blk.{layer}.{_BLOCK[stem]}.{kind}"


def _interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from halves (i, i + d/2) to pairs (2i, 2i + 1)."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, 2, half, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _llama3_divisors(model: Any) -> np.ndarray:
    """What the published code's scaled frequencies amount to as divisors of the plain ones."""
    scaled = model.model.rotary_emb.inv_freq.numpy().astype(np.float64)
    dim = 2 * len(scaled)
    plain = model.config.rope_parameters["rope_theta"] ** (-2 * np.arange(len(scaled)) / dim)
    return (plain / scaled).astype(np.float32)
