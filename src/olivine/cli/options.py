"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from olivine.box import NAME
from olivine.chat.thinking import Thinking
from olivine.checks import SAMPLING_CHECKS
from olivine.cli.habits import refuse_seed
from olivine.cli.obtain import Wanted
from olivine.errors import MissingModelError, RequestError
from olivine.hub import find

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

REPEATED = "stopped: the text only repeated itself (--allow-repetition lets it go on)"
INCOMPLETE = "the answer was cut, and is not complete in its format; raise --max-tokens"


def _in_range(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """What the library takes, and nothing else: also a setting is refused where it is given."""
    try:
        return value if value is None else SAMPLING_CHECKS[param.name or ""](param.name or "", value)
    except RequestError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _seed(ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    """-1 is any seed, as llama.cpp has it."""
    return None if value == -1 else _in_range(ctx, param, value)


# An option whose range is that of the library.
_bounded = partial(click.option, callback=_in_range)

_SAMPLING: list[Decorator] = [
    _bounded(
        "--temp",
        "--temperature",
        "temperature",
        type=float,
        help="0 always takes the most likely token; higher is more random.",
    ),
    _bounded(
        "--top-k",
        type=int,
        help="Sample only from the k most likely tokens; 0 turns it off.",
    ),
    _bounded(
        "--top-p",
        type=float,
        help="Sample only from the most likely tokens whose probabilities add up to this; 1 turns it off.",
    ),
    _bounded(
        "--min-p",
        type=float,
        help="Drop tokens less likely than this fraction of the most likely one; 0 turns it off.",
    ),
    _bounded(
        "--repeat-penalty",
        "repetition_penalty",
        type=float,
        help="Above 1, tokens of the prompt and the answer so far become less likely.",
    ),
    _bounded(
        "--presence-penalty",
        type=float,
        help="Above 0, tokens of the answer so far become less likely.",
    ),
    _bounded(
        "--frequency-penalty",
        type=float,
        help="The same, but more with each time that a token has occurred.",
    ),
    click.option("--stop", multiple=True, help="Stop where this text would be generated; can be repeated."),
    click.option(
        "--seed", type=int, callback=_seed, help="The same seed gives the same text; -1: a new one."
    ),
    click.option(
        "--stop-on-repetition/--allow-repetition",
        default=True,
        help="Whether to end an answer that only repeats itself; by default it is ended.",
    ),
]


class ModelPath(click.Path):
    """A model's file or folder, or its name. One that is not here becomes `Wanted`: commands that take models
    are a `ModelCommand`."""

    def __init__(self, exists: bool = False) -> None:
        super().__init__(exists=exists, path_type=Path)

    def convert(
        self, value: str | PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        if not str(value):  # not the folder that is current
            self.fail("the name of the model is empty.", param, ctx)
        try:
            path = find(value)
        except MissingModelError as error:
            return Wanted(error)
        return super().convert(path, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        return complete_models(incomplete)


class ServerUrl(click.ParamType):  # type: ignore[type-arg]
    """Where a server is: what `urllib` would stumble over is told before."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if "://" not in value:
            self.fail(f"{value!r} has no http:// before it.", param, ctx)
        try:
            found = urlsplit(value)
            right = found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
        except ValueError:
            right = False
        if not right or not value.isprintable() or " " in value:
            self.fail(f"{value!r} is no address of a server, such as http://127.0.0.1:8080.", param, ctx)
        return str(value)


def complete_models(incomplete: str) -> list[CompletionItem[str]]:
    """Models that a word may become: by name, and files."""
    from click.shell_completion import CompletionItem

    names = [CompletionItem(name) for name in model_names() if name.startswith(incomplete)]
    return [*names, CompletionItem(incomplete, type="file")]


def model_names() -> list[str]:
    """The models that can be named without a path: those on this machine, and those that can be pulled."""
    return [*dict.fromkeys([NAME, *local_names(), *hub_names()])]


def local_names() -> list[str]:
    """The models of other folders on this machine."""
    from olivine.hub.local import models

    return [each.name for each in models()]


def hub_names() -> list[str]:
    """The short names of models that can be pulled."""
    from olivine.hub.aliases import aliases, defaults

    return [*defaults(), *aliases()]


def complete_names(find: Callable[[], list[str]]) -> Callable[..., list[str]]:
    """Completion of an argument that is a name, and never a path."""
    return lambda ctx, param, incomplete: [name for name in find() if name.startswith(incomplete)]


def sampling_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """How tokens are chosen. The parameters are named as the library names them."""
    for option in reversed(_SAMPLING):
        function = option(function)
    return function


device_option = click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda", "reference"]),
    default="auto",
    show_default=True,
    help="auto is the GPU if there is one; reference is slow NumPy, to check the others.",
)

mmproj_option = click.option(
    "--mmproj",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The file with the vision and audio towers of a GGUF model.  [default: the one beside it that fits]",
)

_MODEL: list[Decorator] = [
    mmproj_option,
    device_option,
    click.option(
        "-t", "--threads", type=click.IntRange(1, 1024), help="Default: the number of physical cores."
    ),
    click.option(
        "--kv-type",
        type=click.Choice(["auto", "bf16", "f32", "q8_0"]),
        default="auto",
        show_default=True,
        help="Type of the KV cache; q8_0 takes half the memory of bf16.",
    ),
    click.option(
        "--reproducible",
        is_flag=True,
        help="Read earlier answers again: the same conversation and seed give the same text in any process.",
    ),
]


def parallel_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Into how many processes a model is divided, and on which machines they are."""
    machines = click.option(
        "--nodes",
        type=click.IntRange(1, 256),
        help="Machines with as many ranks each, with --rank-address.  [default: one for each rank]",
    )
    for option in (rank_key_option, rank_address_option, machines):
        function = option(function)
    for flag, what in (
        ("--pipeline-parallel", "Cut the model between its layers into so many stages."),
        ("--tensor-parallel", "Divide heads, MLPs, experts and vocabulary among so many processes."),
    ):
        kind = click.IntRange(1, 256)
        function = click.option(flag, type=kind, default=1, show_default=True, help=what)(function)
    return function


rank_address_option = click.option(
    "--rank-address", metavar="HOST:PORT", help="Where ranks on other machines (olivine rank) find this one."
)
rank_key_option = click.option(
    "--rank-key",
    metavar="KEY",
    envvar="OLIVINE_RANK_KEY",
    show_envvar=True,
    help="What ranks on other machines must know: any secret text.",
)


def model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Where a model runs, and with what."""
    for option in reversed(_MODEL):
        function = option(function)
    return function


def _thinking(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    try:
        Thinking.of(value)
    except RequestError as error:
        raise click.BadParameter(str(error), ctx, param) from None
    return value


think_option = click.option(
    "--think",
    callback=_thinking,
    metavar="[HOW]",
    help="Let the model think before it answers: --think, --think=off, --think=high …",
)

system_option = click.option("-s", "--system", callback=refuse_seed, help="System message.")
hide_thinking_option = click.option(
    "--hide-thinking", is_flag=True, help="Do not show what the model thinks."
)
continue_option = click.option(
    "-c", "--continue", "again", is_flag=True, help="Continue the last conversation."
)
file_option = click.option(
    "-f",
    "--file",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="A text file to put before the question; can be repeated.",
)

_FORMAT: list[Decorator] = [
    click.option(
        "--json-schema",
        "--format",
        metavar="FILE|JSON",
        help='A JSON schema that answers must follow; "json" for any JSON.',
    ),
    click.option("--grammar", metavar="FILE|TEXT", help="A grammar that answers must follow: GBNF or Lark."),
    click.option("--regex", metavar="PATTERN", help="A regular expression that answers must match."),
]


def format_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What answers must be; `files.response_format` takes these parameters."""
    for option in reversed(_FORMAT):
        function = option(function)
    return function


def _max_tokens(ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    """-1 is as many as fit, as llama.cpp has it."""
    if value is not None and value < 1 and value != -1:
        raise click.BadParameter(f"{value} is neither at least 1 nor -1, for as many as fit.", ctx, param)
    return value


def max_tokens_option(default: str) -> Decorator:
    """-n; `default` says what holds without it."""
    return click.option(
        "-n", "--max-tokens", type=int, callback=_max_tokens, help=f"{default}; -1 is as many as fit."
    )
