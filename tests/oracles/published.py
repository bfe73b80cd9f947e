"""Small random models made with the published code (transformers), at unusual configurations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

VOCABULARY = 97
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "attn_implementation": "eager",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Case:
    """A named configuration of a published model class."""

    name: str
    config: Callable[..., Any]
    model: Callable[..., Any]
    options: dict[str, Any]
    # Whether the GGUF format can say all that this configuration says.
    gguf: bool = True

    def make(self, seed: int = 0) -> Any:
        """The model in float32, every parameter random: norms and biases too, which start as constants."""
        torch.manual_seed(seed)
        return randomize(self.model(self.config(**{**COMMON, **self.options})))


def randomize(model: Any, rng: np.random.Generator | None = None) -> Any:
    """With numbers of `rng`, they are the same on every machine; those of torch are not."""

    def normal(like: Any, size: float) -> Any:
        if rng is None:
            return torch.randn_like(like) * size
        return torch.from_numpy(size * rng.standard_normal(tuple(like.shape))).to(like)

    def uniform(like: Any, low: float, high: float) -> Any:
        if rng is None:
            return torch.empty_like(like).uniform_(low, high)
        return torch.from_numpy(rng.uniform(low, high, tuple(like.shape))).to(like)

    model = model.float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(normal(parameter, 0.2))
                if name.endswith("router.scale"):  # of a trained size, or all experts would be alike
                    parameter.mul_(len(parameter) ** 0.5)
            elif "embed_tokens" in name:
                parameter.copy_(normal(parameter, 0.5))
            else:
                parameter.copy_(normal(parameter, 0.8 / parameter.shape[-1] ** 0.5))
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.copy_(uniform(buffer, 0.6, 1.4))
            elif name.endswith(("put_min", "put_max")):  # the range of a linear: tight enough to be felt
                buffer.fill_(-2.0 if name.endswith("min") else 2.5)
            elif name.endswith(("std_bias", "std_scale")):
                buffer.copy_(uniform(buffer, 0.5, 1.5))
    return model


def _gemma(name: str, gguf: bool = True, **options: Any) -> Case:
    base = {
        "hidden_size": 36,
        "intermediate_size": 50,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 12,
        "query_pre_attn_scalar": 12,
        "sliding_window": 5,
        "pad_token_id": 0,
    }
    return Case(
        name,
        transformers.Gemma3TextConfig,
        transformers.Gemma3ForCausalLM,
        {**base, **options},
        gguf,
    )


def _gemma4(name: str, gguf: bool = True, unified: bool = False, **options: Any) -> Case:
    base = {
        "hidden_size": 36,
        "intermediate_size": 50,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "global_head_dim": 24,
        "sliding_window": 5,
        "final_logit_softcapping": 30.0,
    }
    if not unified:
        base |= {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 0}
    kind = "Unified" if unified else ""
    return Case(
        name,
        getattr(transformers, f"Gemma4{kind}TextConfig"),
        getattr(transformers, f"Gemma4{kind}ForCausalLM"),
        {**base, **options},
        gguf,
    )


def _rope(kind: str, theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


def _qwen(name: str, gguf: bool = True, **options: Any) -> Case:
    base = {
        "hidden_size": 30,
        "intermediate_size": 44,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 14,
        "tie_word_embeddings": True,
        **_rope("default", 1e6),
    }
    return Case(name, transformers.Qwen3Config, transformers.Qwen3ForCausalLM, {**base, **options}, gguf)


def _qwen2(name: str, gguf: bool = True, **options: Any) -> Case:
    base = {
        "hidden_size": 48,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        **_rope("default", 1e6),
    }
    return Case(name, transformers.Qwen2Config, transformers.Qwen2ForCausalLM, {**base, **options}, gguf)


def _moe(name: str, gguf: bool = True, **options: Any) -> Case:
    base = {
        "hidden_size": 24,
        "intermediate_size": 40,
        "moe_intermediate_size": 18,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
        "experts_implementation": "eager",  # the grouped one wants aligned sizes
        "tie_word_embeddings": False,
        **_rope("default", 1e6),
    }
    return Case(
        name, transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM, {**base, **options}, gguf
    )


def _llama(name: str, gguf: bool = True, **options: Any) -> Case:
    base = {
        "hidden_size": 45,
        "intermediate_size": 52,
        "num_hidden_layers": 3,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 8,
        "tie_word_embeddings": True,
        **_rope("default", 1e5),
    }
    return Case(name, transformers.LlamaConfig, transformers.LlamaForCausalLM, {**base, **options}, gguf)


def _mistral(name: str, **options: Any) -> Case:
    base = {
        "hidden_size": 40,
        "intermediate_size": 52,
        "num_hidden_layers": 3,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "head_dim": 8,
        "sliding_window": 6,
        **_rope("default", 1e4),
    }
    return Case(name, transformers.MistralConfig, transformers.MistralForCausalLM, {**base, **options}, False)


def _small(config: str, name: str, gguf: bool = True, **options: Any) -> Case:
    """A dense decoder of transformers' `config`."""
    base = {
        "hidden_size": 48,
        "intermediate_size": 52,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
    }
    model = getattr(transformers, config.removesuffix("Config") + "ForCausalLM")
    return Case(name, getattr(transformers, config), model, {**base, **options}, gguf)


def _olmo(name: str, version: int, gguf: bool = True, **options: Any) -> Case:
    return _small(f"Olmo{version}Config", name, gguf, **options)


def _granite(name: str, gguf: bool = True, hybrid: bool = False, **options: Any) -> Case:
    base = {
        "hidden_size": 40,
        "intermediate_size": 52,
        "num_hidden_layers": 3,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.3,
        "residual_multiplier": 0.7,
        "logits_scaling": 1.7,
        **_rope("default", 1e4),
    }
    kind = "Granite"
    if hybrid:  # all of it attention, and no experts
        kind = "GraniteMoeHybrid"
        base |= {"layer_types": ["full_attention"] * 3, "num_local_experts": 0, "mamba_n_heads": 8}
        base |= {"shared_intermediate_size": 44, "position_embedding_type": "rope"}
    config, model = getattr(transformers, f"{kind}Config"), getattr(transformers, f"{kind}ForCausalLM")
    return Case(name, config, model, {**base, **options}, gguf)


_GEMMA_ROPE_8 = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
}
_LLAMA3 = _rope(
    "llama3",
    1e4,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
_YARN = _rope("yarn", 1e4, factor=4.0, original_max_position_embeddings=24)
_OLMO3_YARN = {
    "rope_parameters": {
        "full_attention": {**_YARN["rope_parameters"], "attention_factor": 1.1386294361119891},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
}
_YARN_TUNED = _rope(
    "yarn", 1e4, factor=3.0, attention_factor=1.3, beta_fast=16.0, original_max_position_embeddings=40
)

# Positions of the tests are in the third, or beyond both, of these original contexts.
_MINISTRAL = _rope(
    "yarn",
    1e4,
    factor=16.0,
    original_max_position_embeddings=16,
    mscale=1.0,
    mscale_all_dim=1.0,
    llama_4_scaling_beta=0.4,
)
_LONGROPE = {
    "original_max_position_embeddings": 8,
    **_rope(
        "longrope",
        1e4,
        partial_rotary_factor=0.75,
        short_factor=[1.0, 1.1, 1.2, 1.5, 2.0, 3.0],
        long_factor=[1.0, 1.3, 2.0, 4.0, 9.0, 20.0],
    ),
}

_K_EQ_V = {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "use_bidirectional_attention": "vision"}
_EXPERTS = {
    "enable_moe_block": True,
    "num_experts": 7,
    "top_k_experts": 3,
    "moe_intermediate_size": 18,
    "experts_implementation": "eager",  # the grouped one wants aligned sizes
}
_SLIDING, _FULL = "sliding_attention", "full_attention"

CASES: tuple[Case, ...] = (
    _gemma("gemma3-mqa-small-window"),
    _gemma("gemma3-odd-heads-window-1", num_attention_heads=6, num_key_value_heads=3, sliding_window=1),
    _gemma("gemma3-4b-rope-factor", num_hidden_layers=13, num_key_value_heads=2, **_GEMMA_ROPE_8),
    _gemma("gemma3-27b-scale", gguf=False, query_pre_attn_scalar=9, num_key_value_heads=2),
    _gemma("gemma3-27b-layers", num_hidden_layers=62, query_pre_attn_scalar=9, hidden_size=36),
    _gemma("gemma3-softcap-untied", final_logit_softcapping=2.0, tie_word_embeddings=False),
    _gemma4(
        "gemma4-e2b",
        num_hidden_layers=10,
        layer_types=[*[_SLIDING] * 4, _FULL] * 2,
        num_key_value_heads=1,
        hidden_size_per_layer_input=12,
        num_kv_shared_layers=4,
        use_double_wide_mlp=True,
    ),
    _gemma4("gemma4-e4b", num_hidden_layers=12, hidden_size_per_layer_input=16, num_kv_shared_layers=5),
    _gemma4("gemma4-31b", num_attention_heads=8, num_key_value_heads=4, **_K_EQ_V),
    _gemma4("gemma4-26b-a4b", **_K_EQ_V, **_EXPERTS),
    _gemma4("gemma4-12b", unified=True, num_attention_heads=8, **_K_EQ_V),
    _gemma4(
        "gemma4-everything",
        num_hidden_layers=8,
        layer_types=[_FULL, _SLIDING, _SLIDING, _FULL] * 2,
        hidden_size_per_layer_input=16,
        num_kv_shared_layers=3,
        use_double_wide_mlp=True,
        sliding_window=3,
        tie_word_embeddings=False,
        **_K_EQ_V,
        **_EXPERTS,
    ),
    _qwen("qwen3-tied"),
    _qwen("qwen3-untied-mha", tie_word_embeddings=False, num_key_value_heads=6),
    _qwen("qwen3-mqa-odd", num_attention_heads=5, num_key_value_heads=1),
    _qwen("qwen3-yarn", **_YARN),
    _qwen("qwen3-yarn-magnitude", gguf=False, **_YARN_TUNED),
    _qwen("qwen3-bias", attention_bias=True),
    _qwen("qwen3-sliding", gguf=False, use_sliding_window=True, sliding_window=4, max_window_layers=1),
    _qwen2("qwen2"),
    _qwen2("qwen2-untied", tie_word_embeddings=False, num_attention_heads=4, num_key_value_heads=1),
    _moe("qwen3moe-normalized"),
    _moe(
        "qwen3moe-raw", gguf=False, norm_topk_prob=False, use_sliding_window=True, sliding_window=4,
        max_window_layers=2,  # which has no effect
    ),
    _moe("qwen3moe-one-expert", num_experts=1, num_experts_per_tok=1),
    _moe("qwen3moe-some-dense", mlp_only_layers=[0], decoder_sparse_step=1, num_hidden_layers=4),
    _moe("qwen3moe-every-second", gguf=False, decoder_sparse_step=2, num_hidden_layers=4),
    _llama("llama-tied"),
    _llama("llama-untied-mqa", tie_word_embeddings=False, num_key_value_heads=1, num_attention_heads=5),
    _llama("llama-llama3-rope", **_LLAMA3),
    _llama("llama-linear-rope", **_rope("linear", 1e4, factor=4.0)),
    _llama("llama-biases", attention_bias=True, mlp_bias=True),
    _mistral("mistral-window"),
    _olmo("olmo2", 2, **_rope("default", 5e5)),
    _olmo("olmo2-tied-mha", 2, num_key_value_heads=6, tie_word_embeddings=True, **_rope("default", 5e5)),
    _olmo("olmo3", 3, num_hidden_layers=5, sliding_window=5, **_OLMO3_YARN),
    _olmo("olmo3-unscaled", 3, sliding_window=3, layer_types=[_FULL, _SLIDING, _SLIDING]),
    _olmo("olmo3-full", 3, layer_types=[_FULL] * 3, **_OLMO3_YARN),
    _small("Exaone4Config", "exaone4-hybrid", num_hidden_layers=5, sliding_window=5, head_dim=12, **_LLAMA3),
    _small(
        "Exaone4Config", "exaone4-tied-global", num_attention_heads=5, num_key_value_heads=1, hidden_size=50,
        sliding_window=None, layer_types=[_FULL] * 3, tie_word_embeddings=True, **_rope("default", 1e6),
    ),
    _small(
        "Exaone4Config", "exaone4-own-layers", sliding_window=3, layer_types=[_FULL, _SLIDING, _FULL],
        num_key_value_heads=6, sliding_window_pattern="GLG", **_rope("linear", 1e4, factor=4.0),
    ),
    _small("Exaone4Config", "exaone4-no-positions", layer_types=[_FULL] * 3),
    _granite("granite3"),
    _granite("granite3-llama3-untied", tie_word_embeddings=False, num_key_value_heads=5, **_LLAMA3),
    _granite("granite4", hybrid=True),
    _granite("granite4-no-positions", hybrid=True, position_embedding_type=None),
    _small("Ministral3Config", "ministral3", head_dim=10, **_MINISTRAL),
    _small("SmolLM3Config", "smollm3", num_hidden_layers=9),
    _small(
        "SmolLM3Config",
        "smollm3-own-layers",
        gguf=False,
        no_rope_layers=[0, 1, 0],
        use_sliding_window=True,
        sliding_window=6,
        attention_bias=True,
        tie_word_embeddings=False,
    ),
    _small("Phi3Config", "phi3-window", sliding_window=6),
    _small("Phi3Config", "phi4-mini", hidden_size=96, tie_word_embeddings=True, **_LONGROPE),
)  # fmt: skip

# Random models multiply rounding errors as trained ones do not, these by more than others: the deepest one,
# and those with per-layer embeddings.
ROOM = {"gemma3-27b-layers": 3, "gemma4-e2b": 2, "gemma4-everything": 2}


def case(name: str) -> Case:
    return next(c for c in CASES if c.name == name)


def logits_of(model: Any, tokens: list[int]) -> np.ndarray:
    """The published model's logits of every position, [T, V]."""
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].float().numpy()


def save(model: Any, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder
