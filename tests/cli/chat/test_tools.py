"""Tools in the chat: a file's functions, run only if the user agrees."""

from __future__ import annotations

import io
import json
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from olivine import Message, RequestError
from olivine.chat.messages import ToolCall
from olivine.cli.chat.commands import Chat, execute
from olivine.cli.chat.loop import converse
from olivine.cli.chat.session import Session
from olivine.cli.chat.tools import DECLINED, LONGEST, ROUNDS, Tools, shown
from olivine.cli.chat.view import PlainView
from olivine.engine import Sampling, Timings, Usage
from olivine.reply import Delta, Reply

FILE = '''
from json import dumps
import asyncio
import pathlib

def note(text: str) -> str:
    """Writes a note.

    Args:
        text: what to write
    """
    with pathlib.Path(__file__).with_name("notes").open("a") as out:
        out.write(text)
    return "written"

async def add(a: int, b: int = 2) -> int:
    """Adds numbers."""
    await asyncio.sleep(0)
    return a + b

def fail():
    raise ValueError("no luck")

def leave():
    raise SystemExit(3)

def much():
    return "x" * 100_000

def _own():
    pass

if __name__ == "__main__":
    raise SystemExit("not when it is loaded")
'''


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(FILE)
    return tmp_path / "tools.py"


@pytest.fixture
def tools(path: Path) -> Tools:
    return Tools.load(path)


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(f"call_{name}", name, json.dumps(arguments))


class Scripted:
    """A model that says what it is told to."""

    context = 512
    device = "cpu"
    sampling = Sampling()

    def __init__(self, *answers: str | list[ToolCall]) -> None:
        self._answers = list(answers)
        self.asked: list[list[Message]] = []
        self.tools: Any = None

    def stream_chat(self, messages: Sequence[Message], **options: Any) -> Generator[Delta, None, None]:
        self.asked.append(list(messages))
        self.tools = options["tools"]
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        text, calls = (answer, []) if isinstance(answer, str) else ("", answer)
        message = Message("assistant", text, tool_calls=calls)
        reply = Reply(message, "tool_calls" if calls else "stop", Usage(), Timings(), 0, [1])
        yield Delta(text, tokens=[1], reply=reply)


class User:
    """Says lines, and yes or no when asked."""

    interactive = True

    def __init__(self, *lines: str, agrees: bool = True) -> None:
        self._lines = list(lines)
        self._agrees = agrees
        self.questions = 0

    def read(self) -> str:
        if not self._lines:
            raise EOFError
        return self._lines.pop(0)

    def confirm(self, question: str) -> bool:
        self.questions += 1
        return self._agrees


class Screen(PlainView):
    """Answers and notes in one text."""

    def __init__(self) -> None:
        self._all = io.StringIO()
        super().__init__(self._all)

    def note(self, text: str, *, style: str = "") -> None:
        self._all.write(f"{text}\n")

    @property
    def text(self) -> str:
        return self._all.getvalue()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLIVINE_STATE", str(tmp_path / "state"))


def talk(model: Scripted, tools: Tools, user: User, **how: Any) -> tuple[Session, str]:
    session = Session(model)  # type: ignore[arg-type]
    session.tools = tools
    screen = Screen()
    assert converse(Chat(session, "the model", **how), user, screen) == 0
    return session, screen.text


def test_the_functions_of_a_file(tools: Tools, path: Path) -> None:
    assert list(tools.functions) == ["note", "add", "fail", "leave", "much"]
    assert str(tools).startswith(
        "note(text: str) -> str  Writes a note.\nadd(a: int, b: int = 2) -> int  Adds"
    )
    assert not path.with_name("notes").exists()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "there is no such file"),
        ("def f(:", "SyntaxError: "),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("x = 1\ndef _f(): pass", "defines no function that a model could call"),
        ("def f(x: memoryview): pass", "there is no JSON schema for"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str | None, complaint: str) -> None:
    path = tmp_path / "bad.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RequestError, match=r"bad\.py: ") as error:
        Tools.load(path)
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("made", "result"),
    [
        (call("add", a=1), "3"),
        (call("fail"), "error: ValueError: no luck"),
        (call("leave"), "error: SystemExit: 3"),
        (call("add", c=1), "error: TypeError: add() got an unexpected keyword argument 'c'"),
        (ToolCall("1", "add", "[1]"), "error: the arguments are not a JSON object: [1]"),
        (ToolCall("1", "add", '{"a": '), 'error: the arguments are not a JSON object: {"a": '),
    ],
)
def test_results_and_errors_are_text(tools: Tools, made: ToolCall, result: str) -> None:
    assert tools.run(made) == result


TYPED = """
from __future__ import annotations
from dataclasses import dataclass
from enum import Enum

class Unit(Enum):
    C = "celsius"
    F = "fahrenheit"

@dataclass
class Place:
    city: str
    unit: Unit = Unit.C

def weather(place: Place, days: set[int] | None = None, unit: Unit = Unit.C) -> str:
    return f"{place.city} {place.unit} {days} {unit}"

def twice(x: int, /, *, times: int = 2) -> int:
    return x * times
"""


@pytest.mark.parametrize(
    ("made", "result"),
    [
        (call("weather", place={"city": "Rome"}), "Rome Unit.C None Unit.C"),
        (
            call("weather", place={"city": "Rome", "unit": "fahrenheit"}, days=[1, 1], unit="fahrenheit"),
            "Rome Unit.F {1} Unit.F",
        ),
        (call("weather", place="Rome"), 'error: place must be of type object, not "Rome"'),
        (
            call("weather", place={"city": "Rome"}, unit="K"),
            'error: unit must be one of ["celsius", "fahrenheit"], not "K"',
        ),
        (call("twice", x=2, times=3), "6"),
        (call("twice"), "error: x is missing"),
    ],
)
def test_a_function_gets_what_its_hints_say(tmp_path: Path, made: ToolCall, result: str) -> None:
    path = tmp_path / "typed.py"
    path.write_text(TYPED)
    assert Tools.load(path).run(made) == result


def test_a_long_result_is_cut(tools: Tools) -> None:
    assert tools.run(call("much")) == "x" * LONGEST + f"… ({100_000 - LONGEST} characters more)"


def test_a_call_runs_when_the_user_agrees(tools: Tools, path: Path) -> None:
    model = Scripted([call("note", text="a\x1bb"), call("add", a=40)], "It is 42.")
    user = User("What is it?")
    session, text = talk(model, tools, user)
    assert user.questions == 2 and path.with_name("notes").read_text() == "a\x1bb"
    assert r"The model calls note(text='a\x1bb')" in text and "The model calls add(a=40)" in text
    assert "It is 42." in text
    assert model.tools == list(tools.functions.values())
    assert [each.role for each in session.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert session.messages[2:4] == [
        Message("tool", "written", tool_call_id="call_note", name="note"),
        Message("tool", "42", tool_call_id="call_add", name="add"),
    ]
    assert model.asked[1] == session.messages[:4]


def test_nothing_runs_when_the_user_does_not(tools: Tools, path: Path) -> None:
    session, _ = talk(Scripted([call("note", text="a")], "Then not."), tools, User("Go", agrees=False))
    assert not path.with_name("notes").exists()
    assert session.messages[2].text == DECLINED and session.messages[3].text == "Then not."


def test_a_pipe_says_why_nothing_runs(tools: Tools) -> None:
    pipe = User("Go", agrees=False)
    pipe.interactive = False
    _, text = talk(Scripted([call("add", a=1)], "Then not."), tools, pipe)
    assert "not run: nobody can be asked in a pipe; --yes agrees in advance" in text


def test_nobody_is_asked_if_everything_may_run(tools: Tools, path: Path) -> None:
    user = User("Go", agrees=False)
    talk(Scripted([call("note", text="a")], "Done."), tools, user, run_tools=True)
    assert user.questions == 0 and path.with_name("notes").read_text() == "a"


def test_the_same_call_in_one_answer_runs_once(tools: Tools, path: Path) -> None:
    calls = [call("note", text="a"), call("note", text="a"), call("note", text="b")]
    user = User("Go")
    session, _ = talk(Scripted(calls, "Done."), tools, user)
    assert user.questions == 2 and path.with_name("notes").read_text() == "ab"
    assert [each.text for each in session.messages[2:]] == ["written", "written", "written", "Done."]


def test_rounds_of_calls_have_a_limit_and_the_next_question_is_answered(tools: Tools) -> None:
    model = Scripted(*[[call("add", a=1)]] * (ROUNDS + 1), "Enough.")
    user = User("Go", "And now?")
    session, text = talk(model, tools, user)
    assert user.questions == ROUNDS
    assert f"stopped after {ROUNDS} rounds of calls" in text and "Enough." in text
    # The call that was left over has a result before the next question.
    assert [each.role for each in session.messages[-4:]] == ["assistant", "tool", "user", "assistant"]
    assert session.messages[-3].text == DECLINED


def test_undo_and_retry_take_calls_with_them(tools: Tools) -> None:
    model = Scripted([call("add", a=1)], "3.", "Three.")
    session, _ = talk(model, tools, User("Go", "/retry"))
    assert [each.text for each in session.messages] == ["Go", "Three."]
    assert execute(Chat(session, "the model"), "/undo") == "Removed: Go (0 messages left)"


def test_tools_are_shown_and_changed(path: Path, tools: Tools) -> None:
    chat = Chat(Session(Scripted("Hello")), "the model")  # type: ignore[arg-type]
    assert "may call nothing" in str(execute(chat, "/tools"))
    assert f"may call these, if you agree:\n{tools}" in str(execute(chat, f"/tools {path}"))
    execute(chat, "/tools off")
    assert chat.session.tools is None


def test_calls_as_python_writes_them() -> None:
    assert shown(call("add", a=1, b="x")) == "add(a=1, b='x')"
    assert shown(ToolCall("1", "add", "{")) == "add({)"
