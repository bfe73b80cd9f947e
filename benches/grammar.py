"""The cost of a grammar in decode: `python benches/grammar.py [--shape gemma3-270m]`.

A model with random weights generates alternately with and without a grammar; medians are printed. One is any
text of 1,000 characters, in which every token is drawn under a mask; the other is a schema, which forces some
tokens. With `--streams`, one of several streams has the grammar, to measure the cost for the others. With
`--tokenizer`, masks are also timed over a published vocabulary, along a document of the schema.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import olivine
from make_model import made
from olivine import LLM
from olivine.backends import Draw
from olivine.chat.grammar import Grammar, Grammars, json_grammar
from olivine.tokenizer import from_folder
from synthetic import SHAPES

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 60},
        "kind": {"enum": ["person", "city", "river", "größe"]},
        "year": {"type": "integer", "minimum": -3000, "maximum": 3000},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 5},
        "about": {
            "type": "object",
            "properties": {"text": {"type": "string", "maxLength": 200}, "score": {"type": "number"}},
            "required": ["text"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "kind", "year", "tags", "about"],
    "additionalProperties": False,
}
DOCUMENT = {
    "name": "Der Rhein, 莱茵河",
    "kind": "river",
    "year": -2500,
    "tags": ["water", "Köln", "long"],
    "about": {"text": "It rises in the Alps and ends in the sea, after 1,230 kilometers.", "score": 4.5},
}


TEXT = "(?s:.){1000}"
HOW: dict[str, Any] = {"temperature": 1.0, "max_tokens": 100, "ignore_eos": True}


class Timed:
    """A grammar's state that counts the seconds spent in it."""

    def __init__(self, grammar: Grammar) -> None:
        self._state = grammar()
        self.masks: list[float] = []
        self.seconds = 0.0

    def mask(self) -> Any:
        return self._timed(self._state.mask, self.masks)

    def accept(self, token: int) -> None:
        self._timed(lambda: self._state.accept(token))

    def forced(self) -> Sequence[int]:
        return self._timed(self._state.forced)

    @property
    def done(self) -> bool:
        return self._state.done

    def _timed(self, call: Any, times: list[float] | None = None) -> Any:
        started = time.perf_counter()
        found = call()
        took = time.perf_counter() - started
        self.seconds += took
        if times is not None:
            times.append(took)
        return found


class Waits:
    """How long draws wait for masks that are not ready when the step is."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._legal = Draw.legal

    def __enter__(self) -> Waits:
        def timed(draw: Draw, vocabulary: int) -> Any:
            started = time.perf_counter()
            try:
                return self._legal(draw, vocabulary)
            finally:
                if draw.mask is not None:
                    self.seconds.append(time.perf_counter() - started)

        Draw.legal = timed  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Draw.legal = self._legal  # type: ignore[method-assign]


def spread(times: Sequence[float]) -> str:
    middle, high, most = np.percentile(np.array(times) * 1e6, [50, 99, 100])
    return f"median {middle:.0f} µs, 99 % {high:.0f} µs, most {most:.0f} µs"


def speed(llm: LLM, seed: int, grammar: Grammar | None, masks: list[float]) -> float:
    """Tokens a second of a stream, once its prompt is read."""
    state = None if grammar is None else Timed(grammar)
    done = llm.generate("Hi", constraint=state and (lambda: state), seed=seed, **HOW)
    masks += [] if state is None else state.masks
    return (done.usage.completion - 1) / done.timings.decode


def generating(llm: LLM, repeats: int) -> None:
    started = time.perf_counter()
    schema = llm.grammar(SCHEMA)
    print(f"vocabulary of {llm.vocabulary:,}: first grammar after {time.perf_counter() - started:.2f} s")
    started = time.perf_counter()
    llm.grammar(SCHEMA)
    print(f"another one after {(time.perf_counter() - started) * 1e3:.1f} ms; {llm.device}")
    text = llm.grammar({"type": "regex", "regex": TEXT})
    grammars = {"no grammar": None, "any text": text, "JSON": schema}
    speeds: dict[str, list[float]] = {name: [] for name in grammars}
    masks: dict[str, list[float]] = {name: [] for name in grammars}
    waits: dict[str, list[float]] = {name: [] for name in grammars}
    for seed in range(repeats + 1):
        for name, grammar in grammars.items():
            with Waits() as waited:
                found = speed(llm, seed, grammar, masks[name])
            if seed:  # the first round warms up
                speeds[name].append(found)
                waits[name] += waited.seconds
    for name, found in speeds.items():
        ratios = np.array(found) / np.array(speeds["no grammar"])
        line = f"{name:10}  {np.median(found):6.1f} tok/s  {np.median(ratios):.3f}"
        print(f"{line} [{ratios.min():.3f}–{ratios.max():.3f}]")
        if masks[name]:
            print(f"  a mask takes: {spread(masks[name])}\n  a draw waits for it: {spread(waits[name])}")


def company(llm: LLM, repeats: int, streams: int) -> None:
    """Streams without a grammar, alone and with one of them under a grammar."""
    grammar = llm.grammar({"type": "regex", "regex": TEXT})
    speeds: dict[int, list[float]] = {0: [], 1: []}

    async def together(bound: int, seed: int) -> float:
        done = await asyncio.gather(
            *(
                llm.agenerate("Hi", constraint=grammar if i < bound else None, seed=seed + i, **HOW)
                for i in range(streams)
            )
        )
        return float(np.median([(one.usage.completion - 1) / one.timings.decode for one in done[bound:]]))

    for seed in range(repeats + 1):
        for bound, found in speeds.items():
            one = asyncio.run(together(bound, seed))
            if seed:
                found.append(one)
    ratios = np.array(speeds[1]) / np.array(speeds[0])
    print(
        f"{streams} streams: {np.median(speeds[0]):.1f} tok/s each; where one has a grammar, the others "
        f"{np.median(speeds[1]):.1f}: {np.median(ratios):.3f} [{ratios.min():.3f}–{ratios.max():.3f}]"
    )


def walking(folder: Path) -> None:
    tokenizer = from_folder(folder)
    grammar = Grammars(tokenizer, tokenizer.vocab_size).compile(json_grammar(SCHEMA))
    masks: list[float] = []
    text = json.dumps(DOCUMENT, ensure_ascii=False)
    for _ in range(40):
        state = Timed(grammar)
        for token in tokenizer.encode(text, add_special=False):
            state.mask()
            state.accept(token)
        masks += state.masks
    print(f"published vocabulary of {tokenizer.vocab_size:,}: {spread(masks)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--shape", choices=SHAPES, default="gemma3-270m", metavar="SHAPE", help=", ".join(SHAPES)
    )
    parser.add_argument("--type", default="Q8_0")
    parser.add_argument("--models", type=Path, default=Path("bench-models"))
    parser.add_argument("--tokenizer", type=Path, help="a folder with a published tokenizer.json")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--streams", type=int, default=0, metavar="N", help="also N streams together")
    given = parser.parse_args()
    path = made(given.shape, given.type, given.models)
    with olivine.load(path, device=given.device, threads=given.threads, context=2048, speculate=False) as llm:
        generating(llm, given.repeats)
        if given.streams:
            company(llm, given.repeats, given.streams)
    if given.tokenizer:
        walking(given.tokenizer)


if __name__ == "__main__":
    main()
