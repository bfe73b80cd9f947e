"""What llama.cpp's benchmarks print is read, and they are asked for what is compared."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from llama_bench import LlamaCpp

# As llama-bench prints it: warnings of the GPU before it, and fields that are of no use here left out.
BENCH = """\
ggml_cuda_init: found 1 CUDA devices:
[
  {"n_ubatch": 512, "n_prompt": 16, "n_gen": 0, "n_depth": 0, "avg_ts": 5.0, "samples_ts": [ 4, 6, 5 ]},
  {"n_ubatch": 512, "n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 70.0, "samples_ts": [ 70, 70, 71 ]},
  {"n_ubatch": 2048, "n_prompt": 16, "n_gen": 0, "n_depth": 0, "avg_ts": 4.0, "samples_ts": [ 1, 4, 7 ]},
  {"n_ubatch": 2048, "n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 80.0, "samples_ts": [ 80, 81, 79 ]}
]
"""
BATCHED = """\
llama_context: n_ctx = 16384
{"n_kv_max": 16384, "n_batch": 4096, "pp": 128, "tg": 128, "pl": 64, "n_kv": 16384, "t_pp": 0.2, \
"speed_pp": 40960.0, "t_tg": 0.5, "speed_tg": 16384.5, "t": 0.7, "speed": 23405.7}
"""


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A build folder with programs that write down their arguments and print the above."""
    if os.name == "nt":
        pytest.skip("the stand-ins are scripts with #!")
    (tmp_path / "bin").mkdir()
    for name, told in (("llama-bench", BENCH), ("llama-batched-bench", BATCHED)):
        program = tmp_path / "bin" / name
        program.write_text(
            f"#!{sys.executable}\nimport pathlib, sys\n"
            f"pathlib.Path({str(tmp_path / name)!r}).write_text(' '.join(sys.argv[1:]))\nprint({told!r})\n"
        )
        program.chmod(0o755)
    return tmp_path


def test_prompts_are_those_of_the_faster_micro_batch(build: Path) -> None:
    found = LlamaCpp(build).prompts(Path("m.gguf"), (16, 512))
    assert found == {16: [4, 6, 5], 512: [80, 81, 79]}
    asked = (build / "llama-bench").read_text()
    assert "-m m.gguf" in asked and "-p 16,512 -n 0" in asked and "-o json" in asked


def test_streams_are_those_asked_for(build: Path) -> None:
    assert LlamaCpp(build).streams(Path("m.gguf"), 64, 128, 128) == 16384.5
    assert "-npp 128 -ntg 128 -npl 64 -c 16384" in (build / "llama-batched-bench").read_text()


def test_decode_begins_after_a_prompt(build: Path) -> None:
    assert len(LlamaCpp(build).decode(Path("m.gguf"), 256, 128)) == 12  # all samples of all runs
    assert "-p 0 -n 256 -d 128" in (build / "llama-bench").read_text()


def test_a_program_that_fails_is_quoted(build: Path) -> None:
    (build / "bin" / "llama-bench").write_text("#!/bin/sh\necho no such model >&2; exit 1\n")
    with pytest.raises(RuntimeError, match="no such model"):
        LlamaCpp(build).decode(Path("m.gguf"), 1, 0)


def test_a_folder_without_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has no llama-bench"):
        LlamaCpp(tmp_path)
