"""A prompt as the model reads it, for people: its tokens as text, the special ones visible."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from olivine.cli.text import clean

if TYPE_CHECKING:
    from olivine.tokenizer import Tokenizer


def pieces(tokenizer: Tokenizer, tokens: list[int]) -> list[tuple[str, bool]]:
    """The text of tokens in runs, each with whether it is one special token."""
    special = frozenset(tokenizer.special_tokens.values())
    found: list[tuple[str, bool]] = []
    text = b""
    for token in tokens:
        if token not in special:
            text += tokenizer.token_bytes(token)
            continue
        found += [(text.decode("utf-8", "replace"), False), (tokenizer.token_bytes(token).decode(), True)]
        text = b""
    return [*found, (text.decode("utf-8", "replace"), False)]


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
