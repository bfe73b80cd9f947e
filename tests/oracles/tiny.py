"""Small random models with a real tokenizer, written by benches/make_model.py."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from pathlib import Path

BENCHES = Path(__file__).resolve().parents[2] / "benches"


def write(shape: str, kind: str, folder: Path) -> Path:
    """`tiny-qwen3`, `tiny-gemma3` or `tiny-llama`, as a GGUF file."""
    path = folder / f"{shape}.gguf"
    path.write_bytes(_made(shape, kind))
    return path


@functools.cache
def _made(shape: str, kind: str) -> bytes:
    """The file's content: a process makes each once."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "made.gguf")
        script = [sys.executable, str(BENCHES / "make_model.py"), shape, "--type", kind, "-o", str(path)]
        run = subprocess.run(script, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        return path.read_bytes()
