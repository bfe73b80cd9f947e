"""The `olivine` command. Subcommands are imported when they are called, so `--help` answers at once."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import shlex
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from olivine import __version__
from olivine.box import NAME
from olivine.cli.defaults import apply_settings, with_source
from olivine.cli.signals import Signaled, end_by
from olivine.cli.text import clean, colors, escaped, program
from olivine.errors import ContextError, OlivineError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMPLETION = "_OLIVINE_COMPLETE"  # set by the completion script of a shell

# Name → (module, one line of help), in the order in which they are listed.
COMMANDS = {
    "chat": ("olivine.cli.chat.command", "Chat with a model in the terminal."),
    "run": ("olivine.cli.run", "Ask a question, or continue a text."),
    "serve": ("olivine.cli.serve", "Serve models over HTTP."),
    "rank": ("olivine.cli.rank", "Run a part of a model for another machine."),
    "launch": ("olivine.cli.launch", "Start a coding agent that uses a model of yours."),
    "transcribe": ("olivine.cli.transcribe", "Write down what is said in sounds and videos."),
    "pull": ("olivine.cli.pull", "Download a model."),
    "list": ("olivine.cli.list", "List the models on this machine."),
    "show": ("olivine.cli.show", "Show what is known of a model."),
    "rm": ("olivine.cli.rm", "Delete a model that was downloaded."),
    "ps": ("olivine.cli.ps", "Show which models a running server has loaded."),
    "stop": ("olivine.cli.stop", "Unload a model of a running server."),
    "inspect": ("olivine.cli.inspect", "Show what is in a model's files."),
    "tokenize": ("olivine.cli.tokenize", "Show the tokens of a text."),
    "perplexity": ("olivine.cli.perplexity", "Measure a model's perplexity on a text."),
    "compare": ("olivine.cli.compare", "Compare the predictions of two models."),
    "convert": ("olivine.cli.convert", "Convert or quantize a model."),
    "bench": ("olivine.cli.bench", "Measure a model's speed and memory."),
    "doctor": ("olivine.cli.doctor", "Check this machine and this installation."),
    "config": ("olivine.cli.config", "Show the settings and where they come from; change them."),
    "completion": ("olivine.cli.completion", "Print the completion script of a shell."),
}


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own, each as `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = import_module(COMMANDS[name][0]).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name in COMMANDS or name.startswith("-"):
            found = super().resolve_command(ctx, args)
            if found[1] is not None:
                apply_settings(ctx, found[1])
            return found
        from olivine.cli import habits

        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        if name in habits.COMMANDS:
            hint = f" {habits.COMMANDS[name]}"
        if os.path.lexists(name) or name == NAME:
            hint = f" To chat with that model: {program()} chat {shlex.quote(name)}"
        raise click.UsageError(f"There is no command {name!r}.{hint}", ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """The names of commands, without importing them, and options."""
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=text)
            for name, (_, text) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.BadParameter as error:
            raise with_source(error) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="olivine")
def cli() -> None:
    """Run open-weight language models on the machine in front of you.

    \b
    olivine chat
    olivine run "Tell me a story about a dragon"
    olivine run MODEL "Why is the sky blue?"
    olivine serve MODEL
    olivine inspect MODEL

    MODEL is a name such as gemma3:1b or publisher/repository:Q4_K_M, a GGUF file, a folder of safetensors, a
    qwen3.c .bin file, or olivine-mini: a tiny model that tells stories. It comes with Olivine, and chat, run
    and serve use it if you name no model.
    """


def main() -> None:
    """Runs the command; an error becomes one line and an exit status.

    Ctrl-C ends the program at once, as it ends `cat`, unless a command has something to do before.
    """
    _begin_in_utf8()
    _complete_streams()
    if COMPLETION in os.environ:
        from olivine.cli.completion import answer

        answer(cli)
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        status = cli.main(standalone_mode=False, color=colors())
    except click.ClickException as error:
        usage = io.StringIO()
        error.show(usage)
        click.echo(clean(usage.getvalue()), nl=False, err=True)
        sys.exit(error.exit_code)
    except click.Abort:
        _flush()
        end_by(signal.SIGINT)
    except Signaled as error:
        _flush()
        end_by(error.number)
    except OlivineError as error:
        # Lines after the first are indented, so that a file's text cannot pass for a message of ours.
        told = re.sub(r"\n(?=\S)", "\n  ", clean(str(error)))
        if isinstance(error, ContextError):
            told += " with --context"
        click.echo(f"Error: {told}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        # The reader (head, less) has had enough.
        _write_no_more()
        sys.exit(1)
    except OSError as error:
        _write_no_more()  # if the disk is full, what is still to be written would only fail again
        where = f"{escaped(str(error.filename))}: " if error.filename else ""
        click.echo(f"Error: {where}{error.strerror or error}", err=True)
        sys.exit(1)
    except MemoryError:
        click.echo("Error: there is not enough memory for this", err=True)
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)


def _begin_in_utf8() -> None:
    """In a locale that is ASCII (C, where UTF-8 mode is turned off), begins again in Python's UTF-8 mode.

    Arguments are decoded, and the encoding of file names is chosen, before anything of ours runs: to decode
    the arguments again would make names of files that cannot be opened.
    """
    given = sys.argv[1:]
    if sys.getfilesystemencoding() == "ascii" and given == sys.orig_argv[len(sys.orig_argv) - len(given) :]:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _complete_streams() -> None:
    """Streams that were closed (`<&-`) are empty, what a terminal cannot spell is a question mark, and reads
    wait for what is to come, also where another program told the stream not to."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
        with contextlib.suppress(OSError, ValueError, AttributeError):  # not every stream and system can
            os.set_blocking(getattr(sys, name).fileno(), True)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()


def _write_no_more() -> None:
    """Also while the interpreter shuts down."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
