"""What the server counts, and GET /metrics: vLLM's names under the prefix `olivine:`.

Figures of the engine are read when they are asked for. What is measured for each request is put into plain
lists by the event loop's thread, without locks.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

from olivine.engine import Timings, Usage
from olivine.server.served import ServedModel

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX = "olivine:"
_SECONDS = [round(digit * 10.0**power, 6) for power in range(-4, 3) for digit in (1, 2, 5)]
_COUNTS = [float(digit * 10**power) for power in range(6) for digit in (1, 2, 5)]


class Histogram:
    """How often values of each size came."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bounds, and how many values are not above them."""
        names = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self.counts)), strict=True))


# Name → (bounds, help), of what is measured for each request.
HISTOGRAMS: dict[str, tuple[Sequence[float], str]] = {
    "time_to_first_token_seconds": (_SECONDS, "From the arrival of a request to its first token."),
    "inter_token_latency_seconds": (_SECONDS, "Between tokens of an output."),
    "request_time_per_output_token_seconds": (_SECONDS, "Mean time of the tokens after an output's first."),
    "e2e_request_latency_seconds": (_SECONDS, "From the arrival of a request to its end."),
    "request_queue_time_seconds": (_SECONDS, "In the queue."),
    "request_prefill_time_seconds": (_SECONDS, "Prefill."),
    "request_decode_time_seconds": (_SECONDS, "Decode."),
    "request_inference_time_seconds": (_SECONDS, "Prefill and decode."),
    "request_prompt_tokens": (_COUNTS, "Tokens of the prompt."),
    "request_generation_tokens": (_COUNTS, "Tokens of an output."),
    "request_params_n": (_COUNTS, "Outputs that a request asks for."),
}
# Name → help, of the totals that an engine counts: see `ServedModel.totals`.
COUNTERS = {
    "prompt_tokens": "Tokens of prompts.",
    "generation_tokens": "Tokens that were generated.",
    "prompt_tokens_cached": "Tokens of prompts that were in the prefix cache.",
    "prefix_cache_queries": "Tokens that were looked up in the prefix cache.",
    "prefix_cache_hits": "Tokens that were found in the prefix cache.",
    "num_preemptions": "Times that a request had to give its pages to others.",
    "engine_steps": "Steps of the engine.",
    "model_loads": "Times that the model was loaded.",
    "model_load_failures": "Times that the model could not be loaded.",
    "model_unloads": "Times that the model was unloaded.",
}


class Finished(Protocol):
    """A result, as much of it as is counted."""

    @property
    def usage(self) -> Usage: ...
    @property
    def timings(self) -> Timings: ...


class Recorder:
    """Measures one request with `n` outputs."""

    __slots__ = ("_began", "_gaps", "_histograms", "_last")

    def __init__(self, histograms: dict[str, Histogram], began: float, n: int) -> None:
        self._histograms = histograms
        self._gaps = histograms["inter_token_latency_seconds"]
        self._began = began
        self._last = [0.0] * n

    def tokens(self, pieces: Iterable[tuple[int, Any]]) -> None:
        """Pieces have come, of which some have tokens."""
        now, last, gaps = time.perf_counter(), self._last, self._gaps
        for index, piece in pieces:
            if count := len(piece.tokens):
                if before := last[index]:  # `observe` without its call: this runs for every piece
                    gaps.counts[bisect_left(gaps.bounds, (now - before) / count)] += count
                    gaps.sum += now - before
                else:
                    self._histograms["time_to_first_token_seconds"].observe(now - self._began)
                last[index] = now

    def end(self, results: Sequence[Finished]) -> None:
        """All outputs are there."""
        of = self._histograms
        of["e2e_request_latency_seconds"].observe(time.perf_counter() - self._began)
        of["request_params_n"].observe(len(results))
        of["request_prompt_tokens"].observe(results[0].usage.prompt)
        for each in results:
            timings, tokens = each.timings, each.usage.completion
            of["request_queue_time_seconds"].observe(timings.queue)
            of["request_prefill_time_seconds"].observe(timings.prefill)
            of["request_decode_time_seconds"].observe(timings.decode)
            of["request_inference_time_seconds"].observe(timings.prefill + timings.decode)
            of["request_generation_tokens"].observe(tokens)
            if tokens > 1:
                of["request_time_per_output_token_seconds"].observe(timings.decode / (tokens - 1))


class Metrics:
    """What the server has counted since it started."""

    def __init__(self) -> None:
        self.responses: Counter[tuple[str, str, int]] = Counter()  # by method, path of the endpoint, status
        self._histograms: dict[str, dict[str, Histogram]] = {}  # by model and name

    def count(self, method: str, path: str, status: int) -> None:
        """A response begins; `path` is that of an endpoint, or "" if there is none."""
        self.responses[method if path or method in ("GET", "POST") else "", path, status] += 1

    def recorder(self, model: ServedModel, began: float, n: int) -> Recorder:
        return Recorder(self.histograms_of(model), began, n)

    def histograms_of(self, model: ServedModel) -> dict[str, Histogram]:
        """Those of a model, by name."""
        found = self._histograms.get(model.name)
        if found is None:
            found = {name: Histogram(bounds) for name, (bounds, _) in HISTOGRAMS.items()}
            self._histograms[model.name] = found
        return found

    def exposition(self, models: Sequence[ServedModel], accept: str) -> tuple[bytes, str]:
        """The metrics in the format that a scraper accepts, and its media type."""
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.exposition import choose_encoder

        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_Collector(self, models))
        encode, media_type = choose_encoder(accept)
        return encode(registry), media_type

    def families(self, models: Sequence[ServedModel]) -> Iterator[Metric]:
        """All metrics, as prometheus_client has them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        labels = ["model_name"]
        gauges = {
            name: GaugeMetricFamily(PREFIX + name, told, labels=labels) for name, told in _GAUGES.items()
        }
        counters = {
            name: CounterMetricFamily(PREFIX + name, told, labels=labels) for name, told in COUNTERS.items()
        }
        finished = CounterMetricFamily(
            f"{PREFIX}request_success", "Requests by how they ended.", labels=[*labels, "finished_reason"]
        )
        for model in models:
            for name, value in _gauges_of(model).items():
                gauges[name].add_metric([model.name], value)
            totals = model.totals()
            for name, counter in counters.items():
                counter.add_metric([model.name], totals[name])
            for name, value in totals.items():
                kind, _, reason = name.partition(":")
                if kind == "finished":
                    finished.add_metric([model.name, reason], value)
        yield from (*gauges.values(), *counters.values(), finished)
        for name, (_, told) in HISTOGRAMS.items():
            family = HistogramMetricFamily(PREFIX + name, told, labels=labels)
            for of_model, found in self._histograms.items():
                family.add_metric([of_model], found[name].buckets(), found[name].sum)
            yield family
        responses = CounterMetricFamily(
            f"{PREFIX}http_requests", "Responses.", labels=["method", "handler", "status"]
        )
        for (method, path, status), count in self.responses.items():
            responses.add_metric([method, path, str(status)], count)
        yield responses


_GAUGES = {
    "num_requests_running": "Requests that run.",
    "num_requests_waiting": "Requests that wait.",
    "kv_cache_usage_perc": "Share of the KV cache that is in use; 1 is all of it.",
    "model_loaded": "1 if the model is loaded.",
    "seconds_since_step": "Seconds since the engine's last step, while requests wait for one.",
}


def _gauges_of(model: ServedModel) -> dict[str, float]:
    llm = model.loaded
    if llm is None:
        return {**dict.fromkeys(_GAUGES, 0.0), "num_requests_waiting": float(model.waiting)}
    stats = llm.stats()
    usage = max((1 - pages.free / pages.total for pages in stats.pages if pages.total), default=0.0)
    return {
        "num_requests_running": float(stats.running),
        "num_requests_waiting": float(stats.waiting + model.waiting),
        "kv_cache_usage_perc": usage,
        "model_loaded": 1.0,
        "seconds_since_step": stats.stalled,
    }


class _Collector:
    """The metrics of a server for prometheus_client."""

    def __init__(self, metrics: Metrics, models: Sequence[ServedModel]) -> None:
        self._metrics = metrics
        self._models = models

    def collect(self) -> Iterator[Metric]:
        return self._metrics.families(self._models)
