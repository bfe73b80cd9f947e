"""Which files of a repository are a model."""

from __future__ import annotations

import pytest

from olivine.errors import DownloadError
from olivine.hub import files
from olivine.hub.names import Name, parse
from olivine.hub.remote import chosen_files

SPLIT = [f"Q8_0/big-Q8_0-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
GGUF = [
    "README.md",
    "config.json",
    "m-Q2_K.gguf",
    "m-Q4_K_M.gguf",
    "m-Q5_K_M.gguf",
    *SPLIT,
    "mmproj-m-f32.gguf",
    "mmproj-m-f16.gguf",
    "mmproj-m-Q8_0.gguf",
]
SHARDS = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
TENSORS = [
    "README.md",
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "model.safetensors.index.json",
    *SHARDS,
    "consolidated.safetensors",
    "original/model.safetensors",
    "original/consolidated.00.pth",
    "pytorch_model.bin",
    "onnx/model.onnx",
    "figure.png",
]


def named(text: str) -> Name:
    name = parse(text)
    assert name is not None
    return name


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("gemma-3-1b-it-Q4_K_M.gguf", "Q4_K_M"),
        ("smollm2-360m-instruct-q8_0.gguf", "Q8_0"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("Qwen3-0.6B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("BF16/model-00001-of-00002.gguf", "BF16"),
        ("phi-4-fp16.gguf", "F16"),
        ("m-IQ4_XS.gguf", "IQ4_XS"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("qwen3-8b.gguf", ""),
    ],
)
def test_a_name_tells_the_quantization(path: str, kind: str) -> None:
    assert files.type_of(path) == kind


def test_one_quantization_is_chosen_with_its_mmproj() -> None:
    assert chosen_files(named("a/b"), GGUF) == (
        "Q4_K_M",
        ["m-Q4_K_M.gguf", "mmproj-m-f16.gguf"],
        "m-Q4_K_M.gguf",
    )
    assert chosen_files(named("a/b:q5_k_m"), GGUF)[1] == ["m-Q5_K_M.gguf", "mmproj-m-f16.gguf"]
    by_file = named("hf.co/a/b/blob/main/m-Q2_K.gguf")
    assert chosen_files(by_file, GGUF)[0] == "Q2_K"


def test_all_parts_of_a_split_file_are_taken() -> None:
    assert chosen_files(named("a/b:Q8_0"), GGUF)[1] == [*SPLIT, "mmproj-m-f16.gguf"]
    with pytest.raises(DownloadError, match="parts of Q8_0 are missing"):
        chosen_files(named("a/b:Q8_0"), SPLIT[:2])


def test_without_q4_k_m_the_order_of_preference_decides() -> None:
    assert chosen_files(named("a/b"), ["m-Q8_0.gguf", "m-BF16.gguf", "m-Q6_K.gguf"])[0] == "Q6_K"
    assert chosen_files(named("a/b"), ["m-UD-Q4_K_M.gguf", "m-Q8_0.gguf"])[0] == "UD-Q4_K_M"
    assert chosen_files(named("a/b"), ["plain.gguf"])[:2] == ("plain", ["plain.gguf"])


def test_an_alias_for_text_leaves_the_mmproj_there() -> None:
    assert chosen_files(named("gemma3:1b"), GGUF)[1] == ["m-Q4_K_M.gguf"]
    assert chosen_files(named("gemma3:4b"), GGUF)[1] == ["m-Q4_K_M.gguf", "mmproj-m-f16.gguf"]


def test_safetensors_are_taken_once() -> None:
    tag, chosen, opened = chosen_files(named("a/b"), TENSORS)
    assert (tag, opened) == ("", "")
    assert sorted(chosen) == sorted([*TENSORS[1:7], *SHARDS])
    further = "additional_chat_templates/tool_use.jinja"
    assert sorted(chosen_files(named("a/b"), [*TENSORS, further])[1]) == sorted([*chosen, further])
    single = chosen_files(
        named("a/b"), ["config.json", "model.safetensors", "model.safetensors.index.json", *SHARDS]
    )
    assert single[1] == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("text", "paths", "told"),
    [
        ("a/b:Q3_K_M", GGUF, "a/b has no Q3_K_M: it has Q8_0, Q2_K, Q4_K_M, Q5_K_M"),
        ("a/b:Q4_K_M", TENSORS, "has no GGUF files.*olivine pull a/b"),
        ("a/b", ["pytorch_model.bin", "config.json"], "PyTorch's own format, which can run code"),
        ("a/b", ["adapter_model.safetensors"], "no whole model"),
        ("a/b", ["README.md"], "neither GGUF files nor safetensors"),
    ],
)
def test_a_repository_without_that_says_what_it_has(text: str, paths: list[str], told: str) -> None:
    with pytest.raises(DownloadError, match=told) as caught:
        chosen_files(named(text), paths)
    assert caught.value.code == "not_found"


def test_a_mmproj_file_is_taken_for_the_model_whose_name_it_has() -> None:
    paths = [
        "foo-Q8_0.gguf",
        "bar-Q8_0.gguf",
        "mmproj-bar-F16.gguf",
        "mmproj-foo-BF16.gguf",
        "mmproj-F16.gguf",
    ]
    for name in ("foo", "bar"):
        (variant,) = (each for each in files.variants(paths) if each.files == (f"{name}-Q8_0.gguf",))
        found = files.mmproj_of(paths, variant)
        assert found is not None and name in found
    (other,) = files.variants(["baz-Q8_0.gguf"])
    assert files.mmproj_of(paths, other) is not None, "names that tell nothing leave the order of types"
