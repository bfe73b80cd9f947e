"""`olivine serve` with several models: its options, and a process that loads them when they are asked for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import httpx
import pytest

from olivine import box
from olivine.cli.serve import command


def parsed(*arguments: str) -> dict[str, Any]:
    return command.make_context("serve", list(arguments)).params


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5m", 90), ("2H", 7200), ("1d", 86400), ("0", None), ("-1", None)],
)
def test_times_have_units(text: str, seconds: float | None) -> None:
    assert parsed(f"--idle-unload={text}")["idle_unload"] == seconds


@pytest.mark.parametrize("text", ["", "m", "ten", "1w", "nan m"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="is no time: 90, 10m, 2h"):
        parsed(f"--idle-unload={text}")


def serve(*arguments: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "olivine", "serve", "-t", "1", "--device", "cpu", "--port", "0"]
    return subprocess.Popen([*line, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_folder_of_models_with_one_pinned(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copy(box.FILE, tmp_path / f"{name}.gguf")
    (tmp_path / "c.gguf").write_bytes(b"GGUF")
    process = serve(str(tmp_path), "--pin", "b", "--idle-unload", "1h")
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        assert lines[0] == "a · loaded at its first request\n" and lines[1].startswith("b · cpu×1 ")
        found = re.search(r"http://\S+", lines[3])
        assert found, process.communicate()
        models = httpx.get(f"{found[0]}/v1/models").json()["data"]
        assert [(model["id"], model["state"]) for model in models] == [
            ("a", "unloaded"), ("b", "loaded"), ("c", "unloaded")
        ]  # fmt: skip
        assert httpx.get(f"{found[0]}/health").status_code == 200
        body = {"model": "a", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        answer = httpx.post(f"{found[0]}/v1/chat/completions", json=body, timeout=240)
        assert answer.json()["model"] == "a"
    finally:
        process.terminate()
        process.communicate(timeout=240)


def test_a_single_model_that_cannot_be_loaded_ends_the_server(tmp_path: Path) -> None:
    (tmp_path / "c.gguf").write_bytes(b"GGUF")
    process = serve(str(tmp_path / "c.gguf"))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1 and out == ""
    assert f"Error: {tmp_path / 'c.gguf'}: " in err
