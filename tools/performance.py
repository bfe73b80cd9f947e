"""The figures of the documentation: plots and the table of README.md, from the tables of docs/.

    python tools/performance.py                writes docs/pictures/performance-*.svg and README.md's table
    python tools/performance.py --check        says what is not as it should be, and exits with 1
    python tools/performance.py --table FILE   prints what benches/cpu.py or benches/parallel.py measured
                                               (--json FILE) as a table for docs/cpu.md or docs/engine.md

The tables of docs/cpu.md, docs/server.md and docs/cuda.md are the only place where a figure is typed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bars import Bar, Group, chart

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- made by tools/performance.py -->", "<!-- end -->"
PEERS = "llama.cpp"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    if given.table:
        print(table_of(json.loads(given.table.read_text())))
        return
    stale = []
    for path, text in made().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.name)
        if not given.check:
            path.write_text(text, encoding="utf-8")
    print(f"{'stale' if given.check else 'written'}: {', '.join(stale) or 'none'}")
    sys.exit(1 if given.check and stale else 0)


def foretold(head: Sequence[str], row: Sequence[str]) -> list[Bar]:
    """The slowest link and the fastest."""
    columns = (1, len(row) - 1)
    order = columns if "Gb/s" in head[1] else columns[::-1]
    return [Bar(name, number(row[at])) for name, at in zip(("slow link", "fast link"), order, strict=True)]


def made() -> dict[Path, str]:
    """Every file that is made, with its text."""
    cpu = rows_of("docs/cpu.md", "prefill, tok/s", "decode, tok/s")
    serving = rows_of("docs/server.md", "streams", "llama-server")
    cuda = rows_of("docs/cuda.md", "greedy, tok/s", "of the limit")
    gpus = rows_of("docs/cluster.md", "NVLink, tok/s", "PCIe 5, tok/s")
    machines = rows_of("docs/cluster.md", "10 Gb/s, tok/s", "100 Gb/s, tok/s")
    threads = rows_of("docs/cpu.md", "threads", "Q4_K_M prompt, tok/s")
    pictures = ROOT / "docs" / "pictures"
    readme = ROOT / "README.md"
    return {
        pictures / "performance-decode.svg": versus("Decode on two cores, tokens/s", cpu, "decode, tok/s"),
        pictures / "performance-prefill.svg": versus("Prompts on two cores, tokens/s", cpu, "prefill, tok/s"),
        pictures / "performance-serving.svg": chart(
            "Streams over HTTP, tokens/s in total",
            [
                Group(
                    f"{row[0]} stream{'s' if row[0] != '1' else ''}",
                    [Bar("Olivine", number(row[1])), Bar("llama-server", number(row[4]))],
                )
                for row in serving[1:]
            ],
        ),
        pictures / "performance-cuda.svg": chart(
            "One sequence on one H200, tokens/s; light: reading the weights once",
            [
                Group(
                    row[0].partition(",")[0],
                    [Bar("Olivine", number(row[1]), number(row[1]) / (number(row[2]) / 100))],
                )
                for row in cuda[1:]
            ],
        ),
        pictures / "cluster-cost.svg": chart(
            "One sequence on several ranks, foretold, tokens/s",
            [
                *(
                    Group(f"70B, {row[0]} GPU{'s' if row[0] != '1' else ''}", foretold(gpus[0], row))
                    for row in gpus[1:]
                ),
                *(
                    Group(
                        f"27B, {row[0]} CPU machine{'s' if row[0] != '1' else ''}", foretold(machines[0], row)
                    )
                    for row in machines[1:]
                ),
            ],
        ),
        pictures / "performance-threads.svg": chart(
            "Qwen3-0.6B Q4_K_M by threads, times as fast as with two",
            [
                Group(
                    f"{row[0]} threads",
                    [
                        Bar(name, round(number(row[at]) / number(threads[1][at]), 2))
                        for at, name in ((1, "prompt"), (2, "decode"))
                    ],
                )
                for row in threads[1:]
            ],
        ),
        readme: replaced(readme.read_text(encoding="utf-8"), readme_table(cpu)),
    }


def rows_of(page: str, *columns: str) -> list[list[str]]:
    """The first table of a page whose head has these columns: its head and its rows, cell by cell."""
    found: list[list[str]] = []
    for line in [*(ROOT / page).read_text(encoding="utf-8").splitlines(), ""]:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if cells and (found or set(columns) <= set(cells)):
            if not re.fullmatch(r"[-: ]+", "".join(cells)):
                found.append(cells)
        elif found:
            return found
    raise LookupError(f"{page} has no table with the columns {', '.join(columns)}")


def number(cell: str) -> float:
    """The first number of a cell: `1,615`, `**3.06×** [2.84–4.76]`, `47 %`."""
    found = re.search(r"\d[\d,]*(\.\d+)?", cell)
    if found is None:
        raise ValueError(f"{cell!r} has no number")
    return float(found[0].replace(",", ""))


def versus(title: str, rows: Sequence[Sequence[str]], column: str) -> str:
    """A column beside the one after it, which is llama.cpp's."""
    at = rows[0].index(column)
    assert rows[0][at + 1] == PEERS, rows[0]
    pairs = [[Bar("Olivine", number(row[at])), Bar(PEERS, number(row[at + 1]))] for row in rows[1:]]
    return chart(title, [Group(row[0], pair) for row, pair in zip(rows[1:], pairs, strict=True)])


def readme_table(rows: Sequence[Sequence[str]]) -> str:
    prefill, decode, memory = (
        rows[0].index(name) for name in ("prefill, tok/s", "decode, tok/s", "peak RSS, MB")
    )
    lines = [
        f"| | prompt, tok/s | {PEERS} | ratio | decode, tok/s | {PEERS} | ratio | memory, MB | {PEERS} |",
        "| --- | --: | --: | --- | --: | --: | --- | --: | --: |",
    ]
    for row in rows[1:]:
        cells = [row[0], *row[prefill : prefill + 3], *row[decode : decode + 3], *row[memory : memory + 2]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def replaced(text: str, table: str) -> str:
    """A text with this between the marks."""
    if BEGIN not in text:
        return text
    before, rest = text.split(BEGIN, 1)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.split(END, 1)[1]}"


def table_of(reports: list[dict[str, Any]]) -> str:
    """What a bench measured, as Markdown."""
    if "engines" in reports[0]:
        return _streams(reports)
    lines = [
        "| | prefill, tok/s | llama.cpp | ratio | decode, tok/s | llama.cpp | ratio | of bandwidth "
        "| peak RSS, MB | llama.cpp |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for report in reports:
        for run in report["runs"]:
            ours, theirs = run["engines"]["olivine"], run["engines"].get("llama.cpp")
            cells = [Path(report["model"]).stem]
            for figure, form in (("prefill_tok_s", ".0f"), ("decode_tok_s", ".1f")):
                cells.append(format(ours[figure]["median"], form))
                cells.append(format(theirs[figure]["median"], form) if theirs else "–")
                cells.append(_ratio(run["ratios"].get(figure)))
            share = ours.get("decode_share")
            cells.append(f"{share['median']:.0%}" if share else "–")
            cells += [f"{side['peak_rss_bytes'] / 1e6:.0f}" if side else "–" for side in (ours, theirs)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _streams(reports: list[dict[str, Any]]) -> str:
    lines = ["| | streams | tok/s | of one | llama.cpp | ratio |", "| --- | --- | --- | --- | --- | --- |"]
    for report in reports:
        theirs = report["engines"].get("llama.cpp", {})
        for streams, ours in report["engines"]["olivine"].items():
            other = theirs.get(streams)
            cells = [Path(report["model"]).stem, streams, f"{ours['total_tok_s']['median']:.1f}"]
            cells.append(_ratio(ours["total_over_one"]))
            cells.append(f"{other['total_tok_s']['median']:.1f}" if other else "–")
            cells.append(_ratio(report["ratios"][streams].get("total_tok_s")))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(spread: dict[str, Any] | None) -> str:
    if spread is None:
        return "–"
    return f"{spread['median']:.2f}× [{spread['low']:.2f}–{spread['high']:.2f}]"


if __name__ == "__main__":
    main()
