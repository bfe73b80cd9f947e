"""The same models from every storage type and layout that their publishers use."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from olivine.backends.cpu import CpuProgram
from olivine.dtypes import DTYPES
from oracles import gguf_twin, published, qwen3c, running
from oracles.blocks import random_blocks

TOKENS = [int(t) for t in np.random.default_rng(7).integers(0, published.VOCABULARY, 23)]


def logits(path: Path) -> np.ndarray:
    return running.chunked(running.reference(path), TOKENS, [9])


def close(ours: np.ndarray, theirs: np.ndarray, atol: float = 1e-4) -> None:
    assert theirs.std() > 0.3
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["gemma3-mqa-small-window", "qwen3-tied", "llama-llama3-rope"])
def test_half_precision_weights_are_read_as_stored(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = published.case(name).make()
    published.save(copy.deepcopy(model).to(dtype), tmp_path)
    # Loaded anew, because `.to` rounds the published model's RoPE buffers along with its weights.
    theirs = type(model).from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    close(logits(tmp_path), published.logits_of(theirs, TOKENS))


def test_sharded_folders(tmp_path: Path) -> None:
    model = published.case("qwen3-untied-mha").make()
    published.save(model, tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    close(logits(tmp_path), published.logits_of(model, TOKENS))


def rename(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors")


@pytest.mark.parametrize("case", ["qwen3moe-normalized", "qwen3moe-some-dense", "qwen3moe-one-expert"])
def test_experts_stored_one_by_one_and_packed(case: str, tmp_path: Path) -> None:
    """Published files hold experts one by one; the library's own form has them packed."""
    model = published.case(case).make()
    packed = {name: value.clone() for name, value in model.state_dict().items()}
    assert any(name.endswith("experts.gate_up_proj") for name in packed)
    published.save(model, tmp_path)
    assert any(".experts.0." in name for name in load_file(tmp_path / "model.safetensors"))
    one_by_one = logits(tmp_path)
    rename(tmp_path, lambda _: packed)
    close(one_by_one, published.logits_of(model, TOKENS))
    np.testing.assert_array_equal(logits(tmp_path), one_by_one)


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_the_text_model_inside_a_multimodal_gemma(prefix: str, tmp_path: Path) -> None:
    model = published.case("gemma3-4b-rope-factor").make()
    published.save(model, tmp_path)

    def nest(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        nested = {prefix + name.removeprefix("model."): value for name, value in tensors.items()}
        for other in ("vision_tower.x.weight", "model.vision_tower.y.weight", "multi_modal_projector.z"):
            nested[other] = torch.zeros(3)
        return nested

    rename(tmp_path, nest)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": config}))
    assert running.build(tmp_path).warnings == ()
    close(logits(tmp_path), published.logits_of(model, TOKENS))


@pytest.mark.parametrize("group", [2, 6])
@pytest.mark.parametrize("tied", [True, False])
def test_qwen3c_bin_matches_the_float_model_of_its_weights(group: int, tied: bool, tmp_path: Path) -> None:
    case = published._qwen("bin", tie_word_embeddings=tied, intermediate_size=48, head_dim=12)
    model = case.make()
    path = qwen3c.write_bin(model, tmp_path / "model.bin", group)
    ours = logits(path)
    close(ours, published.logits_of(qwen3c.rounded(model, group), TOKENS))
    # And the float model itself, within what int8 rounding of the weights costs.
    exact = published.logits_of(model, TOKENS)
    assert 1e-3 < np.abs(ours - exact).max() < 0.1 * exact.std()


def typed_model(
    kind_of: Callable[[str], str], layers: int, width: int, path: Path
) -> tuple[Path, torch.nn.Module]:
    """A GGUF file with matrices of random blocks; the published model of what the gguf library decodes."""
    case = published._qwen(
        "typed",
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=width // 4,
    )
    model = case.make()
    rng = np.random.default_rng(0)

    def encode(name: str, values: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType | None]:
        if values.ndim < 2:
            return values, None
        kind = gguf.GGMLQuantizationType[kind_of(name)]
        raw = random_blocks(kind.name, values.shape, rng, scale=0.8 / values.shape[-1] ** 0.5)
        decoded[name] = gguf.quants.dequantize(raw, kind)
        return raw, kind

    decoded: dict[str, np.ndarray] = {}
    gguf_twin.write_gguf(model, path, encode)
    assert len(decoded) == 1 + 7 * layers  # the embedding, four of attention, three of the MLP
    for name, value in model.state_dict().items():
        if (values := decoded.get(gguf_twin.gguf_name(name))) is not None:
            value.copy_(torch.from_numpy(np.ascontiguousarray(values)))
    return path, model


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_model_of_every_storage_type(dtype: str, tmp_path: Path) -> None:
    width = 256 if DTYPES[dtype].block_size == 256 else 64
    path, model = typed_model(lambda _: dtype, 1, width, tmp_path / "model.gguf")
    close(logits(path), published.logits_of(model, TOKENS), atol=2e-4)


# What quantizers choose for files of two to three bits a weight.
MIXTURES = {
    "IQ2_XS": (
        "Q2_K",
        "IQ2_XS IQ2_XS Q4_K IQ3_S IQ2_XS IQ2_XXS Q2_K",
        "IQ2_XS IQ2_S Q4_K IQ3_S IQ2_S IQ2_XS Q5_K",
    ),
    "IQ1_M": (
        "IQ2_S",
        "IQ1_S IQ1_M Q4_K IQ2_XXS IQ1_M IQ1_S IQ2_S",
        "IQ1_M IQ3_XXS Q4_K IQ2_XXS IQ1_S IQ1_M Q2_K",
    ),
    "TQ": ("Q6_K", "TQ1_0 TQ2_0 TQ1_0 TQ2_0 NVFP4 TQ1_0 TQ2_0", "TQ2_0 TQ1_0 NVFP4 TQ1_0 TQ2_0 IQ4_XS NVFP4"),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_files_that_mix_types(name: str, tmp_path: Path) -> None:
    table, *layers = MIXTURES[name]
    stems = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    kinds = {
        f"blk.{layer}.{stem}.weight": kind
        for layer, line in enumerate(layers)
        for stem, kind in zip(stems, line.split(), strict=True)
    }
    path, model = typed_model(lambda weight: kinds.get(weight, table), 2, 256, tmp_path / "model.gguf")
    theirs = published.logits_of(model, TOKENS)
    close(logits(path), theirs, atol=2e-4)
    built = running.build(path)
    for sizes, generated in (([9], False), ([1], True)):
        program = CpuProgram(built.plan, built.weights, page_counts=[8], threads=2, cache_type="F32")
        ours = running.chunked(program, TOKENS, sizes, generated=generated)
        # Prompt rows may be in bfloat16, and int8 activations cost as much here as with Q8_0 or MXFP4.
        errors = np.sqrt(np.square(ours - theirs).mean(axis=1))
        assert np.quantile(errors, 0.9) < 0.06 * theirs.std()
