"""`olivine tokenize`: the tokens of a text."""

from __future__ import annotations

from pathlib import Path

import click

from olivine.cli.files import LARGEST_CORPUS, read_stdin
from olivine.cli.options import ModelPath
from olivine.cli.text import json_text
from olivine.cli.tool_habits import FamiliarTokenize
from olivine.formats import open_checkpoint
from olivine.loading import tokenizer_of


@click.command("tokenize", cls=FamiliarTokenize, short_help="Show the tokens of a text.")
@click.argument("model", type=ModelPath())
@click.argument("text", required=False)
@click.option("--special", is_flag=True, help="Treat special tokens written in the text as such.")
@click.option("--no-bos", is_flag=True, help="Do not add BOS (and EOS) where the model expects them.")
@click.option("--ids", is_flag=True, help="Print only the ids, on one line.")
@click.option("--count", is_flag=True, help="Print only the number of tokens.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def command(
    model: Path, text: str | None, special: bool, no_bos: bool, ids: bool, count: bool, as_json: bool
) -> None:
    """Show the tokens into which MODEL's tokenizer splits TEXT (or standard input), one per line."""
    if text is None:
        text = read_stdin(LARGEST_CORPUS)
    tokenizer = tokenizer_of(open_checkpoint(model))
    tokens = tokenizer.encode(text, add_special=not no_bos, parse_special=special)
    if count:
        click.echo(len(tokens))
    elif ids:
        click.echo(" ".join(map(str, tokens)))
    elif as_json:
        pieces = [tokenizer.token_bytes(token).decode("utf-8", "replace") for token in tokens]
        click.echo(json_text({"tokens": tokens, "pieces": pieces}))
    else:
        for token in tokens:
            click.echo(f"{token:>8}  {_shown(tokenizer.token_bytes(token))}")
        click.echo(f"{len(tokens)} token{'' if len(tokens) == 1 else 's'}", err=True)


def _shown(piece: bytes) -> str:
    """A piece as a quoted string; bytes that are half a character as \\x.."""
    try:
        return json_text(piece.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(piece)[1:]
