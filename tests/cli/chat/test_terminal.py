"""`olivine chat` and `olivine run` as a user has them: in a real pseudo-terminal."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pexpect
import pytest

import olivine
from olivine.cli.text import clean
from oracles import real_models, tiny
from oracles.terminal import Terminal, spawn

PROMPT = r">>> "
SUMMARY = r"[\d,]+ tok · [^\r\n]*context [\d,]+/[\d,]+ · [^\r\n]*"
TALKS = r"\x1b\[\?25l(?:(?!\x1b\[\?)[^\n])*\n"  # the cursor is hidden, and the answer's second line begins
STOPPED = rf"stopped · {SUMMARY}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write("tiny-llama", "Q8_0", tmp_path_factory.mktemp("models"))


@pytest.fixture
def start(tmp_path: Path) -> Any:
    """Starts Olivine in a pseudo-terminal; ends it after the test."""
    running: list[pexpect.spawn] = []

    def started(*arguments: Any, **options: Any) -> pexpect.spawn:
        running.append(spawn(*arguments, state=tmp_path / "state", **options))
        return running[-1]

    yield started
    for child in running:
        child.close(force=True)


def leave(child: pexpect.spawn, status: int = 0) -> None:
    child.expect(pexpect.EOF)
    child.close()
    ended = child.exitstatus if child.signalstatus is None else -child.signalstatus
    assert ended == status, child.before


def screen(text: str) -> str:
    """What was written, without what only moves and colors."""
    return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]|\x1b[=>]", "", text)


def test_a_conversation_with_everything(start: Any, model: Path, tmp_path: Path) -> None:
    child = start("chat", model, "--temp", "1", "--seed", "1", "-n", "8", "--context", "256", "-t", "1")
    child.expect("tiny-llama.gguf · cpu×1")
    child.expect(PROMPT)
    child.send("Hello\r")
    child.expect(SUMMARY)
    child.expect(PROMPT)

    child.send("/help\r")
    for command in ("/help", "/retry", "/clear", "/system", "/think", "/set", "/model", "/save", "/image"):
        child.expect_exact(command)
    child.expect("/quit")
    child.expect(PROMPT)

    child.send("/set top_p 3\r")
    child.expect_exact("top_p must be above 0 and at most 1 (off), and is 3.0")
    child.send("/set max_tokens 3\r")
    child.expect_exact("max_tokens: 3")
    child.send("/image cat.png\r")
    child.expect("text only")
    child.send("/system Be kind.\r")
    child.expect_exact("System message: Be kind.")
    child.expect(PROMPT)
    child.send("again\r")
    child.expect(r"\b3 tok · ")
    child.send("/tokens\r")
    child.expect(r"\d+ of 256 tokens in 5 messages\.")
    child.send("/stats\r")
    child.expect(r"prompt +\d+ tokens: \d+ cached, ")
    child.expect(r"session +\d+ tokens generated")

    saved = tmp_path / "saved.json"
    child.send(f"/save {saved}\r")
    child.expect("5 messages in ")
    roles = [each["role"] for each in json.loads(saved.read_text())["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    child.send("/clear\r")
    child.expect("Forgotten")
    child.send(f"/load {saved}\r")
    child.expect("5 messages loaded")

    # An error is a line, and the chat goes on.
    child.send("word " * 300 + "\r")
    child.expect(r"this makes [\d,]+ tokens, and the context holds 256 with the answer")
    child.expect_exact("/undo removes the last question")
    child.expect(PROMPT)
    child.send("/quit\r")
    leave(child)


def test_ctrl_c_stops_the_answer_and_not_the_chat(start: Any, model: Path) -> None:
    child = start("chat", model, "--temp", "0", "--allow-repetition", "--context", "100000", "-t", "1")
    child.expect(PROMPT)
    child.send("Hello\r")
    child.expect(TALKS)
    child.sendintr()
    child.expect(
        rf"\n(\x1b\[[?0-9;]*[a-z])*{STOPPED}"
    )  # on a line of its own: nothing of the drawing is lost
    child.expect(PROMPT)
    # Again, and at once: the engine has really let go.
    child.send("/set max_tokens 2\r")
    child.expect("max_tokens: 2")
    child.send("Go on\r")
    child.expect(r"\b2 tok · ")
    child.send("/tokens\r")
    child.expect("in 4 messages")
    # At the prompt: the first clears what was typed, the next tells how to leave, one more leaves.
    child.expect(PROMPT)
    child.send("never sent")
    child.expect("never sent")
    child.sendintr()
    child.sendintr()
    child.expect("Ctrl-C once more leaves")
    child.expect(PROMPT)
    child.sendintr()
    leave(child)


def test_ctrl_o_opens_thoughts_and_ctrl_d_leaves(start: Any, model: Path) -> None:
    child = start("chat", model, "-t", "1")
    child.expect(PROMPT)
    child.send("\x0f")
    child.expect("Thoughts stay open from now on")
    child.expect(PROMPT)
    child.send("\x0f")
    child.expect("Thoughts are folded from now on")
    child.expect(PROMPT)
    child.sendeof()
    leave(child)


def test_thoughts_are_dim_and_folded_and_open(start: Any, tmp_path: Path) -> None:
    model = tiny.write("tiny-qwen3", "Q8_0", tmp_path)
    thinker = Path(__file__).with_name("thinker.py")
    child = start("chat", model, "--think", "--context", "2048", "-t", "1", program=[str(thinker)])
    child.expect(PROMPT)
    child.send("What is it?\r")
    child.expect(r"\x1b\[2m▸ thought, (\d+) tokens · Ctrl-O opens it\x1b\[0m")
    thought = int(child.match[1])
    child.expect(r"It is \x1b\[1m42\x1b\[0m, because")
    child.expect(SUMMARY)
    total = int(child.match[0].split()[0])
    assert 40 < thought < total - 10
    child.expect(PROMPT)
    child.send("/stats\r")
    child.expect(rf"thoughts +{thought} of these tokens")
    child.expect(PROMPT)
    child.send("\x0f")
    child.expect(r"\x1b\[2;3mStep 1: weigh it \d\x1b\[0m")
    child.expect(r"\x1b\[2;3mStep 9: weigh it \d\x1b\[0m")
    child.expect(PROMPT)
    # From now on it stays open, and it is the thought of this answer alone.
    child.send("And now?\r")
    child.expect(SUMMARY)
    assert "Step 9: weigh it" in child.before and "▸" not in child.before
    child.expect(PROMPT)
    child.send("/think fold\r")
    child.expect("thoughts are folded")
    child.expect(PROMPT)
    child.send("/think open\r")
    child.expect("Step 1: weigh it")
    child.expect(PROMPT)
    assert "Step 1:" not in child.before and child.before.count("weigh it") == 8
    child.sendeof()
    leave(child)


def test_a_call_waits_for_yes(start: Any, model: Path, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("def add(a: int, b: int) -> int:\n    return a + b\n")
    caller = Path(__file__).with_name("caller.py")
    child = start("chat", model, "--tools", tmp_path / "tools.py", "-t", "1", program=[str(caller)])
    for keys, result in (("y\r", "3"), ("n\r", "The user declined"), ("\r", "The user declined")):
        child.expect(PROMPT)
        child.send("Go\r")
        child.expect_exact("The model calls add(a=1, b=2)")
        child.expect_exact("Run it? [y/N] ")
        child.send(keys)
        child.expect_exact(f"It gave: {result}")
    child.expect(PROMPT)
    child.send("Go\r")
    child.expect_exact("Run it? [y/N] ")
    child.sendintr()  # is no
    child.expect_exact("It gave: The user declined")
    child.expect(PROMPT)
    child.sendeof()
    leave(child)


def test_several_lines_paste_and_history(start: Any, model: Path, tmp_path: Path) -> None:
    arguments = ("chat", model, "-n", "2", "-t", "1")
    child = start(*arguments)
    child.expect(PROMPT)
    child.send('"""one\rtwo\rthree"""\r')
    child.expect(SUMMARY)
    child.expect(PROMPT)
    child.send("four\x1b\rfive\r")  # Alt-Enter
    child.expect(SUMMARY)
    child.expect(PROMPT)
    child.send("\x1b[200~six\nseven\n/quit\n\x1b[201~")  # a paste is text, not commands
    child.send("\r")
    child.expect(SUMMARY)
    child.expect(PROMPT)
    child.send(f"/save {tmp_path / 'a.json'}\r")
    child.expect("6 messages")
    child.expect(PROMPT)
    child.sendeof()
    leave(child)
    messages = json.loads((tmp_path / "a.json").read_text())["messages"]
    said = [each["content"] for each in messages if each["role"] == "user"]
    assert said == ["one\ntwo\nthree", "four\nfive", "six\nseven\n/quit"]

    child = start(*arguments, "--continue")
    child.expect("going on after 6 messages")
    child.expect(PROMPT)
    child.send("\x1b[A\x1b[A")  # up: /save, and before that the paste
    child.expect("six")
    child.send("\r")
    child.expect(SUMMARY)
    child.send("/tokens\r")
    child.expect("in 8 messages")
    child.expect(PROMPT)
    child.sendeof()
    leave(child)


def test_a_history_that_cannot_be_written_stops_nothing(start: Any, model: Path, tmp_path: Path) -> None:
    child = start("chat", model, "-n", "3", "-t", "1")
    child.expect(PROMPT)
    shutil.rmtree(tmp_path / "state")
    child.send("Hello\r")
    child.expect(SUMMARY)
    assert "exception" not in child.before
    child.expect(PROMPT)
    child.sendeof()
    leave(child)


def test_what_is_typed_while_the_model_loads_waits(start: Any, model: Path) -> None:
    child = start("chat", model, "-n", "3", "-t", "1")
    child.expect("loading tiny-llama.gguf")
    child.send("Hello\r")
    child.expect(SUMMARY)
    assert "..." not in screen(child.before), "Enter began a new line"
    child.expect(PROMPT)
    child.sendeof()
    leave(child)


IN_BETWEEN = """
import select, termios
from olivine.cli.chat.input import TerminalInput
from olivine.cli.chat.interrupt import typed_ahead
found = termios.tcgetattr(0)
with typed_ahead():
    print("loaded", flush=True)
    select.select([0], [], [])
    read = TerminalInput(None, print).read()
    print("it read", repr(read), "and left it", "as found" if termios.tcgetattr(0) == found else "changed")
"""


def test_enter_between_loading_and_the_first_prompt_sends_the_message(start: Any) -> None:
    """While the model loads, keys wait; they still do when it is loaded, until a prompt reads them."""
    child = start(program=("-c", IN_BETWEEN))
    child.expect_exact("loaded")
    child.send("Hello\r")
    child.expect_exact("it read 'Hello' and left it as found")
    leave(child)


BEFORE = """
import select
print("starting", flush=True)
select.select([0], [], [])  # for a line, in a terminal as it was found
from olivine.cli.chat.input import TerminalInput
from olivine.cli.chat.interrupt import typed_ahead
with typed_ahead():
    typed = TerminalInput(None, print)
    print("it read", [typed.read(), typed.read()])
"""


def test_what_is_typed_before_keys_wait_is_typed_at_the_prompt(start: Any) -> None:
    """The terminal still makes a line feed of Enter then, which is a new line at the prompt."""
    child = start(program=("-c", BEFORE))
    child.expect_exact("starting")
    child.send("Hello\rand more\r")
    child.expect_exact("it read ['Hello', 'and more']")
    leave(child)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_between_loading_and_the_first_prompt_restores_the_terminal(
    start: Any, number: signal.Signals
) -> None:
    child = start(program=("-c", IN_BETWEEN))
    child.expect_exact("loaded")
    assert not child.getecho()
    child.kill(number)
    child.expect_exact("\x1b[?2004l")
    assert child.getecho()
    leave(child, -number)


def test_another_answer_and_another_model(start: Any, model: Path) -> None:
    child = start("chat", model, "-n", "3", "--temp", "1", "-t", "1", "--context", "200")
    child.expect(PROMPT)
    child.send("Hello\r")
    child.expect(SUMMARY)
    child.expect(PROMPT)
    child.send("/retry\r")
    child.expect(SUMMARY)
    child.expect(PROMPT)
    child.send("/tokens\r")
    child.expect("in 2 messages")
    child.expect(PROMPT)
    child.send("/model olivine-mini\r")
    child.expect("olivine-mini · cpu×1[^\\n]* · context 200")
    child.expect(PROMPT)
    child.send("Tell me a story\r")
    child.expect(SUMMARY)
    child.expect(PROMPT)
    child.send("/tokens\r")
    child.expect("in 4 messages")
    child.expect(PROMPT)
    child.sendeof()
    leave(child)
    child = start("chat", "-c", "-n", "3", "-t", "1")  # the model that answered last
    child.expect("olivine-mini · ")
    child.expect("going on after 4 messages")
    child.expect(PROMPT)
    child.sendeof()
    leave(child)


def test_what_is_typed_during_an_answer_waits(start: Any, model: Path) -> None:
    child = start(
        "chat", model, "--temp", "0", "--allow-repetition", "--context", "100000", "-n", "3000", "-t", "1"
    )
    child.expect(PROMPT)
    child.send("Hello\r")
    child.expect(TALKS)
    child.send("/quit\r")
    leave(child)
    assert "/quit" not in screen(child.before).partition(" tok · ")[0]


def test_a_simple_terminal_gets_simple_text(start: Any, model: Path) -> None:
    child = start("chat", model, "-n", "4", "-t", "1", TERM="dumb")
    child.expect(PROMPT)
    child.sendline("Hello")
    child.expect(PROMPT)
    child.sendline("/quit")
    leave(child)
    assert "\x1b" not in child.before


def test_a_question_on_the_command_line(start: Any, model: Path) -> None:
    child = start(
        "run",
        model,
        "Hello",
        "--system",
        "Be kind.",
        "--temp",
        "0",
        "--allow-repetition",
        "--context",
        "100000",
        "-t",
        "1",
    )
    child.expect(TALKS)
    child.sendintr()
    child.expect(STOPPED)
    leave(child, -signal.SIGINT)


@pytest.mark.parametrize("words", [2, 700])
def test_a_text_that_is_continued_stays_on_the_screen(start: Any, model: Path, words: int) -> None:
    """Whatever is said while a long prompt is read stands in its place only until the text begins."""
    prompt = "word " * words
    child = start("run", model, "-p", prompt, "-n", "12", "--temp", "0", "--context", "4096", "-t", "1")
    leave(child)
    assert ("reading the prompt" in child.before) == (words > 2)
    terminal = Terminal(100, 40)
    terminal.write(child.before.replace("\r\r\n", "\r\n"))
    with olivine.load(model, device="cpu", threads=1, sequences=1, context=4096) as llm:
        said = clean(llm.generate(prompt, temperature=0, max_tokens=12).text)
    warning, *rows = terminal.text
    assert warning.startswith("warning: a context of 4096 tokens is longer than")
    assert "".join(rows).replace(" ", "").startswith("".join(said.split()) + "12tok·")


def test_a_narrow_terminal_keeps_the_bar_on_one_row(start: Any, model: Path, tmp_path: Path) -> None:
    child = start("convert", model, tmp_path / "made.gguf", "--type", "Q8_0", COLUMNS="40")
    leave(child)
    drawn = re.findall(r"\r\x1b\[K([^\r\x1b]+)", child.before)
    assert drawn and all(len(line) < 40 for line in drawn)
    assert any(line[0] in "█░" for line in drawn)


def test_a_model_that_is_not_there_is_one_line(start: Any, tmp_path: Path) -> None:
    child = start("chat", tmp_path / "none.gguf")
    leave(child, 1)
    terminal = Terminal(1000, 40)
    terminal.write(child.before)
    assert terminal.text == [f"Error: {tmp_path / 'none.gguf'}: there is no such file or folder"]


@pytest.mark.parametrize("command", ["chat", "run", "bench"])
def test_a_machine_without_fast_kernels_is_told_of_it(start: Any, model: Path, command: str) -> None:
    more = {
        "chat": [],
        "run": ["-p", "Hello"],
        "bench": ["--prompt", "4", "--generate", "2", "--repeats", "1"],
    }
    child = start(command, model, *more[command], "-t", "1", OLIVINE_ISA="plain")
    child.expect("warning: [^\n]*plain C[+][+], several times slower")
    if command == "chat":
        child.expect(PROMPT)
        child.sendeof()
    leave(child)
    assert "slower" not in child.before


def test_run_with_nothing_to_ask_is_a_chat(start: Any, model: Path) -> None:
    child = start("run", model, "--system", "Be kind.", "-n", "3", "--context", "256", "-t", "1")
    child.expect("tiny-llama.gguf · cpu×1[^\\n]* · context 256")
    assert "in the box" not in child.before
    child.expect(PROMPT)
    child.send("Hello\r")
    child.expect(r"\b3 tok · ")
    child.send("/system\r")
    child.expect_exact("System message: Be kind.")
    child.expect(PROMPT)
    child.sendeof()
    leave(child)
    # What only `run` knows cannot be kept in a chat.
    child = start("run", model, "-q", "-t", "1")
    child.expect("Ask something")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 2


HINT = r"olivine-mini, the tiny storyteller in the box\. A real model: \S*python\S* -m olivine {} gemma3"


@pytest.mark.parametrize("command", ["chat", "run"])
def test_the_model_in_the_box_introduces_itself_once(start: Any, command: str) -> None:
    child = start(command, "-n", "3", "-t", "1")
    child.expect("olivine-mini · [^\\n]* · context 2,048")
    child.expect(rf"\x1b\[2m{HINT.format('chat')}:1b\x1b\[0m")
    child.expect(PROMPT)
    for _ in range(2):
        child.send("Tell me a story\r")
        child.expect(SUMMARY)
        assert "in the box" not in child.before
        child.expect(PROMPT)
    child.send("/stats\r")
    child.expect("model +olivine-mini on ")
    child.expect(PROMPT)
    child.sendeof()
    leave(child)


def test_a_question_to_the_model_in_the_box(start: Any) -> None:
    child = start("run", "Tell me a story about a dragon", "-n", "6", "-t", "1")
    child.expect(rf"\x1b\[2m{HINT.format('run')}:1b\x1b\[0m")
    child.expect(SUMMARY)
    leave(child)
    child = start("run", "Tell me a story about a dragon", "-n", "6", "-t", "1", "-q")
    leave(child)
    assert "in the box" not in child.before
    child = start("chat", "-n", "3", "-t", "1", TERM="dumb")
    child.expect(HINT.format("chat"))
    assert "\x1b" not in child.before
    child.expect(PROMPT)
    assert "\x1b" not in child.before
    child.sendline("/quit")
    leave(child)


@pytest.mark.parametrize("simple", [{"TERM": "dumb"}, {"NO_COLOR": "1"}], ids=str)
def test_no_colors_where_none_are_wanted(start: Any, simple: dict[str, str]) -> None:
    for arguments in (
        ["config"],
        ["run", "--show-prompt", "Tell me a story", "-t", "1"],
        ["run", "-p", "Once upon", "-n", "3", "-t", "1"],
    ):
        child = start(*arguments, **simple)
        leave(child)
        assert "\x1b[" not in child.before.replace("\x1b[K", ""), child.before
    child = start("config", NO_COLOR="")
    leave(child)
    assert "\x1b[1m" in child.before


def test_a_real_model_in_a_real_terminal(start: Any) -> None:
    child = start("chat", real_models.SMOLLM2.path(), "--temp", "0", "--context", "512")
    child.expect(PROMPT)
    child.send("What is the capital of France? Answer in one word.\r")
    child.expect("Paris")
    child.expect(SUMMARY)
    child.expect(PROMPT)
    child.send("Write a very long story about the sea.\r")
    child.expect(TALKS)
    child.sendintr()
    child.expect(STOPPED)
    child.expect(PROMPT)
    child.send("What did I ask first?\r")
    child.expect(r"prompt \d+ \((\d+) cached\)")
    assert int(child.match[1]) > 0
    child.expect(PROMPT)
    child.sendeof()
    leave(child)
