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
from olivine.cli.chat.commands import COMMANDS, Chat, Quit, execute, is_command
from olivine.cli.chat.input import message, unfinished
from olivine.cli.chat.session import SETTINGS, Session
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
    turn = chat.session.llm.conversations.ask([*chat.session.conversation, Message("user", "two")])
    assert sum(turn.generated) > 0


def test_a_question_that_got_no_answer_is_not_kept(chat: Chat) -> None:
    chat.session.ask("one").close()
    deltas = chat.session.ask("one")
    next(deltas)
    deltas.close()
    assert chat.session.messages == [] or chat.session.messages[1].text
    with pytest.raises(RequestError, match="the context holds 512"):
        chat.session.ask("word " * 600)
    assert len(chat.session.messages) in (0, 2)


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


# ---- commands


def test_help_names_every_command(chat: Chat) -> None:
    shown = execute(chat, "/help")
    names = "/help /clear /system /think /set /save /load /image /audio /tokens /stats /quit"
    assert names.split() == [f"/{name}" for name in COMMANDS]
    for name in names.split():
        assert f"\n{name}" in f"\n{shown}"
    assert execute(chat, "/?") == shown


def test_what_is_a_command_and_what_is_not() -> None:
    assert is_command("/help") and is_command("  /set a b ") and is_command("/no-such-thing")
    for text in ("", "hello", "/usr/bin/env is a path", "/help\nme", "1/2"):
        assert not is_command(text)


def test_clear_and_system(chat: Chat) -> None:
    assert execute(chat, "/system") == "There is no system message."
    assert "Be brief and kind." in execute(chat, "/system Be brief and kind.")
    ask(chat, "one")
    assert chat.session.conversation[0] == Message("system", "Be brief and kind.")
    execute(chat, "/clear")
    assert [each.role for each in chat.session.conversation] == ["system"]
    assert execute(chat, "/system off") == "There is no system message."
    assert chat.session.conversation == []


def test_set_changes_what_is_asked_of_the_model(chat: Chat, llm: LLM) -> None:
    execute(chat, "/set seed 5")
    assert execute(chat, "/set temp=0.5") == "temperature: 0.5"
    assert execute(chat, "/set max_tokens 7") == "max_tokens: 7"
    assert ask(chat, "one") == llm.chat("one", temperature=0.5, seed=5, max_tokens=7, think=False).content
    execute(chat, "/set seed default")
    assert "seed" not in chat.session.options
    for name in SETTINGS:
        assert name in execute(chat, "/set")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0),
        ("top_p", 0.0),
        ("top_k", -1),
        ("min_p", 2.0),
        ("repetition_penalty", 0.0),
        ("seed", -1),
        ("max_tokens", 0),
    ],
)
def test_set_refuses_in_the_library_s_words(chat: Chat, llm: LLM, name: str, value: Any) -> None:
    with pytest.raises(RequestError) as library:
        llm.chat("Hi", **{name: value})
    before = dict(chat.session.options)
    with pytest.raises(RequestError) as command:
        execute(chat, f"/set {name} {value}")
    assert str(command.value) == str(library.value)
    assert chat.session.options == before
    with pytest.raises(RequestError) as beginning:
        Session(llm, **{name: value})
    assert str(beginning.value) == str(library.value)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("/frobnicate", "there is no command /frobnicate: /help lists them"),
        ("/hlep", "did you mean /help?"),
        ("/set heat 1", "there is no setting 'heat'; known: temperature, "),
        ("/set top_k", "as in /set top_k 40"),
        ("/set top_k many", "top_k must be a whole number, and is 'many'"),
        ("/set temperature warm", "temperature must be a number, and is 'warm'"),
        ("/think sideways", "think is 'sideways'; known: on, off, "),
        ("/save", "/save needs a file, as in /save chat.json"),
        ("/save /no/such/folder/x.json", "cannot be written"),
        ("/load /no/such/file", "/no/such/file: cannot be read: No such file"),
        ("/image cat.png", "text only"),
        ("/audio cat.wav", "text only"),
    ],
)
def test_what_makes_no_sense_is_one_line(chat: Chat, line: str, complaint: str) -> None:
    with pytest.raises(RequestError) as error:
        execute(chat, line)
    assert complaint in str(error.value) and "\n" not in str(error.value)


def test_think(chat: Chat) -> None:
    assert "folded" in execute(chat, "/think")
    execute(chat, "/think on")
    assert chat.session.think == "on"
    thoughtful = chat.session.llm.chat("one", **{**HOW, "think": True})
    assert ask(chat, "one") == thoughtful.content != chat.session.llm.chat("one", **HOW).content
    chat.thought = "I think that"
    assert execute(chat, "/think open") == "I think that" and chat.open_thoughts
    assert "folded" in execute(chat, "/think fold") and not chat.open_thoughts


def test_tokens_and_stats(chat: Chat, llm: LLM) -> None:
    assert execute(chat, "/tokens") == "0 of 512 tokens in 0 messages."
    assert (
        execute(chat, "/tokens hello") == f"{len(llm.tokenizer.encode('hello', add_special=False))} tokens."
    )
    ask(chat, "one")
    last = chat.session.last
    assert last is not None
    count = len(llm.conversations.ask(chat.session.conversation).tokens)
    assert execute(chat, "/tokens") == f"{count} of 512 tokens in 2 messages."
    stats = dict(line.split(None, 1) for line in execute(chat, "/stats").split("\n"))
    assert stats["prompt"].startswith(f"{last.prompt} tokens: {last.cached} cached, ")
    assert stats["answer"].startswith("12 tokens in ")
    assert stats["seed"] == "3" and stats["session"] == "12 tokens generated"
    assert stats["model"] == f"the model on {llm.device}"


def test_quit(chat: Chat) -> None:
    for line in ("/quit", "/exit", "/bye"):
        with pytest.raises(Quit):
            execute(chat, line)


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
