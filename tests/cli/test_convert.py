"""`olivine convert` and `olivine compare`."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from olivine.bench.compare import Comparison, compare_window
from olivine.formats import open_checkpoint
from olivine.loading import tokenizer_of
from oracles import folders, running
from oracles.commands import olivine

TEXT = "It was a bright cold day in spring, and the clocks were striking — thirteen times, wörtlich 🙂. " * 6
WINDOW = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.write("llama2", tmp_path_factory.mktemp("hf"))


@pytest.fixture(scope="module")
def files(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = tmp_path_factory.mktemp("made")
    for kind in ("F32", "Q4_0"):
        run = olivine("convert", folder, made / f"{kind}.gguf", "--type", kind)
        assert run.returncode == 0, run.stderr
    return {kind: made / f"{kind}.gguf" for kind in ("F32", "Q4_0")}


def test_convert_says_what_it_wrote(folder: Path, tmp_path: Path) -> None:
    made = tmp_path / "made.gguf"
    run = olivine("convert", folder, made, "--type", "q4_k_m")
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(f"file          {made}, ")
    assert "Q4_K" in run.stdout and "Q6_K" in run.stdout
    told = json.loads(olivine("convert", folder, made, "--type", "Q8_0", "--force", "--json").stdout)
    assert told["bytes"] == made.stat().st_size
    assert told["types"].keys() == {"Q8_0", "F32"}


def test_convert_takes_the_type_as_llama_quantize_does(folder: Path, tmp_path: Path) -> None:
    made = tmp_path / "made.gguf"
    assert olivine("convert", folder, made, "Q8_0").returncode == 0
    assert "two types are given" in olivine("convert", folder, made, "Q8_0", "--type", "F16").stderr
    assert "Missing option '--type'." in olivine("convert", folder, made).stderr


def test_convert_refuses_in_one_line(folder: Path, tmp_path: Path) -> None:
    run = olivine("convert", folder, tmp_path / "made.gguf", "--type", "Q9")
    assert (run.returncode, run.stderr.count("\n")) == (1, 1)
    assert "known: F32" in run.stderr
    assert olivine("convert", folder, tmp_path / "made.gguf").returncode == 2
    for name in ("config.json", "tokenizer.model"):
        run = olivine("convert", folder, folder / name, "--type", "F16", "--force")
        assert (run.returncode, run.stderr.count("\n")) == (1, 1)
        assert "is what is being converted" in run.stderr


def direct(path: Path) -> tuple[list[list[int]], np.ndarray]:
    """The windows, and log-probabilities after each position of their second halves but the last."""
    tokens = tokenizer_of(open_checkpoint(path)).encode(TEXT)
    windows = [tokens[at : at + WINDOW] for at in range(0, len(tokens) - WINDOW + 1, WINDOW)]
    windows = [[tokens[0], *window[1:]] for window in windows]
    program = running.reference(path)
    rows = [running.chunked(program, window, [WINDOW])[WINDOW // 2 : -1] for window in windows]
    return windows, torch.log_softmax(torch.tensor(np.concatenate(rows), dtype=torch.float64), -1).numpy()


def test_compare_is_the_direct_computation(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    run = olivine(
        *("compare", files["F32"], files["Q4_0"], tmp_path / "text.txt"),
        *("--window", str(WINDOW), "--device", "reference", "--json"),
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    windows, a = direct(files["F32"])
    _, b = direct(files["Q4_0"])
    came = torch.tensor([token for window in windows for token in window[WINDOW // 2 + 1 :]])
    rows = np.arange(len(came))
    for logprobs, perplexity in zip((a, b), found["perplexity"], strict=True):
        assert perplexity == pytest.approx(math.exp(-logprobs[rows, came].mean()), rel=1e-4)
    divergence = torch.nn.functional.kl_div(
        torch.tensor(b), torch.tensor(a), log_target=True, reduction="batchmean"
    )
    assert found["divergence"] == pytest.approx(float(divergence), rel=1e-4)
    assert found["divergence"] > 1e-3
    assert found["same_top"] == pytest.approx((a.argmax(1) == b.argmax(1)).mean())
    assert found["scored_tokens"] == len(came)


def test_perplexities_are_those_of_the_other_command(files: dict[str, Path], tmp_path: Path) -> None:
    compared = olivine("compare", files["F32"], files["Q4_0"], "-", "--window", "48", "--json", text=TEXT)
    alone = olivine("perplexity", files["Q4_0"], "-", "--window", "48", "--json", text=TEXT)
    ours, theirs = json.loads(compared.stdout), json.loads(alone.stdout)
    assert ours["perplexity"][1] == pytest.approx(theirs["perplexity"], rel=1e-5)
    assert ours["scored_tokens"] == theirs["scored_tokens"]


def test_a_model_is_no_distance_from_itself(files: dict[str, Path]) -> None:
    run = olivine("compare", files["Q4_0"], files["Q4_0"], "-", "--window", "48", text=TEXT)
    assert "divergence    0.000000 ± 0.000000 nats a token" in run.stdout
    assert "same top      100.00 %" in run.stdout


def test_models_with_other_tokens_are_not_compared(files: dict[str, Path], tmp_path: Path) -> None:
    other = folders.write("qwen3", tmp_path / "qwen3")
    run = olivine("compare", files["F32"], other, "-", "--window", "48", text=TEXT)
    assert run.returncode == 1
    assert "different tokens" in run.stderr


def test_compare_says_once_what_there_is_to_say(files: dict[str, Path]) -> None:
    longest = open_checkpoint(files["F32"]).metadata["llama.context_length"]
    words = ("--window", str(longest + 100), "--windows", "1")
    run = olivine("compare", files["F32"], files["Q4_0"], "-", *words, text="word " * 4 * longest)
    assert (run.returncode, run.stderr.count("warning: ")) == (0, 1), run.stderr


def test_windows_larger_than_a_chunk_of_logits(files: dict[str, Path]) -> None:
    """Rows that are read in several pieces count once each."""
    programs = [running.reference(files[kind], pages=128) for kind in ("F32", "Q4_0")]
    tokens = [2, *np.random.default_rng(3).integers(5, 900, 299).tolist()]
    found = Comparison()
    compare_window(*programs, tokens, found)
    assert found.positions == 149
    whole = [running.chunked(program, tokens, [300])[150:-1] for program in programs]
    agreed = whole[0].argmax(axis=1) == whole[1].argmax(axis=1)
    assert found.agreement == pytest.approx(agreed.mean())
