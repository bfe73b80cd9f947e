"""Histograms, and what is recorded of a request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from olivine.engine import Timings, Usage
from olivine.server import metrics
from olivine.server.metrics import HISTOGRAMS, Histogram, Metrics


def test_buckets_are_cumulative_and_a_bound_belongs_to_its_own() -> None:
    histogram = Histogram([1.0, 2.0, 5.0])
    for value in (0.5, 1.0, 1.5, 5.0, 7.0):
        histogram.observe(value)
    histogram.observe(2.0, times=3)
    assert histogram.buckets() == [("1", 2.0), ("2", 6.0), ("5", 7.0), ("+Inf", 8.0)]
    assert histogram.sum == 21.0


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_bounds_rise(name: str) -> None:
    bounds = list(HISTOGRAMS[name][0])
    assert bounds == sorted(set(bounds)) and len(bounds) < 30


def test_a_request_is_measured_by_its_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=10.0)
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: clock.now)
    counted = Metrics()
    model: Any = SimpleNamespace(name="m")
    recorder = counted.recorder(model, 9.0, 2)

    def arrive(after: float, *pieces: tuple[int, int]) -> None:
        clock.now += after
        recorder.tokens([(index, SimpleNamespace(tokens=[0] * count)) for index, count in pieces])

    arrive(0.0, (0, 0))  # the prompt is being read
    arrive(1.0, (0, 1), (1, 1))
    arrive(0.5, (0, 1))
    arrive(0.5, (0, 4), (1, 2))  # several tokens in one piece
    usage, timings = Usage(prompt=7, completion=3), Timings(0.25, 0.5, 1.0)
    recorder.end([SimpleNamespace(usage=usage, timings=timings)] * 2)  # type: ignore[list-item]
    found = {
        name: (histogram.counts, histogram.sum) for name, histogram in counted.histograms_of(model).items()
    }
    totals = {name: (sum(counts), total) for name, (counts, total) in found.items()}
    assert totals["time_to_first_token_seconds"] == (2, 4.0)
    # 0.5 once, four of 0.125, two of 0.5
    assert totals["inter_token_latency_seconds"] == (7, 2.0)
    assert totals["e2e_request_latency_seconds"] == (1, 3.0)
    assert totals["request_time_per_output_token_seconds"] == (2, 1.0)
    assert totals["request_inference_time_seconds"] == (2, 3.0)
    assert totals["request_prompt_tokens"] == (1, 7.0)
    assert totals["request_params_n"] == (1, 2.0)


def test_methods_that_clients_make_up_are_not_labels() -> None:
    counted = Metrics()
    for method in ("GET", "HACK1", "HACK2"):
        counted.count(method, "", 404)
    assert counted.responses == {("GET", "", 404): 1, ("", "", 404): 2}
