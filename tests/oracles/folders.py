"""Hugging Face folders with everything in them: a small random model, a trained tokenizer, a template."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from oracles import published
from tokenizer import trained

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
# Wide enough for blocks of 256, and nothing more.
_WIDE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 1024,
}
_GEMMA4 = {
    "head_dim": 32, "global_head_dim": 64, "sliding_window": 64, "bos_token_id": 2, "eos_token_id": 1
}  # fmt: skip
# As in the published models, the last two layers with keys are one that slides and a full one.
_SHARED = {"num_kv_shared_layers": 5}
_PER_LAYER = {"hidden_size_per_layer_input": 64, "vocab_size_per_layer_input": None}
_LONGROPE = {
    **published.case("phi4-mini").options["rope_parameters"],
    "short_factor": [1 + i / 20 for i in range(24)],
    "long_factor": [1 + i for i in range(24)],
}
# Family → a published configuration, what differs from it, and the tokenizer of its kind.
FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "gemma3": (
        "gemma3-4b-rope-factor",
        {"sliding_window": 64, "query_pre_attn_scalar": 64, "num_hidden_layers": 7},
        "sentencepiece",
    ),
    "gemma4-e2b": ("gemma4-e2b", {**_GEMMA4, **_SHARED, **_PER_LAYER}, "gemma4"),
    "gemma4-31b": ("gemma4-31b", {**_GEMMA4, "num_key_value_heads": 4, "num_attention_heads": 8}, "gemma4"),
    "gemma4-26b-a4b": ("gemma4-26b-a4b", {**_GEMMA4, "moe_intermediate_size": 256}, "gemma4"),
    "gemma4-12b": ("gemma4-12b", {**_GEMMA4, "num_attention_heads": 8}, "gemma4"),
    "qwen2": ("qwen2", {}, "qwen2"),
    "qwen3": ("qwen3-tied", {}, "qwen2"),
    "qwen3-untied": ("qwen3-untied-mha", {}, "qwen2"),
    "qwen3moe": ("qwen3moe-normalized", {"moe_intermediate_size": 256}, "qwen2"),
    "llama": ("llama-tied", {}, "smollm"),
    "llama3": ("llama-llama3-rope", {}, "llama-bpe"),
    "llama-biases": ("llama-biases", {}, "gpt-2"),
    "llama2": ("llama-untied-mqa", {}, "sentencepiece-prefix"),
    "mistral": ("mistral-window", {"sliding_window": None}, "sentencepiece-prefix"),
    "olmo3": ("olmo3", {"sliding_window": 64}, "gpt-2"),
    "exaone4": ("exaone4-hybrid", {"sliding_window": 64}, "gpt-2"),
    "granite4": ("granite4", {"shared_intermediate_size": 512}, "smollm"),
    "ministral3": ("ministral3", {}, "tekken"),
    "phi3": ("phi3-window", {"sliding_window": 64}, "sentencepiece-prefix"),
    "phi4-mini": ("phi4-mini", {"rope_parameters": _LONGROPE}, "gpt-4o"),
    "smollm3": ("smollm3", {"num_hidden_layers": 5}, "llama-bpe"),
}


# What models see and hear with, in small: family → class and the configurations of its towers.
_GEMMA4_VISION = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 16, "patch_size": 16, "position_embedding_size": 128,
}  # fmt: skip
_GEMMA4_AUDIO = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "output_proj_dims": 48,
    "subsampling_conv_channels": [128, 32],
}  # fmt: skip
MULTIMODAL: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": ("Gemma3", {
        "vision_config": {
            "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
            "patch_size": 14, "image_size": 56, "vision_use_head": False,
        },
        "mm_tokens_per_image": 4,
    }),
    "gemma4-e2b": ("Gemma4", {
        "vision_config": {**_GEMMA4_VISION, "use_clipped_linears": True}, "audio_config": _GEMMA4_AUDIO
    }),
    "gemma4-31b": ("Gemma4", {"vision_config": {**_GEMMA4_VISION, "standardize": True}}),
    "gemma4-12b": ("Gemma4Unified", {
        "vision_config": {"mm_embed_dim": 64, "mm_posemb_size": 40, "output_proj_dims": 64},
        "audio_config": {},
    }),
}  # fmt: skip


def write(family: str, folder: Path, *, dtype: str = "float32", wide: bool = True, **more: Any) -> Path:
    """The folder of a family; `wide` makes rows of whole 256-blocks."""
    case, options = _prepare(family, folder, wide, more)
    model = replace(case, options={**case.options, **options}).make()
    return _save(model, folder, dtype, options)


def write_multimodal(family: str, folder: Path, *, dtype: str = "float32", **more: Any) -> Path:
    """The folder of a family's model with towers, whose configurations `more` may change."""
    import torch
    import transformers

    case, options = _prepare(family, folder, True, {})
    kind, towers = MULTIMODAL[family]
    config = getattr(transformers, f"{kind}Config")
    model = getattr(transformers, f"{kind}ForConditionalGeneration")
    text = {**published.COMMON, **case.options, **options}
    torch.manual_seed(0)
    made = published.randomize(model(config(text_config=text, **{**towers, **more})))
    return _save(made, folder, dtype, options)


def _prepare(
    family: str, folder: Path, wide: bool, more: dict[str, Any]
) -> tuple[published.Case, dict[str, Any]]:
    """A family's tokenizer is written; its configuration, and what differs from that."""
    name, options, tokenizer = FAMILIES[family]
    tokens = _write_tokenizer(tokenizer, folder)
    options = {**(_WIDE if wide else {}), **options, "vocab_size": tokens + 3, **more}  # three rows unused
    if "vocab_size_per_layer_input" in options:
        options["vocab_size_per_layer_input"] = options["vocab_size"]
    return published.case(name), options


def _save(model: Any, folder: Path, dtype: str, options: dict[str, Any]) -> Path:
    if dtype != "float32":
        import torch

        model = model.to(getattr(torch, dtype))
    published.save(model, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    generation = {
        "do_sample": True,
        "temperature": 0.75,
        "repetition_penalty": 1.25,
        "top_k": 20,
        "top_p": 0.875,
    }
    generation["eos_token_id"] = [options.get("eos_token_id", 2)]
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def _write_tokenizer(kind: str, folder: Path) -> int:
    """The tokenizer's files; how many tokens it has."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind.startswith("sentencepiece"):
        import sentencepiece

        # Where a space is put before texts, GGUF's readers put one after user-defined tokens too.
        proto = trained.sentencepiece(True, symbols=()) if "prefix" in kind else trained.sentencepiece(False)
        (folder / "tokenizer.model").write_bytes(proto)
        return len(sentencepiece.SentencePieceProcessor(model_proto=proto))
    settings = {"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>"}
    if kind == "gemma4":
        text = trained.gemma4()
        settings = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    else:
        text = trained.byte_level(kind)
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    data = json.loads(text)
    return len(data["model"]["vocab"]) + sum(
        entry["content"] not in data["model"]["vocab"] for entry in data["added_tokens"]
    )
