"""Text from files cannot drive the terminal: names, metadata, tokens, and what errors say of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from formats.builders import safetensors_entry, safetensors_file
from oracles import tiny

# A title, a cleared screen, C1's CSI and OSC, a carriage return, DEL, bidirectional overrides, separators.
EVIL = "a\x1b]0;title\x07b\x1b[2Jc\x9b31md\x9d0;e\x9cf\rg\x7fh\u202ei\u2066j\u2028k\x00l\x08\x85"
LINES = "\nError: all is well\nwarning: trust me"


PROGRAM = """
import json, sys
from olivine.cli.main import main
for arguments in json.loads(sys.stdin.read()):
    sys.argv = ["olivine", *arguments]
    try:
        main()
    except SystemExit:
        for stream in (sys.stdout, sys.stderr):
            print("<<end>>", file=stream, flush=True)
"""


def calls(*commands: tuple[Any, ...]) -> list[str]:
    """What each of some commands prints, in one process. It must be fit for a terminal."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([[*map(str, arguments)] for arguments in commands]).encode(),
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
        timeout=120,
    )
    both = (stream.decode().split("<<end>>\n") for stream in (run.stdout, run.stderr))
    printed = [out + error for out, error in zip(*both, strict=True)]
    assert len(printed) == len(commands) + 1, run.stderr.decode()
    for text in printed:
        assert "Traceback" not in text
        bad = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {"\t", "\n"}
        assert not bad, (bad, text)
        assert not any(line.startswith(("Error: all", "warning: trust")) for line in text.splitlines()), text
    return printed[:-1]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write("tiny-llama", "Q8_0", tmp_path_factory.mktemp("tiny"))


def write(path: Path, source: Path | None = None, **more: str) -> Path:
    """A GGUF file with evil everywhere, about a model that may run (`source`) or not."""
    writer = gguf.GGUFWriter(path, more.pop("architecture", "llama"))
    writer.add_string("general.name", f"name {EVIL}{LINES}")
    writer.add_string(f"key {EVIL}{LINES}", f"value {EVIL}{LINES}")
    writer.add_array(f"list {EVIL}", [f"item {EVIL}"] * 3)
    for key, value in more.items():
        writer.add_string(key, value)
    if source is None:
        writer.add_tensor(f"tensor {EVIL}{LINES}", np.zeros((2, 32), np.float32))
    else:
        reader = gguf.GGUFReader(source)
        for name, field in reader.fields.items():
            if name.startswith(("GGUF.", "general.")):
                continue
            kind = field.types[0]
            inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, inner)
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.add_tensor(f"tensor {EVIL}{LINES}", np.zeros((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_inspect(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "evil \x1b[31m\u202e"
    folder.mkdir()
    path = write(folder / f"model {EVIL.replace(chr(0), '')}\n.gguf", source)
    shown = calls(*(("inspect", path, *more) for more in ((), ("--metadata",), ("--tensors",), ("--plan",))))
    assert all("\\x1b]0;title\\x07" in text and "\\u202e" in text for text in shown)
    (text,) = calls(("inspect", path, "--json", "--metadata", "--tensors"))
    told = json.loads(text)
    assert told["name"] == f"name {EVIL}{LINES}"  # programs get what is there
    assert f"tensor {EVIL}{LINES}" in [tensor["name"] for tensor in told["tensors"]]


def commands(path: Path) -> list[tuple[Any, ...]]:
    return [("inspect", path, "--metadata", "--tensors"), ("run", path, "x"), ("tokenize", path, "x")]


def test_models_that_do_not_run(tmp_path: Path) -> None:
    known = write(tmp_path / "known.gguf")
    unknown = write(tmp_path / "unknown.gguf", architecture=f"arch {EVIL}{LINES}")
    tokenizer = write(tmp_path / "tokenizer.gguf", **{"tokenizer.ggml.model": f"{EVIL}{LINES}"})
    *_, text = calls(*commands(known), *commands(unknown), ("tokenize", tokenizer, "x"))
    assert "unknown tokenizer" in text


def test_running_converting_and_tokens(source: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", source)
    text = "plain \x9b31m \x1b[2J \u202e \u2066 \x7f \x85"
    made = tmp_path / "out \x1b[2J.gguf"
    run, *_, written = calls(
        ("run", path, "Hello", "-n", "9", "-t", "1", "--json-schema", '{"const": "ok"}'),
        ("convert", path, made, "--type", "F16"),  # refuses the long name
        *(("tokenize", source, text, *more) for more in ((), ("--json",), ("--ids",))),
        ("convert", source, made, "--type", "F16"),
    )
    assert "not used: tensor a\\x1b]0;title" in run
    assert "out \\x1b[2J.gguf" in written


def test_safetensors(tmp_path: Path) -> None:
    name = f"model.{EVIL}{LINES}.weight"
    folders = []
    for number, (kind, config) in enumerate(
        [
            ("F32", {"model_type": f"x {EVIL}{LINES}"}),
            ("F32", {"model_type": "llama", "hidden_act": f"x {EVIL}{LINES}"}),
            ("F32", {"model_type": "llama", "_name_or_path": f"x {EVIL}{LINES}"}),
            (f"x{EVIL}{LINES}", {"model_type": "llama"}),
        ]
    ):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        header = {name: safetensors_entry(kind, [2], 0, 8)}
        (folder / "model.safetensors").write_bytes(safetensors_file(header, bytes(8)))
        (folder / "config.json").write_text(json.dumps(config))
        settings = {"added_tokens_decoder": {EVIL + LINES: 1}}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        folders.append(folder)
    calls(*(command for folder in folders for command in commands(folder)))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "none \x1b[2J\x9b31m\u202e\n.gguf"
    calls(*commands(missing), ("inspect", "x", "--no-such-\x1b[2J"))
