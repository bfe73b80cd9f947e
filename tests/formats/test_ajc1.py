"""qwen3.c files, written here from their layout."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from formats.builders import AJC1_CONFIG, ajc1_file, ajc1_header
from olivine.dtypes import F32, grouped_int8
from olivine.errors import CheckpointError
from olivine.formats import Tensor, ajc1, open_checkpoint
from olivine.formats.mapping import Source


def values(tensor: Tensor) -> np.ndarray:
    if tensor.dtype == F32:
        return tensor.data.view(np.float32).reshape(tensor.shape)
    assert tensor.scales is not None
    q = tensor.data.view(np.int8).reshape(-1, tensor.dtype.block_size)
    return (q * tensor.scales.view(np.float32)[:, None]).reshape(tensor.shape)


@pytest.mark.parametrize("shared", [0, 1])
@pytest.mark.parametrize("group", [8, 2])
def test_names_and_values(tmp_path: Path, shared: int, group: int) -> None:
    config = AJC1_CONFIG | {"shared_classifier": shared, "group_size": group}
    content, expected = ajc1_file(config)
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    checkpoint = open_checkpoint(path)
    assert (checkpoint.format, checkpoint.naming, checkpoint.files) == ("qwen3.c", "gguf", (path,))
    assert checkpoint.file_bytes == len(content)
    assert checkpoint.tensors.keys() == expected.keys()
    assert ("output.weight" in checkpoint.tensors) == (not shared)
    for name, tensor in checkpoint.tensors.items():
        assert tensor.dtype == (F32 if "norm" in name else grouped_int8(group))
        np.testing.assert_array_equal(values(tensor), expected[name], err_msg=name)
        assert not tensor.data.flags.writeable and not tensor.data.flags.owndata
    rows = checkpoint.tensors["token_embd.weight"].rows(3, 5)
    np.testing.assert_array_equal(values(rows), expected["token_embd.weight"][3:5])


def test_scales_at_odd_addresses(tmp_path: Path) -> None:
    """Nothing is padded: after an odd number of values, no scale is aligned."""
    config = AJC1_CONFIG | {"dim": 9, "hidden_dim": 3, "n_heads": 3, "n_kv_heads": 3, "head_dim": 2}
    config |= {"group_size": 3, "vocab_size": 5}
    content, expected = ajc1_file(config)
    (tmp_path / "m").write_bytes(content)
    for name, tensor in open_checkpoint(tmp_path / "m").tensors.items():
        np.testing.assert_array_equal(values(tensor), expected[name], err_msg=name)


def test_metadata_has_ggufs_keys() -> None:
    metadata, _ = ajc1.parse(Source(Path("m"), ajc1_file(AJC1_CONFIG)[0]))
    assert metadata == {
        "general.architecture": "qwen3",
        "qwen3.block_count": 2,
        "qwen3.context_length": 128,
        "qwen3.embedding_length": 16,
        "qwen3.feed_forward_length": 24,
        "qwen3.attention.head_count": 4,
        "qwen3.attention.head_count_kv": 2,
        "qwen3.attention.key_length": 6,
        "qwen3.attention.value_length": 6,
        "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen3.rope.freq_base": 1e6,
    }


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "qwen.bin"
    path.write_bytes(ajc1_file(AJC1_CONFIG)[0])
    return path


def test_the_prompts_beside_the_file_are_found(model: Path) -> None:
    assert open_checkpoint(model).prompt_files == {}
    texts = {"": "<|im_start|>user\n%s", "with-thinking": "t", "with-system": "s %s %s"}
    for kind, text in texts.items():
        name = "qwen.bin.template" + (f".{kind}" if kind else "")
        model.with_name(name).write_text(text)
    assert open_checkpoint(model).prompt_files == texts
    model.with_name("qwen.bin.template.with-system-and-thinking").write_text("b")
    checkpoint = open_checkpoint(model)
    assert checkpoint.prompt_files == texts | {"with-system-and-thinking": "b"}
    assert checkpoint.chat_template is None and checkpoint.is_for_chat


def refuse(path: Path, at: Path, field: str, problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert (caught.value.path, caught.value.field) == (str(at), field)
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"\xff", "UTF-8"), (b" " * 65537, "at most 65536")],
    ids=["not UTF-8", "too large"],
)
def test_a_bad_template_is_refused(model: Path, content: bytes, problem: str) -> None:
    path = model.with_name("qwen.bin.template.with-system")
    path.write_bytes(content)
    refuse(model, path, "byte 0" if content == b"\xff" else "", problem)


def test_a_template_that_is_a_pipe_is_refused_without_waiting(model: Path) -> None:
    path = model.with_name("qwen.bin.template")
    os.mkfifo(path)
    refuse(model, path, "", "not a regular file")


HEADERS = {
    **{f"{name} 0": ({name: 0}, name, "is not in") for name in AJC1_CONFIG if name != "shared_classifier"},
    **{f"{name} -1": ({name: -1}, name, "is not in") for name in AJC1_CONFIG},
    **{
        f"{name} 2^31-1": ({name: 2**31 - 1}, name, "is not in")
        for name in AJC1_CONFIG
        if name != "max_seq_len"
    },
    "shared_classifier 2": ({"shared_classifier": 2}, "shared_classifier", "is not in 0..1"),
    "heads not shared evenly": ({"n_kv_heads": 3}, "n_kv_heads", "evenly"),
    "more key-value heads than heads": ({"n_kv_heads": 8}, "n_kv_heads", "evenly"),
    "odd head_dim": ({"head_dim": 7}, "head_dim", "odd"),
    "groups of 1": ({"group_size": 1}, "group_size", "is not in"),
    "groups that do not divide dim": ({"group_size": 12}, "group_size", "divide dim, 16"),
    "groups that do not divide hidden_dim": ({"hidden_dim": 20}, "group_size", "divide hidden_dim, 20"),
    "groups that do not divide the heads": ({"n_heads": 2}, "group_size", "divide n_heads × head_dim, 12"),
    "a larger vocabulary": ({"vocab_size": 11}, "file size", "the header makes"),
    "a smaller vocabulary": ({"vocab_size": 9}, "file size", "the header makes"),
    "a classifier that is not there": ({"shared_classifier": 0}, "file size", "the header makes"),
    "the largest of everything": (
        {"dim": 2**20, "hidden_dim": 2**22, "n_layers": 1024, "n_heads": 2**16, "n_kv_heads": 2**16,
         "vocab_size": 2**24, "head_dim": 2**16}, "file size", "the header makes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HEADERS)
def test_a_lie_in_the_header_is_refused_by_name(model: Path, case: str) -> None:
    change, field, problem = HEADERS[case]
    content = model.read_bytes()
    model.write_bytes(ajc1_header(AJC1_CONFIG | change) + content[256:])
    refuse(model, model, field, problem)


def test_the_context_length_is_only_a_claim(model: Path) -> None:
    content = model.read_bytes()
    model.write_bytes(ajc1_header(AJC1_CONFIG | {"max_seq_len": 2**31 - 1}) + content[256:])
    assert open_checkpoint(model).metadata["qwen3.context_length"] == 2**31 - 1


def test_another_version_is_refused(model: Path) -> None:
    model.write_bytes(ajc1_header(AJC1_CONFIG, version=2))
    refuse(model, model, "version", "2 is not supported")


def test_another_magic_is_refused() -> None:
    with pytest.raises(CheckpointError, match="magic"):
        ajc1.parse(Source(Path("m"), ajc1_header(AJC1_CONFIG, magic=1)))


def test_every_other_length_is_refused() -> None:
    content = ajc1_file(AJC1_CONFIG)[0]
    for length in [*range(300), *range(300, len(content), 97), len(content) - 1]:
        with pytest.raises(CheckpointError) as caught:
            ajc1.parse(Source(Path("cut"), content[:length]))
        assert caught.value.field
    with pytest.raises(CheckpointError, match="file size"):
        ajc1.parse(Source(Path("longer"), content + b"\0"))
