"""`olivine compare`: how far two models' predictions are apart."""

from __future__ import annotations

import json
from pathlib import Path

import click

from olivine.cli.files import read_corpus
from olivine.cli.obtain import ModelCommand
from olivine.cli.options import ModelPath, device_option
from olivine.cli.perplexity import windows_of
from olivine.cli.text import Status, echo_facts, echo_warnings
from olivine.errors import RequestError


@click.command("compare", cls=ModelCommand, short_help="Compare the predictions of two models.")
@click.argument("a", type=ModelPath())
@click.argument("b", type=ModelPath())
@click.argument("text", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--window", type=click.IntRange(8), default=512, show_default=True, help="Tokens per window.")
@click.option("--windows", "most", type=click.IntRange(1), help="Stop after this many windows.")
@device_option
@click.option("-t", "--threads", type=click.IntRange(1, 1024), help="Default: the number of physical cores.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def command(
    a: Path,
    b: Path,
    text: Path,
    window: int,
    most: int | None,
    device: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Compare the models A and B, such as an original and its conversion, on the file TEXT.

    Prints both perplexities, measured as `olivine perplexity` does, the Kullback-Leibler divergence of B from
    A in nats per token, and how often both predict the same most likely token. - is standard input.
    """
    from olivine.bench.compare import Comparison, compare_window
    from olivine.llm import load

    content = read_corpus(text)
    options = {"device": device, "threads": threads, "context": window, "sequences": 1}
    status = Status()
    with load(a, **options) as first, load(b, **options) as second, status:  # type: ignore[arg-type]
        echo_warnings(dict.fromkeys((*first.warnings, *second.warnings)))
        status.show("cutting the text into tokens …")
        pieces = windows_of(first, content, window, most)
        if first.vocabulary != second.vocabulary or pieces != windows_of(second, content, window, most):
            raise RequestError(f"{a} and {b} cut this text into different tokens: nothing to compare")
        found = Comparison()
        for done, piece in enumerate(pieces, 1):
            compare_window(first.program, second.program, piece, found)
            status.show(f"window {done} of {len(pieces)}: divergence {found.mean_divergence[0]:.6f}")
        where = first.device
    perplexities, (divergence, error) = found.perplexities, found.mean_divergence
    if as_json:
        facts = {
            "a": str(a),
            "b": str(b),
            "text": str(text),
            "device": where,
            "window": window,
            "windows": len(pieces),
            "scored_tokens": found.positions,
            "perplexity": list(perplexities),
            "divergence": divergence,
            "divergence_standard_error": error,
            "same_top": found.agreement,
        }
        click.echo(json.dumps(facts, indent=2))
        return
    echo_facts(
        [
            ("perplexity", f"{perplexities[0]:.4f} of {a}\n{perplexities[1]:.4f} of {b}"),
            ("divergence", f"{divergence:.6f} ± {error:.6f} nats a token"),
            ("same top", f"{100 * found.agreement:.2f} % of {found.positions:,} tokens"),
        ]
    )
    line = f"{len(pieces)} windows of {window} · {where}"
    click.echo(click.style(line, dim=True), err=True)
