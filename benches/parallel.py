"""Throughput of concurrent streams compared with llama.cpp, as one table.

    python benches/parallel.py --llama-python path/to/python

Writes the model files first (to models/bench). Both engines alternately run the same files with the same
threads; a ratio is the median of the repeats' ratios, with the lowest and the highest in brackets. Run
nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from make_model import made
from olivine.bench.parallel import Report, Settings, measure
from olivine.bench.spread import Spread

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = ("model", "streams", "tok/s", "of one", "llama.cpp", "of one", "ratio")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["qwen3-0.6b"])
    parser.add_argument("--types", nargs="+", default=["Q8_0"])
    parser.add_argument("--streams", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=ROOT / "models" / "bench")
    parser.add_argument("--llama-python", default=os.environ.get("OLIVINE_LLAMA_PYTHON", sys.executable))
    parser.add_argument("--alone", action="store_true", help="without llama.cpp")
    parser.add_argument("--json", type=Path, help="write every figure to this file as well")
    given = parser.parse_args()

    reports: list[Report] = []
    for shape in given.shapes:
        for kind in given.types:
            settings = Settings(
                model=made(shape, kind, given.folder),
                streams=tuple(given.streams),
                prompt=given.prompt,
                generate=given.generate,
                threads=given.threads,
                repeats=given.repeats,
                device="cpu",
                llama_python=None if given.alone else given.llama_python,
            )
            report = measure(settings, lambda what: print(f"\r\x1b[K{what}", end="", file=sys.stderr))
            print("\r\x1b[K", end="", file=sys.stderr)
            if not reports:
                print_heading(report)
            reports.append(report)
            for figure, what in (("total", "with prefill"), ("decode", "decode only")):
                for count in report.engines["olivine"]:
                    print_row(f"{shape} {kind}, {what}", report, count, figure)
    if given.json:
        given.json.write_text(json.dumps([report.to_json() for report in reports], indent=1))


def print_heading(report: Report) -> None:
    s = report.settings
    print(f"{s.generate} tokens after prompts of {s.prompt}, {report.threads} threads ({report.device}),")
    print(f"medians of {s.repeats} alternating repeats.")
    if report.llama_cpp:
        print(f"llama-cpp-python {report.llama_cpp}.")
    print()
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + " --- |" * len(COLUMNS))


def print_row(name: str, report: Report, count: int, figure: str) -> None:
    cells = [name, str(count)]
    for engine in ("olivine", "llama.cpp"):
        if engine in report.engines:
            speed: Spread = getattr(report.engines[engine][count], figure)
            cells += [f"{speed.median:.1f}", times(report.over_one(engine, count, figure))]
        else:
            cells += ["–", "–"]
    cells.append(times(report.ratio(count, figure)))
    print("| " + " | ".join(cells) + " |", flush=True)


def times(ratio: Spread | None) -> str:
    return "–" if ratio is None else f"{ratio.median:.2f}× [{ratio.low:.2f}–{ratio.high:.2f}]"


if __name__ == "__main__":
    main()
