"""A Qwen3 model written in qwen3.c's `.bin` layout, and the float model that its codes stand for."""

from __future__ import annotations

import copy
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch

_MATRICES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.down_proj",
    "mlp.up_proj",
)


def quantize(values: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
    groups = values.reshape(-1, group)
    scales = (np.abs(groups).max(axis=1) / np.float32(127)).astype(np.float32)
    codes = np.rint(groups / np.where(scales == 0, 1, scales)[:, None]).astype(np.int8)
    return codes, scales


def write_bin(model: Any, path: Path, group: int) -> Path:
    config, state = model.config, model.state_dict()
    shared = int(config.tie_word_embeddings)
    with path.open("wb") as file:
        header = struct.pack(
            "<I11i",
            0x616A6331,
            1,
            config.hidden_size,
            config.intermediate_size,
            config.num_hidden_layers,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.vocab_size,
            config.max_position_embeddings,
            config.head_dim,
            shared,
            group,
        )
        file.write(header.ljust(256, b"\0"))
        layers = range(config.num_hidden_layers)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            for i in layers:
                file.write(state[f"model.layers.{i}.{norm}.weight"].numpy().tobytes())
        file.write(state["model.norm.weight"].numpy().tobytes())
        for norm in ("q_norm", "k_norm"):
            for i in layers:
                file.write(state[f"model.layers.{i}.self_attn.{norm}.weight"].numpy().tobytes())
        for name in _matrix_names(config):
            for part in quantize(state[name].numpy(), group):
                file.write(part.tobytes())
    return path


def _matrix_names(config: Any) -> list[str]:
    layers = range(config.num_hidden_layers)
    names = ["model.embed_tokens.weight"]
    names += [f"model.layers.{i}.{matrix}.weight" for matrix in _MATRICES for i in layers]
    return names if config.tie_word_embeddings else [*names, "lm_head.weight"]


def rounded(model: Any, group: int) -> Any:
    """The same model with every matrix replaced by what its int8 codes and scales say."""
    twin = copy.deepcopy(model)
    state = twin.state_dict()
    for name in _matrix_names(model.config):
        codes, scales = quantize(state[name].numpy(), group)
        values = codes.astype(np.float32) * scales[:, None]
        state[name].copy_(torch.from_numpy(values.reshape(state[name].shape)))
    return twin
