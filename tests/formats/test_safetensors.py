"""safetensors folders that the format's own library writes, read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from formats.builders import safetensors_entry, safetensors_file
from olivine.dtypes import BF16, F16, F32
from olivine.formats import Tensor, open_checkpoint

CONFIG = {"model_type": "qwen3", "hidden_size": 64, "rope_scaling": None}


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def random_arrays(names: str, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.standard_normal((3, 5), np.float32) for name in names}


def values(tensor: Tensor) -> np.ndarray:
    return tensor.data.view({"F32": np.float32, "F16": np.float16}[tensor.dtype.name]).reshape(tensor.shape)


def test_one_file_reads_back_equal(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = {
        "model.norm.weight": random.standard_normal(7, np.float32),
        "model.layers.0.q.weight": random.standard_normal((4, 6)).astype(np.float16),
        "deep": random.standard_normal((2, 1, 3, 2), np.float32),
    }
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors", metadata={"format": "np"})
    write_json(tmp_path / "config.json", CONFIG)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.tensors.keys() == arrays.keys()
    for name, array in arrays.items():
        tensor = checkpoint.tensors[name]
        assert (tensor.name, tensor.shape) == (name, array.shape)
        np.testing.assert_array_equal(values(tensor), array)
    assert checkpoint.tensors["deep"].dtype == F32
    assert checkpoint.tensors["model.layers.0.q.weight"].dtype == F16
    assert (checkpoint.format, checkpoint.naming, checkpoint.path) == ("safetensors", "hf", tmp_path)
    assert checkpoint.metadata == CONFIG and checkpoint.architecture == "qwen3"
    assert checkpoint.files == (tmp_path / "model.safetensors",)
    assert checkpoint.file_bytes == (tmp_path / "model.safetensors").stat().st_size
    assert checkpoint.generation == {} and checkpoint.chat_template is None


def test_bf16_written_by_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import safetensors.torch

    weight = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    safetensors.torch.save_file({"w": weight, "scalar": torch.tensor(2.0)}, tmp_path / "model.safetensors")
    write_json(tmp_path / "config.json", CONFIG)
    tensors = open_checkpoint(tmp_path).tensors
    assert tensors["w"].dtype == BF16 and tensors["w"].shape == (5, 8)
    assert tensors["w"].data.tobytes() == weight.view(torch.uint8).numpy().tobytes()
    # A scalar is a vector of one.
    assert tensors["scalar"].shape == (1,) and values(tensors["scalar"]) == [2.0]


def test_one_file_by_its_own_name(tmp_path: Path) -> None:
    """The bytes say what it is, not the name."""
    safetensors.numpy.save_file(random_arrays("ab"), tmp_path / "weights.bin")
    write_json(tmp_path / "config.json", CONFIG)
    checkpoint = open_checkpoint(tmp_path / "weights.bin")
    assert list(checkpoint.tensors) == ["a", "b"] and checkpoint.architecture == "qwen3"
    assert checkpoint.path == tmp_path / "weights.bin"


def test_tensors_are_read_only_views_of_the_map(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(random_arrays("ab"), path)
    write_json(tmp_path / "config.json", CONFIG)
    a, b = open_checkpoint(tmp_path).tensors.values()
    assert b.data.ctypes.data - a.data.ctypes.data == a.nbytes
    for tensor in (a, b):
        assert not tensor.data.flags.writeable and not tensor.data.flags.owndata
        with pytest.raises(ValueError):
            tensor.data.flags.writeable = True
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    assert b.data[-1] == 0x7F


def test_shards_with_an_index(tmp_path: Path) -> None:
    one, two = random_arrays("ab", 1), random_arrays("cd", 2)
    safetensors.numpy.save_file(one, tmp_path / "model-00001-of-00002.safetensors")
    safetensors.numpy.save_file(two, tmp_path / "model-00002-of-00002.safetensors")
    # Neither a file that the index does not name nor a tensor that it does not name is part of the model.
    (tmp_path / "model-00009-of-00002.safetensors").write_bytes(b"stale")
    files = {"a": 1, "b": 1, "c": 2}
    weight_map = {name: f"model-0000{number}-of-00002.safetensors" for name, number in files.items()}
    write_json(tmp_path / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    write_json(tmp_path / "config.json", CONFIG)
    checkpoint = open_checkpoint(tmp_path)
    assert list(checkpoint.tensors) == ["a", "b", "c"]
    for name, tensor in checkpoint.tensors.items():
        np.testing.assert_array_equal(values(tensor), (one | two)[name])
    assert [path.name for path in checkpoint.files] == sorted(set(weight_map.values()))


def test_shards_without_an_index(tmp_path: Path) -> None:
    one, two = random_arrays("ab", 1), random_arrays("cd", 2)
    safetensors.numpy.save_file(one, tmp_path / "model-00001-of-00002.safetensors")
    safetensors.numpy.save_file(two, tmp_path / "model-00002-of-00002.safetensors")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"not ours")
    write_json(tmp_path / "config.json", CONFIG)
    checkpoint = open_checkpoint(tmp_path)
    assert list(checkpoint.tensors) == ["a", "b", "c", "d"]
    np.testing.assert_array_equal(values(checkpoint.tensors["d"]), two["d"])


def test_a_single_file_goes_before_an_index(tmp_path: Path) -> None:
    safetensors.numpy.save_file(random_arrays("a"), tmp_path / "model.safetensors")
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": {"b": "gone.safetensors"}})
    write_json(tmp_path / "config.json", CONFIG)
    assert list(open_checkpoint(tmp_path).tensors) == ["a"]


def test_integer_buffers_are_left_out(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray] = {"w": np.ones(2, np.float32), "embeddings.position_ids": np.arange(3)}
    arrays["mask"] = np.ones(3, np.bool_)
    file = "model-00001-of-00001.safetensors"
    safetensors.numpy.save_file(arrays, tmp_path / file)
    write_json(tmp_path / "config.json", CONFIG)
    assert list(open_checkpoint(tmp_path).tensors) == ["w"]
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": dict.fromkeys(arrays, file)})
    assert list(open_checkpoint(tmp_path).tensors) == ["w"]


def test_a_header_length_that_reads_like_another_formats_magic(tmp_path: Path) -> None:
    header = json.dumps({"w": safetensors_entry("F32", [1], 0, 4)}).ljust(0x04034B50)  # "PK\3\4"
    (tmp_path / "model.safetensors").write_bytes(safetensors_file(header, bytes(4)))
    write_json(tmp_path / "config.json", CONFIG)
    assert list(open_checkpoint(tmp_path).tensors) == ["w"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    safetensors.numpy.save_file(random_arrays("w"), tmp_path / "model.safetensors")
    write_json(tmp_path / "config.json", CONFIG)
    return tmp_path


def test_the_generation_config_is_read(folder: Path) -> None:
    write_json(folder / "generation_config.json", {"temperature": 0.6, "eos_token_id": [1, 2]})
    assert open_checkpoint(folder).generation == {"temperature": 0.6, "eos_token_id": [1, 2]}


def test_the_chat_template_comes_from_the_first_place_that_has_one(folder: Path) -> None:
    write_json(folder / "tokenizer_config.json", {"chat_template": "third"})
    assert open_checkpoint(folder).chat_template == "third"
    write_json(folder / "chat_template.json", {"chat_template": "second"})
    assert open_checkpoint(folder).chat_template == "second"
    (folder / "chat_template.jinja").write_text("first ✓", encoding="utf-8")
    assert open_checkpoint(folder).chat_template == "first ✓"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], ("d", "t")),
        ([{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}], ("d", None)),
        ([{"name": "tool_use", "template": "t"}], (None, "t")),
        ([], (None, None)),
        (None, (None, None)),
    ],
)
def test_of_several_chat_templates_the_default_counts_and_the_one_for_tools(
    folder: Path, value: Any, expected: tuple[str | None, str | None]
) -> None:
    write_json(folder / "tokenizer_config.json", {"chat_template": value})
    checkpoint = open_checkpoint(folder)
    assert (checkpoint.chat_template, checkpoint.tool_template) == expected
    (folder / "chat_template.jinja").write_text("first")
    assert open_checkpoint(folder).tool_template is None
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates/tool_use.jinja").write_text("first for tools")
    checkpoint = open_checkpoint(folder)
    assert (checkpoint.chat_template, checkpoint.tool_template) == ("first", "first for tools")


def test_config_files_may_have_what_python_writes(folder: Path) -> None:
    """A byte order mark, Infinity, and a key twice: other programs read such files."""
    (folder / "config.json").write_bytes(
        b'\xef\xbb\xbf{"model_type": "a", "model_type": "b", "x": -Infinity}'
    )
    assert open_checkpoint(folder).metadata == {"model_type": "b", "x": float("-inf")}
