"""qwen3.c's files against a second writer of the format, and back through our own readers."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2
import numpy as np
import pytest
import torch
import transformers

from olivine.convert import convert
from olivine.convert.qwen3c import templates, tokenizer_file
from olivine.convert.vocabulary import from_hugging_face
from olivine.errors import ModelError, RequestError, TokenizerError
from olivine.formats import open_checkpoint
from olivine.loading import tokenizer_of
from oracles import folders, qwen3c, running
from tokenizer import samples, trained

SWITCHING = folders.TEMPLATE + "{% if enable_thinking is false %}<think>{% endif %}"
ENDINGS = ("", ".with-thinking", ".with-system", ".with-system-and-thinking")


@pytest.fixture(scope="module", params=["qwen3", "qwen3-untied"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = folders.write(request.param, tmp_path_factory.mktemp("hf"))
    (folder / "chat_template.jinja").write_text(SWITCHING)
    return folder


def test_the_model_is_the_exporters_to_the_byte(folder: Path, tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = qwen3c.write_bin(model, tmp_path / "expected.bin", 64)
    report = convert(folder, tmp_path / "made.bin", "qwen3.c")
    assert (tmp_path / "made.bin").read_bytes() == expected.read_bytes()
    assert report.bytes == expected.stat().st_size
    names = [
        name
        for name in model.state_dict()
        if name != "lm_head.weight" or not model.config.tie_word_embeddings
    ]
    norms = [name for name in names if "norm" in name]
    assert {kind: count for kind, (count, _) in report.types.items()} == {
        "Q8_G64": len(names) - len(norms),
        "F32": len(norms),
    }
    assert sum(size for _, size in report.types.values()) == report.bytes - 256


def test_by_way_of_gguf_it_is_the_same(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "directly.bin", "qwen3.c")
    convert(folder, tmp_path / "f32.gguf", "F32")
    convert(tmp_path / "f32.gguf", tmp_path / "again.bin", "qwen3.c")
    for ending in ("", ".tokenizer", *(f".template{ending}" for ending in ENDINGS)):
        again = tmp_path / f"again.bin{ending}"
        assert again.read_bytes() == (tmp_path / f"directly.bin{ending}").read_bytes()


def test_it_runs_and_tokenizes(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "made.bin", "qwen3.c")
    tokens = list(range(5, 45))
    ours = running.chunked(running.reference(tmp_path / "made.bin"), tokens, [40])
    original = running.chunked(running.reference(folder), tokens, [40])
    assert np.sqrt(((ours - original) ** 2).mean()) < 0.05 * original.std()
    before, after = (tokenizer_of(open_checkpoint(path)) for path in (folder, tmp_path / "made.bin"))
    for text in samples.texts(150, 4):
        assert after.encode(text) == before.encode(text)
    assert set(open_checkpoint(tmp_path / "made.bin").prompt_files) == {
        ending.removeprefix(".") for ending in ENDINGS
    }


def test_the_tokenizer_is_the_exporters_to_the_byte(folder: Path) -> None:
    data = trained.byte_level_data("qwen2")
    ids = {entry["content"]: entry["id"] for entry in data["added_tokens"]}
    metadata = from_hugging_face(folder, 1300)
    expected = samples.qwen3c_file(data, ids["<|endoftext|>"], ids["<|im_end|>"])
    made, _ = tokenizer_file(metadata)
    assert made == expected


@pytest.mark.exhaustive
def test_the_published_tokenizer(tmp_path: Path) -> None:
    text = samples.published("qwen3")
    config = {"bos_token_id": 151643, "eos_token_id": 151645}
    samples.write_folder(tmp_path, text, config=config, tokenizer_config={"eos_token": "<|im_end|>"})
    made, _ = tokenizer_file(from_hugging_face(tmp_path, 151936))
    assert made == samples.qwen3c_file(json.loads(text), 151643, 151645)


def test_templates_are_what_the_published_one_renders() -> None:
    source = samples.data_file("templates/Qwen-Qwen3-0.6B.jinja").read_text()
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(source)
    made = templates(source)
    user, system = {"role": "user", "content": "%s"}, {"role": "system", "content": "%s"}
    for ending, messages, thinking in (
        (".template", [user], False),
        (".template.with-thinking", [user], True),
        (".template.with-system", [system, user], False),
        (".template.with-system-and-thinking", [system, user], True),
    ):
        rendered = template.render(
            messages=messages, add_generation_prompt=True, enable_thinking=thinking, tools=None
        )
        assert made.pop(ending) == rendered
    assert not made


def test_models_that_qwen3c_cannot_run(tmp_path: Path) -> None:
    made = tmp_path / "made.bin"
    for family, more, match in (
        ("llama", {}, "dense Qwen3"),
        ("qwen2", {}, "dense Qwen3"),
        ("qwen3moe", {}, "dense Qwen3"),
        ("qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6}}, "base 1e6"),
        ("qwen3", {"rms_norm_eps": 1e-5}, "epsilon of 1e-6"),
        ("qwen3", {"attention_bias": True}, "no biases"),
        ("qwen3", {"intermediate_size": 500}, "do not divide"),
    ):
        folder = folders.write(family, tmp_path / f"{family}{len(more)}{match[:4]}", **more)
        with pytest.raises(ModelError, match=match):
            convert(folder, made, "qwen3.c")
    assert not list(tmp_path.glob("made*"))


def test_nothing_is_made_from_it(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "made.bin", "qwen3.c")
    with pytest.raises(RequestError, match="convert its original"):
        convert(tmp_path / "made.bin", tmp_path / "made.gguf", "Q8_0")


def test_files_beside_it_are_replaced_only_if_asked_for(folder: Path, tmp_path: Path) -> None:
    for ending in (".tokenizer", ".template", ".template.with-system"):
        precious = tmp_path / f"made.bin{ending}"
        precious.write_text("precious")
        with pytest.raises(RequestError, match=rf"made\.bin{ending} exists; --force replaces it"):
            convert(folder, tmp_path / "made.bin", "qwen3.c")
        assert precious.read_text() == "precious"
        assert list(tmp_path.iterdir()) == [precious]
        convert(folder, tmp_path / "made.bin", "qwen3.c", force=True)
        assert "precious" not in precious.read_text(errors="replace")
        for path in tmp_path.iterdir():
            path.unlink()


def test_templates_of_another_model_are_not_left_beside_one_without(tmp_path: Path) -> None:
    folder = folders.write("qwen3", tmp_path / "hf")
    (folder / "chat_template.jinja").unlink()
    stray = tmp_path / "made.bin.template.with-thinking"
    stray.write_text("precious")
    for force in (False, True):
        with pytest.raises(RequestError, match="would be read with this one: move it away"):
            convert(folder, tmp_path / "made.bin", "qwen3.c", force=force)
    assert stray.read_text() == "precious"
    assert not (tmp_path / "made.bin").exists()


def test_a_model_without_a_template(tmp_path: Path) -> None:
    folder = folders.write("qwen3", tmp_path / "hf")
    (folder / "chat_template.jinja").unlink()
    report = convert(folder, tmp_path / "made.bin", "qwen3.c")
    assert "no .template files are written: qwen3.c itself does not start without them" in report.warnings[0]
    assert not list(tmp_path.glob("*.template*"))


def test_tokens_that_end_replies_and_have_no_place_are_named(tmp_path: Path) -> None:
    folder = folders.write("qwen3", tmp_path / "hf")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 50, 60]}))
    directly = convert(folder, tmp_path / "directly.bin", "qwen3.c")
    assert directly.warnings == ("tokens 2, 50, 60 also end a reply, and qwen3.c has no place for them",)
    convert(folder, tmp_path / "made.gguf", "F32")  # which has no key for 60
    again = convert(tmp_path / "made.gguf", tmp_path / "again.bin", "qwen3.c")
    assert again.warnings == ("tokens 2, 50 also end a reply, and qwen3.c has no place for them",)
    before, after = (tokenizer_of(open_checkpoint(path)) for path in (folder, tmp_path / "again.bin"))
    assert after.stop_ids == before.stop_ids - {2, 50, 60}


@pytest.mark.parametrize("by_way_of_gguf", [False, True])
def test_a_tokenizer_that_cuts_text_in_another_way_is_refused(tmp_path: Path, by_way_of_gguf: bool) -> None:
    """The file cannot say it, and its readers cut as Qwen's does: 12|34 would become 1|2|3|4."""
    folder = folders.write("qwen3", tmp_path / "hf")
    data = json.loads((folder / "tokenizer.json").read_text())
    data["pre_tokenizer"] = trained.byte_level_data("gpt-2")["pre_tokenizer"]
    (folder / "tokenizer.json").write_text(json.dumps(data))
    source = folder
    if by_way_of_gguf:
        source = tmp_path / "made.gguf"
        convert(folder, source, "Q8_0")
    with pytest.raises(TokenizerError, match=r"the tokenizer does not fit qwen3\.c: near"):
        convert(source, tmp_path / "made.bin", "qwen3.c")
    assert not list(tmp_path.glob("made.bin*"))
