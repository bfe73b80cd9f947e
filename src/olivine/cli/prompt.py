"""A prompt as the model reads it, for people: its tokens as text, the special ones visible."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

import click

from olivine.cli.text import clean

if TYPE_CHECKING:
    from olivine.tokenizer import Tokenizer


def pieces(tokenizer: Tokenizer, tokens: list[int]) -> list[tuple[str, bool]]:
    """The text of tokens in runs, each with whether it is one special token. Below 0 is no token: the soft
    tokens of an image or sound, which are counted."""
    special = frozenset(tokenizer.special_tokens.values())
    found: list[tuple[str, bool]] = []
    text = b""
    for soft, run in groupby(tokens, key=lambda token: token if token < 0 else 0):
        if soft:
            found += [(text.decode("utf-8", "replace"), False), (f"[{len(list(run)):,} soft tokens]", True)]
            text = b""
            continue
        before, text = _pieces(tokenizer, special, run, text)
        found += before
    return [*found, (text.decode("utf-8", "replace"), False)]


def _pieces(
    tokenizer: Tokenizer, special: frozenset[int], tokens: Iterable[int], text: bytes
) -> tuple[list[tuple[str, bool]], bytes]:
    """Runs, and the bytes after the last special token. `text` are the bytes before the first token."""
    found: list[tuple[str, bool]] = []
    for token in tokens:
        if token not in special:
            text += tokenizer.token_bytes(token)
            continue
        found += [(text.decode("utf-8", "replace"), False), (tokenizer.token_bytes(token).decode(), True)]
        text = b""
    return found, text


def spelled(tokenizer: Tokenizer, tokens: list[int]) -> str:
    return "".join(text for text, _ in pieces(tokenizer, tokens))


def echo_prompt(tokenizer: Tokenizer, tokens: list[int], *, quiet: bool) -> None:
    """Prints a prompt; a terminal gets special tokens in color, and how many tokens there are in all."""
    safe = sys.stdout.isatty()
    for text, special in pieces(tokenizer, tokens):
        shown = clean(text) if safe else text
        click.echo(click.style(shown, fg="cyan") if special else shown, nl=False)
    click.echo()
    if sys.stderr.isatty() and not quiet:
        click.echo(click.style(f"{len(tokens):,} tokens", dim=True), err=True)
