"""The command `olivine chat`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from olivine.cli.loading import introduce, open_model, remembered, saved_name
from olivine.cli.options import ModelPath, ThinkCommand, model_options, sampling_options, think_option
from olivine.cli.text import Status, draws, echo_warnings


@click.command("chat", cls=ThinkCommand, short_help="Talk with a model in the terminal.")
@click.argument("model", type=ModelPath(), required=False)
@click.option("-m", "--model", "model_option", type=ModelPath(), hidden=True)
@click.option("-s", "--system", help="What the model is told before the conversation.")
@think_option
@click.option("--load", "saved", type=click.Path(path_type=Path), help="Go on with a saved conversation.")
@click.option("-c", "--continue", "again", is_flag=True, help="Go on with the last conversation.")
@click.option("-n", "--max-tokens", type=click.IntRange(1), help="By default as many as fit.")
@click.option("--context", "--ctx-size", type=click.IntRange(1), help="Tokens of the whole conversation.")
@sampling_options
@model_options
def command(
    model: Path | None,
    model_option: Path | None,
    system: str | None,
    think: str | None,
    saved: Path | None,
    again: bool,
    max_tokens: int | None,
    context: int | None,
    temp: float | None,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    repeat_penalty: float | None,
    stop: tuple[str, ...],
    seed: int | None,
    device: str,
    threads: int | None,
    kv_type: str,
) -> None:
    """Talk with MODEL in the terminal.

    Without MODEL, talk with that of the conversation that goes on, or with olivine-mini, a tiny storyteller
    that comes with Olivine.

    /help in the chat lists its commands. Where standard input or output is no terminal, each line is a
    message, and the answers are plain text.
    """
    from olivine.chat.messages import Message
    from olivine.cli.chat import store
    from olivine.cli.chat.commands import Chat
    from olivine.cli.chat.input import LineInput, TerminalInput
    from olivine.cli.chat.loop import converse
    from olivine.cli.chat.session import Session
    from olivine.cli.chat.view import PlainView, TerminalView

    if saved is not None and again:
        raise click.UsageError("--load and --continue exclude each other.")
    messages: list[Message] = []
    named = None
    if saved is not None:
        messages, named = store.load(saved)
    elif again:
        messages, named = store.recall()
    model = model or model_option or remembered(named)
    name = saved_name(model)
    fancy = sys.stdin.isatty() and draws(sys.stdout)
    with Status(quiet=not fancy) as status:
        status.show(f"loading {Path(name).name} …")
        opened = open_model(model, device=device, threads=threads, context=context, kv_type=kv_type)
    with opened as llm:
        session = Session(
            llm,
            think=think,
            temperature=temp,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repeat_penalty,
            stop=stop or None,
            seed=seed,
            max_tokens=max_tokens,
        )
        session.system, session.messages = store.split(messages)
        session.system = system or session.system
        chat = Chat(session, name)
        if not fancy:
            introduce(model, "chat")
            echo_warnings(llm.warnings)
            failures = converse(chat, LineInput(), PlainView())
            sys.exit(1 if failures else 0)
        view = TerminalView()
        view.note(f"{Path(name).name} · {llm.device} · context {llm.context:,}", style="bold")
        introduce(model, "chat")
        for warning in llm.warnings:
            view.note(f"warning: {warning}", style="yellow")
        if messages:
            view.note(f"going on after {len(messages)} messages", style="dim")

        def toggle() -> None:
            chat.open_thoughts = not chat.open_thoughts
            if chat.open_thoughts and chat.thought:
                view.note(chat.thought, style="dim italic")
            else:
                how = "stay open" if chat.open_thoughts else "are folded"
                view.note(f"Thoughts {how} from now on.", style="dim")

        converse(chat, TerminalInput(store.state_file("history"), toggle), view)
