"""The command `olivine chat`."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from olivine.cli.defaults import thinking_for
from olivine.cli.files import attachment, response_format
from olivine.cli.habits import FamiliarCommand
from olivine.cli.loading import introduce, open_model, remembered, saved_name, unnamed_model
from olivine.cli.obtain import resolved
from olivine.cli.options import (
    ModelPath,
    continue_option,
    file_option,
    format_options,
    hide_thinking_option,
    max_tokens_option,
    model_options,
    sampling_options,
    system_option,
    think_option,
)
from olivine.cli.text import Status, draws, echo_hints, echo_warnings, program
from olivine.errors import CheckpointError
from olivine.hub.names import is_pathlike

if TYPE_CHECKING:
    from olivine.cli.chat.commands import Chat
    from olivine.llm import LLM


@click.command("chat", cls=FamiliarCommand, short_help="Chat with a model in the terminal.")
@click.argument("model", type=ModelPath(), required=False)
@click.option("-m", "--model", "model_option", type=ModelPath(), hidden=True)
@click.option("--web", is_flag=True, help="Chat in the browser: starts a server, and opens its page.")
@system_option
@file_option
@format_options
@think_option
@hide_thinking_option
@click.option(
    "--tools",
    "tools_file",
    type=click.Path(path_type=Path),
    help="A Python file: it is run, and the model may call its functions; you are asked before each call.",
)
@click.option("--yes", "run_tools", is_flag=True, help="Run what the model calls without asking.")
@click.option("--load", "saved", type=click.Path(path_type=Path), help="Continue a saved conversation.")
@continue_option
@max_tokens_option("By default as many as fit")
@click.option(
    "--context",
    "--ctx-size",
    type=click.IntRange(0),
    help="Context length in tokens: the longest conversation; 0: the model's own.",
)
@sampling_options
@model_options
def command(
    model: Path | None,
    model_option: Path | None,
    web: bool,
    system: str | None,
    files: tuple[Path, ...],
    json_schema: str | None,
    grammar: str | None,
    regex: str | None,
    think: str | None,
    hide_thinking: bool,
    tools_file: Path | None,
    run_tools: bool,
    saved: Path | None,
    again: bool,
    max_tokens: int | None,
    context: int | None,
    mmproj: Path | None,
    device: str,
    threads: int | None,
    kv_type: str,
    reproducible: bool,
    **sampling: Any,
) -> None:
    """Chat with MODEL in the terminal, or with --web in the browser.

    Without MODEL, -c and --load use the model of the conversation that they continue; otherwise the one of
    the settings answers (olivine config), or olivine-mini, a tiny model that comes with Olivine and tells
    stories.

    Type /help in the chat for its commands. If standard input or output is not a terminal, each line is a
    message, and the answers are plain text.
    """
    if web:
        from olivine.cli.chat.web import chat_in_browser, refuse_others

        refuse_others(click.get_current_context())
        options: dict[str, Any] = {
            "device": device,
            "threads": threads,
            "context": context,
            "kv_type": kv_type,
        }
        options["reproducible"] = reproducible
        found = resolved(click.get_current_context(), model or model_option or unnamed_model())
        chat_in_browser(found, mmproj, options)
        return
    from olivine.chat.messages import Message
    from olivine.cli.chat import store
    from olivine.cli.chat.commands import Chat
    from olivine.cli.chat.interrupt import typed_ahead
    from olivine.cli.chat.session import Session
    from olivine.cli.chat.tools import Tools

    if saved is not None and again:
        raise click.UsageError("--load and --continue exclude each other.")
    messages: list[Message] = []
    named = None
    if saved is not None:
        messages, named = store.load(saved)
    elif again:
        messages, named = store.recall()
    wanted = response_format(json_schema, grammar, regex)
    attached = [attachment(path) for path in files]
    tools = None if tools_file is None else Tools.load(tools_file)
    path: Path = resolved(click.get_current_context(), model or model_option or remembered(named))
    _refuse_question(path)
    name = saved_name(path)

    def loaded(path: Path) -> LLM:
        return open_model(
            path,
            device=device,
            threads=threads,
            context=context,
            kv_type=kv_type,
            mmproj=mmproj if saved_name(path) == name else None,  # /model: the one beside it
            reproducible=reproducible,
        )

    fancy = sys.stdin.isatty() and draws(sys.stdout)
    with typed_ahead() if fancy else nullcontext():
        with Status(quiet=not fancy) as status:
            status.show(f"loading {Path(name).name} …")
            llm = loaded(path)
        with llm:
            if wanted is not None:
                llm.grammar(wanted)  # what cannot be kept is told now, and not at every message
            session = Session(
                llm,
                think=thinking_for(llm, think),
                response_format=wanted,
                max_tokens=None if max_tokens == -1 else max_tokens,
                **sampling,
            )
            session.attached = [*attached]
            session.tools = tools
            session.system, session.messages = store.split(messages)
            session.system = system or session.system
            chat = Chat(session, name, open_model=loaded, run_tools=run_tools)
            notes = [(f"warning: {warning}", "yellow") for warning in (*llm.warnings, *llm.hints)]
            if messages:
                other = f" with {Path(named).name}" if named and named != name else ""
                notes.append((f"going on after {len(messages)} messages{other}", "dim"))
            try:
                _talk(chat, path, notes, fancy, hide_thinking)
            finally:
                session.llm.close()  # /model may have opened another


def _refuse_question(model: Path) -> None:
    """`chat "Hello there"`: words that are no model are probably what is to be said."""
    if len(str(model).split()) > 1 and not is_pathlike(str(model)) and not os.path.lexists(model):
        raise CheckpointError(
            model,
            "",
            "there is no such file or folder; what you say comes after the start, or to ask once: "
            f"{program()} run {shlex.quote(str(model))}",
        )


def _talk(chat: Chat, model: Path, notes: list[tuple[str, str]], fancy: bool, hide_thinking: bool) -> None:
    from olivine.cli.chat import store
    from olivine.cli.chat.input import LineInput, TerminalInput
    from olivine.cli.chat.loop import converse
    from olivine.cli.chat.view import PlainView, TerminalView

    if not fancy:
        introduce(model, "chat")
        echo_warnings(chat.session.llm.warnings)
        echo_hints(chat.session.llm.hints)
        failures = converse(chat, LineInput(), PlainView())
        sys.exit(1 if failures else 0)
    view = TerminalView(hide_thoughts=hide_thinking)
    view.note(chat.title, style="bold")
    introduce(model, "chat")
    for note, style in notes:
        view.note(note, style=style)

    def toggle() -> None:
        chat.open_thoughts = not chat.open_thoughts
        if chat.open_thoughts and chat.thought:
            view.note(chat.thought, style="dim italic")
        else:
            how = "stay open" if chat.open_thoughts else "are folded"
            view.note(f"Thoughts {how} from now on.", style="dim")

    converse(chat, TerminalInput(store.state_file("history"), toggle), view)
