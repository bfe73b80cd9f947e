"""The CPU backend compared with llama.cpp and with the machine's limits, as one table.

    python benches/cpu.py --llama-python path/to/python

Writes the model files first (to models/bench, some gigabytes). Both engines alternately run the same files
with the same threads; a ratio is the median of the repeats' ratios, with the lowest and the highest in
brackets. Run nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from make_model import QWEN3C, made
from olivine.bench.measure import Report, Run, Settings, Side, measure
from olivine.bench.spread import Spread
from synthetic import SHAPES

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = (
    "model",
    "MB per token",
    "prefill, tok/s",
    "llama.cpp",
    "ratio",
    "of peak",
    "decode, tok/s",
    "llama.cpp",
    "ratio",
    "of bandwidth",
    "llama.cpp",
    "first token, s",
    "llama.cpp",
    "peak RSS, MB (over the file)",
    "llama.cpp",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["qwen3-0.6b", "gemma3-1b"])
    parser.add_argument("--types", nargs="+", default=["Q8_0", "Q4_0", "Q4_K_M", "BF16", QWEN3C])
    parser.add_argument("-t", "--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=ROOT / "models" / "bench")
    parser.add_argument("--llama-python", default=os.environ.get("OLIVINE_LLAMA_PYTHON", sys.executable))
    parser.add_argument("--alone", action="store_true", help="without llama.cpp")
    parser.add_argument("--json", type=Path, help="write every figure to this file as well")
    given = parser.parse_args()

    pairs = [
        (shape, kind)
        for shape in given.shapes
        for kind in given.types
        if kind != QWEN3C or SHAPES[shape].architecture == "qwen3"
    ]
    paths = [made(shape, kind, given.folder) for shape, kind in pairs]
    reports: list[Report] = []
    for (shape, kind), path in zip(pairs, paths, strict=True):
        settings = Settings(
            model=path,
            prompt=given.prompt,
            generate=given.generate,
            threads=tuple(given.threads),
            repeats=given.repeats,
            device="cpu",
            # llama.cpp cannot read qwen3.c's format: compare with the rows of Q8_0.
            llama_python=None if given.alone or kind == QWEN3C else given.llama_python,
        )
        report = measure(settings, lambda what: print(f"\r\x1b[K{what}", end="", file=sys.stderr))
        print("\r\x1b[K", end="", file=sys.stderr)
        if not reports:
            _print_heading(report)
        reports.append(report)
        for run in report.runs:
            _print_row(f"{shape} {kind}", report, run)
    _print_machine(reports)
    if given.json:
        given.json.write_text(json.dumps([report.to_json() for report in reports], indent=1))


def _print_heading(report: Report) -> None:
    s = report.settings
    print(f"Prompt of {s.prompt}, {s.generate} generated, medians of {s.repeats} alternating repeats.")
    if report.llama_cpp:
        print(f"llama-cpp-python {report.llama_cpp}.")
    print()
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + " --- |" * len(COLUMNS))


def _print_row(name: str, report: Report, run: Run) -> None:
    ours, theirs = run.sides[0], run.sides[1] if len(run.sides) > 1 else None
    over = (ours.peak_rss_bytes - report.file_bytes) / 1e6
    cells = [
        f"{name}, {run.threads} t",
        f"{report.decode_bytes / 1e6:.0f}",
        f"**{ours.prefill_tok_s.median:.0f}**",
        _of(theirs, "prefill_tok_s", ".0f"),
        _ratio(run.ratio("prefill_tok_s")),
        _percent(ours.prefill_share),
        f"**{ours.decode_tok_s.median:.1f}**",
        _of(theirs, "decode_tok_s", ".1f"),
        _ratio(run.ratio("decode_tok_s")),
        _percent(ours.decode_share),
        _percent(theirs.decode_share if theirs else None),
        f"{ours.first_token_s.median:.2f}",
        _of(theirs, "first_token_s", ".2f"),
        f"{ours.peak_rss_bytes / 1e6:.0f} ({over:+.0f})",
        f"{theirs.peak_rss_bytes / 1e6:.0f}" if theirs else "–",
    ]
    print("| " + " | ".join(cells) + " |", flush=True)


def _print_machine(reports: list[Report]) -> None:
    """The machine's limits during the run: if they vary much, so do the figures."""
    print()
    for threads in reports[0].settings.threads or [run.threads for run in reports[0].runs]:
        runs = [run for report in reports for run in report.runs if run.threads == threads]
        bandwidth = Spread.of(b for run in runs if run.bandwidth for b in run.bandwidth.values)
        words = [f"reads {_range(bandwidth.times(1e-9), '.1f')} GB/s"]
        for kind in runs[0].peak:
            peak = Spread.of(value for run in runs for value in run.peak[kind].values)
            words.append(f"{kind} {_range(peak.times(1e-12), '.2f')} Top/s")
        print(f"Machine with {threads} threads ({runs[0].isa}): {', '.join(words)}.")


def _of(side: Side | None, figure: str, form: str) -> str:
    return format(getattr(side, figure).median, form) if side else "–"


def _ratio(ratio: Spread | None) -> str:
    return "–" if ratio is None else f"**{ratio.median:.2f}×** [{ratio.low:.2f}–{ratio.high:.2f}]"


def _percent(share: Spread | None) -> str:
    return "–" if share is None else f"{share.median:.0%}"


def _range(spread: Spread, form: str) -> str:
    return f"{spread.median:{form}} [{spread.low:{form}}–{spread.high:{form}}]"


if __name__ == "__main__":
    main()
