"""`olivine run` with questions and `olivine chat` with pipes: plain text in, plain text out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import olivine
from olivine import LLM
from oracles import commands, real_models, tiny

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write("tiny-llama", "Q8_0", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with olivine.load(path, device="cpu", threads=1, sequences=1) as llm:
        yield llm


@pytest.fixture
def call(tmp_path: Path) -> Any:
    def olivine(*arguments: Any, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        state = {"OLIVINE_STATE": str(tmp_path / "state")}
        return commands.olivine(*arguments, text=text, **state, **environment)

    return olivine


HOW = ("--temp", "0", "-n", "12", "-t", "1")


def test_a_question_is_asked_through_the_template(call: Any, path: Path, llm: LLM) -> None:
    """This model has no template of its own: options that only a chat has bring ours in."""
    run = call("run", path, "--system", "Be kind.", *HOW, "What", "is this?")
    messages: list[Any] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "What is this?"},
    ]
    assert run.stdout == llm.chat(messages, temperature=0, max_tokens=12).content + "\n"
    assert run.stderr == ""
    assert call("run", "-m", path, "--system", "Be kind.", *HOW, "What is this?").stdout == run.stdout


def test_what_cannot_be_spelled_is_a_question_mark(call: Any, path: Path) -> None:
    spelled = ("--grammar", 'root ::= "d\u00e9j\u00e0 vu"')
    how = ("run", path, "--system", "Be kind.", *spelled, *HOW, "What is this?")
    whole = call(*how, PYTHONIOENCODING="utf-8").stdout
    assert not whole.isascii()
    plain = call(*how, PYTHONIOENCODING="ascii")
    assert plain.stdout == whole.encode("ascii", "replace").decode()
    assert (plain.returncode, plain.stderr) == (0, "")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (["--regex", "("], "Error: the pattern ( cannot be used: unclosed group\n"),
        (["--json-schema", '{"type": "nope"}'], "Error: the schema has a type that does not exist: nope\n"),
    ],
)
def test_a_format_that_cannot_be_kept_ends_a_chat_before_it_begins(
    call: Any, path: Path, how: list[str], told: str
) -> None:
    run = call("chat", path, *how, *HOW, text="Hello\nAnd?\n")
    assert (run.returncode, run.stdout, run.stderr) == (1, "", told)


def test_a_question_in_place_of_a_model_is_told_where_to_ask(call: Any) -> None:
    run = call("chat", "Hello there", text="x\n")
    assert run.returncode == 1 and "there is no such file or folder; what you say comes" in run.stderr
    assert run.stderr.endswith(" run 'Hello there'\n")
    assert "run '" not in call("chat", "/no such/model", text="x\n").stderr


def test_a_model_without_a_template_continues_the_text(call: Any, path: Path, llm: LLM) -> None:
    text = llm.generate("What is this?", temperature=0, max_tokens=12).text + "\n"
    for arguments in (
        ["What is this?"],
        ["What", "is this?"],
        ["--raw", "What is this?"],
        ["-p", "What is this?"],
    ):
        assert call("run", path, *HOW, *arguments).stdout == text
    assert call("run", path, *HOW, text="What is this?").stdout == text


def test_pipes_and_files_come_before_the_question(call: Any, path: Path, llm: LLM, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("some\n```\nnotes\n", encoding="utf-8")
    run = call("run", path, "--system", "s", *HOW, "-f", tmp_path / "notes.txt", "Sum up.", text="piped\n")
    question = "piped\n\nnotes.txt:\n````\nsome\n```\nnotes\n````\n\nSum up."
    messages: list[Any] = [{"role": "system", "content": "s"}, {"role": "user", "content": question}]
    assert run.stdout == llm.chat(messages, temperature=0, max_tokens=12).content + "\n"


def test_continue_goes_on(call: Any, path: Path, llm: LLM) -> None:
    first = call("run", path, "--system", "Be kind.", *HOW, "one").stdout.removesuffix("\n")
    second = call("run", path, "-c", *HOW, "two").stdout
    messages: list[Any] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "two"},
    ]
    assert second == llm.chat(messages, temperature=0, max_tokens=12).content + "\n"


def test_json_schema(call: Any, path: Path, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    how = ("--temp", "1", "--seed", "1", "-n", "200", "-t", "1", "--context", "512")
    for schema in (json.dumps(SCHEMA), tmp_path / "schema.json"):
        for extra in (("--system", "x", "go"), ("-p", "go")):
            run = call("run", path, "--json-schema", schema, *how, *extra)
            assert run.returncode == 0, run.stderr
            jsonschema.validate(json.loads(run.stdout), SCHEMA)
    for extra in (["--system", "x", "go"], ["-p", "go"], ["--raw", "go"]):
        cut = call("run", path, "--json-schema", json.dumps(SCHEMA), "-n", "2", *extra)
        assert cut.returncode == 1 and "is not complete in its format" in cut.stderr
    quiet = call("run", path, "--json-schema", json.dumps(SCHEMA), "-n", "2", "-q", "-p", "go")
    assert (quiet.returncode, quiet.stderr) == (1, "")


def test_grammars_and_regular_expressions(call: Any, path: Path) -> None:
    how = ("--temp", "1", "--seed", "1", "-n", "50", "-t", "1")
    for given in (["--grammar", 'root ::= "yes" | "no"'], ["--regex", "yes|no"]):
        for extra in (("--system", "x", "go"), ("-p", "go")):
            assert call("run", path, *given, *how, *extra).stdout in ("yes\n", "no\n")
        assert call("chat", path, *given, *how, text="one\ntwo").stdout.split()[1] in ("yes", "no")


def test_n_of_minus_one_is_as_many_as_fit(call: Any, path: Path, llm: LLM) -> None:
    for arguments, most in ((("-n", "-1"), None), ((), 128)):
        run = call("run", path, "-p", "go", "--temp", "0", "-t", "1", "--context", "200", *arguments)
        with olivine.load(path, device="cpu", threads=1, sequences=1, context=200) as small:
            assert run.stdout == small.generate("go", temperature=0, max_tokens=most).text + "\n"


def test_show_prompt_prints_what_the_model_reads(call: Any, path: Path, llm: LLM) -> None:
    """Special tokens are visible; those that a user spells are text, and look the same in a pipe."""
    run = call("run", path, "--system", "Be kind.", "--show-prompt", "What is this?")
    messages: list[Any] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "What is this?"},
    ]
    turn = llm.conversations.prepare(messages)
    assert "<|im_start|>" in run.stdout and turn.prompt.text in run.stdout
    assert llm.tokenizer.encode(run.stdout[:-1], parse_special=True) == turn.tokens
    assert (run.returncode, run.stderr) == (0, "")
    raw = call("run", path, "-p", "Once upon", "--show-prompt").stdout
    assert llm.tokenizer.encode(raw[:-1], parse_special=True) == llm.tokenizer.encode("Once upon")


def test_a_file_goes_before_the_first_message_of_a_chat(call: Any, path: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("some notes")
    saved = tmp_path / "saved.json"
    call("chat", path, *HOW, "-f", tmp_path / "notes.txt", text=f"one\ntwo\n/save {saved}")
    said = [each["content"] for each in json.loads(saved.read_text())["messages"] if each["role"] == "user"]
    assert said == ["notes.txt:\n```\nsome notes\n```\n\none", "two"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["run", "{model}"], 2, "Ask something"),
        (["run", "{model}", "-c", "2048", "hi"], 2, "the context is --context 2048"),
        (["chat", "{model}", "-s", "42"], 2, "the seed is --seed 42"),
        (["run", "{model}", "--regex", "a", "--format", "json", "hi"], 2, "exclude each other"),
        (["chat", "{model}", "--grammar", "/no/such/file"], 1, "neither a file nor a grammar"),
        (["run", "{model}", "hi", "--image", "cat.png"], 1, "takes text only"),
        (["run", "{model}", "-p", "x", "--system", "y"], 2, "need a chat, not -p"),
        (["run", "{model}", "-p", "x", "why"], 2, "-p is the whole text"),
        (["run", "{model}", "-f", "/no/such/file", "hi"], 1, "/no/such/file: cannot be read"),
        (["run", "{model}", "-f", "{model}", "hi"], 1, "is not text"),
        (["run", "{model}", "--json-schema", "{{]", "hi"], 1, "this is no JSON (line 1, column 2"),
        (["run", "{model}", "--think=sideways", "hi"], 2, "sideways"),
        (["run", "{model}", "--continue", "hi"], 1, "no conversation to continue"),
        (["chat", "{model}", "--load", "x", "--continue"], 2, "exclude each other"),
        (["chat", "{model}", "--temp", "-1"], 2, "temperature must be between 0 and 100"),
        (["chat", "/no/such/model"], 1, "there is no such file or folder"),
    ],
)
def test_errors_are_one_clear_line(
    call: Any, path: Path, arguments: list[str], status: int, message: str
) -> None:
    run = call(*[argument.replace("{model}", str(path)).replace("{{", "{") for argument in arguments])
    assert (run.returncode, run.stdout) == (status, "")
    assert message in run.stderr and "Traceback" not in run.stderr


def test_a_chat_may_have_tools_and_a_form_of_its_answers(call: Any, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("def add(a: int, b: int) -> int:\n    return a + b\n")
    how = ("--tools", tmp_path / "tools.py", "--regex", "Once|Then")
    run = call("chat", "olivine-mini", *HOW, *how, text="Tell me a story")
    assert (run.returncode, run.stdout) == (0, "Once\n"), run.stderr


def test_a_model_that_does_not_think_says_so(call: Any, path: Path) -> None:
    for command in (["run", path, "why"], ["chat", path]):
        run = call(*command, *HOW, "--think", text="why")
        assert (run.returncode, run.stdout) == (1, "")
        assert run.stderr == "Error: this model does not think: its chat template has no thoughts\n"
        assert call(*command, *HOW, "--think=off", text="why").returncode == 0
    assert "this model does not think" in call("chat", path, *HOW, text="/think on").stderr


def test_a_chat_through_pipes(call: Any, path: Path, llm: LLM, tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    lines = ["one", '"""two', 'lines"""', "/tokens", "/set top_k -1", f"/save {saved}"]
    run = call("chat", path, *HOW, text="\n".join(lines))
    messages: list[Any] = [{"role": "user", "content": "one"}]
    answers = []
    for text in ("two\nlines", None):
        reply = llm.chat(messages, temperature=0, max_tokens=12)
        answers.append(reply.content)
        messages += [reply.message, {"role": "user", "content": text}]
    assert run.stdout == "".join(f"{answer}\n" for answer in answers)
    assert run.stderr.split("\n")[1] == "top_k must be 0 (off) or more, and is -1"
    assert run.returncode == 1, "something went wrong, and programs should hear of it"
    assert [each["content"] for each in json.loads(saved.read_text())["messages"]] == [
        "one",
        answers[0],
        "two\nlines",
        answers[1],
    ]
    # The last conversation's model is the one to talk with where none is named.
    again = call("chat", "--continue", *HOW, text="/tokens\n")
    assert again.returncode == 0 and "in 4 messages" in again.stderr
    assert "in 4 messages" in call("chat", path, "--load", saved, text="/tokens\n").stderr


def test_cleared_is_forgotten_for_continue_too(call: Any, path: Path) -> None:
    assert call("chat", path, *HOW, text="one\n").returncode == 0
    # A chat in which nothing was said has nothing to forget.
    assert call("chat", path, *HOW, text="/clear\n").returncode == 0
    assert call("chat", path, "-c", *HOW, text="two\n/clear\n").returncode == 0
    again = call("chat", path, "-c", *HOW, text="three\n")
    assert again.returncode == 1 and "no conversation to continue" in again.stderr


# An endless standard input. Without a limit it would fill the memory: that of the test has one of its own.
ENDLESS = (
    "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30));"
    "runpy.run_module('olivine', run_name='__main__', alter_sys=True)"
)


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [(["run", "{model}", "why?"], "16.8 MB"), (["tokenize", "{model}"], "268.4 MB")],
)
def test_standard_input_has_a_limit(path: Path, arguments: list[str], limit: str) -> None:
    command = [argument.replace("{model}", str(path)) for argument in arguments]
    with open("/dev/zero", "rb") as zeros:
        run = subprocess.run(
            [sys.executable, "-c", ENDLESS, *command],
            stdin=zeros,
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            timeout=120,
        )
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == f"Error: standard input: is longer than {limit}\n"


def test_a_message_that_is_too_long_is_an_error_and_the_next_one_is_answered(call: Any, path: Path) -> None:
    long = "x" * (17 << 20)
    lines = [long, "/tokens", f'"""{long}', 'end"""', "/tokens", *["a\\"] * 3, "b", "/tokens"]
    run = call("chat", path, *HOW, text="\n".join(lines))
    assert run.stderr.count("the message is longer than 16.8 MB") == 2
    assert run.stderr.count("0 of ") == 2 and "in 2 messages" in run.stderr
    assert run.returncode == 1


@pytest.mark.parametrize("moment", ["answering", "waiting"])
def test_ctrl_c_ends_a_chat_through_pipes(path: Path, tmp_path: Path, moment: str) -> None:
    """Nobody is at a prompt who could go on, so it does not answer the next line."""
    how = ("--temp", "0", "--allow-repetition", "-t", "1", "--context", "100000")
    how += ("-n", "3" if moment == "waiting" else "90000")
    process = subprocess.Popen(
        [sys.executable, "-m", "olivine", "chat", str(path), *how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OLIVINE_STATE": str(tmp_path / "state")},
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdin.write(b"one\ntwo\n" if moment == "answering" else b"one\n")
    process.stdin.flush()
    begun = process.stdout.readline() if moment == "waiting" else process.stdout.read(5)
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=240)  # with its input still open
        said, told = begun + process.stdout.read(), process.stderr.read()
    finally:
        process.kill()
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()
    assert process.returncode == -signal.SIGINT  # 130 in a shell
    assert said.endswith(b"\n") and b"Traceback" not in told


def test_a_real_model_answers(call: Any) -> None:
    """What the library answers: which answer is the likeliest is a matter of the machine's roundings."""
    model, question = real_models.SMOLLM2.path(), "What is the capital of France?"
    with olivine.load(model, device="cpu", sequences=1) as llm:
        expected = (llm.chat(question, temperature=0, max_tokens=20).content or "").strip()
    assert len(expected) > 10
    options = ("--device", "cpu", "--temp", "0", "-n", "20")
    assert call("run", model, question, *options).stdout.strip() == expected
    assert call("run", model, *options, text=question).stdout.strip() == expected
