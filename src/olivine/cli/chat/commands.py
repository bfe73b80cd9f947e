"""Commands: lines that begin with a slash.

A command is told the chat and the rest of its line, and gives back what to show.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from olivine.cli.chat import store
from olivine.cli.chat.session import SETTINGS, Session
from olivine.cli.chat.tools import Tools
from olivine.cli.files import attachment, schema
from olivine.cli.loading import saved_model, saved_name
from olivine.cli.prompt import spelled
from olivine.cli.text import facts_table, program
from olivine.errors import RequestError
from olivine.formats.safetensors import is_model_folder
from olivine.hub import find
from olivine.hub.local import title
from olivine.hub.names import MODEL_FILES

if TYPE_CHECKING:
    from olivine.llm import LLM
    from olivine.reply import Delta

# What a command gives back: a text to show, or an answer of the model.
Shown = str | Generator["Delta", None, None]


class Quit(Exception):
    """The user wants to leave."""


@dataclass
class Chat:
    """What commands act on: a session, and how it is shown."""

    session: Session
    model: str  # its path: goes into saved files
    open_thoughts: bool = False  # whether thoughts stay readable once the answer begins
    thought: str = ""  # the last one
    open_model: Callable[[Path], LLM] | None = None
    run_tools: bool = False  # without asking the user

    @property
    def title(self) -> str:
        llm = self.session.llm
        return f"{title(Path(self.model))} · {llm.device} · context {llm.context:,}"


@dataclass(frozen=True)
class Command:
    usage: str
    help: str
    run: Callable[[Chat, str], Shown]


def is_command(line: str) -> bool:
    """Whether a line is a command. A path and several lines are a message."""
    word = line.split(None, 1)[0] if line.strip() else ""
    return word.startswith("/") and "/" not in word[1:] and "\n" not in line.strip()


def execute(chat: Chat, line: str) -> Shown:
    """Runs a command and gives back what to show. Whatever is wrong with a path is the user's to hear."""
    word, _, argument = line.strip().partition(" ")
    name = ALIASES.get(word[1:], word[1:])
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean /{near[0]}?" if near else "/help lists them"
        raise RequestError(f"there is no command {word}: {hint}")
    try:
        return COMMANDS[name].run(chat, argument.strip())
    except (OSError, ValueError) as error:
        raise RequestError(f"{word}: {getattr(error, 'strerror', None) or error}") from None


def advice(chat: Chat, needed: int = 0) -> str:
    """Advice for a full context; `needed` is the number of tokens."""
    llm, begun = chat.session.llm, bool(chat.session.messages)
    ways = ["/undo removes the last question and its answer", "/clear begins anew"] if begun else []
    most = llm.model.config.context
    if max(needed, llm.context) < most:
        size = min(most, max(2 * llm.context, 1 << needed.bit_length()))
        ways.append(f"{program()} chat{' -c' if begun else ''} --context {size} has more room")
    return "; ".join(ways or ["say it shorter: the model reads no more than this"]) + "."


def _help(chat: Chat, argument: str) -> str:
    width = max(len(command.usage) for command in COMMANDS.values())
    rows = [f"{command.usage:<{width}}  {command.help}" for command in COMMANDS.values()]
    return "\n".join([*rows, "", *KEYS])


def _clear(chat: Chat, argument: str) -> str:
    before = chat.session.messages
    chat.session.clear()
    chat.thought = ""
    store.revise(before, chat.session.conversation, chat.model)
    return "Forgotten. The system message and the settings stay."


def _retry(chat: Chat, argument: str) -> Shown:
    return chat.session.retry()


def _undo(chat: Chat, argument: str) -> str:
    before = chat.session.messages
    text = " ".join(chat.session.undo().text.split())
    chat.thought = ""
    store.revise(before, chat.session.conversation, chat.model)
    left = _several(len(chat.session.messages), "message")
    return f"Removed: {text if len(text) <= 60 else text[:59] + '…'} ({left} left)"


def _file(chat: Chat, argument: str) -> str:
    if argument == "off":
        chat.session.attached = []
    elif argument:
        chat.session.attached.append(attachment(_expanded(argument)))
    attached = [each for each in chat.session.attached if isinstance(each, str)]
    if not attached:
        return "No text goes before the next message; /file FILE adds one."
    tokens = len(chat.session.llm.tokenizer.encode("\n\n".join(attached), add_special=False))
    texts = _several(len(attached), "text")
    return f"{texts} of {tokens:,} tokens in all before the next message; /file off takes that back."


def _system(chat: Chat, argument: str) -> str:
    session = chat.session
    if argument:
        session.system = None if argument == "off" else argument
    return f"System message: {session.system}" if session.system else "There is no system message."


def _think(chat: Chat, argument: str) -> str:
    if argument in ("open", "fold"):
        chat.open_thoughts = argument == "open"
        if chat.open_thoughts and chat.thought:
            return chat.thought
    elif argument:
        chat.session.set_thinking(argument)
    asked = "the model's default" if chat.session.think is None else chat.session.think
    return f"Thinking: {asked}; thoughts are {'left open' if chat.open_thoughts else 'folded'}."


def _set(chat: Chat, argument: str) -> str:
    session = chat.session
    word, _, rest = argument.partition(" ")
    if word in _SET:
        return _SET[word](chat, rest.strip())
    words = argument.replace("=", " ").split()
    if len(words) == 2:
        name = _known(words[0])
        session.set(name, words[1])
        return f"{name}: {session.setting(name)}"
    if words:
        name = _known(words[0])
        raise RequestError(f"/set takes a name and a value, as in /set {name} {_EXAMPLES[name]}")
    width = max(map(len, SETTINGS))
    rows = [f"{name:<{width}}  {session.setting(name)}" for name in SETTINGS]
    return "\n".join([*rows, "/set NAME VALUE changes one, and /set NAME default takes that back."])


def _format(chat: Chat, argument: str) -> str:
    session = chat.session
    if argument:
        asked = None if argument == "off" else schema(argument)
        if asked is not None:
            session.llm.grammar(asked)  # what cannot be kept is told now, and not at every message
        session.response_format = asked
    wanted = session.response_format
    if wanted is None:
        return "Answers may be any text; /format json makes them JSON."
    kinds = {"grammar": "follow a grammar", "regex": "match a regular expression"}
    how = "are JSON" if wanted == "json" else kinds.get(wanted.get("type"), "follow a JSON schema")
    return f"Answers {how}; /format off lets them be any text."


def _known(name: str) -> str:
    """A setting's name from any of its spellings."""
    if name in ("num_ctx", "context", "ctx_size"):
        raise RequestError("the context is set at the beginning: leave, and begin with -c --context N")
    name = _SPELLINGS.get(name, name)
    if name not in SETTINGS:
        raise RequestError(f"there is no setting {name!r}; known: {', '.join(SETTINGS)}")
    return name


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
    path = _path("/load", argument)
    if path.is_dir() and not is_model_folder(path) and not any(path.glob("*.gguf")):
        raise RequestError(f"{path} is a folder, not a conversation")
    if path.name.lower().endswith(MODEL_FILES) or path.is_dir():
        raise RequestError(f"{path} is a model, not a conversation: /model {path} talks with it")
    messages, _ = store.load(path)
    chat.session.clear()
    chat.session.system, chat.session.messages = store.split(messages)
    return f"{_several(len(messages), 'message')} loaded."


def _model(chat: Chat, argument: str) -> str:
    session = chat.session
    if argument:
        if chat.open_model is None:
            raise RequestError("the model cannot be changed here")
        from olivine.formats import open_checkpoint

        path = find(os.path.expanduser(argument))
        open_checkpoint(path)  # what cannot be read costs nothing
        session.llm.close()  # before the other: there may not be memory for both
        try:
            session.switch(chat.open_model(path))
        except BaseException:
            session.switch(chat.open_model(saved_model(chat.model)))
            raise
        chat.model = saved_name(path)
    notes = [f"warning: {warning}" for warning in session.llm.warnings] if argument else []
    try:
        session.set_thinking(session.think)
    except RequestError as error:
        session.think = None
        notes.append(f"Thinking is the model's default now: {error}")
    return "\n".join([chat.title, *notes])


def _tools(chat: Chat, argument: str) -> str:
    if argument:
        chat.session.tools = None if argument == "off" else Tools.load(_expanded(argument))
    if chat.session.tools is None:
        return "The model may call nothing; /tools FILE.py lets it call the functions of a file."
    how = "without asking" if chat.run_tools else "if you agree"
    return f"The model may call these, {how}:\n{chat.session.tools}"


def _show(chat: Chat, argument: str) -> str:
    if not argument:
        parts = [_SHOW[name](chat, "") for name in ("info", "parameters", "system")]
        return "\n\n".join([*parts, "/show template and /show prompt show these."])
    if argument not in _SHOW:
        raise RequestError(f"/show takes one of: {', '.join(_SHOW)}")
    return _SHOW[argument](chat, "")


def _info(chat: Chat, argument: str) -> str:
    from olivine.cli.inspect import lines, summary

    llm = chat.session.llm
    towers, files = [tower.built for tower in llm.towers], llm.towers[0].files if llm.towers else ()
    return facts_table(lines(summary(llm.checkpoint, llm.model, "", towers, files)))


def _template(chat: Chat, argument: str) -> str:
    return chat.session.llm.conversations.template.source


def _prompt(chat: Chat, argument: str) -> str:
    if not chat.session.conversation:
        return "Nothing was said yet."
    return spelled(chat.session.llm.tokenizer, chat.session.prompt())


def _media(chat: Chat, argument: str) -> str:
    chat.session.attach(_path("/image", argument, "photo.jpg"))
    return f"{argument} goes before the next message."


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
            rows.append(("drafts", f"{last.accepted:,} tokens accepted"))
        rows.append(("ended by", last.finish_reason))
        if last.seed is not None:
            rows.append(("seed", str(last.seed)))
        rows.append(("context", f"{last.context:,} of {session.llm.context:,} tokens"))
    rows.append(("session", f"{session.total:,} tokens generated"))
    rows.append(("model", f"{Path(chat.model).name} on {session.llm.device}"))
    return "\n".join(f"{name:<9} {text}" for name, text in rows)


def _quit(chat: Chat, argument: str) -> str:
    raise Quit


def _path(command: str, argument: str, example: str = "chat.json") -> Path:
    if not argument:
        raise RequestError(f"{command} needs a file, as in {command} {example}")
    return _expanded(argument)


def _expanded(argument: str) -> Path:
    """As a shell has it: a ~ that is nobody's home stays, which `Path.expanduser` refuses."""
    return Path(os.path.expanduser(argument))


def _several(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


_EXAMPLES = {
    "temperature": "0.7",
    "top_p": "0.95",
    "top_k": "40",
    "min_p": "0.05",
    "repetition_penalty": "1.1",
    "presence_penalty": "0.5",
    "frequency_penalty": "0.5",
    "seed": "7",
    "max_tokens": "500",
}
_SPELLINGS = {
    "temp": "temperature",
    "repeat_penalty": "repetition_penalty",
    "num_predict": "max_tokens",
    "n_predict": "max_tokens",
}
# What Ollama's /set has beside parameters.
_SET: dict[str, Callable[[Chat, str], str]] = {
    "parameter": _set,
    "system": _system,
    "format": _format,
    "noformat": lambda chat, argument: _format(chat, "off"),
    "think": lambda chat, argument: _think(chat, argument or "on"),
    "nothink": lambda chat, argument: _think(chat, "off"),
}
_SHOW: dict[str, Callable[[Chat, str], str]] = {
    "info": _info,
    "parameters": lambda chat, argument: _set(chat, ""),
    "system": _system,
    "template": _template,
    "prompt": _prompt,
}
COMMANDS = {
    "help": Command("/help", "this list", _help),
    "retry": Command("/retry", "answer the last question again, with a fresh seed", _retry),
    "undo": Command("/undo", "remove the last question and its answer", _undo),
    "clear": Command("/clear", "forget the conversation", _clear),
    "system": Command("/system [TEXT]", "show or set the system message; /system off removes it", _system),
    "file": Command("/file FILE", "put a text before the next message; /file off takes it back", _file),
    "think": Command(
        "/think [HOW]",
        "on, off or an effort such as high; open or fold: whether thoughts stay visible",
        _think,
    ),
    "set": Command("/set [NAME VALUE]", "show or change sampling settings: temperature, seed …", _set),
    "format": Command("/format [JSON]", "json, a JSON schema or a file with one; /format off", _format),
    "model": Command("/model [PATH]", "show the model, or go on with another", _model),
    "tools": Command("/tools [FILE.py]", "Python functions that the model may call; /tools off", _tools),
    "show": Command("/show [WHAT]", "info, parameters, system, template, or the prompt", _show),
    "save": Command("/save FILE", "write the conversation as JSON", _save),
    "load": Command("/load FILE", "continue a saved conversation", _load),
    "image": Command("/image FILE", "puts an image, a sound or a video before the next message", _media),
    "audio": Command("/audio FILE", "the same", _media),
    "tokens": Command("/tokens [TEXT]", "how many tokens the conversation, or a text, has", _tokens),
    "stats": Command("/stats", "tokens, times and speed of the last answer", _stats),
    "quit": Command("/quit", "leave", _quit),
}
ALIASES = {
    "?": "help",
    "h": "help",
    "exit": "quit",
    "bye": "quit",
    "q": "quit",
    "reset": "clear",
    "regen": "retry",
    "regenerate": "retry",
    "read": "file",
}
KEYS = (
    'Enter sends. Alt-Enter, Ctrl-J, a \\ at the end of a line, or Enter inside of """ begins a new line.',
    "Up and down go through earlier messages; Ctrl-X Ctrl-E opens an editor.",
    "Ctrl-O opens or folds thoughts. Ctrl-C stops the answer. Ctrl-D quits. Ctrl-Z suspends.",
)
