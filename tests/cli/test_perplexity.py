"""`olivine perplexity` against a direct computation with the reference backend."""

from __future__ import annotations

import functools
import json
import math
import subprocess
from pathlib import Path

import numpy as np
import pytest

import olivine
from olivine.cli.perplexity import estimate, windows_of
from olivine.formats import open_checkpoint
from olivine.loading import tokenizer_of
from oracles import commands, running, tiny

WINDOW = 40
TEXT = "It was a bright cold day in spring, and the clocks were striking — thirteen times, wörtlich 🙂. " * 4


def perplexity(*arguments: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
    return commands.olivine("perplexity", *arguments, text=text)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """tiny-gemma3's tokenizer adds BOS, tiny-qwen3's does not."""
    folder = tmp_path_factory.mktemp("models")
    return {shape: tiny.write(shape, "Q8_0", folder) for shape in ("tiny-gemma3", "tiny-qwen3")}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@functools.cache
def directly(model: Path) -> list[float]:
    """Each scored token's log-probability: positions beyond the middle, given all of its window before."""
    tokens = tokenizer_of(open_checkpoint(model)).encode(TEXT)
    has_bos = "gemma" in model.name
    program = running.reference(model)
    found = []
    for start in range(0, len(tokens) - WINDOW + 1, WINDOW):
        window = tokens[start : start + WINDOW]
        if has_bos:
            window[0] = 2
        logits = running.chunked(program, window, [WINDOW]).astype(np.float64)
        exact = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        found += [exact[at - 1, window[at]] for at in range(WINDOW // 2 + 1, WINDOW)]
    return found


@pytest.mark.parametrize("shape", ["tiny-gemma3", "tiny-qwen3"])
def test_the_figure_is_that_of_a_direct_computation(models: dict[str, Path], text: Path, shape: str) -> None:
    run = perplexity(models[shape], text, "--window", WINDOW, "--device", "reference", "--json")
    assert run.returncode == 0, run.stderr
    facts = json.loads(run.stdout)
    theirs = directly(models[shape])
    assert facts["windows"] > 4 and facts["scored_tokens"] == len(theirs) == 19 * facts["windows"]
    assert facts["perplexity"] == pytest.approx(math.exp(-sum(theirs) / len(theirs)), rel=1e-4)
    error = np.std(theirs) / math.sqrt(len(theirs) - 1) * facts["perplexity"]
    assert facts["standard_error"] == pytest.approx(error, rel=1e-3)
    assert facts["tokens_per_second"] > 0 and facts["window"] == WINDOW


def test_text_for_people_and_from_standard_input(models: dict[str, Path], text: Path) -> None:
    how = ("--window", WINDOW, "--windows", "3", "--device", "cpu", "-t", "1")
    run = perplexity(models["tiny-gemma3"], "-", *how, text=TEXT)
    assert run.returncode == 0, run.stderr
    assert run.stdout == perplexity(models["tiny-gemma3"], text, *how).stdout
    words = run.stdout.split()
    assert words[0] == "perplexity" and words[2] == "±" and len(words) == 4
    theirs = directly(models["tiny-gemma3"])[: 3 * 19]
    assert float(words[1]) == pytest.approx(math.exp(-sum(theirs) / len(theirs)), rel=0.03)
    assert "57 tokens scored in 3 windows of 40" in run.stderr


@pytest.mark.parametrize("shape", ["tiny-gemma3", "tiny-qwen3"])
def test_of_a_long_text_only_what_is_asked_for_is_cut(
    models: dict[str, Path], shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The windows are those of the whole text."""
    with olivine.load(models[shape], device="cpu", threads=1) as llm:
        whole = windows_of(llm, TEXT * 200, WINDOW)
        encode, longest = llm.tokenizer.encode, 0

        def counted(text: str, **options: bool) -> list[int]:
            nonlocal longest
            longest = max(longest, len(text))
            return encode(text, **options)

        monkeypatch.setattr(llm.tokenizer, "encode", counted)
        for most in (1, 3, 20):
            assert windows_of(llm, TEXT * 200, WINDOW, most) == whole[:most]
        assert longest < len(TEXT * 200) // 2
        assert windows_of(llm, TEXT, WINDOW, 10_000) == windows_of(llm, TEXT, WINDOW)


def test_what_there_is_to_say_of_the_model_is_said(models: dict[str, Path], tmp_path: Path) -> None:
    text = tmp_path / "long.txt"
    text.write_text(TEXT * 20, encoding="utf-8")
    run = perplexity(models["tiny-qwen3"], text, "--window", "700", "--windows", "1")
    assert (run.returncode, run.stderr.count("warning: ")) == (0, 1)
    assert "a context of 700 tokens is longer than the 512" in run.stderr


def test_a_text_that_is_too_short_says_so(models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("short")
    run = perplexity(models["tiny-qwen3"], tmp_path / "short.txt", "--device", "reference")
    assert run.returncode == 1 and run.stdout == ""
    assert "and a window takes 512: give a longer text or a smaller --window" in run.stderr
    assert perplexity(models["tiny-qwen3"], tmp_path / "none.txt").returncode == 2


def test_a_sure_model_has_perplexity_one_and_no_error() -> None:
    assert estimate([0.0] * 5) == (1.0, 0.0)
    assert estimate([math.log(0.5)] * 3) == (pytest.approx(2.0), pytest.approx(0.0))
    assert estimate([-1.0])[1] == math.inf
