"""`olivine perplexity`: how well a model predicts a text."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from olivine.cli.files import read_corpus
from olivine.cli.options import ModelPath, device_option
from olivine.cli.text import Status, echo_warnings
from olivine.cli.tool_habits import FamiliarPerplexity
from olivine.errors import RequestError

if TYPE_CHECKING:
    from olivine.llm import LLM

TOGETHER = 4  # windows that run at the same time
SPARE = 64  # tokens at the end of a part of a text, which the rest of the text could change


@click.command("perplexity", cls=FamiliarPerplexity, short_help="Measure a model's perplexity on a text.")
@click.argument("model", type=ModelPath())
@click.argument("text", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--window", type=click.IntRange(8), default=512, show_default=True, help="Tokens per window.")
@click.option("--windows", "most", type=click.IntRange(1), help="Stop after this many windows.")
@device_option
@click.option("-t", "--threads", type=click.IntRange(1, 1024), help="Default: the number of physical cores.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def command(
    model: Path, text: Path, window: int, most: int | None, device: str, threads: int | None, as_json: bool
) -> None:
    """Measure the perplexity of MODEL on the file TEXT (- is standard input).

    The text is split into windows that do not overlap; each begins with BOS if the tokenizer adds one, and
    its second half is scored. llama.cpp measures in the same way, so the results can be compared.
    """
    from olivine.llm import load  # imports NumPy: not before the arguments are right

    content = read_corpus(text)
    status = Status()
    with load(model, device=device, threads=threads, context=window, sequences=TOGETHER) as llm, status:
        echo_warnings(llm.warnings)
        status.show("cutting the text into tokens …")
        pieces = windows_of(llm, content, window, most)
        half = window // 2 + 1
        started = time.perf_counter()
        logprobs: list[float] = []
        for at in range(0, len(pieces), TOGETHER):
            pairs = [(piece[:half], piece[half:]) for piece in pieces[at : at + TOGETHER]]
            logprobs += [each for score in llm.score_many(pairs) for each in score.logprobs]
            done = min(at + TOGETHER, len(pieces))
            status.show(f"window {done} of {len(pieces)}: perplexity {estimate(logprobs)[0]:.4f}")
        seconds = time.perf_counter() - started
        where = llm.device
    perplexity, error = estimate(logprobs)
    speed = len(pieces) * window / seconds
    if as_json:
        facts = {
            "model": str(model),
            "text": str(text),
            "device": where,
            "window": window,
            "windows": len(pieces),
            "scored_tokens": len(logprobs),
            "perplexity": perplexity,
            "standard_error": error,
            "tokens_per_second": speed,
        }
        click.echo(json.dumps(facts, indent=2))
        return
    click.echo(f"perplexity {perplexity:.4f} ± {error:.4f}")
    line = f"{len(logprobs)} tokens scored in {len(pieces)} windows of {window} · {speed:.1f} tok/s · {where}"
    click.echo(click.style(line, dim=True), err=True)


def windows_of(llm: LLM, text: str, window: int, most: int | None = None) -> list[list[int]]:
    """The whole windows of a text, at most so many; BOS stands in the place of each one's first token, as in
    llama.cpp."""
    tokens = _tokens(llm, text, None if most is None else most * window)
    bos = llm.tokenizer.bos_id
    adds_bos = bos is not None and llm.tokenizer.encode("")[:1] == [bos]
    if adds_bos:
        tokens = [bos or 0, *tokens]
    found = [tokens[at : at + window] for at in range(0, len(tokens) - window + 1, window)][:most]
    if not found:
        raise RequestError(
            f"the text has {len(tokens)} tokens and a window takes {window}: give a longer text or a smaller "
            "--window"
        )
    return [[bos or 0, *piece[1:]] for piece in found] if adds_bos else found


def _tokens(llm: LLM, text: str, enough: int | None) -> list[int]:
    """The text's tokens, or its first ones: of a long text, only as much is cut as is needed for `enough`."""
    part = len(text) if enough is None else 8 * enough
    while part < len(text):
        tokens = llm.tokenizer.encode(text[:part], add_special=False)
        if enough is not None and len(tokens) >= enough + SPARE:
            return tokens[:-SPARE]
        part *= 2
    return llm.tokenizer.encode(text, add_special=False)


def estimate(logprobs: Sequence[float]) -> tuple[float, float]:
    """The perplexity, and its standard error where each token is a sample."""
    count = len(logprobs)
    mean = -sum(logprobs) / count
    spread = sum((-each - mean) ** 2 for each in logprobs) / count
    perplexity = math.exp(mean)
    return perplexity, perplexity * math.sqrt(spread / (count - 1)) if count > 1 else math.inf
