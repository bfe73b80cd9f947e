"""A soak test of the server: `python benches/soak_server.py MODEL MODEL … [--seconds 600]`.

`olivine serve` runs in a process of its own, with several models. Clients ask in all three APIs, streamed and
not, for texts, chats, tool calls, schemas and embeddings; they abandon streams and whole responses, set
deadlines, send what makes no sense, and unload models that are idle. Each result is compared with that of a
quiet run. At the end memory must be where it was after the warm-up, nothing running or waiting, and every
page free; otherwise the script fails with a report. It prints the times between events of streams.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from serving import START

MEMORY = 50e6  # bytes that may be left
STORY = "Once upon a time there was a little dog who lived by the sea. "
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Paris"]}},
    "required": ["city"],
    "additionalProperties": False,
}
Request = tuple[str, dict[str, Any]]  # a path and a body


def requests_of(model: str, variants: int) -> dict[str, Request]:
    """Requests whose answers are the same in any company."""
    found: dict[str, Request] = {}
    for i in range(variants):
        messages = [
            {"role": "user", "content": f"Tell me about {('a cat', 'the sea', 'a tree')[i % 3]} {i}."}
        ]
        own = {"model": model, "max_tokens": 12 + 8 * i, "seed": i, "temperature": 0.9}
        chat = {**own, "messages": messages}
        tool = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
        schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
        texts = [STORY, STORY * (i + 1)]
        found |= {
            f"{model} chat {i}": ("/v1/chat/completions", chat),
            f"{model} two {i}": ("/v1/chat/completions", {**chat, "n": 2}),
            f"{model} text {i}": ("/v1/completions", {**own, "prompt": STORY * (1 + 2 * i)}),
            f"{model} tool {i}": (
                "/v1/chat/completions",
                {**chat, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False},
            ),
            f"{model} schema {i}": (
                "/v1/chat/completions",
                {**chat, "max_tokens": 60, "response_format": schema},
            ),
            f"{model} message {i}": ("/v1/messages", {**chat, "seed": i}),
            f"{model} ollama {i}": (
                "/api/chat",
                {
                    "model": model,
                    "messages": messages,
                    "stream": False,
                    "options": {"num_predict": 16, "seed": i},
                },
            ),
            f"{model} embed {i}": ("/v1/embeddings", {"model": model, "input": texts}),
        }
    return found


BAD: list[Request] = [
    ("/v1/chat/completions", {"messages": "x"}),
    ("/v1/chat/completions", {"messages": []}),
    ("/v1/chat/completions", {"messages": [{"role": "nobody", "content": "x"}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "temperature": "hot"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "model": "no-such-model"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": STORY * 40_000}]}),
    ("/v1/completions", {"prompt": [1 << 30]}),
    ("/v1/completions", {"prompt": "x", "logit_bias": {"5": "a"}}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "x"}]}),
    ("/v1/embeddings", {"input": 5}),
    ("/api/chat", {"messages": 3}),
]


@dataclass
class Soak:
    url: str
    client: httpx.AsyncClient
    models: list[str]
    jobs: dict[str, Request]
    expected: dict[str, Any] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    async def work(self, seed: int, until: float) -> None:
        rng = random.Random(seed)
        kinds: tuple[Callable[[random.Random], Awaitable[None]], ...]
        kinds = (self.compare, self.stream, self.misuse, self.leave, self.hurry, self.unload)
        while time.monotonic() < until:
            kind = rng.choices(kinds, (8, 6, 3, 4, 1, 1))[0]
            try:
                await kind(rng)
            except Exception as error:
                self.wrong.append(f"{kind.__name__}: {type(error).__name__}: {error}")

    async def compare(self, rng: random.Random) -> None:
        name = rng.choice(list(self.jobs))
        found = await self.answer(self.jobs[name])
        self.seen["compared"] += 1
        if found != self.expected[name]:
            self.wrong.append(f"{name}: {found!r} instead of {self.expected[name]!r}")

    async def answer(self, request: Request) -> Any:
        """What an answer says, without ids and times."""
        path, body = request
        response = await self.client.post(self.url + path, json=body)
        if response.status_code != 200:
            return f"{response.status_code}: {response.text[:300]}"
        return _said(response.json())

    async def stream(self, rng: random.Random) -> None:
        """A chat as a stream: its text is that of the whole answer."""
        name = rng.choice([name for name in self.jobs if " chat " in name])
        path, body = self.jobs[name]
        said, times = "", []
        async for event in self.events(path, {**body, "stream": True}):
            times.append(time.perf_counter())
            said += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        self.gaps += [b - a for a, b in itertools.pairwise(times)]
        self.seen["streamed"] += 1
        if said != self.expected[name][0]["content"]:
            self.wrong.append(f"{name}, streamed: {said!r} instead of {self.expected[name]!r}")

    async def events(self, path: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        async with self.client.stream("POST", self.url + path, json=body) as response:
            if response.status_code != 200:
                raise RuntimeError(f"{response.status_code}: {(await response.aread())[:300]!r}")
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line[6:])

    async def misuse(self, rng: random.Random) -> None:
        path, body = rng.choice(BAD)
        response = await self.client.post(self.url + path, json=body)
        self.seen["refused"] += 1
        if not 400 <= response.status_code < 500:
            self.wrong.append(f"{path} {str(body)[:80]} gave {response.status_code}")

    async def leave(self, rng: random.Random) -> None:
        """A client that goes away, in the middle of a stream or while it waits for a whole answer."""
        body = {
            "model": rng.choice(self.models),
            "messages": [{"role": "user", "content": STORY}],
            "max_tokens": 400,
            "ignore_eos": True,
        }
        if rng.random() < 0.5:
            left = rng.randint(0, 4)
            async for _ in self.events("/v1/chat/completions", {**body, "stream": True}):
                left -= 1
                if left < 0:
                    break
        else:
            with suppress(httpx.ReadTimeout):
                await self.client.post(
                    f"{self.url}/v1/chat/completions",
                    json=body,
                    timeout=httpx.Timeout(10, read=rng.choice((0.05, 0.3))),
                )
        self.seen["left"] += 1

    async def hurry(self, rng: random.Random) -> None:
        body = {"model": rng.choice(self.models), "prompt": STORY, "max_tokens": 400, "timeout": 0.05}
        response = await self.client.post(f"{self.url}/v1/completions", json=body)
        self.seen[f"deadline, {response.status_code}"] += 1

    async def unload(self, rng: random.Random) -> None:
        """The model is loaded again by the next request; a busy one stays."""
        response = await self.client.post(
            f"{self.url}/models/unload", json={"model": rng.choice(self.models)}
        )
        self.seen[f"unload, {response.status_code}"] += 1

    async def unload_all(self) -> None:
        """Memory is compared without models: which of them are loaded at a moment is chance."""
        for model in self.models:
            while (
                await self.client.post(f"{self.url}/models/unload", json={"model": model})
            ).status_code == 409:
                await asyncio.sleep(0.2)

    async def idle(self) -> bool:
        """Whether nothing runs or waits and no page is used."""
        text = (await self.client.get(f"{self.url}/metrics")).text
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        values = [
            float(value)
            for name in names
            for value in re.findall(rf"^olivine:{name}\{{.*\}} (\S+)", text, re.M)
        ]
        return bool(values) and not any(values)


def _said(answer: dict[str, Any]) -> Any:
    if "choices" in answer:
        found = []
        for choice in answer["choices"]:
            message = choice.get("message") or {"content": choice.get("text")}
            calls = [call["function"] for call in message.get("tool_calls") or ()]
            found.append({"content": message["content"], "calls": calls, "finish": choice["finish_reason"]})
        return found
    if "data" in answer:
        return [entry["embedding"] for entry in answer["data"]]
    return answer.get("content") or answer.get("message")


def resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.split("VmRSS:")[1].split()[0])


async def soak(url: str, pid: int, seconds: float, tasks: int, variants: int) -> bool:
    limits = httpx.Limits(max_connections=4 * tasks)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        listed = (await client.get(f"{url}/v1/models")).json()["data"]
        models = [entry["id"] for entry in listed]
        jobs = {name: job for model in models for name, job in requests_of(model, variants).items()}
        run = Soak(url, client, models, jobs)
        for name, job in jobs.items():
            run.expected[name] = await run.answer(job)
            if isinstance(run.expected[name], str):
                run.wrong.append(f"{name}: {run.expected[name]}")
        print(f"{len(jobs)} requests alone: done", file=sys.stderr)
        warm = min(30.0, seconds / 5)
        await asyncio.gather(*(run.work(i, time.monotonic() + warm) for i in range(tasks)))
        await run.unload_all()
        before = resident(pid)
        run.gaps.clear()
        print(f"warm: {before / 1e6:.0f} MB", file=sys.stderr)
        await asyncio.gather(*(run.work(100 + i, time.monotonic() + seconds) for i in range(tasks)))
        until = time.monotonic() + 120
        while not (idle := await run.idle()) and time.monotonic() < until:
            await asyncio.sleep(0.2)
        await run.unload_all()
        after = resident(pid)
    gaps = sorted(run.gaps) or [0.0]
    p50, p99 = (1000 * gaps[int(share * (len(gaps) - 1))] for share in (0.5, 0.99))
    print(dict(sorted(run.seen.items())))
    print(f"memory: {before / 1e6:.0f} MB after the warm-up, {after / 1e6:.0f} MB at the end")
    print(
        f"between events ({len(gaps)}): median {p50:.1f} ms, p99 {p99:.1f} ms, "
        f"longest {1000 * gaps[-1]:.1f} ms"
    )
    print(f"idle at the end: {idle}; wrong: {len(run.wrong)}")
    for each in run.wrong[:20]:
        print(" ", each[:600])
    return idle and not run.wrong and after - before < MEMORY


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--tasks", type=int, default=12)
    parser.add_argument("--variants", type=int, default=4, help="of each kind of request")
    given = parser.parse_args()
    command = [sys.executable, "-m", "olivine", "serve", *given.models, "--port", "0", "--context", "1024"]
    process = subprocess.Popen(
        [*command, "--device", "cpu"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        overdue = threading.Timer(START, process.kill)
        overdue.start()
        lines = iter(process.stdout.readline, "")
        found = next((each for each in lines if each.startswith("listening on ")), None)
        overdue.cancel()
        if found is None:
            sys.exit(f"the server did not start: {' '.join(command)}")
        url = found.split()[2]
        passed = asyncio.run(soak(url, process.pid, given.seconds, given.tasks, given.variants))
    finally:
        process.terminate()
        process.wait(120)
    sys.exit(not passed)


if __name__ == "__main__":
    main()
