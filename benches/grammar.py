"""What a grammar costs while generating: `python benches/grammar.py [--shape gemma3-270m]`.

A model with random weights writes JSON under a schema. The time that the engine spends with the grammar
(masks, forced tokens, telling it what came) is set against that of the generation. With `--tokenizer`, masks
are also timed over a published vocabulary, along a document of the schema.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import olivine
from make_model import made
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


def spread(times: Sequence[float]) -> str:
    middle, high, most = np.percentile(np.array(times) * 1e6, [50, 99, 100])
    return f"median {middle:.0f} µs, 99 % {high:.0f} µs, most {most:.0f} µs"


def generating(path: Path, threads: int | None) -> None:
    with olivine.load(path, threads=threads, context=2048) as llm:
        started = time.perf_counter()
        grammar = llm.grammar(SCHEMA)
        print(f"vocabulary of {llm.vocabulary:,}: first grammar after {time.perf_counter() - started:.2f} s")
        started = time.perf_counter()
        grammar = llm.grammar(SCHEMA)
        print(f"another one after {(time.perf_counter() - started) * 1e3:.1f} ms")
        masks: list[float] = []
        inside = decode = 0.0
        tokens = 0
        for seed in range(8):
            state = Timed(grammar)
            done = llm.generate(
                "Hi", constraint=lambda s=state: s, temperature=1.0, seed=seed, max_tokens=200
            )
            masks += state.masks
            inside += state.seconds
            decode += done.timings.decode
            tokens += done.usage.completion
        print(f"{tokens} tokens, {tokens / decode:.1f} tok/s; masks: {spread(masks)}")
        print(f"the grammar takes {100 * inside / decode:.2f} % of the time of decoding on {llm.device}")


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
    given = parser.parse_args()
    generating(made(given.shape, given.type, given.models), given.threads)
    if given.tokenizer:
        walking(given.tokenizer)


if __name__ == "__main__":
    main()
