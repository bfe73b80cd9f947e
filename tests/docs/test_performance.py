"""The plots of docs/performance.md and the table of README.md agree with the tables that have the figures."""

from __future__ import annotations

import sys

import pytest

from oracles.documents import ROOT, name_of

sys.path.insert(0, str(ROOT / "tools"))
import performance


def test_files_are_as_they_would_be_written_now() -> None:
    for path, text in performance.made().items():
        assert path.read_text(encoding="utf-8") == text, f"{name_of(path)}: run make docs"


def spread(median: float) -> dict[str, float]:
    return {"median": median, "low": median / 2, "high": median * 2}


def test_what_a_bench_measured_becomes_a_table() -> None:
    side = {
        "prefill_tok_s": spread(824.4),
        "decode_tok_s": spread(42.81),
        "decode_share": spread(0.75),
        "peak_rss_bytes": 823e6,
    }
    ratios = {"prefill_tok_s": spread(2), "decode_tok_s": spread(1)}
    run = {"engines": {"olivine": side, "llama.cpp": side}, "ratios": ratios}
    lines = performance.table_of([{"model": "models/bench/qwen3.gguf", "runs": [run]}]).splitlines()
    assert lines[0].split("|")[2:5] == [" prefill, tok/s ", " llama.cpp ", " ratio "]
    assert lines[2].startswith(
        "| qwen3 | 824 | 824 | 2.00× [1.00–4.00] | 42.8 | 42.8 | 1.00× [0.50–2.00] | 75% |"
    )
    alone = {"engines": {"olivine": side}, "ratios": {}}
    assert "| – |" in performance.table_of([{"model": "m", "runs": [alone]}])


def test_streams_become_a_table() -> None:
    one = {"total_tok_s": spread(36), "total_over_one": spread(1)}
    report = {"model": "q.gguf", "engines": {"olivine": {"1": one}}, "ratios": {"1": {}}}
    assert performance.table_of([report]).splitlines()[2] == "| q | 1 | 36.0 | 1.00× [0.50–2.00] | – | – |"


@pytest.mark.parametrize(("cell", "value"), [("1,615", 1615), ("**3.06×** [2.84–4.76]", 3.06), ("47 %", 47)])
def test_numbers_of_cells(cell: str, value: float) -> None:
    assert performance.number(cell) == value
