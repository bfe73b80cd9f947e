"""A soak test of a whole `LLM`: `python benches/soak.py [--seconds 300] [--model olivine-mini]`.

Threads and an event loop ask one model for texts, chats, embeddings, scores, grammars and tool calls; they
abandon streams, cancel tasks, set deadlines, and send prompts of 3 MB, invalid options and listeners that
raise. Each result is compared with that of a run without other load. At the end memory must be where it was
after the warm-up, all pages and slots free, and no thread left; otherwise the script fails with a report.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import olivine
from olivine import LLM, OlivineError

CONTEXT = 512
MEMORY = 50e6  # bytes that may be left
LONG = "A word, and another one, and so on without an end. " * 60_000  # 3 MB
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Paris"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
STORY = "Once upon a time there was a little dog who lived by the sea. "


def compared(variants: int = 6) -> dict[str, Callable[[LLM], Any]]:
    """Requests whose results are the same in any company: each gives something that can be compared."""
    jobs: dict[str, Callable[[LLM], Any]] = {}
    for i in range(variants):
        how = {"seed": i, "temperature": 0.9, "max_tokens": 8 + 6 * i}
        question = f"Tell me about {('a cat', 'the sea', 'a tree')[i % 3]}, number {i}."
        prompt = STORY * (1 + 3 * i)
        jobs[f"generate {i}"] = lambda llm, p=prompt, h=how: llm.generate(p, **h).tokens
        jobs[f"greedy {i}"] = lambda llm, p=prompt: llm.generate(p, temperature=0, max_tokens=20).tokens
        jobs[f"logprobs {i}"] = lambda llm, p=prompt, h=how: _reports(llm.generate(p, logprobs=2, **h))
        jobs[f"many {i}"] = lambda llm, p=prompt, h=how: [c.tokens for c in llm.generate_many([p], n=3, **h)]
        jobs[f"chat {i}"] = lambda llm, q=question, h=how: llm.chat(q, **h).content
        jobs[f"two turns {i}"] = lambda llm, q=question, h=how: _two_turns(llm, q, h)
        jobs[f"embed {i}"] = lambda llm, p=prompt, i=i: llm.embed(
            [p, "short"], pooling=("mean", "last")[i % 2]
        ).tobytes()
        jobs[f"score {i}"] = lambda llm, p=prompt: llm.score(p, "The dog was happy.").logprobs
        jobs[f"schema {i}"] = lambda llm, q=question, i=i: (
            llm.chat(q, response_format=SCHEMA, seed=i, temperature=0.9, max_tokens=60).content
        )
        jobs[f"regex {i}"] = lambda llm, i=i: (
            llm.generate(
                "A date: ", constraint=llm.grammar({"type": "regex", "regex": r"[0-9]{4}-[0-9]{2}"}), seed=i
            ).text
        )
        jobs[f"tool {i}"] = lambda llm, q=question, i=i: [
            (call.name, call.arguments)
            for call in llm.chat(
                q, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, seed=i, max_tokens=80
            ).tool_calls
        ]
    return jobs


def _reports(completion: Any) -> list[tuple[int, float]]:
    return [(each.token, each.logprob) for each in completion.logprobs]


def _two_turns(llm: LLM, question: str, how: dict[str, Any]) -> list[str]:
    messages: list[Any] = [{"role": "user", "content": question}]
    first = llm.chat(messages, **how)
    second = llm.chat([*messages, first.message, {"role": "user", "content": "And then?"}], **how)
    return [first.content, second.content]


# Each of these must raise: what makes no sense, and what does not fit.
BAD: dict[str, Callable[[LLM], Any]] = {
    "3 MB prompt": lambda llm: llm.generate(LONG),
    "3 MB chat": lambda llm: llm.chat([{"role": "user", "content": LONG}]),
    "3 MB embedding": lambda llm: llm.embed(LONG),
    "3 MB score": lambda llm: llm.score("x", LONG),
    "too many tokens": lambda llm: llm.generate(STORY * 200),
    "no tokens": lambda llm: llm.generate([]),
    "no such token": lambda llm: llm.generate([1 << 30]),
    "max_tokens 0": lambda llm: llm.generate("x", max_tokens=0),
    "temperature text": lambda llm: llm.generate("x", temperature="x"),
    "temperature nan": lambda llm: llm.generate("x", temperature=float("nan")),
    "seed 1.5": lambda llm: llm.generate("x", seed=1.5),
    "top_k 1.5": lambda llm: llm.generate("x", top_k=1.5),
    "logprobs text": lambda llm: llm.generate("x", logprobs="x"),
    "bias text": lambda llm: llm.generate("x", logit_bias={5: "a"}),
    "no token left": lambda llm: llm.generate("x", logit_bias=dict.fromkeys(range(llm.vocabulary), -1e30)),
    "stop number": lambda llm: llm.generate("x", stop=[1]),
    "unknown option": lambda llm: llm.generate("x", temprature=1),
    "bad role": lambda llm: llm.chat([{"role": "nobody", "content": 5}]),
    "bad schema": lambda llm: llm.chat("x", response_format={"type": "array", "contains": {}}),
    "unknown tool": lambda llm: llm.chat("x", tools=[TOOL], tool_choice={"function": {"name": "none"}}),
}


@dataclass
class Soak:
    """One model, its expected results, and what came of asking for everything at once."""

    llm: LLM
    expected: dict[str, Any]
    jobs: dict[str, Callable[[LLM], Any]] = field(default_factory=compared)
    seen: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def work(self, seed: int, more: Callable[[int], bool]) -> None:
        """What one thread asks for."""
        rng = random.Random(seed)
        turn = 0
        while more(turn):
            turn += 1
            kind = rng.choices((self.compare, self.misuse, self.leave, self.hurry), (6, 2, 2, 1))[0]
            self.guarded(lambda kind=kind: kind(rng))  # type: ignore[misc]

    def guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            self.wrong.append(f"{type(error).__name__}: {error}")

    def compare(self, rng: random.Random) -> None:
        name = rng.choice(list(self.jobs))
        if self.jobs[name](self.llm) != self.expected[name]:
            self.wrong.append(f"{name} differs from the quiet run")
        self.seen["compared"] += 1

    def misuse(self, rng: random.Random) -> None:
        name = rng.choice(list(BAD))
        try:
            BAD[name](self.llm)
        except (OlivineError, TypeError):
            self.seen["refused"] += 1
        else:
            self.wrong.append(f"{name} was not refused")

    def leave(self, rng: random.Random) -> None:
        """A stream that is abandoned."""
        how = {"max_tokens": 200, "seed": rng.getrandbits(32), "temperature": 1.0}
        ask = self.llm.stream_chat if rng.random() < 0.5 else self.llm.stream
        stream = ask(STORY * rng.randint(1, 8), **how)
        for _ in range(rng.randint(0, 4)):
            next(stream, None)
        if rng.random() < 0.5:
            stream.close()
        self.seen["left"] += 1

    def hurry(self, rng: random.Random) -> None:
        completion = self.llm.generate(STORY * 10, max_tokens=300, timeout=rng.choice((0.001, 0.05)))
        self.seen[f"deadline, {completion.finish_reason}"] += 1

    async def listen(self, seed: int, more: Callable[[int], bool]) -> None:
        """What an event loop asks for: several tasks at once, of which some are cancelled."""
        rng = random.Random(seed)
        name = "generate 0"
        how = {"seed": 0, "temperature": 0.9, "max_tokens": 8}
        turn = 0
        while more(turn):
            turn += 1
            tasks: list[asyncio.Task[Any]] = [
                asyncio.ensure_future(_awaited(self.llm.agenerate(STORY, **how))),
                asyncio.ensure_future(_awaited(self.llm.achat("Tell me about a cat.", max_tokens=100))),
                asyncio.ensure_future(_awaited(self.llm.agenerate(LONG))),
                asyncio.ensure_future(_awaited(self.llm.aembed(STORY))),
            ]
            await asyncio.sleep(rng.choice((0, 0.01, 0.1)))
            tasks[1].cancel()
            if rng.random() < 0.3:
                tasks[3].cancel()
            text, _, refused, _ = await asyncio.gather(*tasks, return_exceptions=True)
            if isinstance(text, BaseException) or text.tokens != self.expected[name]:
                self.wrong.append(f"{name} of an event loop: {text!r}")
            if not isinstance(refused, OlivineError):
                self.wrong.append(f"a prompt of 3 MB gave {refused!r}")
            self.seen["asyncio rounds"] += 1

    def everything(self, threads: int, seed: int, more: Callable[[int], bool]) -> None:
        """All of that at once, until each has had enough."""
        workers = [threading.Thread(target=self.work, args=(seed + i, more)) for i in range(threads)]
        loop = threading.Thread(target=self.guarded, args=(lambda: asyncio.run(self.listen(seed, more)),))
        for each in (*workers, loop):
            each.start()
        for each in (*workers, loop):
            each.join()

    def settle(self) -> None:
        """Waits until those that were left are over; everything must be free then."""
        engine = self.llm._engine
        deadline = time.monotonic() + 60
        while not engine._scheduler.idle or engine._inbox.arrivals:
            if time.monotonic() > deadline:
                self.wrong.append("requests are left that nobody waits for")
                return
            time.sleep(0.01)
        gc.collect()
        if engine.free_pages != self.llm.program.page_counts:
            self.wrong.append(
                f"pages are lost: {engine.free_pages} of {self.llm.program.page_counts} are free"
            )
        if len(set(engine._scheduler._slots)) != engine._scheduler.cache.tables[0].shape[0]:
            self.wrong.append(f"slots are lost: {engine._scheduler._slots}")


async def _awaited(what: Awaitable[Any]) -> Any:
    return await what


def memory() -> int:
    """Bytes that this process has in memory, or 0 where that is not known."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def opened(model: str) -> LLM:
    """Few pages, so that requests are preempted; reproducible, so that results can be compared."""
    options: dict[str, Any] = {"device": "cpu", "context": CONTEXT, "reproducible": True}
    with olivine.load(model, sequences=1, **options) as alone:
        room = alone.cache_bytes * 3 // 2
    return olivine.load(model, sequences=6, kv_bytes=room, **options)


def soak(model: str, threads: int, warm: Callable[[int], bool], more: Callable[[int], bool]) -> Soak:
    """The whole run; `wrong` of what comes back says what went wrong."""
    before = set(threading.enumerate())
    jobs = compared()
    with opened(model) as quiet:
        expected = {name: job(quiet) for name, job in jobs.items()}
    with opened(model) as llm:
        run = Soak(llm, expected, jobs)
        run.everything(threads, 1000, warm)
        run.settle()
        start = memory()
        run.seen.clear()
        run.everything(threads, 2000, more)
        run.settle()
        end = memory()
        stats = llm._engine.stats()
        run.seen["preempted"] = stats.preempted
        run.seen["steps"] = stats.steps
    if end - start > MEMORY:
        run.wrong.append(f"memory grew from {start / 1e6:.0f} to {end / 1e6:.0f} MB")
    deadline = time.monotonic() + 10
    while left := set(threading.enumerate()) - before:
        if time.monotonic() > deadline:
            run.wrong.append(f"threads are left: {[each.name for each in left]}")
            break
        time.sleep(0.01)
    run.seen["MB after the warm-up"], run.seen["MB at the end"] = start // 10**6, end // 10**6
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--model", default="olivine-mini")
    parser.add_argument("--threads", type=int, default=4)
    arguments = parser.parse_args()
    started = time.monotonic()
    warm = max(5.0, arguments.seconds / 10)

    def until(seconds: float) -> Callable[[int], bool]:
        ends: list[float] = []

        def more(turn: int) -> bool:
            ends[:] = ends or [time.monotonic() + seconds]
            return time.monotonic() < ends[0]

        return more

    run = soak(arguments.model, arguments.threads, until(warm), until(arguments.seconds))
    for name, count in sorted(run.seen.items()):
        print(f"{name:>24}: {count}")
    print(f"{'seconds in all':>24}: {time.monotonic() - started:.0f}")
    for problem, count in Counter(run.wrong).most_common(20):
        print(f"WRONG, {count} times: {problem[:300]}")
    sys.exit(bool(run.wrong))


if __name__ == "__main__":
    main()
