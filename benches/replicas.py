"""Throughput of one and of two replicas on Ray, of one core each, beside each other.

    python benches/replicas.py [--model olivine-mini] [--requests 64] [--clients 8] [--tokens 64] [--rounds 3]

Rounds alternate between the two applications, which stay deployed meanwhile, so that what else the machine
does falls on both. Printed are tokens per second, the ratio, and the cores that were there for it. Then, for
the two: how many prompts whose prefix was sent before found it cached, of 8 prefixes with 8 questions each.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from olivine.ray.run import PATIENCE

for name, value in {"RAY_USAGE_STATS_ENABLED": "0", **PATIENCE}.items():  # before Ray is imported
    os.environ.setdefault(name, value)


def measured(url: str, requests: int, clients: int, tokens: int) -> float:
    """Tokens per second of many clients."""

    def ask(number: int) -> int:
        body = {"prompt": f"Story {number}: once upon a time", "max_tokens": tokens, "ignore_eos": True}
        found = httpx.post(f"{url}/v1/completions", json=body, timeout=600.0)
        found.raise_for_status()
        return int(found.json()["usage"]["completion_tokens"])

    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        made = sum(pool.map(ask, range(requests)))
    return made / (time.perf_counter() - started)


def cached_share(url: str, prefixes: int = 8, questions: int = 8, clients: int = 4) -> float:
    """Of prompts whose prefix was sent before: those of which most was cached where they came to."""
    stories = [f"Story {number} of a fox and a boat. " * 20 for number in range(prefixes)]
    asked = [(story, f"What then? {i}") for i in range(questions) for story in stories]

    def ask(each: tuple[str, str]) -> bool:
        messages = [{"role": "system", "content": each[0]}, {"role": "user", "content": each[1]}]
        body = {"messages": messages, "max_tokens": 1}
        usage = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=600.0).json()["usage"]
        return bool(usage["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] / 2)

    with ThreadPoolExecutor(clients) as pool:
        hits = [*pool.map(ask, asked)][prefixes:]
    return sum(hits) / len(hits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="olivine-mini")
    for name, value in (("requests", 64), ("clients", 8), ("tokens", 64), ("rounds", 3), ("port", 8099)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()

    import ray
    from ray import serve

    from olivine.ray import build_app

    ray.init("local", include_dashboard=False, object_store_memory=256 << 20, num_cpus=4, log_to_driver=False)
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": options.port})
    rates: dict[int, list[float]] = {1: [], 2: []}
    try:
        plain: dict[str, Any] = {"model": options.model, "threads": 1, "ingresses": 1, "log_format": "none"}
        for count in rates:
            app = build_app({**plain, "replicas": count})
            serve.run(app, name=f"app-{count}", route_prefix=f"/{count}")
        for turn in range(options.rounds + 1):
            for count, found in rates.items():
                url = f"http://127.0.0.1:{options.port}/{count}"
                rate = measured(url, options.requests, options.clients, options.tokens)
                if turn:  # the first is to warm up
                    found.append(rate)
                    print(f"{count} replica{'s' * (count > 1)}: {rate:7.1f} tok/s", flush=True)
        share = cached_share(f"http://127.0.0.1:{options.port}/2")
        print(
            f"2 replicas: {100 * share:.0f} % of the prompts with a known prefix found it cached", flush=True
        )
    finally:
        serve.shutdown()
        ray.shutdown()
    one, two = (statistics.median(rates[count]) for count in (1, 2))
    cores, load = os.cpu_count(), os.getloadavg()[0]
    print(f"median {one:.1f} and {two:.1f} tok/s, {two / one:.2f} times; {cores} cores, load {load:.1f}")


if __name__ == "__main__":
    main()
