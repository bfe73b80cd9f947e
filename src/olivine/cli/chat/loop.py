"""The conversation itself: read, answer, show, again."""

from __future__ import annotations

import click

from olivine.cli.chat import store
from olivine.cli.chat.commands import Chat, Quit, execute, is_command
from olivine.cli.chat.input import Input
from olivine.cli.chat.interrupt import Interruptible
from olivine.cli.chat.view import View
from olivine.cli.options import REPEATED
from olivine.errors import OlivineError


def converse(chat: Chat, source: Input, view: View) -> int:
    """Talks until the user leaves; gives back how many messages went wrong."""
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
        with Interruptible(view.redraw) as interruptible:
            try:
                if is_command(text):
                    view.note(execute(chat, text))
                else:
                    answer(chat, text, view, interruptible)
            except Quit:
                return failures
            except OlivineError as error:
                failures += 1
                view.note(str(error), style="red")
        if interruptible.stopped and not source.interactive:
            raise click.Abort  # nobody is there to go on


def answer(chat: Chat, text: str, view: View, interruptible: Interruptible) -> None:
    """Asks, and shows the answer and what it took."""
    session = chat.session
    view.open_thoughts = chat.open_thoughts
    try:
        for delta in interruptible.each(session.ask(text)):
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
