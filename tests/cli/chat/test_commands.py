"""Commands of the chat, without a terminal, on a small random model."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import olivine
from olivine import LLM, Message, OlivineError, RequestError
from olivine.cli.chat import store
from olivine.cli.chat.commands import COMMANDS, Chat, Quit, execute, is_command
from olivine.cli.chat.loop import converse
from olivine.cli.chat.session import SETTINGS, Session
from olivine.cli.chat.view import PlainView
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


def shown(chat: Chat, line: str) -> str:
    """What a command shows that is no answer."""
    found = execute(chat, line)
    assert isinstance(found, str)
    return found


def test_help_names_every_command(chat: Chat) -> None:
    listed = shown(chat, "/help")
    names = (
        "/help /retry /undo /clear /system /file /think /set /format /model /tools /show /save /load /image "
        "/audio /tokens /stats /quit"
    )
    assert names.split() == [f"/{name}" for name in COMMANDS]
    for name in names.split():
        assert f"\n{name}" in f"\n{listed}"
    assert shown(chat, "/?") == listed


def test_what_is_a_command_and_what_is_not() -> None:
    assert is_command("/help") and is_command("  /set a b ") and is_command("/no-such-thing")
    for text in ("", "hello", "/usr/bin/env is a path", "/help\nme", "1/2"):
        assert not is_command(text)


def test_clear_and_system(chat: Chat) -> None:
    assert shown(chat, "/system") == "There is no system message."
    assert "Be brief and kind." in execute(chat, "/system Be brief and kind.")
    ask(chat, "one")
    assert chat.session.conversation[0] == Message("system", "Be brief and kind.")
    execute(chat, "/clear")
    assert [each.role for each in chat.session.conversation] == ["system"]
    assert shown(chat, "/system off") == "There is no system message."
    assert chat.session.conversation == []


def test_set_changes_what_is_asked_of_the_model(chat: Chat, llm: LLM) -> None:
    execute(chat, "/set seed 5")
    assert shown(chat, "/set temp=0.5") == "temperature: 0.5"
    assert shown(chat, "/set max_tokens 7") == "max_tokens: 7"
    assert ask(chat, "one") == llm.chat("one", temperature=0.5, seed=5, max_tokens=7, think=False).content
    execute(chat, "/set seed default")
    assert "seed" not in chat.session.options
    for name in SETTINGS:
        assert name in execute(chat, "/set")


def test_numbers_are_shown_as_people_write_them(
    chat: Chat, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = replace(llm.sampling, temperature=float(np.float32(0.8)), top_p=0.95, top_k=40)
    monkeypatch.setattr(llm, "sampling", published)
    chat.session.options = {"min_p": float(np.float32(0.05)), "seed": 1 << 63}
    rows = dict(line.split(None, 1) for line in shown(chat, "/set").splitlines()[:-1])
    assert rows["temperature"] == "0.8 (default)"
    assert rows["top_p"] == "0.95 (default)"
    assert rows["top_k"] == "40 (default)"
    assert rows["min_p"] == "0.05" and rows["seed"] == str(1 << 63)


def test_set_as_ollama_has_it(chat: Chat) -> None:
    assert shown(chat, "/set parameter temperature 0.5") == "temperature: 0.5"
    assert shown(chat, "/set parameter num_predict 7") == "max_tokens: 7"
    assert shown(chat, "/set parameter repeat_penalty 1.5") == "repetition_penalty: 1.5"
    execute(chat, "/set max_tokens -1")
    assert "max_tokens" not in chat.session.options
    execute(chat, "/set system Be kind.")
    assert chat.session.system == "Be kind."
    execute(chat, "/set think")
    assert chat.session.think == "on"
    execute(chat, "/set nothink")
    assert chat.session.think == "off"
    execute(chat, "/set format json")
    assert chat.session.response_format == "json"
    execute(chat, "/set noformat")
    assert chat.session.response_format is None


def test_format_holds_for_the_answers_that_follow(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"enum": ["yes", "no"]}')
    chat.session.options["max_tokens"] = 50
    execute(chat, f"/format {tmp_path / 'schema.json'}")
    assert ask(chat, "one") in ('"yes"', '"no"')
    assert ask(chat, "two") in ('"yes"', '"no"')
    assert shown(chat, "/format") == "Answers follow a JSON schema; /format off lets them be any text."
    assert "any text" in shown(chat, "/format off")
    assert ask(chat, "three") not in ('"yes"', '"no"')


def test_retry_answers_again_with_a_fresh_seed(chat: Chat) -> None:
    chat.session.options["ignore_eos"] = True
    ask(chat, "one")
    ask(chat, "two")
    first, answer = chat.session.messages[:2], chat.session.messages[3]
    again = execute(chat, "/retry")
    assert not isinstance(again, str)
    text = "".join(delta.content for delta in again)
    assert chat.session.messages == [*first, Message("user", "two"), chat.session.messages[3]]
    assert text == chat.session.messages[3].text != answer.text
    last = chat.session.last
    assert last is not None and last.seed != 3 and chat.session.options["seed"] == 3


def test_a_retry_that_says_nothing_keeps_the_old_answer(chat: Chat) -> None:
    ask(chat, "one")
    before = chat.session.messages
    chat.session.attached = ["notes"]
    again = execute(chat, "/regen")
    assert not isinstance(again, str)
    again.close()
    assert chat.session.messages == before and chat.session.attached == ["notes"]


def test_undo_removes_the_last_question_and_its_answer(chat: Chat) -> None:
    ask(chat, "one")
    ask(chat, "two " * 50)
    assert shown(chat, "/undo") == f"Removed: {('two ' * 50)[:59]}… (2 messages left)"
    assert [each.text for each in chat.session.messages if each.role == "user"] == ["one"]
    assert shown(chat, "/undo") == "Removed: one (0 messages left)"
    assert chat.session.messages == []


def test_what_was_cleared_or_undone_is_not_continued(
    chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLIVINE_STATE", str(tmp_path / "state"))
    execute(chat, "/clear")  # with nothing to forget
    chat.session.system = "Be kind."
    for text in ("one", "two"):
        ask(chat, text)
        store.remember(chat.session.conversation, chat.model)
    execute(chat, "/undo")
    assert store.recall() == (chat.session.conversation, "the model")
    execute(chat, "/clear")
    with pytest.raises(RequestError, match="no conversation to continue"):
        store.recall()
    # Another conversation, of another window, is left alone.
    store.remember([Message("user", "other")], "m.gguf")
    ask(chat, "three")
    execute(chat, "/clear")
    assert store.recall() == ([Message("user", "other")], "m.gguf")


def test_a_disk_without_room_leaves_the_last_conversation_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLIVINE_STATE", str(tmp_path / "state"))

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(store.tempfile, "mkstemp", full)
        store.remember([Message("user", "one")], "m.gguf")
    with pytest.raises(RequestError, match="no conversation to continue"):
        store.recall()
    store.remember([Message("user", "one")], "m.gguf")
    with monkeypatch.context() as disk:
        disk.setattr(store.tempfile, "mkstemp", full)
        store.remember([Message("user", "two")], "m.gguf")
    assert store.recall() == ([Message("user", "one")], "m.gguf")
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0
    assert (tmp_path / "state" / "last.json").stat().st_mode & 0o077 == 0


def test_files_go_before_the_next_message(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("some notes")
    assert shown(chat, "/file").startswith("No text")
    assert "1 text of" in shown(chat, f"/file {tmp_path / 'notes.txt'}")
    assert "2 texts of" in shown(chat, f"/file {tmp_path / 'notes.txt'}")
    chat.session.ask("never answered").close()
    execute(chat, "/file off")
    execute(chat, f"/file {tmp_path / 'notes.txt'}")
    ask(chat, "one")
    ask(chat, "two")
    said = [each.text for each in chat.session.messages if each.role == "user"]
    assert said == ["notes.txt:\n```\nsome notes\n```\n\none", "two"]


def test_a_full_context_is_said_with_what_can_be_done(llm: LLM) -> None:
    view = Notes()
    with olivine.load(llm.checkpoint.path, device="cpu", threads=1, context=100, sequences=1) as small:
        chat = Chat(Session(small, temperature=1.0, seed=3, ignore_eos=True), "the model")
        lines = ["word " * 40, "word " * 600, "one", "two", "/undo", "word", "/quit"]
        converse(chat, Lines(iter(lines)), view)
    notes = iter(view.notes)
    full = "tokens, and the context holds 100 with the answer"
    assert full in next(notes)
    assert next(notes) == "olivine chat --context 256 has more room."
    assert full in next(notes)
    assert next(notes) == "say it shorter: the model reads no more than this."
    advice = "/undo removes the last question and its answer; /clear begins anew; "
    assert next(notes) == f"{advice}olivine chat -c --context 200 has more room."
    assert full in next(notes), "the second question does not fit"
    assert next(notes).startswith(advice)
    assert next(notes) == "Removed: one (0 messages left)"
    assert next(notes).startswith(advice), "the conversation can be used again"


def test_model_shows_and_changes_the_model(chat: Chat, llm: LLM, tmp_path: Path) -> None:
    assert shown(chat, "/model") == f"the model · {llm.device} · context 512"
    path = tiny.write("tiny-llama", "Q8_0", tmp_path)
    opened = []

    def open_model(path: Path) -> LLM:
        opened.append(olivine.load(path, device="cpu", threads=1, context=256, sequences=1))
        return opened[-1]

    chat = Chat(
        Session(open_model(llm.checkpoint.path), **HOW), str(llm.checkpoint.path), open_model=open_model
    )
    execute(chat, "/think on")
    ask(chat, "one")
    before = chat.session.messages
    with pytest.raises(OlivineError, match="no such file"):
        execute(chat, "/model /no/such/file")
    assert len(opened) == 1, "the old model is still there"
    lines = shown(chat, f"/model {path}").split("\n")
    assert lines[0] == f"tiny-llama.gguf · {opened[1].device} · context 256"
    assert chat.model == str(path) and chat.session.messages == before
    ask(chat, "two")
    assert len(chat.session.messages) == 4
    with pytest.raises(OlivineError, match="closed"):
        opened[0].generate("x")
    # A file that turns out to be unusable costs nothing but time.
    (tmp_path / "bad.gguf").write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(OlivineError):
        execute(chat, f"/model {tmp_path / 'bad.gguf'}")
    ask(chat, "three")
    assert chat.model == str(path) and len(chat.session.messages) == 6
    for each in opened:
        each.close()


def test_show(chat: Chat, llm: LLM) -> None:
    execute(chat, "/system Be kind.")
    shows = shown(chat, "/show")
    assert "architecture  qwen3" in shows and "temperature" in shows and "Be kind." in shows
    assert shown(chat, "/show template") == llm.conversations.template.source
    assert "<|im_start|>system\nBe kind.<|im_end|>" in shown(chat, "/show prompt")
    assert shown(chat, "/show parameters") == shown(chat, "/set")


class Notes(PlainView):
    """A view that keeps what it is told beside the answers."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.notes: list[str] = []

    def note(self, text: str, *, style: str = "") -> None:
        self.notes.append(text)


class Lines:
    """What somebody types."""

    interactive = True

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines

    def read(self) -> str:
        return next(self._lines)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0),
        ("top_p", 0.0),
        ("top_k", -1),
        ("min_p", 2.0),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 101.0),
        ("frequency_penalty", -101.0),
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
        ("/save ~nobody-9/x.json", "~nobody-9/x.json: cannot be written: No such file"),
        (f"/save {'x' * 300}", "/save: File name too long"),
        ("/load /no/such/file", "/no/such/file: cannot be read: No such file"),
        ("/load a\0b", "/load: embedded null byte"),
        ("/load model.GGUF", "model.GGUF is a model, not a conversation: /model model.GGUF talks with it"),
        ("/set num_ctx 4096", "begin with -c --context N"),
        ("/set parameter heat 1", "there is no setting 'heat'"),
        ("/set num_predict many", "max_tokens must be a whole number"),
        ("/set format {]", "this is no JSON (line 1, column 2"),
        ('/format {"type": "nope"}', "the schema has a type that does not exist: nope"),
        ("/load /", "/ is a folder, not a conversation"),
        ("/retry", "nothing was asked yet"),
        ("/undo", "nothing was asked yet"),
        ("/file /no/such/file", "/no/such/file: cannot be read"),
        ("/file ~nobody-9/x", "~nobody-9/x: cannot be read"),
        ("/tools ~nobody-9/x.py", "~nobody-9/x.py: there is no such file"),
        ("/show everything", "/show takes one of: info, parameters, system, template, prompt"),
        ("/image cat.png", "text only"),
        ("/image ~nobody-9/cat.png", "text only"),
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
    assert shown(chat, "/think open") == "I think that" and chat.open_thoughts
    assert "folded" in execute(chat, "/think fold") and not chat.open_thoughts


def test_tokens_and_stats(chat: Chat, llm: LLM) -> None:
    assert shown(chat, "/tokens") == "0 of 512 tokens in 0 messages."
    assert (
        execute(chat, "/tokens hello") == f"{len(llm.tokenizer.encode('hello', add_special=False))} tokens."
    )
    ask(chat, "one")
    last = chat.session.last
    assert last is not None
    count = len(llm.conversations.prepare(chat.session.conversation).tokens)
    assert shown(chat, "/tokens") == f"{count} of 512 tokens in 2 messages."
    stats = dict(line.split(None, 1) for line in execute(chat, "/stats").split("\n"))
    assert stats["prompt"].startswith(f"{last.prompt} tokens: {last.cached} cached, ")
    assert stats["answer"].startswith("12 tokens in ")
    assert stats["seed"] == "3" and stats["session"] == "12 tokens generated"
    assert stats["model"] == f"the model on {llm.device}"


def test_quit(chat: Chat) -> None:
    for line in ("/quit", "/exit", "/bye"):
        with pytest.raises(Quit):
            execute(chat, line)
