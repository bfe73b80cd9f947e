"""One question of `olivine run`, answered through the model's chat template."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from olivine.cli.chat import store
from olivine.cli.chat.commands import Chat
from olivine.cli.chat.interrupt import Interruptible
from olivine.cli.chat.loop import answer
from olivine.cli.chat.session import Session
from olivine.cli.chat.view import PlainView, TerminalView, View
from olivine.cli.options import INCOMPLETE
from olivine.cli.prompt import echo_prompt
from olivine.cli.text import draws
from olivine.errors import RequestError

if TYPE_CHECKING:
    from olivine.llm import LLM


def ask(
    llm: LLM,
    model: str,
    question: str,
    *,
    system: str | None,
    think: str | None,
    hide_thoughts: bool,
    again: bool,
    quiet: bool,
    show_prompt: bool,
    response_format: Any,
    attached: Sequence[Path] = (),
    **options: Any,
) -> int:
    """Prints the answer; gives back the exit status."""
    if not question:
        raise RequestError("the question is empty: there is nothing to answer")
    session = Session(llm, think=think, response_format=response_format, **options)
    began = model
    if again:
        messages, named = store.recall()
        session.system, session.messages = store.split(messages)
        began = named or model
    session.system = system or session.system
    for path in attached:
        session.attach(path)
    if show_prompt:
        echo_prompt(llm.tokenizer, session.prompt(question), quiet=quiet)
        return 0
    view: View
    if response_format is None and draws(sys.stdout):
        view = TerminalView(hide_thoughts=hide_thoughts, quiet=quiet)
    else:
        view = PlainView(quiet=quiet)
    if began != model and sys.stderr.isatty() and not quiet:
        view.note(f"going on with a conversation that {Path(began).name} began", style="dim")
    with Interruptible(view.redraw) as interruptible:
        answer(Chat(session, model, open_thoughts=True), session.ask(question), view, interruptible)
    if interruptible.stopped:
        raise click.Abort
    if response_format is not None and (session.last is None or session.last.finish_reason != "stop"):
        view.note(INCOMPLETE)
        return 1
    return 0
