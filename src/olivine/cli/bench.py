"""`olivine bench`: how fast a model runs here, beside what the machine allows."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from olivine.bench import parallel as streams
from olivine.bench.measure import Report, Run, Settings, Side, measure
from olivine.bench.spread import Spread
from olivine.cli.options import ModelPath, device_option, mmproj_option
from olivine.cli.text import Status, echo_facts, echo_hints, echo_table, echo_warnings, size
from olivine.cli.tool_habits import FamiliarBench


@click.command("bench", cls=FamiliarBench, short_help="Measure a model's speed and memory.")
@click.argument("model", type=ModelPath(exists=True))
@click.option(
    "--prompt",
    type=click.IntRange(1),
    help="Length of the prompt in tokens.  [default: 512, or 128 with --parallel]",
)
@click.option("--generate", type=click.IntRange(1), default=64, show_default=True, help="Tokens to generate.")
@click.option(
    "--depth",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Tokens in the context before generating.",
)
@click.option(
    "-t", "--threads", type=click.IntRange(1, 1024), multiple=True, help="Can be repeated, to compare."
)
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True)
@mmproj_option
@device_option
@click.option(
    "--against", type=click.Choice(["llama.cpp"]), help="Measure llama.cpp on the same file too, in turns."
)
@click.option(
    "--llama-python",
    envvar="OLIVINE_LLAMA_PYTHON",
    default=sys.executable,
    help="A Python with llama-cpp-python installed.  [default: this one]",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 1024),
    multiple=True,
    help="Measure this many streams at the same time instead; can be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def command(
    model: Path,
    prompt: int | None,
    generate: int,
    depth: int,
    threads: tuple[int, ...],
    repeats: int,
    mmproj: Path | None,
    device: str,
    against: str | None,
    llama_python: str,
    parallel: tuple[int, ...],
    as_json: bool,
) -> None:
    """Measure how fast MODEL runs: loading, reading a prompt, generating, and its memory.

    Speeds are compared with what the machine can do: generating a token reads every weight once, so memory
    bandwidth limits it; reading a prompt is limited by arithmetic. Both limits are measured during the run.

    Of a model that takes images, the time to preprocess and encode a photo is measured, too.

    With --parallel, several streams run at the same time: it shows their tokens per second in total, and how
    many times the speed of a single stream that is.
    """
    from olivine.loading import choose_device, kernel_hints

    chosen, warnings = choose_device(device)
    echo_warnings(warnings)
    echo_hints(kernel_hints(chosen))
    if parallel:
        if depth or len(threads) > 1 or generate < 2 or mmproj is not None:
            raise click.UsageError(
                "--parallel goes with one number of threads, no --depth, no --mmproj, and --generate of 2 or "
                "more."
            )
        many = streams.Settings(
            model=model,
            streams=parallel,
            prompt=prompt or 128,
            generate=generate,
            threads=threads[0] if threads else None,
            repeats=repeats,
            device=device,
            llama_python=llama_python if against else None,
        )
        with Status() as status:
            found = streams.measure(many, status.show)
        if as_json:
            click.echo(json.dumps(found.to_json(), indent=2))
        else:
            echo_streams(found)
        return
    settings = Settings(
        model=model,
        prompt=prompt or 512,
        generate=generate,
        depth=depth,
        threads=threads,
        repeats=repeats,
        device=device,
        mmproj=mmproj,
        llama_python=llama_python if against else None,
    )
    with Status() as status:  # whatever comes next begins on a clean line
        report = measure(settings, status.show)
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2))
    else:
        echo_report(report)


def echo_report(report: Report) -> None:
    """The report for people."""
    settings = report.settings
    echo_facts(
        [
            ("model", f"{settings.model.name}, {report.architecture}, {size(report.file_bytes)}"),
            ("backend", report.device),
            ("repeats", f"{settings.repeats}; medians, and the lowest and highest in brackets"),
        ]
    )
    if report.llama_cpp:
        echo_facts([("llama.cpp", report.llama_cpp)])
    for run in report.runs:
        click.echo()
        echo_facts([("threads", str(run.threads)), *_machine(run)])
        names = [side.name for side in run.sides]
        header = ("", *names, "ratio") if len(names) > 1 else ("", *names)
        rows = [row[: len(header)] for row in _rows(report, run)]
        echo_table(header, rows, right=frozenset())


def echo_streams(report: streams.Report) -> None:
    """The report on parallel streams, for people."""
    settings = report.settings
    echo_facts(
        [
            ("model", settings.model.name),
            ("backend", report.device),
            (
                "streams",
                f"prompts of {settings.prompt} random tokens, {settings.generate} generated after each",
            ),
            ("repeats", f"{settings.repeats}; medians, and the lowest and highest in brackets"),
        ]
    )
    if report.llama_cpp:
        echo_facts([("llama.cpp", f"{report.llama_cpp}; nothing is sampled there")])
    titles = {"total": "tok/s, reading included", "decode": "tok/s once all is read"}
    for figure, title in titles.items():
        header = [title]
        rows = []
        for engine in report.engines:
            header += [engine, "of one"]
        for count in report.engines["olivine"]:
            row = [f"{count} at once"]
            for engine, by_streams in report.engines.items():
                row.append(_spread(getattr(by_streams[count], figure), ".1f"))
                row.append(f"{_spread(report.over_one(engine, count, figure), '.2f')} ×")
            ratio = report.ratio(count, figure)
            rows.append(row if ratio is None else [*row, f"{_spread(ratio, '.2f')} ×"])
        click.echo()
        echo_table(header if len(report.engines) == 1 else [*header, "ratio"], rows, right=frozenset())


def _machine(run: Run) -> Iterator[tuple[str, str]]:
    if run.isa is not None:
        reads = [f"reads {_spread(run.bandwidth.times(1e-9), '.1f')} GB/s"] if run.bandwidth else []
        peaks = [f"{kind} {_operations(peak)}" for kind, peak in run.peak.items()]
        yield "machine", "\n".join([", ".join([run.isa, *reads]), *peaks])


def _rows(report: Report, run: Run) -> Iterator[tuple[str, ...]]:
    """A row a figure: its name, a cell an engine, and the ratio."""
    settings = report.settings

    def row(label: str, cell: Callable[[Side], str], ratio: str = "") -> tuple[str, ...]:
        return (label, *map(cell, run.sides), ratio)

    def ratio(figure: str) -> str:
        spread = run.ratio(figure)
        return "" if spread is None else f"{_spread(spread, '.2f')} ×"

    yield row("load", lambda side: f"{_spread(side.load_s, '.2f')} s", ratio("load_s"))
    yield row("first token", lambda side: f"{_spread(side.first_token_s, '.2f')} s", ratio("first_token_s"))
    yield row(
        f"prompt of {settings.prompt}",
        lambda side: f"{_spread(side.prefill_tok_s, '.1f')} tok/s",
        ratio("prefill_tok_s"),
    )
    yield row("", lambda side: f"{side.prefill_op_s.median / 1e9:,.0f} GFLOP/s{_share(side.prefill_share)}")
    after = f" after {settings.depth}" if settings.depth else ""
    yield row(
        f"{settings.generate} tokens{after}",
        lambda side: f"{_spread(side.decode_tok_s, '.1f')} tok/s",
        ratio("decode_tok_s"),
    )
    yield row("", lambda side: f"{side.decode_bytes_s.median / 1e9:.1f} GB/s{_share(side.decode_share)}")
    if (image := run.sides[0].image_s) is not None:
        label = f"image of {run.sides[0].image_tokens} tokens"
        yield row(label, lambda side: f"{_spread(image, '.3f')} s" if side.image_s is not None else "")
    memory = (
        "" if len(run.sides) < 2 else f"{run.sides[0].peak_rss_bytes / run.sides[1].peak_rss_bytes:.2f} ×"
    )
    yield row("peak memory", lambda side: size(side.peak_rss_bytes), memory)


def _spread(spread: Spread, form: str) -> str:
    """`12.3 [12.0–12.5]`, or only the number where it was measured once."""
    if len(spread.values) == 1:
        return format(spread.median, form)
    return f"{spread.median:{form}} [{spread.low:{form}}–{spread.high:{form}}]"


def _operations(peak: Spread) -> str:
    """Of floats and integers alike, in the unit that shows some digits."""
    if peak.median < 1e12:
        return f"{_spread(peak.times(1e-9), '.1f')} Gop/s"
    return f"{_spread(peak.times(1e-12), '.2f')} Top/s"


def _share(share: Spread | None) -> str:
    return "" if share is None else f", {share.median:.0%} of the limit"
