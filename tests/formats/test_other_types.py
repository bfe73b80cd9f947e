"""Weights of unsupported types: refused with the list of supported ones when the weights are needed."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import olivine
from olivine.cli.main import cli
from olivine.convert import convert
from olivine.dtypes import DTYPES
from olivine.errors import ModelError
from olivine.formats import open_checkpoint
from oracles import folders

RUNS = r"those that run are F32, F16, BF16, Q4_0.*MXFP4.*TQ2_0"
TYPES = {
    9: "Q8_1",
    15: "Q8_K",
    41: "Q1_0",
    4: "Q4_2 (removed from the format)",
    99: "number 99 (unknown)",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.write("qwen3", tmp_path_factory.mktemp("hf"))


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    convert(folder, path, "F32")
    return path


def with_type(source: Path, to: Path, name: str, number: int) -> Path:
    """The same file with another type for one tensor: what follows its name and dimensions."""
    data = bytearray(source.read_bytes())
    at = data.index(struct.pack("<Q", len(name)) + name.encode()) + 8 + len(name)
    (dimensions,) = struct.unpack_from("<I", data, at)
    struct.pack_into("<I", data, at + 4 + 8 * dimensions, number)
    to.write_bytes(data)
    return to


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(each) for each in arguments])


@pytest.mark.parametrize("number", TYPES)
def test_a_gguf_file(whole: Path, tmp_path: Path, number: int) -> None:
    path = with_type(whole, tmp_path / "other.gguf", "blk.1.ffn_up.weight", number)
    assert not open_checkpoint(path).tensors["blk.1.ffn_up.weight"].dtype.runs
    refusals = (
        lambda: olivine.load(path, device="reference"),
        lambda: convert(path, tmp_path / "made.gguf", "Q8_0"),
        lambda: convert(path, tmp_path / "made.bin", "qwen3.c"),
    )
    for refused in refusals:
        with pytest.raises(ModelError, match=RUNS) as error:
            refused()
        assert f"do not run: {TYPES[number]} (blk.1.ffn_up.weight)." in str(error.value)
    assert not list(tmp_path.glob("made*"))
    shown = call("inspect", path, "--tensors", "--metadata")
    assert shown.exit_code == 0 and f"no: weights of these types do not run: {TYPES[number]}" in shown.output
    told = json.loads(call("inspect", path, "--json").output)
    assert told["runs"] is False and TYPES[number] in told["types"]
    assert call("tokenize", path, "Hello 1234").output == call("tokenize", whole, "Hello 1234").output


def with_tensors(folder: Path, to: Path, change: dict[str, tuple[str, np.ndarray]]) -> Path:
    """The folder with other tensors: name → dtype and values, in place of the one of that name."""
    to.mkdir(exist_ok=True)
    for each in folder.iterdir():
        (to / each.name).write_bytes(each.read_bytes())
    data = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    for name, (dtype, values) in change.items():
        header.pop(name, None)
        header[name] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [len(body), len(body) + values.nbytes],
        }
        body += values.tobytes()
    text = json.dumps(header).encode()
    (to / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + body)
    return to


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "U8", "F64", "F4", "NOVEL"])
@pytest.mark.parametrize("stem", ["weight", "qweight"])
def test_a_safetensors_folder(folder: Path, tmp_path: Path, dtype: str, stem: str) -> None:
    name = f"model.layers.1.mlp.up_proj.{stem}"
    values = np.zeros((4, 8), np.float64 if dtype == "F64" else np.uint8)
    path = with_tensors(folder, tmp_path / "hf", {name: (dtype, values)})
    for refused in (
        lambda: olivine.load(path, device="reference"),
        lambda: convert(path, tmp_path / "x.gguf", "F16"),
    ):
        with pytest.raises(ModelError, match=RUNS) as error:
            refused()
        assert f"do not run: {dtype} ({name})." in str(error.value)
    shown = call("inspect", path)
    assert shown.exit_code == 0 and f"do not run: {dtype}" in shown.output
    assert call("tokenize", path, "Hello 1234").exit_code == 0


def test_integer_buffers_are_no_weights(folder: Path, tmp_path: Path) -> None:
    path = with_tensors(folder, tmp_path, {"model.position_ids": ("I64", np.arange(4))})
    assert "model.position_ids" not in open_checkpoint(path).tensors
    olivine.load(path, device="reference", context=32).close()


def test_the_list_is_that_of_the_types_that_are_decoded() -> None:
    assert all(dtype.runs for dtype in DTYPES.values())
