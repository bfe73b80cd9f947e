"""`olivine bench` as a user runs it. Nothing here asserts on time: only that the figures are there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from olivine.bench.measure import Report, Run, Settings, Side
from olivine.bench.spread import Spread
from olivine.cli.bench import command, echo_report
from olivine.convert import convert
from olivine.errors import RequestError
from oracles import multimodal

BENCHES = Path(__file__).resolve().parents[2] / "benches"
SMALL = ("--device", "reference", "--prompt", "8", "--generate", "4", "--repeats", "1")

# As much of llama_cpp as the worker calls. It counts instead of computing.
STAND_IN = """
from ctypes import c_int32
from types import SimpleNamespace

__version__ = "0.0.0"
llama_model_default_params = llama_context_default_params = SimpleNamespace
llama_log_callback = lambda function: function
llama_log_set = llama_get_logits_ith = llama_backend_init = lambda *_: None
llama_get_memory = llama_model_get_vocab = lambda thing: thing
llama_print_system_info = lambda: b"CPU : AVX = 1 | AMX = 0 | "
llama_vocab_n_tokens = lambda _: 1000
llama_model_load_from_file = lambda path, settings: path
held = []


def llama_init_from_model(model, settings):
    assert settings.n_threads == settings.n_threads_batch == 1
    assert settings.n_batch == settings.n_ubatch == 512 and settings.n_ctx == 768
    return "context"


def llama_memory_clear(memory, data):
    held.clear()


def llama_batch_init(tokens, embeddings, sequences):
    lists = {name: [0] * tokens for name in ("token", "pos", "n_seq_id", "logits")}
    return SimpleNamespace(n_tokens=0, seq_id=[[0] for _ in range(tokens)], **lists)


def llama_decode(context, batch):
    positions = batch.pos[: batch.n_tokens]
    assert positions == list(range(len(held), len(held) + batch.n_tokens))
    assert sum(batch.logits[: batch.n_tokens]) == (batch.n_tokens < 512)
    held.extend(positions)
    return 0
"""


def olivine(*arguments: str | Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    environment.pop("OLIVINE_LLAMA_PYTHON", None)
    if path is not None:
        own = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([str(path), *([own] if own else [])])
    command = [sys.executable, "-m", "olivine", "bench", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", env=environment, timeout=120
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "tiny.gguf"
    script = [sys.executable, str(BENCHES / "make_model.py"), "tiny-gemma3", "--type", "Q4_K_M"]
    run = subprocess.run([*script, "-o", str(path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return path


def check_spread(figure: dict[str, Any], repeats: int) -> None:
    assert set(figure) == {"median", "low", "high", "values"}
    assert len(figure["values"]) == repeats
    assert 0 < figure["low"] <= figure["median"] <= figure["high"]


def test_why_the_cpu_runs_is_said(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(settings: Any, tell: Any) -> Any:
        raise RequestError("enough")

    monkeypatch.setattr(
        "olivine.loading.choose_device", lambda device: ("cpu", (f"{device}: an old driver",))
    )
    monkeypatch.setattr("olivine.cli.bench.measure", stop)
    run = CliRunner().invoke(command, [str(model)])
    assert run.output == "warning: auto: an old driver\n" and str(run.exception) == "enough"


def test_numbers_of_threads_are_those_that_load_takes(model: Path) -> None:
    run = CliRunner().invoke(command, [str(model), "-t", "1025"])
    assert run.exit_code == 2 and "1025 is not in the range 1<=x<=1024" in run.output


def test_json_has_every_figure(model: Path) -> None:
    run = olivine(model, *SMALL, "--json")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["model"] == str(model) and report["file_bytes"] == model.stat().st_size
    assert report["architecture"] == "gemma3" and report["device"] == "reference"
    assert (report["prompt"], report["generate"], report["depth"], report["repeats"]) == (8, 4, 0, 1)
    assert report["decode_bytes"] > 0 and report["prefill_int8_ops"] > 0 and report["prefill_float_ops"] > 0
    (found,) = report["runs"]
    assert found["threads"] >= 1 and found["bandwidth"] is None and found["ratios"] == {}
    engine = found["engines"]["olivine"]
    for name in (
        "load_s",
        "first_token_s",
        "prefill_tok_s",
        "decode_tok_s",
        "decode_bytes_s",
        "prefill_op_s",
    ):
        check_spread(engine[name], 1)
    assert engine["peak_rss_bytes"] > 0


def test_an_image_is_measured_where_the_model_takes_one(tmp_path: Path) -> None:
    made = convert(multimodal.write("gemma3", tmp_path / "hf"), tmp_path / "made.gguf", "F32")
    assert made.mmproj is not None
    towers = made.mmproj.path.rename(tmp_path / "towers.gguf")
    run = olivine(made.path, *SMALL, "--json")
    alone = json.loads(run.stdout)["runs"][0]["engines"]["olivine"]
    assert alone["image_s"] is None and alone["image_tokens"] is None
    run = olivine(made.path, *SMALL, "--mmproj", towers, "--json")
    engine = json.loads(run.stdout)["runs"][0]["engines"]["olivine"]
    check_spread(engine["image_s"], 1)
    assert engine["image_tokens"] == 4
    run = olivine(tmp_path / "hf", *SMALL)
    assert "image of 4 tokens" in run.stdout, run.stderr


def test_text_for_people_and_several_thread_counts(model: Path) -> None:
    run = olivine(model, *SMALL, "-t", "1", "-t", "2", "--depth", "3")
    assert run.returncode == 0, run.stderr
    for label in ("threads       1\n", "threads       2\n", "first token", "4 tokens after 3", "peak memory"):
        assert label in run.stdout
    assert run.stderr == ""  # progress is for terminals


@pytest.mark.parametrize(
    ("bandwidth", "peak", "machine", "shares"),
    [
        (30e9, {"f32": 8.7e10}, ["plain, reads 30.0 GB/s", "f32 87.0 Gop/s"], 2),
        (
            30e9,
            {"int8": 4e12, "bf16": 2e12},
            ["plain, reads 30.0 GB/s", "int8 4.00 Top/s", "bf16 2.00 Top/s"],
            2,
        ),
        (30e9, {}, ["plain, reads 30.0 GB/s"], 1),
        (None, {"f32": 2e9}, ["plain", "f32 2.0 Gop/s"], 1),
        (None, {}, ["plain"], 0),
    ],
)
def test_limits_that_were_not_measured_are_not_printed(
    bandwidth: float | None,
    peak: dict[str, float],
    machine: list[str],
    shares: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def once(value: float) -> Spread:
        return Spread.of([value])

    side = Side(
        "olivine",
        *map(once, (1.0, 1.0, 100.0, 10.0)),
        peak_rss_bytes=10**8,
        decode_bytes_s=once(1e9),
        prefill_op_s=once(1e10),
        decode_share=once(0.5) if bandwidth else None,
        prefill_share=once(0.5) if peak else None,
    )
    measured = {kind: once(value) for kind, value in peak.items()}
    run = Run(1, [side], "plain", once(bandwidth) if bandwidth else None, measured)
    echo_report(Report(Settings(Path("m"), repeats=1), "llama", 10**8, "cpu×1 plain", 1, 1, 1, None, [run]))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    at = next(i for i, line in enumerate(lines) if line.startswith("machine"))
    assert [lines[at].split(maxsplit=1)[1], *lines[at + 1 : at + len(machine)]] == machine
    assert sum(line.endswith("50% of the limit") for line in lines) == shares
    assert not any("0.00" in line for line in lines)


def test_against_llama_cpp_takes_turns_and_gives_ratios(model: Path, tmp_path: Path) -> None:
    (tmp_path / "llama_cpp.py").write_text(STAND_IN)
    arguments = ("--prompt", "600", "--generate", "4", "--device", "reference", "--repeats", "2", "-t", "1")
    run = olivine(model, *arguments, "--against", "llama.cpp", "--json", path=tmp_path)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["llama_cpp"] == "0.0.0 (AVX)"
    (found,) = report["runs"]
    assert set(found["engines"]) == {"olivine", "llama.cpp"}
    for name in ("prefill_tok_s", "decode_tok_s", "first_token_s", "load_s"):
        check_spread(found["ratios"][name], 2)


def test_a_missing_llama_cpp_says_how_to_get_it(model: Path, tmp_path: Path) -> None:
    code = "raise ModuleNotFoundError(\"No module named 'llama_cpp'\")"
    (tmp_path / "llama_cpp.py").write_text(code)
    run = olivine(model, *SMALL, "--against", "llama.cpp", path=tmp_path)
    assert run.returncode == 1
    assert "pip install llama-cpp-python" in run.stderr and "--llama-python" in run.stderr


def test_a_model_that_cannot_run_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    run = olivine(tmp_path / "bad.gguf", *SMALL)
    assert run.returncode == 1
    assert run.stderr.startswith("Error: olivine: ") and run.stderr.count("\n") == 1


# For several sequences: each has positions of its own, and a step has one row of every sequence.
SEVERAL = (
    STAND_IN[: STAND_IN.index("def llama_decode")]
    + """
def llama_decode(context, batch):
    rows = range(batch.n_tokens)
    before = {}
    for s, p in held:
        before[s] = p
    for i in rows:
        sequence, position = batch.seq_id[i][0], batch.pos[i]
        assert position == before.get(sequence, -1) + 1
        before[sequence] = position
        assert batch.logits[i] == (position >= 7)
        held.append((sequence, position))
    if batch.pos[0] >= 8:
        assert [batch.seq_id[i][0] for i in rows] == list(rows) and len({batch.pos[i] for i in rows}) == 1
    return 0
"""
)
STREAMS = ("--device", "reference", "--prompt", "8", "--generate", "3", "--repeats", "2", "-t", "1")


def test_parallel_streams_beside_llama_cpp(model: Path, tmp_path: Path) -> None:
    (tmp_path / "llama_cpp.py").write_text(SEVERAL)
    counts = ("--parallel", "3", "--parallel", "2")
    run = olivine(model, *STREAMS, *counts, "--against", "llama.cpp", "--json", path=tmp_path)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert (report["prompt"], report["generate"], report["repeats"], report["threads"]) == (8, 3, 2, 1)
    assert report["device"] == "reference" and report["llama_cpp"] == "0.0.0 (AVX)"
    assert set(report["engines"]) == {"olivine", "llama.cpp"}
    for engine in report["engines"].values():
        assert set(engine) == {"1", "2", "3"}  # one stream is always there to compare with
        for figures in engine.values():
            for name in ("total_tok_s", "decode_tok_s", "total_over_one", "decode_over_one"):
                check_spread(figures[name], 2)
        assert engine["1"]["total_over_one"]["values"] == [1.0, 1.0]
    assert set(report["ratios"]) == {"1", "2", "3"}
    for name in ("total_tok_s", "decode_tok_s"):
        ours, theirs = (engine["3"][name]["values"] for engine in report["engines"].values())
        assert report["ratios"]["3"][name]["values"] == pytest.approx(
            [a / b for a, b in zip(ours, theirs, strict=True)]
        )


def test_parallel_streams_for_people(model: Path) -> None:
    run = olivine(model, *STREAMS, "--parallel", "2")
    assert run.returncode == 0, run.stderr
    assert "prompts of 8 random tokens, 3 generated after each" in run.stdout
    assert run.stdout.count("1 at once") == run.stdout.count("2 at once") == 2
    assert "llama.cpp" not in run.stdout and run.stderr == ""


def test_parallel_streams_refuse_what_they_do_not_measure(model: Path) -> None:
    for arguments in (("--depth", "4"), ("-t", "1", "-t", "2"), ("--generate", "1")):
        run = olivine(model, "--parallel", "2", *arguments)
        assert run.returncode == 2 and "--parallel goes with" in run.stderr
