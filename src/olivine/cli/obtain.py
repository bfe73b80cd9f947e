"""A model that is named and not on this machine: asked for once, and downloaded."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from olivine.cli.text import Status, echo_warnings, escaped, program, size
from olivine.errors import MissingModelError
from olivine.hub.names import Name, parse

if TYPE_CHECKING:
    from olivine.hub.remote import Remote


@dataclass(frozen=True)
class Wanted:
    """Stands for a model among a command's parameters until it is downloaded."""

    error: MissingModelError


def obtain(wanted: Wanted, *, yes: bool, context: int | None = None, device: str = "auto") -> Path:
    """Downloads a model, if the user agrees: by a flag, or by an answer in the terminal."""
    asks = sys.stdin.isatty() and sys.stderr.isatty()
    if not yes and not asks:
        raise wanted.error
    name = parse(wanted.error.path)
    assert name is not None
    remote = look_up(name)
    click.echo(f"{escaped(name.text)} is not on this machine: {escaped(remote.repo)} has it.", err=True)
    about(name, remote, context=context, device=device)
    if not yes and not click.confirm("Download it?", default=True, err=True):
        raise click.Abort
    return download(remote, name)


def look_up(name: Name) -> Remote:
    """What the hub has under a name, with a line while it is asked."""
    from olivine.hub import remote

    with Status() as status:
        status.show(f"asking {remote.endpoint().partition('://')[2]} …")
        return remote.look_up(name)


def about(name: Name, remote: Remote, *, context: int | None, device: str) -> None:
    """One line: type, size, memory at this context, device, and the speed that is to be expected."""
    from olivine.hub import fit
    from olivine.hub.files import is_mmproj
    from olivine.loading import DEFAULT_CONTEXT, choose_device

    alias = name.alias
    backend, warnings = choose_device(device)
    weights = sum(file.bytes for file in remote.files if not is_mmproj(file.path))
    own = alias.context if alias else DEFAULT_CONTEXT
    tokens = min(DEFAULT_CONTEXT, own) if context is None else context or own
    cache = alias.cache_bytes(tokens) if alias else 0
    found = fit.fit(weights, cache, backend, alias.active if alias else 1.0)
    beside = f"at a context of {tokens:,}" if alias else "and its KV cache"
    parts = [
        remote.tag or "safetensors",
        f"{size(remote.missing_bytes)} to download",
        f"license {remote.license}" if remote.license else "",
        f"takes about {size(found.needed)} of memory {beside}, {size(found.free)} is free",
        f"on the {'GPU' if backend == 'cuda' else 'CPU'}",
        f"about {found.speed:.{0 if found.speed >= 10 else 1}f} tok/s" if found.speed else "",
    ]
    click.echo(escaped(" · ".join(part for part in parts if part)), err=True)
    echo_warnings(warnings)
    if not found.fits:
        smaller = [each.name for each in fit.fitting(found.free, tokens) if alias is None or each != alias]
        same = [each for each in smaller if alias and each.startswith(f"{alias.family}:")]
        instead = f"; what fits: {', '.join([*same, *smaller][:3])}" if smaller else ""
        slow = "" if backend == "cuda" else ": parts of it are read from the disk again and again, slowly"
        echo_warnings([f"that is more memory than is free{slow}{instead}"])


def download(remote: Remote, name: Name) -> Path:
    """Downloads, with bars. Ctrl-C ends it: what is there stays, and a line says how to go on."""
    from olivine.cli.download_bars import bars
    from olivine.hub.download import fetch

    try:
        with interruptible(), bars(remote) as report:
            return fetch(remote, report)
    except KeyboardInterrupt:
        have = size(remote.bytes - remote.missing_bytes)
        told = f"Stopped: {have} of {size(remote.bytes)} is here and stays."
        click.echo(f"\n{told} To go on: {program()} pull {escaped(name.text)}", err=True)
        raise click.Abort from None


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C raises `KeyboardInterrupt`; elsewhere in this program it ends the process at once."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


class ModelCommand(click.Command):
    """A command that takes models. Those that are named and not here are downloaded before it is called,
    when all its options are known to be right."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        taken = {name for param in self.params for name in param.opts}
        names = [name for name in ("-y", "--yes", "--download") if name not in taken]
        text = "Download a model that is not on this machine without asking."
        self.params.append(click.Option([*names, "agreed"], is_flag=True, help=text, expose_value=False,
                                        callback=_remember))  # fmt: skip

    def invoke(self, ctx: click.Context) -> Any:
        for name, value in ctx.params.items():
            if isinstance(value, tuple):
                ctx.params[name] = tuple(resolved(ctx, each) for each in value)
            else:
                ctx.params[name] = resolved(ctx, value)
        return super().invoke(ctx)


_AGREED = "olivine.download"


def _remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.meta[_AGREED] = value


def resolved(ctx: click.Context, value: Any) -> Any:
    """A parameter's value, with the path of a model that was wanted."""
    if not isinstance(value, Wanted):
        return value
    asked = {name: ctx.params[name] for name in ("context", "device") if ctx.params.get(name) is not None}
    return obtain(value, yes=bool(ctx.meta.get(_AGREED)), **asked)
