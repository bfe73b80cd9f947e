"""Sessions, commands and files, without a terminal, on a small random model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import olivine
from olivine import LLM, Message, RequestError
from olivine.cli.chat import store
from olivine.cli.chat.commands import Chat, execute
from olivine.cli.chat.input import message, unfinished
from olivine.cli.chat.session import Session
from oracles import tiny

HOW: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_tokens": 12, "think": False}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tiny.write("tiny-qwen3", "Q8_0", tmp_path_factory.mktemp("models"))
    with olivine.load(path, device="cpu", threads=1, context=512) as llm:
        yield llm


@pytest.fixture
def chat(llm: LLM) -> Chat:
    return Chat(Session(llm, **HOW), "the model")


def ask(chat: Chat, text: str) -> str:
    return "".join(delta.content for delta in chat.session.ask(text))


def test_a_session_is_the_conversation_that_chat_answers(chat: Chat, llm: LLM) -> None:
    chat.session.system = "Be brief."
    first, second = ask(chat, "one"), ask(chat, "two")
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}]
    assert first == llm.chat(messages, **HOW).content
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "two"}]
    reply = llm.chat(messages, **HOW)
    assert second == reply.content
    assert [each.as_dict() for each in chat.session.conversation] == [*messages, reply.message.as_dict()]
    last = chat.session.last
    assert last is not None
    assert (last.prompt, last.completion) == (reply.usage.prompt, reply.usage.completion)
    assert last.cached > 0


def test_an_answer_that_is_left_is_kept_as_far_as_it_was_said(chat: Chat) -> None:
    chat.session.options["max_tokens"] = 400
    chat.session.think = None  # switched off, it would leave a mark in the prompt that the next one has not
    said = ""
    deltas = chat.session.ask("one")
    for delta in deltas:
        said += delta.content
        if len(said) > 20:
            break
    deltas.close()
    assert [each.text for each in chat.session.messages] == ["one", said]
    last = chat.session.last
    assert last is not None and last.finish_reason == "cancelled"
    assert last.line(512, "cpu").startswith("stopped · ")
    # The tokens of that answer are known again: they are in the cache.
    turn = chat.session.llm.conversations.prepare([*chat.session.conversation, Message("user", "two")])
    assert sum(turn.generated) > 0


def test_a_question_that_got_no_answer_is_not_kept(chat: Chat) -> None:
    chat.session.ask("one").close()
    deltas = chat.session.ask("one")
    next(deltas)
    deltas.close()
    assert chat.session.messages == [] or chat.session.messages[1].text
    before = chat.session.messages
    with pytest.raises(RequestError, match="the context holds 512"):
        chat.session.ask("word " * 600)
    assert chat.session.messages == before


def test_the_line_under_an_answer(chat: Chat) -> None:
    ask(chat, "one")
    last = chat.session.last
    assert last is not None and last.prompt is not None and last.speed is not None
    used = last.prompt + last.completion
    assert last.line(512, "cpu×8") == (
        f"cut at max_tokens · 12 tok · {last.speed:.1f} tok/s · "
        f"prompt {last.prompt} ({last.cached} cached) · context {used}/512 · cpu×8"
    )
    assert last.line(used, "cpu").startswith("context full · ")


# ---- files


def test_saved_conversations_are_openai_s_and_come_back(chat: Chat, tmp_path: Path, llm: LLM) -> None:
    chat.session.system = "Be brief."
    chat.session.think = True
    chat.session.options["max_tokens"] = 60
    ask(chat, 'Grüße, "Welt" 🙂')
    path = tmp_path / "chat.json"
    assert execute(chat, f"/save {path}") == f"3 messages in {path}."
    told = json.loads(path.read_text(encoding="utf-8"))
    assert [each["role"] for each in told["messages"]] == ["system", "user", "assistant"]
    assert told["messages"][1]["content"] == 'Grüße, "Welt" 🙂'
    other = Chat(Session(llm, **HOW), "another")
    assert execute(other, f"/load {path}") == "3 messages loaded."
    assert other.session.conversation == chat.session.conversation
    path.write_text(json.dumps(told["messages"]))
    assert store.load(path) == (chat.session.conversation, None)
    assert execute(chat, f"/save {path}") == f"3 messages in {path}.", "a conversation may be replaced"
    assert [entry.name for entry in tmp_path.iterdir()] == ["chat.json"], "nothing is left of the writing"


def test_only_a_conversation_is_replaced(chat: Chat, tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("# A text\n")
    with pytest.raises(RequestError, match="is no conversation, and stays"):
        execute(chat, f"/save {path}")
    assert path.read_text() == "# A text\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[" * (1 << 20) + "{", "too large"),
        ("{}", "has no list of messages"),
        ('[{"role": "king", "content": ""}]', r"messages\[0\] has the role 'king'"),
        ('{"messages": [{"role": "user", "content": 3}]}', "content is neither"),
        ('{"messages": 3}', "has no list"),
        ("\xff\xfe", "is not JSON"),
    ],
)
def test_files_of_strangers(chat: Chat, tmp_path: Path, text: str, complaint: str) -> None:
    ask(chat, "one")
    before = chat.session.conversation
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(RequestError, match=complaint):
        execute(chat, f"/load {path}")
    assert chat.session.conversation == before


def test_the_last_conversation_is_remembered_for_this_user_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLIVINE_STATE", str(tmp_path / "state"))
    with pytest.raises(RequestError, match="no conversation to continue"):
        store.recall()
    store.remember([Message("user", "one")], "m.gguf")
    assert store.recall() == ([Message("user", "one")], "m.gguf")
    assert (tmp_path / "state" / "last.json").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("OLIVINE_STATE", "/proc/no/such/place")
    store.remember([Message("user", "one")], "m.gguf")  # no reason to complain
    assert store.state_file("history") is None


# ---- what is typed


@pytest.mark.parametrize(
    ("typed", "open_", "meant"),
    [
        ("hello", False, "hello"),
        ("  hello \n", False, "hello"),
        ("one\\", True, None),
        ("one\\\ntwo", False, "one\ntwo"),
        ('"""one', True, None),
        ('"""one\ntwo', True, None),
        ('"""one\n\n  two"""', False, "one\n\n  two"),
        ('"""\none\n"""', False, "one"),
        ("two\nlines", False, "two\nlines"),
    ],
)
def test_several_lines(typed: str, open_: bool, meant: str | None) -> None:
    assert unfinished(typed) is open_
    if meant is not None:
        assert message(typed) == meant
