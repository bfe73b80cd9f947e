"""A published model written as GGUF with the format's own library, by the conversion rules of llama.cpp."""

from __future__ import annotations

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
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_ARCHITECTURES = {
    "gemma3_text": "gemma3",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "qwen2": "qwen2",
    "llama": "llama",
}

# Turns (GGUF name, float32 values) into (values or raw blocks, ggml type or None for float32).
Encoder = Callable[[str, np.ndarray], tuple[np.ndarray, gguf.GGMLQuantizationType | None]]


def plain(name: str, values: np.ndarray) -> tuple[np.ndarray, None]:
    return values, None


def write_gguf(model: Any, path: Path, encode: Encoder = plain) -> Path:
    config = model.config
    arch = _ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, arch)
    _metadata(writer, config, arch)
    for name, values in gguf_tensors(model).items():
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
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    if arch == "gemma3":
        writer.add_sliding_window(config.sliding_window)
        writer.add_float32("gemma3.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
        if config.final_logit_softcapping:
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_string(f"{arch}.rope.scaling.type", rope["rope_type"])
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if arch == "qwen3moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def gguf_tensors(model: Any) -> dict[str, np.ndarray]:
    """Every tensor under its GGUF name, with the transformations that the conversion makes."""
    config = model.config
    gemma = config.model_type == "gemma3_text"
    state = {name: value.float().numpy() for name, value in model.state_dict().items()}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    tensors: dict[str, np.ndarray] = {}
    for name, values in state.items():
        if gemma and name.endswith("norm.weight"):
            values = values + 1
        name = name.removeprefix("model.")
        if match := re.fullmatch(r"layers\.(\d+)\.mlp\.experts\.(gate_up|down)_proj", name):
            layer, which = match.groups()
            if which == "down":
                tensors[f"blk.{layer}.ffn_down_exps.weight"] = values
            else:
                half = values.shape[1] // 2
                tensors[f"blk.{layer}.ffn_gate_exps.weight"] = values[:, :half]
                tensors[f"blk.{layer}.ffn_up_exps.weight"] = values[:, half:]
            continue
        if config.model_type == "llama" and ".q_proj." in name:
            values = _interleave(values, config.num_attention_heads)
        if config.model_type == "llama" and ".k_proj." in name:
            values = _interleave(values, config.num_key_value_heads)
        tensors[gguf_name(name, gemma=gemma)] = values
    if config.rope_parameters.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = _llama3_divisors(model)
    return tensors


def gguf_name(name: str, gemma: bool = False) -> str:
    """The GGUF name of a tensor that is not an expert's."""
    name = name.removeprefix("model.")
    stem, _, kind = name.rpartition(".")
    top = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
    if stem in top:
        return f"{top[stem]}.{kind}"
    _, layer, stem = stem.split(".", 2)
    if stem == "post_attention_layernorm":
        return f"blk.{layer}.{'post_attention_norm' if gemma else 'ffn_norm'}.{kind}"
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
