"""Files that the converter writes, against the published models, the gguf library and llama.cpp."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

import olivine
from olivine import Sampling
from olivine.backends.reference.dequantize import dequantize
from olivine.convert import convert, vocabulary
from olivine.convert.types import KINDS
from olivine.errors import ModelError, OlivineError, RequestError, TokenizerError
from olivine.formats import open_checkpoint
from olivine.loading import DEFAULT_SAMPLING, published_sampling, tokenizer_of
from olivine.tokenizer import from_gguf
from oracles import folders, gguf_twin, llama_cpp, published, running, sampled
from tokenizer import samples, trained

TEXTS = (
    "Hello, they've 12 apples; don't\n\n  see über 漢字 ",
    "x",
    "  def f(x):\n\treturn 3.14\n",
    "the world 🚀",
)
TOKENS = [int(t) for t in np.random.default_rng(7).integers(3, 1200, 48)]


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("folders")
    return functools.cache(lambda family: folders.write(family, root / family))


@pytest.fixture(scope="session")
def f32_of(folder_of: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A family's folder converted to F32."""
    root = tmp_path_factory.mktemp("f32")

    @functools.cache
    def make(family: str) -> Path:
        convert(folder_of(family), root / f"{family}.gguf", "F32")
        return root / f"{family}.gguf"

    return make


def logits(path: Path) -> np.ndarray:
    return running.chunked(running.reference(path), TOKENS, [len(TOKENS)])


@functools.cache
def original_logits(source: Path) -> np.ndarray:
    return logits(source)


@functools.cache
def published_model(source: Path) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    model.config.model_type = {"mistral": "llama"}.get(model.config.model_type, model.config.model_type)
    return model


@pytest.mark.parametrize("family", sampled.every(2, folders.FAMILIES))
def test_tensors_are_those_of_the_published_conversion(family: str, folder_of: Any, f32_of: Any) -> None:
    expected = gguf_twin.gguf_tensors(published_model(folder_of(family)))
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(f32_of(family)).tensors}
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        values = tensor.data.reshape(expected[name].shape)
        np.testing.assert_allclose(values, expected[name], rtol=1e-6, atol=0, err_msg=name)


# What logits may be off by, as a share of their spread.
BOUNDS = {"F32": 1e-5, "F16": 5e-3, "BF16": 2e-2, "Q8_0": 5e-2, "Q6_K": 0.2, "Q5_K_M": 0.4}


def some_kinds() -> list[Any]:
    """Every family in F32 and, in turn, in one other type; exhaustively in all of them."""
    rounded = [kind for kind in BOUNDS if kind != "F32"]
    found = []
    for number, family in enumerate(folders.FAMILIES):
        for kind in BOUNDS:
            sampled = kind in ("F32", rounded[number % len(rounded)])
            found.append(pytest.param(family, kind, marks=() if sampled else pytest.mark.exhaustive))
    return found


@pytest.mark.parametrize(("family", "kind"), some_kinds())
def test_logits_are_the_originals_within_the_types_error(
    family: str, kind: str, folder_of: Any, f32_of: Any, tmp_path: Path
) -> None:
    source = folder_of(family)
    if kind == "F32":
        made = f32_of(family)
    else:
        made = tmp_path / "made.gguf"
        convert(source, made, kind)
    ours, original = logits(made), original_logits(source)
    # The median: a router that is off by little may choose another expert for some token.
    off = np.median(np.sqrt(((ours - original) ** 2).mean(axis=1))) / original.std()
    assert off < BOUNDS[kind]
    if kind != "F32":
        assert off > 0


@pytest.mark.parametrize("family", sampled.every(2, folders.FAMILIES, start=1))
def test_metadata_as_the_formats_own_library_reads_it(family: str, folder_of: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(folder_of(family), source)
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates/tool_use.jinja").write_text("{{ tools }}")
    convert(source, tmp_path / "made.gguf", "Q4_K_M")
    reader = gguf.GGUFReader(tmp_path / "made.gguf")
    told = {key: field.contents() for key, field in reader.fields.items()}
    config = json.loads((source / "config.json").read_text())
    architecture = told["general.architecture"]
    assert architecture == gguf_twin._ARCHITECTURES.get(config["model_type"], "llama")
    assert told[f"{architecture}.vocab_size"] == config["vocab_size"]
    model = published_model(source)
    twin = gguf.GGUFReader(gguf_twin.write_gguf(model, tmp_path / "twin.gguf"))
    expected = {key: field for key, field in twin.fields.items() if key.startswith(f"{architecture}.")}
    assert len(expected) >= 10
    for key, field in expected.items():
        assert reader.fields[key].types == field.types, key
        is_float = field.types == [gguf.GGUFValueType.FLOAT32]
        assert told[key] == (pytest.approx(field.contents()) if is_float else field.contents()), key
    assert told["general.file_type"] == KINDS["Q4_K_M"].file_type
    assert told["general.quantization_version"] == gguf.GGML_QUANT_VERSION
    assert told["tokenizer.chat_template"] == folders.TEMPLATE
    assert told["tokenizer.chat_templates"] == ["tool_use"]
    assert told["tokenizer.chat_template.tool_use"] == "{{ tools }}"
    assert len(told["tokenizer.ggml.tokens"]) == config["vocab_size"]
    assert all(tensor.data_offset % 32 == 0 for tensor in reader.tensors)


@pytest.mark.parametrize("family", folders.FAMILIES)
def test_tokenizer_and_sampling_survive(family: str, folder_of: Any, f32_of: Any) -> None:
    source, made = open_checkpoint(folder_of(family)), open_checkpoint(f32_of(family))
    before, after = tokenizer_of(source), tokenizer_of(made)
    for text in [*TEXTS, *samples.texts(150, 3)]:
        # Where a space is put before texts, so it is after a user-defined token; none of these has both.
        for parse in (False, True):
            ids = before.encode(text, parse_special=parse)
            assert after.encode(text, parse_special=parse) == ids
            assert after.decode(ids) == before.decode(ids)
    assert after.special_tokens.items() >= {(t, i) for t, i in before.special_tokens.items()}
    assert (after.bos_id, after.eos_id, after.stop_ids) == (before.bos_id, before.eos_id, before.stop_ids)
    assert published_sampling(made) == published_sampling(source)
    assert published_sampling(made).temperature == 0.75
    assert published_sampling(made).repetition_penalty == 1.25
    assert published_sampling(made).repeat_last_n is None


def with_ends(folder: Path, ends: list[int], *markers: str) -> Path:
    """The folder, with these tokens to stop at, and these markers behind the tokens of its tokenizer."""
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    data = json.loads((folder / "tokenizer.json").read_text())
    free = max(*data["model"]["vocab"].values(), *(token["id"] for token in data["added_tokens"])) + 1
    for i, marker in enumerate(markers, free):
        data["added_tokens"].append({**data["added_tokens"][0], "id": i, "content": marker, "special": True})
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return folder


@pytest.mark.parametrize(
    ("ends", "markers", "keys", "lost", "warnings"),
    [
        ([2], (), {"eot": 2}, set(), ()),
        ([50, 2], (), {"eot": 2, "eom": 50}, set(), ()),
        (
            [2, 50, 60, 70, 5000],  # the last is no token
            (),
            {"eot": 2, "eom": 50},
            {60, 70},
            ("tokens 60, 70 also end a reply, and GGUF has no key for them",),
        ),
        (
            [2, 50],
            ("<|eom_id|>",),
            {"eot": 2},
            {50},
            ("token 50 also ends a reply, and GGUF has no key for it",),
        ),
    ],
)
def test_tokens_that_end_replies_are_kept_or_named(
    ends: list[int],
    markers: tuple[str, ...],
    keys: dict[str, int],
    lost: set[int],
    warnings: tuple[str, ...],
    tmp_path: Path,
) -> None:
    source = with_ends(folders.write("qwen3", tmp_path / "hf"), ends, *markers)
    report = convert(source, tmp_path / "made.gguf", "F32")
    made = open_checkpoint(tmp_path / "made.gguf")
    before, after = tokenizer_of(open_checkpoint(source)), tokenizer_of(made)
    assert set(markers) <= {before.token(i) for i in before.stop_ids}
    assert after.stop_ids == before.stop_ids - lost
    assert report.warnings == warnings
    names = {"eot": gguf.Keys.Tokenizer.EOT_ID, "eom": gguf.Keys.Tokenizer.EOM_ID}
    assert {key: made.metadata[name] for key, name in names.items() if name in made.metadata} == keys


@pytest.mark.parametrize("way", ["tokenizer.model", "prepend", "first"])
def test_a_space_that_gguf_puts_behind_special_tokens_is_told(way: str, tmp_path: Path) -> None:
    original = trained.with_a_space_in_front(way, tmp_path)
    metadata = vocabulary.from_hugging_face(tmp_path, original.vocab_size)
    prompt = "<s>one</s>two"
    cut = (
        from_gguf(metadata).encode(prompt, parse_special=True),
        original.encode(prompt, parse_special=True),
    )
    warnings = vocabulary.more_spaces(tmp_path, metadata)
    assert original.encode("one") == from_gguf(metadata).encode("one")
    assert (cut[0] == cut[1], len(warnings)) == ((False, 1) if way == "first" else (True, 0))


def test_an_end_that_llama_cpp_does_not_know_by_name_has_a_key(tmp_path: Path) -> None:
    source = with_ends(folders.write("qwen3", tmp_path / "hf"), [2], "<|end_of_turn|>", "<|eot_id|>")
    convert(source, tmp_path / "made.gguf", "F32")
    before = tokenizer_of(open_checkpoint(source))
    metadata = open_checkpoint(tmp_path / "made.gguf").metadata
    assert metadata[gguf.Keys.Tokenizer.EOT_ID] == 2
    assert metadata[gguf.Keys.Tokenizer.EOM_ID] == before.special_tokens["<|end_of_turn|>"]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, DEFAULT_SAMPLING),
        ({"do_sample": False}, Sampling(temperature=0.0)),
        ({"do_sample": False, "temperature": 0.5}, Sampling(temperature=0.0)),
        ({"do_sample": True}, Sampling(temperature=1.0)),
        ({"do_sample": True, "top_k": 50}, Sampling(temperature=1.0, top_k=50)),
        ({"temperature": 0.5, "top_p": 0.875}, Sampling(temperature=0.5, top_p=0.875)),
    ],
)
def test_what_a_publisher_says_of_sampling(
    told: dict[str, Any], expected: Sampling, folder_of: Any, tmp_path: Path
) -> None:
    shutil.copytree(folder_of("llama2"), tmp_path / "hf")
    (tmp_path / "hf" / "generation_config.json").write_text(json.dumps(told))
    convert(tmp_path / "hf", tmp_path / "made.gguf", "Q8_0")
    assert published_sampling(open_checkpoint(tmp_path / "hf")) == expected
    assert published_sampling(open_checkpoint(tmp_path / "made.gguf")) == expected


def test_a_penalty_that_says_nothing_of_its_reach_has_that_of_llama_cpp(tmp_path: Path) -> None:
    for told, wanted in (
        ({"penalty_repeat": 1.5}, (1.5, 64)),
        ({"penalty_repeat": 1.5, "penalty_last_n": 7}, (1.5, 7)),
        ({"penalty_repeat": 1.5, "penalty_last_n": -1}, (1.5, None)),
        ({"temp": 0.5}, (1.0, None)),
        ({"penalty_repeat": 1.5, "penalty_last_n": -2}, (1.0, None)),  # nonsense: nothing of it is taken
    ):
        writer = gguf.GGUFWriter(str(tmp_path / "some.gguf"), "llama")
        for key, value in told.items():
            (writer.add_float32 if isinstance(value, float) else writer.add_int32)(
                f"general.sampling.{key}", value
            )
        writer.add_tensor("token_embd.weight", np.zeros((2, 32), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        found = published_sampling(open_checkpoint(tmp_path / "some.gguf"))
        assert (found.repetition_penalty, found.repeat_last_n) == wanted


@pytest.mark.parametrize("name", ["qwen3", pytest.param("gemma3", marks=pytest.mark.exhaustive)])
def test_published_tokenizers(name: str, tmp_path: Path) -> None:
    """The real vocabularies, as llama.cpp's converter writes them."""
    text = samples.published(name)
    data = json.loads(text)
    if name == "gemma3":
        expected, rows = samples.gemma3_metadata(data), 262144
        config = {"bos_token_id": 2, "eos_token_id": [1, 106], "pad_token_id": 0}
        settings = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    else:
        rows = 151936
        expected = samples.byte_level_metadata(data, "qwen2", padded_to=rows)
        config = {"bos_token_id": 151643, "eos_token_id": 151645}
        settings = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    folder = samples.write_folder(tmp_path, text, config=config, tokenizer_config=settings)
    found = vocabulary.from_hugging_face(folder, rows)
    assert found[samples.KEY + "tokens"] == expected[samples.KEY + "tokens"]
    ours, theirs = found[samples.KEY + "token_type"], expected[samples.KEY + "token_type"]
    # The converter there hides some tokens by their names; we keep what the source says of them.
    for i in np.flatnonzero(ours != theirs):
        token = found[samples.KEY + "tokens"][i]
        assert token.startswith(("<unused", "<mask>", "<|fim", "<|repo", "<|file")) or token in (
            "<unk>",
            "[multimodal]",
        ), token
    if name == "qwen3":
        assert found[samples.KEY + "merges"] == expected[samples.KEY + "merges"]
        assert found[samples.KEY + "pre"] == "qwen2"
    else:
        normal = np.flatnonzero((ours == 1) & (np.arange(rows) < 236743))
        order = np.argsort(-found[samples.KEY + "scores"][normal], kind="stable")
        assert (np.diff(normal[order]) > 0).all(), "merged pieces keep their order"
        assert found[samples.KEY + "add_space_prefix"] is False
        assert found[samples.KEY + "add_bos_token"] is True


@pytest.mark.parametrize("name", [case.name for case in published.CASES])
def test_every_published_configuration_is_the_same_or_refused(name: str, tmp_path: Path) -> None:
    """Narrow rows, YaRN, softcaps, windows: what GGUF cannot say must not be lost in silence."""
    case = published.case(name)
    sizes = {key: 1300 for key in ("vocab_size", *case.options) if key.startswith("vocab_size")}
    case = dataclasses.replace(case, options={**case.options, **sizes})
    folder = published.save(case.make(), tmp_path / "hf")
    (folder / "tokenizer.json").write_text(trained.byte_level("gpt-2"), encoding="utf-8")
    tokens = TOKENS
    refused = {"qwen3moe-raw": "experts", "smollm3-own-layers": "rotated"}
    if name in refused:
        with pytest.raises(ModelError, match=refused[name]):
            convert(folder, tmp_path / "made.gguf", "F32")
        assert not list(tmp_path.glob("*.gguf*"))
        return
    report = convert(folder, tmp_path / "made.gguf", "F32")
    made, original = running.reference(tmp_path / "made.gguf"), running.reference(folder)
    if any("tokens back" in warning for warning in report.warnings):
        window = running.build(tmp_path / "made.gguf").config.context
        tokens = tokens[:window]
    else:
        assert name not in ("mistral-window", "qwen3-sliding")
    ours, theirs = running.chunked(made, tokens, [64]), running.chunked(original, tokens, [64])
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["llama3", "gemma4-e2b", "gemma4-26b-a4b"])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_K_S"])
def test_gguf_to_gguf_is_what_the_original_gives(
    family: str, kind: str, folder_of: Any, f32_of: Any, tmp_path: Path
) -> None:
    """By way of an F32 file, every tensor comes out as from the folder, and the metadata stays."""
    convert(folder_of(family), tmp_path / "directly.gguf", kind)
    convert(f32_of(family), tmp_path / "again.gguf", kind)
    directly, again = open_checkpoint(tmp_path / "directly.gguf"), open_checkpoint(tmp_path / "again.gguf")
    assert directly.metadata.keys() == again.metadata.keys()
    for key, value in directly.metadata.items():
        assert np.array_equal(value, again.metadata[key]), key
    assert directly.tensors.keys() == again.tensors.keys()
    for name, tensor in directly.tensors.items():
        assert tensor.dtype == again.tensors[name].dtype
        np.testing.assert_array_equal(tensor.data, again.tensors[name].data)


def test_metadata_is_copied_to_the_byte(folder_of: Any, tmp_path: Path) -> None:
    """Odd types and bytes that are no UTF-8 come through."""
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "strange")
    writer.add_uint32("strange.block_count", 1)
    writer.add_uint64("strange.a", 2**40)
    writer.add_int8("strange.b", -3)
    writer.add_float64("strange.c", 0.1)
    writer.add_array("strange.d", [True, False, True])
    writer.add_array("strange.e", [b"\xff\xfe", b"ok"])
    writer.add_key_value("strange.f", b"\xc3(\x00\xff", gguf.GGUFValueType.STRING)
    writer.add_key_value("tokenizer.chat_template", b"{{ \xff }}", gguf.GGUFValueType.STRING)
    writer.add_uint32("general.file_type", 0)
    writer.add_tensor("blk.0.ffn_up.weight", np.ones((4, 64), np.float32))
    writer.add_tensor("blk.0.something", np.ones((3, 5), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    convert(tmp_path / "a.gguf", tmp_path / "b.gguf", "Q8_0")
    a, b = gguf.GGUFReader(tmp_path / "a.gguf"), gguf.GGUFReader(tmp_path / "b.gguf")
    for key, field in a.fields.items():
        if key.startswith(("strange.", "tokenizer.")):
            assert b.fields[key].types == field.types
            assert [part.tobytes() for part in b.fields[key].parts] == [p.tobytes() for p in field.parts]
    assert b.fields["general.file_type"].contents() == 7
    assert {t.name: t.tensor_type.name for t in b.tensors} == {
        "blk.0.ffn_up.weight": "Q8_0",
        "blk.0.something": "F32",
    }


def test_tensors_of_the_wanted_type_are_copied(folder_of: Any, tmp_path: Path) -> None:
    convert(folder_of("qwen3"), tmp_path / "a.gguf", "Q4_K_M")
    report = convert(tmp_path / "a.gguf", tmp_path / "b.gguf", "Q4_K_M")
    assert not report.warnings
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    report = convert(tmp_path / "a.gguf", tmp_path / "c.gguf", "Q8_0")
    assert "already quantized" in report.warnings[0]
    a, c = open_checkpoint(tmp_path / "a.gguf").tensors, open_checkpoint(tmp_path / "c.gguf").tensors
    for name in a:
        before = dequantize(a[name])
        off = dequantize(c[name]) - before
        assert np.sqrt((off**2).mean()) <= 0.01 * np.sqrt((before**2).mean())


def test_bfloat16_weights(tmp_path: Path) -> None:
    """As models are published: to BF16 nothing is lost, norms included."""
    source = folders.write("gemma3", tmp_path / "hf", dtype="bfloat16")
    convert(source, tmp_path / "made.gguf", "BF16")
    np.testing.assert_allclose(logits(tmp_path / "made.gguf"), logits(source), rtol=0, atol=1e-4)


def test_refusals(folder_of: Any, tmp_path: Path) -> None:
    source, made = folder_of("qwen3"), tmp_path / "made.gguf"
    with pytest.raises(RequestError, match="there is no type 'Q3_K'"):
        convert(source, made, "Q3_K")
    with pytest.raises(RequestError, match="no such folder"):
        convert(source, tmp_path / "nowhere" / "made.gguf", "F16")
    with pytest.raises(RequestError, match="is a folder"):
        convert(source, tmp_path, "F16")
    with pytest.raises(OlivineError, match="no such file"):
        convert(tmp_path / "nothing", made, "F16")
    convert(source, made, "F16")
    with pytest.raises(RequestError, match="--force"):
        convert(source, made, "Q8_0")
    with pytest.raises(RequestError, match="is what is being converted"):
        convert(made, made, "Q8_0", force=True)
    before = made.stat().st_size
    convert(source, made, "Q8_0", force=True)
    assert made.stat().st_size < before


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    source = folders.write("qwen3", tmp_path / "hf", vocab_size=500)
    with pytest.raises(TokenizerError, match="not of the same model"):
        convert(source, tmp_path / "made.gguf", "F16")


def test_one_token_that_both_begins_and_ends_texts(tmp_path: Path) -> None:
    source = folders.write("llama3", tmp_path / "hf")
    settings = {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    convert(source, tmp_path / "made.gguf", "Q8_0")
    told = open_checkpoint(tmp_path / "made.gguf").metadata
    assert (told["tokenizer.ggml.add_bos_token"], told["tokenizer.ggml.add_eos_token"]) == (True, False)


def test_a_tokenizer_that_puts_more_before_texts_than_gguf_can(tmp_path: Path) -> None:
    source = folders.write("llama3", tmp_path / "hf")
    data = json.loads((source / "tokenizer.json").read_text())
    ids = {entry["content"]: entry["id"] for entry in data["added_tokens"]}
    single = [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}] * 2 + [
        {"Sequence": {"id": "A", "type_id": 0}}
    ]
    data["post_processor"] |= {"single": single}
    (source / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(TokenizerError, match=rf"does not fit GGUF: .* it gives \[{ids['<|endoftext|>']}, "):
        convert(source, tmp_path / "made.gguf", "Q8_0")


def test_a_tokenizer_that_gguf_has_no_name_for(tmp_path: Path) -> None:
    source = folders.write("qwen3", tmp_path / "hf")
    data = json.loads((source / "tokenizer.json").read_text())
    data["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": r"\w{1,2}|\W+"}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ],
    }
    (source / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(TokenizerError, match="no name for this way to cut text"):
        convert(source, tmp_path / "made.gguf", "F16")


@pytest.mark.parametrize("family", folders.FAMILIES)
def test_llama_cpp_reads_the_same_model(family: str, f32_of: Any, tmp_path: Path) -> None:
    llama_cpp.need()
    made = f32_of(family)
    tokens = [int(t) for t in np.random.default_rng(8).integers(3, 1200, 200)]
    theirs, cut = llama_cpp.logits(made, tokens, list(TEXTS), tmp_path)
    ours = running.chunked(running.reference(made), tokens, [200])
    off = np.sqrt(((ours - theirs) ** 2).mean(axis=1)) / theirs.std()
    assert np.median(off) < 0.005  # it keeps its cache in float16
    top = np.sort(theirs, axis=1)
    sure = top[:, -1] - top[:, -2] > 0.1 * theirs.std()
    assert sure.sum() > 100
    assert (ours.argmax(axis=1) == theirs.argmax(axis=1))[sure].mean() > 0.999
    tokenizer = tokenizer_of(open_checkpoint(made))
    assert [tokenizer.encode(text) for text in TEXTS] == cut


@pytest.mark.parametrize("family", folders.FAMILIES)
def test_llama_cpp_writes_the_same_tokens_in_float32(family: str, tmp_path: Path) -> None:
    """With nothing rounded, all 200 tokens are the same."""
    llama_cpp.need()
    source = folders.write(family, tmp_path / "hf", tie_word_embeddings=False)
    convert(source, tmp_path / "made.gguf", "F32")
    prompt = [int(t) for t in np.random.default_rng(8).integers(3, 1200, 16)]
    theirs = llama_cpp.greedy(tmp_path / "made.gguf", prompt, 200)
    assert len(theirs) == 200 and len(set(theirs)) > 5
    tokens = prompt + theirs[:-1]
    ours = running.chunked(running.reference(tmp_path / "made.gguf"), tokens, [len(tokens)])[-200:]
    assert ours.argmax(axis=1).tolist() == theirs


# Where both rate two tokens so close together, either is right. In shares of the logits' spread: the programs
# round caches otherwise, and activations too where weights are quantized.
TIES = {"F16": 0.02, "Q8_0": 0.06, "Q4_K_M": 0.2}


@pytest.mark.parametrize("family", folders.FAMILIES)
@pytest.mark.parametrize("kind", TIES)
def test_llama_cpp_writes_the_same_tokens(family: str, kind: str, tmp_path: Path) -> None:
    """200 tokens as we write them: at each of them, what it would write.

    The head is none of the embedding's: a random model that shares them says its last token again.
    """
    llama_cpp.need()
    source = folders.write(family, tmp_path / "hf", tie_word_embeddings=False)
    convert(source, tmp_path / "made.gguf", kind)
    prompt = [int(t) for t in np.random.default_rng(8).integers(3, 1200, 16)]
    written, ours = running.greedy(tmp_path / "made.gguf", prompt, 200)
    assert len(set(written)) > 5
    theirs, _ = llama_cpp.logits(tmp_path / "made.gguf", prompt + written[:-1], [], tmp_path)
    theirs = theirs[-200:]
    at = np.flatnonzero(theirs.argmax(axis=1) != written)
    assert len(at) <= (5 if kind == "F16" else 15)
    rows, otherwise = np.arange(200), theirs.argmax(axis=1)
    apart = np.maximum(theirs.max(axis=1) - theirs[rows, written], ours.max(axis=1) - ours[rows, otherwise])
    far = apart[at] > TIES[kind] * theirs.std()
    # A router that is off by little may choose another expert, and that token's logits are then others.
    assert far.sum() <= (4 if family in ("qwen3moe", "gemma4-26b-a4b") else 0), apart[at][far] / theirs.std()


def test_what_the_publisher_never_lets_it_write_is_never_written(folder_of: Any, tmp_path: Path) -> None:
    """By folder and by GGUF, greedy and drawn, and whatever else a request biases."""
    source = shutil.copytree(folder_of("qwen3"), tmp_path / "hf")
    told = json.loads((source / "generation_config.json").read_text())

    def tokens(path: Path, **options: Any) -> list[int]:
        with olivine.load(path, device="cpu", context=128) as llm:
            return llm.generate("a b c", max_tokens=12, ignore_eos=True, **options).tokens

    free = tokens(source, temperature=0)
    (source / "generation_config.json").write_text(json.dumps({**told, "suppress_tokens": sorted(set(free))}))
    convert(source, tmp_path / "made.gguf", "F32")
    other = next(token for token in range(100) if token not in free)
    for path in (source, tmp_path / "made.gguf"):
        for options in ({}, {"logit_bias": {other: 0.5}}, {"temperature": 1.5, "seed": 3}):
            assert not set(tokens(path, **{"temperature": 0, **options})) & set(free)
    assert tokens(source, temperature=0) == tokens(tmp_path / "made.gguf", temperature=0)
    assert set(tokens(source, temperature=0, logit_bias=dict.fromkeys(free, 0.0))) & set(free)  # asked for
    for nonsense in ("all", [-1, 1 << 40, True, "a", None], {"5": 1}):
        (source / "generation_config.json").write_text(json.dumps({**told, "suppress_tokens": nonsense}))
        assert tokens(source, temperature=0) == free
