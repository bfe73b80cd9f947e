"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import click

from olivine.box import find

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

INTERRUPTED = 130  # the exit status after Ctrl-C, as shells have it

_SAMPLING: list[Decorator] = [
    click.option("--temp", "--temperature", type=float, help="0 takes the likeliest token."),
    click.option("--top-k", type=int, help="Draw among the k likeliest; 0 is off."),
    click.option(
        "--top-p", type=float, help="Draw among the fewest tokens with this much probability; 1 is off."
    ),
    click.option(
        "--min-p", type=float, help="Leave out tokens this much less likely than the best; 0 is off."
    ),
    click.option("--repeat-penalty", type=float, help="Above 1, what was said already is less likely."),
    click.option("--stop", multiple=True, help="Text at which to stop; may be given several times."),
    click.option("--seed", type=click.IntRange(0, (1 << 64) - 1), help="The same seed gives the same text."),
]


class ModelPath(click.Path):
    """A model's file or folder, or the name of the model in the box."""

    def __init__(self, exists: bool = False) -> None:
        super().__init__(exists=exists, path_type=Path)

    def convert(
        self, value: str | PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        if not str(value):  # not the folder that is current
            self.fail("the name of the model is empty.", param, ctx)
        return super().convert(find(value), param, ctx)


def sampling_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """How tokens are chosen."""
    for option in reversed(_SAMPLING):
        function = option(function)
    return function


device_option = click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda", "reference"]), default="auto", show_default=True
)

_MODEL: list[Decorator] = [
    device_option,
    click.option("-t", "--threads", type=click.IntRange(1, 1024), help="By default one a physical core."),
    click.option(
        "--kv-type", type=click.Choice(["auto", "bf16", "f32", "q8_0"]), default="auto", show_default=True
    ),
]


def model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Where a model runs, and with what."""
    for option in reversed(_MODEL):
        function = option(function)
    return function


think_option = click.option(
    "--think", metavar="[HOW]", help="Think before the answer: --think, --think=off, --think=high …"
)


class ThinkCommand(click.Command):
    """A command whose `--think` may stand alone, without taking the next argument for its value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        told = ["--think=on" if arg == "--think" else arg for arg in args[:end]]
        return super().parse_args(ctx, told + args[end:])
