"""olivine-mini itself: the published code of Gemma 4, made small, as E2B is shaped."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import Gemma4ForCausalLM, Gemma4TextConfig, GenerationConfig

from tokenizer import BOS, END_OF_TURN, EOS, PAD, STOPS

# Two sliding layers, then one that sees all. Readers expect the layers whose keys are shared to be a
# sliding one and then a full one, just before the first that shares.
_PATTERN = ["sliding_attention", "sliding_attention", "full_attention"]


def config(vocabulary: int, *, width: int = 320, hidden: int = 640, rounds: int = 3) -> Gemma4TextConfig:
    return Gemma4TextConfig(
        vocab_size=vocabulary,
        vocab_size_per_layer_input=vocabulary,
        hidden_size=width,
        intermediate_size=hidden,
        num_hidden_layers=rounds * len(_PATTERN),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        global_head_dim=128,
        layer_types=_PATTERN * rounds,
        sliding_window=256,
        max_position_embeddings=2048,
        hidden_size_per_layer_input=32,
        num_kv_shared_layers=len(_PATTERN),
        use_double_wide_mlp=True,
        final_logit_softcapping=30.0,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=[EOS, END_OF_TURN],
    )


def build(settings: Gemma4TextConfig, seed: int) -> Gemma4ForCausalLM:
    torch.manual_seed(seed)
    model = Gemma4ForCausalLM(settings)
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                # Scores are not divided by √d, so the norms must do it, or attention begins saturated.
                weight.fill_(weight.numel() ** -0.25)
            elif "post_" in name and name.endswith("norm.weight"):
                # Each branch begins small beside the embedding, whose values are about 0.02·√D.
                weight.fill_(0.25)
            elif "embed_tokens_per_layer" in name:
                weight.normal_(std=0.1)
    return model


def save(model: Gemma4ForCausalLM, folder: Path) -> None:
    """The Hugging Face folder, in float16: finer than the Q8_0 that is made of it, and half the size."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.half() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    model.save_pretrained(folder, state_dict=state)
    data = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**data, "dtype": "float16"}, indent=2))
    generation().save_pretrained(folder)


def generation() -> GenerationConfig:
    return GenerationConfig(
        do_sample=True,
        temperature=0.8,
        top_k=64,
        top_p=0.95,
        min_p=0.1,
        eos_token_id=STOPS,
        bos_token_id=BOS,
        pad_token_id=PAD,
    )
