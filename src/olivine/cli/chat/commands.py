"""What a line that begins with a slash does.

A command is told the chat and the rest of its line, and gives back what to show.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from olivine.cli.chat import store
from olivine.cli.chat.session import SETTINGS, Session
from olivine.errors import RequestError


class Quit(Exception):
    """The user wants to leave."""


@dataclass
class Chat:
    """What commands act on: a session, and how it is shown."""

    session: Session
    model: str  # its path: goes into saved files
    open_thoughts: bool = False  # whether thoughts stay readable once the answer begins
    thought: str = ""  # the last one


@dataclass(frozen=True)
class Command:
    usage: str
    help: str
    run: Callable[[Chat, str], str]


def is_command(line: str) -> bool:
    """Whether a line is meant as a command. A path, or several lines, are something to say."""
    word = line.split(None, 1)[0] if line.strip() else ""
    return word.startswith("/") and "/" not in word[1:] and "\n" not in line.strip()


def execute(chat: Chat, line: str) -> str:
    """Runs a command and gives back what to show."""
    word, _, argument = line.strip().partition(" ")
    name = ALIASES.get(word[1:], word[1:])
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean /{near[0]}?" if near else "/help lists them"
        raise RequestError(f"there is no command {word}: {hint}")
    return COMMANDS[name].run(chat, argument.strip())


def _help(chat: Chat, argument: str) -> str:
    width = max(len(command.usage) for command in COMMANDS.values())
    rows = [f"{command.usage:<{width}}  {command.help}" for command in COMMANDS.values()]
    return "\n".join([*rows, "", *KEYS])


def _clear(chat: Chat, argument: str) -> str:
    store.forget(chat.session.messages)
    chat.session.clear()
    chat.thought = ""
    return "Forgotten. The system's message and the settings stay."


def _system(chat: Chat, argument: str) -> str:
    session = chat.session
    if argument:
        session.system = None if argument == "off" else argument
    return f"The system's message: {session.system}" if session.system else "There is no system message."


def _think(chat: Chat, argument: str) -> str:
    if argument in ("open", "fold"):
        chat.open_thoughts = argument == "open"
        if chat.open_thoughts and chat.thought:
            return chat.thought
    elif argument:
        chat.session.set_thinking(argument)
    asked = "as the model likes" if chat.session.think is None else chat.session.think
    return f"Thinking: {asked}; thoughts are {'left open' if chat.open_thoughts else 'folded'}."


def _set(chat: Chat, argument: str) -> str:
    session = chat.session
    words = argument.replace("=", " ").split()
    if len(words) == 2:
        name = {"temp": "temperature"}.get(words[0], words[0])
        _known(name)
        session.set(name, words[1])
        return f"{name}: {session.setting(name)}"
    if words:
        _known(words[0])
        raise RequestError(f"/set takes a name and a value, as in /set {words[0]} {_EXAMPLES[words[0]]}")
    width = max(map(len, SETTINGS))
    rows = [f"{name:<{width}}  {session.setting(name)}" for name in SETTINGS]
    return "\n".join([*rows, "/set NAME VALUE changes one, and /set NAME default takes that back."])


def _known(name: str) -> None:
    if name not in SETTINGS and name != "temp":
        raise RequestError(f"there is no setting {name!r}; known: {', '.join(SETTINGS)}")


def _save(chat: Chat, argument: str) -> str:
    path = _path("/save", argument)
    messages = chat.session.conversation
    if path.exists():
        try:
            store.load(path)
        except RequestError:
            raise RequestError(f"{path} is no conversation, and stays: name another file") from None
    store.save(path, messages, chat.model)
    return f"{_several(len(messages), 'message')} in {path}."


def _load(chat: Chat, argument: str) -> str:
    messages, _ = store.load(_path("/load", argument))
    chat.session.clear()
    chat.session.system, chat.session.messages = store.split(messages)
    return f"{_several(len(messages), 'message')} loaded."


def _media(chat: Chat, argument: str) -> str:
    raise RequestError("this model is run for text only: images and sounds cannot be attached yet")


def _tokens(chat: Chat, argument: str) -> str:
    llm = chat.session.llm
    if argument:
        return f"{_several(len(llm.tokenizer.encode(argument, add_special=False)), 'token')}."
    count = chat.session.count()
    messages = _several(len(chat.session.conversation), "message")
    return f"{count:,} of {llm.context:,} tokens in {messages}."


def _stats(chat: Chat, argument: str) -> str:
    session, last = chat.session, chat.session.last
    rows = []
    if last is not None:
        if last.prompt is not None:
            read = last.prompt - last.cached
            speed = f", {read / last.prefill:,.1f} tok/s" if last.prefill > 0 else ""
            took = f"{last.cached:,} cached, {read:,} read in {last.prefill:.2f} s{speed}"
            rows.append(("prompt", f"{last.prompt:,} tokens: {took}"))
        speed = f", {last.speed:,.1f} tok/s" if last.speed is not None else ""
        rows.append(("answer", f"{last.completion:,} tokens in {last.decode:.2f} s{speed}"))
        if last.reasoning:
            rows.append(("thoughts", f"{last.reasoning:,} of these tokens"))
        if last.accepted:
            rows.append(("guessed", f"{last.accepted:,} of these tokens"))
        rows.append(("ended by", last.finish_reason))
        if last.seed is not None:
            rows.append(("seed", str(last.seed)))
        rows.append(("context", f"{last.context:,} of {session.llm.context:,} tokens"))
    rows.append(("session", f"{session.total:,} tokens generated"))
    rows.append(("model", f"{Path(chat.model).name} on {session.llm.device}"))
    return "\n".join(f"{name:<9} {text}" for name, text in rows)


def _quit(chat: Chat, argument: str) -> str:
    raise Quit


def _path(command: str, argument: str) -> Path:
    if not argument:
        raise RequestError(f"{command} needs a file, as in {command} chat.json")
    return Path(argument).expanduser()


def _several(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


_EXAMPLES = {
    "temperature": "0.7",
    "temp": "0.7",
    "top_p": "0.95",
    "top_k": "40",
    "min_p": "0.05",
    "repetition_penalty": "1.1",
    "presence_penalty": "0.5",
    "frequency_penalty": "0.5",
    "seed": "7",
    "max_tokens": "500",
}
COMMANDS = {
    "help": Command("/help", "this list", _help),
    "clear": Command("/clear", "forget the conversation", _clear),
    "system": Command("/system [TEXT]", "show or set the system's message; /system off removes it", _system),
    "think": Command(
        "/think [HOW]", "on, off, or an effort such as high; open or fold: whether thoughts stay", _think
    ),
    "set": Command("/set [NAME VALUE]", "show or change how answers are drawn: temperature, seed …", _set),
    "save": Command("/save FILE", "write the conversation as JSON", _save),
    "load": Command("/load FILE", "go on with a conversation that was saved", _load),
    "image": Command("/image FILE", "not yet: models are run for text only", _media),
    "audio": Command("/audio FILE", "not yet: models are run for text only", _media),
    "tokens": Command("/tokens [TEXT]", "how many tokens the conversation, or a text, has", _tokens),
    "stats": Command("/stats", "what the last answer took", _stats),
    "quit": Command("/quit", "leave", _quit),
}
ALIASES = {"?": "help", "h": "help", "exit": "quit", "bye": "quit", "q": "quit", "reset": "clear"}
KEYS = (
    'Enter sends. Alt-Enter, Ctrl-J, a \\ at the end of a line, or Enter inside of """ begins a new line.',
    "Up and down go through what you said before; Ctrl-X Ctrl-E opens an editor.",
    "Ctrl-O opens or folds thoughts. Ctrl-C stops the answer. Ctrl-D leaves.",
)
