"""`olivine run`: one question and its answer, or the continuation of a text."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from olivine.box import NAME
from olivine.cli.defaults import on_command_line, thinking_for
from olivine.cli.files import attachment, read_stdin, response_format
from olivine.cli.habits import FamiliarCommand
from olivine.cli.loading import introduce, open_model, remembered, saved_name, unnamed_model
from olivine.cli.obtain import Wanted, resolved
from olivine.cli.options import (
    INCOMPLETE,
    REPEATED,
    ModelPath,
    complete_models,
    continue_option,
    file_option,
    format_options,
    hide_thinking_option,
    max_tokens_option,
    model_options,
    parallel_options,
    sampling_options,
    system_option,
    think_option,
)
from olivine.cli.prompt import echo_prompt
from olivine.cli.text import Status, clean, echo_hints, echo_warnings, program, reading, size
from olivine.errors import CheckpointError, MissingModelError, RequestError
from olivine.hub import find
from olivine.hub.names import is_pathlike, nearest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from olivine.completion import Completion
    from olivine.llm import LLM

STDIN = Path("-")
RAW_TOKENS = 128  # of a continuation, which often has no end of its own


def complete_words(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """A model, then files: images and sounds."""
    from click.shell_completion import CompletionItem

    if ctx.params.get("words"):
        return [CompletionItem(incomplete, type="file")]
    return complete_models(incomplete)


@click.command("run", cls=FamiliarCommand, short_help="Ask a question, or continue a text.")
@click.argument("words", nargs=-1, metavar="[MODEL] [QUESTION]...", shell_complete=complete_words)
@click.option("-m", "--model", "model_option", type=ModelPath(), hidden=True)
@click.option("-p", "--prompt", help="A text to continue as it is, without the model's chat template.")
@click.option("--raw", is_flag=True, help="Continue the question or standard input as it is, like -p.")
@system_option
@file_option
@click.option(
    "-a",
    "--attach",
    "--image",
    "attached",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Put an image, a sound or a video before the question; files after the question are, too.",
)
@format_options
@think_option
@hide_thinking_option
@continue_option
@max_tokens_option(f"By default {RAW_TOKENS} for -p, else as many as fit")
@click.option(
    "--context",
    "--ctx-size",
    type=click.IntRange(0),
    help="Context length in tokens: prompt and answer together; 0: the model's own.",
)
@sampling_options
@model_options
@parallel_options
@click.option("--special", is_flag=True, help="Treat special tokens written in the prompt as such.")
@click.option("--show-prompt", is_flag=True, help="Print the prompt as the model would read it, and stop.")
@click.option("-v", "--verbose", is_flag=True, help="Also print how large the KV cache may get.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the text.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    words: tuple[str, ...],
    model_option: Path | None,
    prompt: str | None,
    raw: bool,
    system: str | None,
    files: tuple[Path, ...],
    attached: tuple[Path, ...],
    json_schema: str | None,
    grammar: str | None,
    regex: str | None,
    think: str | None,
    hide_thinking: bool,
    again: bool,
    max_tokens: int | None,
    context: int | None,
    mmproj: Path | None,
    device: str,
    threads: int | None,
    kv_type: str,
    reproducible: bool,
    tensor_parallel: int,
    pipeline_parallel: int,
    nodes: int | None,
    rank_address: str | None,
    rank_key: str | None,
    special: bool,
    show_prompt: bool,
    verbose: bool,
    quiet: bool,
    **sampling: Any,
) -> None:
    """Ask MODEL a question and print the answer while it is generated.

    \b
    olivine run "Tell me a story about a dragon"
    olivine run MODEL "Why is the sky blue?"
    cat report.txt | olivine run MODEL "Summarize this."
    olivine run MODEL -p "Once upon a time"

    Without MODEL, the one of the settings answers (olivine config), or olivine-mini, a tiny model that comes
    with Olivine and tells stories: quote the question, so that it is one argument. Without a question, a chat
    begins if you are in a terminal.

    Standard input and the files of -f are put before the question. If the output is not a terminal, only the
    answer is printed. A model without a chat template continues the text instead, as -p does.

    Sampling defaults are the publisher's own where the files have them, and llama.cpp's where they do not.
    A text that only repeats itself is ended.
    """
    words, named = media_files(words)
    attached = (*attached, *named)
    named_model, question = told(words, model_option, prompt, again)
    if named_model is None:
        named_model = _last_model() if again else unnamed_model()
    model: Path = resolved(ctx, named_model)
    only_here = (prompt is not None, raw, files, attached, special, show_prompt, verbose, quiet)
    if not question and not any(only_here) and sys.stdin.isatty() and sys.stdout.isatty():
        from olivine.cli.chat.command import command as chat

        shared = {each.name for each in chat.params} & set(ctx.params) - {"model_option"}
        ctx.invoke(chat, model=model, **{name: ctx.params[name] for name in shared})
        return
    asked_to_continue = prompt is not None and not raw
    raw = raw or prompt is not None
    if raw and attached:
        raise click.UsageError("images, sounds and videos need a question, not -p or --raw.")
    talks = bool(attached) or on_command_line(ctx, "system", "think", "again", "hide_thinking")
    if raw and talks:
        raise click.UsageError(
            "--system, --think, --hide-thinking and --continue need a chat, not -p or --raw."
        )
    if prompt is not None and (question or files):
        raise click.UsageError("-p is the whole text: give no question and no files beside it.")
    if prompt is None:
        prompt = _assembled(question, files)
    wanted = response_format(json_schema, grammar, regex)

    started = time.perf_counter()
    with open_model(
        model,
        device=device,
        threads=threads,
        context=context,
        kv_type=kv_type,
        mmproj=mmproj,
        reproducible=reproducible,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        nodes=nodes,
        rank_address=rank_address,
        rank_key=rank_key,
        quiet=quiet,
    ) as llm:
        if not quiet:
            introduce(model, "run")
            echo_warnings(llm.warnings)
            echo_hints(llm.hints)
        if verbose:
            cache = f"up to {size(llm.cache_bytes)} ({llm.cache_type}, {llm.context} tokens)"
            click.echo(click.style(f"KV cache: {cache}", dim=True), err=True)
        if not raw and (talks or llm.checkpoint.is_for_chat):
            from olivine.cli.ask import ask

            sys.exit(
                ask(
                    llm,
                    saved_name(model),
                    prompt.strip("\n"),
                    system=system,
                    think=thinking_for(llm, think),
                    hide_thoughts=hide_thinking,
                    again=again,
                    quiet=quiet,
                    show_prompt=show_prompt,
                    response_format=wanted,
                    attached=attached,
                    max_tokens=None if max_tokens == -1 else max_tokens,
                    **sampling,
                )
            )
        if asked_to_continue and llm.checkpoint.is_for_chat and not quiet and sys.stdout.isatty():
            note = "-p continues the text as it is; without -p, the model is asked."
            click.echo(click.style(note, dim=True), err=True)
        tokens = llm.tokenizer.encode(prompt, parse_special=special)
        if not tokens:
            raise RequestError("the prompt is empty: there is nothing to continue")
        if show_prompt:
            echo_prompt(llm.tokenizer, tokens, quiet=quiet)
            return
        if wanted is not None:
            sampling["constraint"] = llm.grammar(wanted)
        most = RAW_TOKENS if max_tokens is None else None if max_tokens == -1 else max_tokens
        sys.exit(_complete(llm, tokens, started, quiet, max_tokens=most, **sampling))


def media_files(words: tuple[str, ...]) -> tuple[tuple[str, ...], list[Path]]:
    """The words without the files at their end that are images, sounds or videos; and those."""
    end = len(words)
    while end > 1 and os.path.isfile(words[end - 1]):
        from olivine.media import kind_of

        if kind_of(words[end - 1]) is None:
            break
        end -= 1
    return words[:end], [Path(word) for word in words[end:]]


def told(
    words: Sequence[str], named: Path | None, prompt: str | None, again: bool = False
) -> tuple[Path | Wanted | None, str]:
    """The model and the question among the arguments; `named` is the model of -m.

    One argument alone is a question if it cannot well be a path. Whoever mistypes a path shall hear of it,
    and not get an answer by another model. In a conversation that goes on all words may be the question.
    """
    if named is not None or not words:
        return named, " ".join(words)
    first, *rest = words
    if not first:
        raise click.UsageError("the name of the model is empty.")
    folder = os.path.dirname(first)
    pathlike = is_pathlike(first) or (folder != "" and os.path.isdir(folder))
    alone = not rest and len(first.split()) > 1
    is_question = (alone or again) and prompt is None and not pathlike
    if is_question and first != NAME and not os.path.lexists(first):
        return None, " ".join(words)
    try:
        path = find(first)
    except MissingModelError as error:
        return Wanted(error), " ".join(rest)
    except CheckpointError as error:
        if nearest(first):
            raise
        problem = error.problem.partition(";")[0]
    else:
        if os.path.lexists(path):
            return path, " ".join(rest)
        problem = "there is no such file or folder"
    hint = "" if pathlike else f'; to ask the model in the box: {program()} run {NAME} "…"'
    raise CheckpointError(first, "", f"{problem}{hint}")


def _last_model() -> Path | Wanted:
    from olivine.cli.chat import store

    return remembered(store.recall()[1])


def _complete(llm: LLM, tokens: list[int], started: float, quiet: bool, **options: Any) -> int:
    """Continues a text; gives back the exit status."""
    from olivine.cli.chat.interrupt import Interruptible

    talk = sys.stderr.isatty() and not quiet
    safe = sys.stdout.isatty()
    completion = None
    status = Status(quiet=quiet)
    with Interruptible() as interruptible:
        for piece in interruptible.each(llm.stream(tokens, **options)):
            if piece.prefilled < len(tokens):
                status.show(reading(piece.prefilled, len(tokens)))
            else:
                status.clear()
            if piece.text:
                click.echo(clean(piece.text) if safe else piece.text, nl=False)
                sys.stdout.flush()
            completion = piece.completion
        status.clear()
        click.echo()
    if interruptible.stopped:  # the text so far is the answer
        raise click.Abort
    if completion is not None and completion.finish_reason == "repetition" and not quiet:
        click.echo(REPEATED, err=True)
    if talk and completion is not None:
        line = f"{_summary(completion, time.perf_counter() - started)} · {llm.device}"
        click.echo(click.style(line, dim=True), err=True)
    if "constraint" in options and (completion is None or completion.finish_reason != "stop"):
        if not quiet:
            click.echo(INCOMPLETE, err=True)
        return 1
    return 0


def _assembled(question: str, files: tuple[Path, ...]) -> str:
    """What is piped in, then the files, then the question."""
    asked = STDIN in files  # or it is read where something is piped
    piped = read_stdin() if asked or not sys.stdin.isatty() else ""
    files = tuple(path for path in files if path != STDIN)
    parts = [piped.strip("\n")] if piped and (files or question) else [piped] if piped else []
    parts += [attachment(path) for path in files]
    parts += [question] if question else []
    if not parts:
        raise click.UsageError('Ask something: "Why is the sky blue?", or text on standard input.')
    return "\n\n".join(parts)


def _summary(completion: Completion, seconds: float) -> str:
    usage, timings = completion.usage, completion.timings
    words = [f"{usage.completion} tok"]
    if usage.completion > 1 and timings.decode:
        words.append(f"{(usage.completion - 1) / timings.decode:.1f} tok/s")
    words.append(f"first token after {seconds - timings.decode:.1f} s")
    words.append(f"prompt {usage.prompt}")
    if usage.accepted:
        words.append(f"{usage.accepted} accepted drafts")
    words.append(f"seed {completion.seed}")
    return " · ".join(words)
