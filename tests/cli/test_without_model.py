"""What `olivine run` takes for a model and what for a question, and the commands where no model is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from olivine import box
from olivine.cli.run import told
from olivine.errors import CheckpointError
from oracles import commands, folders, tiny

HOW = ("--temp", "0", "-n", "6", "-t", "1", "--device", "cpu")
MISSING = """
import pathlib
import olivine.box
olivine.box.FILE = pathlib.Path("/nowhere/olivine-mini.gguf")
from olivine.cli.main import main
main()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with one in it, a text, and a model whose name has a space."""
    work = tmp_path / "work"
    (work / "my models").mkdir(parents=True)
    (work / "notes on foxes").write_text("They are red.", encoding="utf-8")
    tiny.write("tiny-llama", "Q8_0", tmp_path).rename(work / "my models" / "small one.gguf")
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def call(here: Path) -> Any:
    def olivine(
        *arguments: Any, text: str = "", program: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        state = {"OLIVINE_STATE": str(here.parent / "state")}
        if not program:
            return commands.olivine(*arguments, text=text, **state)
        return subprocess.run(
            [sys.executable, *program, *map(str, arguments)],
            input=text,
            capture_output=True,
            text=True,
            encoding="utf-8",
            env={**os.environ, "OMP_NUM_THREADS": "1", **state},
            timeout=120,
        )

    return olivine


@pytest.mark.parametrize(
    "question",
    [
        "Tell me a story about a dragon",
        "What is 3/4 of 12?",
        "and/or what?",
        "See https://example.org//x for more",
        "...and then they lived",
        "What is a\ngguf file?",
        "Why " + 5000 * "very " + "long?",
    ],
)
def test_one_argument_of_several_words_is_a_question(here: Path, question: str) -> None:
    assert told([question], None, None) == (None, question)


def test_what_is_there_is_a_model(here: Path) -> None:
    small = "my models/small one.gguf"
    assert told([small], None, None) == (Path(small), "")
    assert told([small, "Who", "is it?"], None, None) == (Path(small), "Who is it?")
    assert told(["notes on foxes"], None, None) == (Path("notes on foxes"), "")
    assert told(["my models", "Why?"], None, "x") == (Path("my models"), "Why?")


def test_the_models_name_is_no_question(here: Path) -> None:
    assert told(["olivine-mini", "Hello"], None, None) == (box.FILE, "Hello")
    assert told([], None, None) == (None, "")


def test_a_file_of_one_dash_is_standard_input(call: Any) -> None:
    given = ("-f", "-", "--show-prompt", "And this?")
    run = call("run", *given, text="Piped.\n")
    assert run.returncode == 0 and "Piped.\n\nAnd this?" in run.stdout


def test_a_context_of_0_is_the_models_own(call: Any, here: Path) -> None:
    config = folders.write("llama2", here) / "config.json"
    told = json.loads(config.read_text())
    config.write_text(json.dumps({**told, "max_position_embeddings": 5000}))
    for context, tokens in ([], 4096), (["--context", "0"], 5000):
        run = call("run", config.parent, "-p", "x", "-v", *context, *HOW)
        assert run.returncode == 0 and f"{tokens} tokens" in run.stderr, run.stderr


def test_after_m_all_is_the_question(here: Path) -> None:
    assert told(["Hello", "a//b"], Path("x.gguf"), None) == (Path("x.gguf"), "Hello a//b")


@pytest.mark.parametrize(
    "path",
    [
        "/no/such/model",
        "/no such/model",
        "./no such model",
        "../no such model",
        "~/my models/small",
        "my models/small two",
        "small one.gguf",
        "a folder/small one.GGUF",
        "small one.safetensors",
        "qwen 3.bin",
    ],
)
def test_a_mistyped_path_is_no_question(here: Path, path: str) -> None:
    for rest in ([], ["Hello"]):
        with pytest.raises(CheckpointError) as caught:
            told([path, *rest], None, None)
        assert str(caught.value) == f"{path}: there is no such file or folder"


@pytest.mark.parametrize(
    ("words", "prompt"), [(["Hello"], None), (["Tell", "me", "more"], None), (["Tell me more"], "Once")]
)
def test_what_could_be_either_says_how_to_ask(here: Path, words: list[str], prompt: str | None) -> None:
    with pytest.raises(CheckpointError) as caught:
        told(words, None, prompt)
    hint = 'to ask the model in the box: olivine run olivine-mini "…"'
    there_is_no = "there is no such file or folder"
    assert str(caught.value).startswith(f"{words[0]}: {there_is_no}") and str(caught.value).endswith(hint)


def test_an_empty_name_is_no_model(call: Any) -> None:
    run = call("run", "", "Hello")
    assert (run.returncode, run.stdout) == (2, "") and "the name of the model is empty" in run.stderr


def test_a_mistyped_path_is_one_clear_line(call: Any) -> None:
    for command in (["run"], ["chat"], ["inspect"], ["tokenize"]):
        run = call(*command, "my modles/small one.gguf")
        assert (run.returncode, run.stdout) == (1, "")
        assert run.stderr == "Error: my modles/small one.gguf: there is no such file or folder\n"


def test_who_names_no_model_talks_with_the_one_in_the_box(call: Any) -> None:
    asked = call("run", "Tell me a story", *HOW)
    assert (asked.returncode, asked.stderr) == (0, ""), "no hint where no person looks"
    assert asked.stdout.strip()
    for same in (
        call("run", *HOW, text="Tell me a story"),
        call("run", "olivine-mini", "Tell me", "a story", *HOW),
        call("run", box.FILE, "Tell me a story", *HOW),
        call("run", "-m", "olivine-mini", "Tell me a story", *HOW),
        call("chat", *HOW, text="Tell me a story\n"),
        call("chat", "olivine-mini", *HOW, text="Tell me a story\n"),
    ):
        assert (same.returncode, same.stdout, same.stderr) == (0, asked.stdout, "")
    piped = call("run", "Tell me a story", *HOW, text="A fox.\n")
    assert piped.stdout == call("run", "olivine-mini", "A fox.\n\nTell me a story", *HOW).stdout


def test_who_asks_nothing_is_told_how(call: Any) -> None:
    for arguments in (["run"], ["run", "olivine-mini"], ["run", "my models/small one.gguf"]):
        run = call(*arguments)
        assert (run.returncode, run.stdout) == (2, "")
        assert "Ask something" in run.stderr


def test_a_conversation_goes_on_with_its_model(call: Any, here: Path) -> None:
    saved, last = here / "saved.json", here.parent / "state" / "last.json"
    small = here / "my models" / "small one.gguf"

    def model(*arguments: Any, text: str = "") -> str:
        run = call(*arguments, *HOW, text=text)
        assert run.returncode == 0, run.stderr
        return str(json.loads(last.read_text(encoding="utf-8"))["model"])

    # By its name: where the package lies is no part of a conversation.
    assert model("run", "Tell me a story") == "olivine-mini"
    (here / "olivine-mini").mkdir()  # has nothing to do with it
    assert model("chat", "--continue", text="More\n") == "olivine-mini"
    assert model("run", "-c", "And then?") == "olivine-mini"
    (here / "olivine-mini").rmdir()
    assert model("chat", small, text=f"Hello\n/save {saved}\n") == str(small)
    assert model("run", "--continue", "And then?") == str(small)
    assert model("run", "-c", "more") == str(small), "a word is enough for an answer"
    assert model("chat", text="Hello\n") == "olivine-mini", "a chat that begins anew takes no other model"
    assert model("chat", "--load", saved, text="Hello\n") == str(small)


def test_every_command_knows_the_name(call: Any, here: Path) -> None:
    facts = json.loads(call("inspect", "olivine-mini", "--json").stdout)
    assert (facts["path"], facts["architecture"]) == (str(box.FILE), "gemma4")
    assert call("tokenize", "olivine-mini", "a fox", "--ids").returncode == 0
    text = here / "text"
    text.write_text("Once upon a time there was a fox. " * 20, encoding="utf-8")
    assert "perplexity" in call("perplexity", "olivine-mini", text, "--window", "32", "--windows", "1").stdout
    compared = call("compare", "olivine-mini", box.FILE, text, "--window", "32", "--windows", "1").stdout
    assert "100.00 %" in compared
    converted = call("convert", "olivine-mini", "smaller.gguf", "--type", "Q4_0")
    assert (here / "smaller.gguf").stat().st_size < box.FILE.stat().st_size, converted.stderr
    quick = ("--prompt", "4", "--generate", "2", "--repeats", "1", "-t", "1")
    bench = call("bench", "olivine-mini", *quick, "--json")
    assert json.loads(bench.stdout)["model"] == str(box.FILE), bench.stderr


def test_a_copy_without_the_model_says_what_to_do(call: Any) -> None:
    broken = ("-c", MISSING)
    for arguments in (["run", "Tell me a story"], ["run"], ["chat"]):
        run = call(*arguments, program=broken)
        assert (run.returncode, run.stdout) == (2, "")
        assert "/nowhere/olivine-mini.gguf: this copy of Olivine came without olivine-mini" in run.stderr
        assert "chat gemma3:1b" in run.stderr and "Traceback" not in run.stderr
    named = call("inspect", "olivine-mini", program=broken)
    assert named.returncode == 1 and named.stderr.startswith("Error: /nowhere/olivine-mini.gguf: this copy")
    small = call("run", "my models/small one.gguf", "Hello", *HOW, program=broken)
    assert small.returncode == 0 and small.stdout
