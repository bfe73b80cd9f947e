"""The chat loop: read a message, answer it, show the answer."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import click

from olivine.cli.chat import store
from olivine.cli.chat.commands import Chat, Quit, Shown, advice, execute, is_command
from olivine.cli.chat.dropped import dropped
from olivine.cli.chat.input import Input
from olivine.cli.chat.interrupt import Interruptible
from olivine.cli.chat.tools import DECLINED, ROUNDS, shown
from olivine.cli.chat.view import View
from olivine.cli.options import REPEATED
from olivine.cli.text import escaped
from olivine.errors import ContextError, OlivineError

if TYPE_CHECKING:
    from olivine.reply import Delta


def converse(chat: Chat, source: Input, view: View) -> int:
    """Runs until the user leaves; returns the number of messages that failed."""
    failures = 0
    warned = False  # that one more Ctrl-C leaves
    while True:
        try:
            text = source.read()
        except EOFError:
            return failures
        except KeyboardInterrupt:
            if warned:
                return failures
            warned = True
            view.note("Ctrl-C once more leaves; so do Ctrl-D and /quit.", style="dim")
            continue
        except OlivineError as error:
            failures += 1
            view.note(str(error), style="red")
            continue
        warned = False
        if not text:
            continue
        interruptible = Interruptible(view.redraw)
        try:
            with interruptible:
                if is_command(text):
                    told = execute(chat, text)
                else:
                    told = _ask(chat, text, view) if source.interactive else chat.session.ask(text)
                if isinstance(told, str):
                    view.note(told)
                else:
                    answer(chat, told, view, interruptible)
            if not isinstance(told, str):
                _call_tools(chat, source, view)
                if chat.session.is_full:
                    view.note(advice(chat), style="yellow")
        except Quit:
            return failures
        except OlivineError as error:
            failures += 1
            if isinstance(error, ContextError):
                size = f"{error.tokens:,} tokens, and the context holds {error.context:,} with the answer"
                view.note(f"this makes {size}", style="red")
                view.note(advice(chat, error.tokens), style="yellow")
            else:
                view.note(str(error), style="red")
        if interruptible.stopped and not source.interactive:
            raise click.Abort  # nobody is there to go on


def _ask(chat: Chat, text: str, view: View) -> Shown:
    """The answer to what was typed. Files that were dropped on the terminal go with it, or wait for it."""
    question, paths = dropped(text)
    if not paths:
        return chat.session.ask(text)
    names = ", ".join(escaped(path.name) for path in paths)
    if not question:
        chat.session.attach(*paths)
        return f"Attached: {names}. Before the next message; /file off takes that back."
    media = chat.session.media_of(paths)
    view.note(f"Attached: {names}.", style="dim")
    return chat.session.ask(question, media)


def _call_tools(chat: Chat, source: Input, view: View) -> None:
    """Runs the model's tool calls, if the user agrees, and continues with the results."""
    session = chat.session
    for _ in range(ROUNDS):
        if session.tools is None or not session.calls:
            return
        results: dict[str, str] = {}  # small models say the same call several times: it runs once
        for call in session.calls:
            if (said := shown(call)) in results:
                continue
            view.note(f"The model calls {said}", style="cyan")
            if not chat.run_tools and not source.confirm("Run it? [y/N] "):
                results[said] = DECLINED
                if not source.interactive:
                    view.note(
                        "not run: nobody can be asked in a pipe; --yes agrees in advance", style="yellow"
                    )
                continue
            results[said] = text = session.tools.run(call)
            view.note(text if len(text) <= 500 else f"{text[:500]}…", style="dim")
        with Interruptible(view.redraw) as interruptible:
            answer(
                chat, session.resume([results[shown(call)] for call in session.calls]), view, interruptible
            )
        if interruptible.stopped:
            return
    if session.calls:
        view.note(f"stopped after {ROUNDS} rounds of calls; say something to go on", style="yellow")


def answer(
    chat: Chat, deltas: Generator[Delta, None, None], view: View, interruptible: Interruptible
) -> None:
    """Shows an answer and its figures."""
    session = chat.session
    view.open_thoughts = chat.open_thoughts
    view.literal = session.response_format is not None
    try:
        view.begin()
        for delta in interruptible.each(deltas):
            view.feed(delta)
    finally:
        view.end()
    chat.thought = view.thought
    if session.last is not None:
        if session.last.finish_reason == "repetition":
            view.note(REPEATED, style="yellow")
        store.remember(session.conversation, chat.model)
        view.summary(session.last.line(session.llm.context, session.llm.device))
    elif interruptible.stopped:
        view.note("Stopped before there was an answer: the question is not kept.", style="dim")
