"""The server under load: throughput, time to the first token and time between tokens, as one table.

    python benches/serving.py MODEL                                  Olivine through HTTP, and without HTTP
    python benches/serving.py MODEL --llama-server PATH              … and llama.cpp's server

Each server runs in a process of its own and answers the same requests: streams of /v1/completions with
prompts of random tokens, greedy, to the same length. They take turns within each repeat, so that other load
on the machine affects all alike; ratios are taken within a repeat. "engine" is `bench --parallel`: the same
work by the library, without HTTP. The clients are processes of their own, and need cores of their own at high
rates. Run nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import random
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from olivine.bench.child import Child
from olivine.bench.spread import Spread

START = 300.0  # seconds that a server has to load its model
CLIENTS = 32  # connections of one client process


@dataclass
class Load:
    """One round: seconds in total, and when each event of each stream came, since its request was sent."""

    seconds: float
    tokens: int
    arrivals: list[list[float]]

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    @property
    def first(self) -> float:
        """Median time to the first token."""
        return median(times[0] for times in self.arrivals)

    @property
    def p99(self) -> float:
        """Of the times between two events of a stream, each of which may carry several tokens."""
        gaps = sorted(b - a for times in self.arrivals for a, b in itertools.pairwise(times))
        return gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))] if gaps else 0.0


async def stream(port: int, body: bytes) -> tuple[int, list[float]]:
    """One request on a connection of its own; gives its tokens and the times of its events."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    started = time.perf_counter()
    writer.write(head.encode() + body)
    times: list[float] = []
    tokens = 0
    while line := await reader.readline():
        if line.startswith(b"data: "):
            if line.startswith(b"data: [DONE]"):
                break
            if b'"usage":{' in line:
                tokens = int(json.loads(line[6:])["usage"]["completion_tokens"])
            if b'"text":"' in line and b'"text":""' not in line:
                times.append(time.perf_counter() - started)
        elif line.startswith(b"HTTP/1.1 ") and b" 200 " not in line:
            raise RuntimeError((line + await reader.read(4096)).decode(errors="replace"))
    writer.close()
    return tokens, times


def clients(port: int, bodies: Sequence[bytes]) -> tuple[int, list[list[float]]]:
    """Several requests at the same time, in a client process."""

    async def all_of_them() -> list[tuple[int, list[float]]]:
        return await asyncio.gather(*(stream(port, body) for body in bodies))

    found = asyncio.run(all_of_them())
    return sum(tokens for tokens, _ in found), [times for _, times in found]


class HttpServer:
    """A server that answers /v1/completions."""

    def __init__(self, name: str, port: int, pool: ProcessPoolExecutor) -> None:
        self.name, self._port, self._pool = name, port, pool

    def load(self, count: int, prompt: int, generate: int, vocabulary: int) -> Load:
        bodies = [
            _body([random.randrange(vocabulary) for _ in range(prompt)], generate) for _ in range(count)
        ]
        shares = [bodies[at : at + CLIENTS] for at in range(0, count, CLIENTS)]
        started = time.perf_counter()
        found = [*self._pool.map(clients, [self._port] * len(shares), shares)]
        seconds = time.perf_counter() - started
        tokens = sum(each for each, _ in found)
        if tokens != count * generate:
            raise RuntimeError(f"{self.name} generated {tokens} tokens instead of {count * generate}")
        return Load(seconds, tokens, [times for _, streams in found for times in streams])


class Library:
    """The engine without HTTP, as `bench --parallel` measures it."""

    name = "engine"

    def __init__(self, child: Child) -> None:
        self._child = child

    def load(self, count: int, prompt: int, generate: int, vocabulary: int) -> Load:
        took = self._child.ask("streams", count=count, prompt=prompt, generate=generate)
        return Load(took["seconds"], count * generate, [[0.0]])


def _body(prompt: list[int], generate: int) -> bytes:
    fields: dict[str, Any] = {
        "prompt": prompt,
        "max_tokens": generate,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(fields).encode()


@contextmanager
def running(name: str, command: list[str], port: int, pool: ProcessPoolExecutor) -> Iterator[HttpServer]:
    """A server as a child process, once it is healthy."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + START
        while True:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{name} did not start: {' '.join(command)}")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except urllib.error.HTTPError as error:
                if error.code != 503:  # which is what it says while it loads
                    raise
            except OSError:
                pass
            time.sleep(0.2)
        yield HttpServer(name, port, pool)
    finally:
        process.terminate()
        process.wait(30)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--device", default="auto")
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--no-engine", action="store_true", help="do not measure without HTTP")
    parser.add_argument("--json", type=Path, help="write every figure to this file as well")
    given = parser.parse_args()
    most = max(given.streams)
    context = -(-(given.prompt + given.generate) // 256) * 256
    threads = ["--threads", str(given.threads)] if given.threads else []
    with ExitStack() as stack:
        workers = -(-most // CLIENTS)
        pool = stack.enter_context(ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")))
        port = free_port()
        command = [sys.executable, "-m", "olivine", "serve", str(given.model), "--port", str(port)]
        command += ["--context", str(context), "--sequences", str(most), "--device", given.device, *threads]
        servers: list[Any] = [stack.enter_context(running("olivine", command, port, pool))]
        if not given.no_engine:
            child = stack.enter_context(Child("engine", [sys.executable, "-m", "olivine.bench.worker"]))
            how = {"device": given.device, "threads": given.threads, "context": context, "sequences": most}
            child.ask("open_streams", model=str(given.model), **how)
            servers.append(Library(child))
        if given.llama_server is not None:
            port = free_port()
            command = [str(given.llama_server), "-m", str(given.model), "--port", str(port), *threads]
            command += ["-c", str(context * most), "-np", str(most), "--no-webui"]
            command += ["-ngl", "99" if given.device == "cuda" else "0"]
            servers.append(stack.enter_context(running("llama-server", command, port, pool)))
        vocabulary = _vocabulary(given.model)
        measured: dict[str, dict[int, list[Load]]] = {
            each.name: {count: [] for count in given.streams} for each in servers
        }
        for repeat in range(-1, given.repeats):  # the first one warms up
            for count in given.streams:
                print(f"\r\x1b[Krepeat {repeat + 1}: {count} at once", end="", file=sys.stderr)
                for each in servers:
                    load = each.load(count, given.prompt, given.generate, vocabulary)
                    if repeat >= 0:
                        measured[each.name][count].append(load)
        print("\r\x1b[K", end="", file=sys.stderr)
    report(measured, given)


def _vocabulary(model: Path) -> int:
    from olivine.formats import open_checkpoint
    from olivine.loading import tokenizer_of

    return int(tokenizer_of(open_checkpoint(model)).vocab_size) - 300  # the last are often special tokens


def report(measured: dict[str, dict[int, list[Load]]], given: Any) -> None:
    print(
        f"{given.model.name}: prompts of {given.prompt} tokens, {given.generate} generated, "
        f"{given.repeats} repeats"
    )
    print("| streams | server | tok/s | of it, Olivine | first token, s | p99 between events, ms |")
    print("| --- | --- | --- | --- | --- | --- |")
    ours = {count: Spread.of(load.speed for load in loads) for count, loads in measured["olivine"].items()}
    for count in given.streams:
        for name, by_count in measured.items():
            loads = by_count[count]
            speed = Spread.of(load.speed for load in loads)
            ratio = ours[count].over(speed)
            share = "" if name == "olivine" else f"{ratio.median:.2f} [{ratio.low:.2f}–{ratio.high:.2f}]"
            times = ["", ""]
            if name != "engine":
                times = [
                    f"{median(load.first for load in loads):.3f}",
                    f"{1000 * median(load.p99 for load in loads):.1f}",
                ]
            print(f"| {count} | {name} | {speed.median:,.0f} | {share} | {times[0]} | {times[1]} |")
    if given.json:
        given.json.write_text(
            json.dumps(
                {
                    name: {
                        str(count): [
                            {"tok_s": load.speed, "first_s": load.first, "p99_s": load.p99} for load in loads
                        ]
                        for count, loads in by_count.items()
                    }
                    for name, by_count in measured.items()
                },
                indent=1,
            )
        )


if __name__ == "__main__":
    main()
