"""llama.cpp in a child process, through the low-level functions of llama-cpp-python.

Run by path with the interpreter that has llama_cpp, which need not have Olivine. All settings are llama.cpp's
defaults, with mapped and repacked weights; both of its thread counts are set. Nothing is sampled.
"""

from __future__ import annotations

import random
import re
import time
from importlib import import_module
from typing import Any

CHUNK = 512

api: Any = import_module("llama_cpp")  # not imported by name, for the type checker: it is optional,
beside: Any = import_module("serve")  # and this is a file in the same folder


class Runner:
    """A model, and a context with one or more sequences."""

    def __init__(self, model: str, threads: int, context: int, sequences: int) -> None:
        started = time.perf_counter()
        self.silent = api.llama_log_callback(lambda level, text, data: None)
        api.llama_log_set(self.silent, None)
        api.llama_backend_init()
        self.model = api.llama_model_load_from_file(model.encode(), api.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"cannot load {model}")
        settings = api.llama_context_default_params()
        settings.n_ctx = context * sequences
        settings.n_seq_max = sequences
        settings.n_batch = settings.n_ubatch = CHUNK
        settings.n_threads = settings.n_threads_batch = threads
        self.context = api.llama_init_from_model(self.model, settings)
        if not self.context:
            raise RuntimeError(f"cannot make a context of {context} tokens")
        self.load_seconds = time.perf_counter() - started
        self.vocabulary: int = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.batch = api.llama_batch_init(CHUNK, 0, 1)
        self.random = random.Random(0)
        self.position = 0

    def reset(self) -> None:
        api.llama_memory_clear(api.llama_get_memory(self.context), False)
        self.position = 0

    def prefill(self, tokens: int) -> float:
        """Seconds to prefill that many more prompt tokens, with the logits of the last."""
        ids = self._ids(tokens)
        started = time.perf_counter()
        for start in range(0, tokens, CHUNK):
            self._step(ids[start : start + CHUNK], wanted=start + CHUNK >= tokens)
        return time.perf_counter() - started

    def decode(self, tokens: int) -> float:
        """Seconds for that many decode steps of one token, each with its logits."""
        ids = self._ids(tokens)
        started = time.perf_counter()
        for token in ids:
            self._step([token], wanted=True)
        return time.perf_counter() - started

    def streams(self, count: int, prompt: int, generate: int) -> dict[str, float]:
        """As in its server: prefill of all prompts first, then each step decodes a token of every sequence.

        Seconds in total; seconds and tokens since every sequence has its first token.
        """
        self.reset()
        sequences = range(count)
        rows = [
            (token, at, sequence, at == prompt - 1)
            for sequence in sequences
            for at, token in enumerate(self._ids(prompt))
        ]
        steps = [
            [(self._ids(1)[0], prompt + i, sequence, True) for sequence in sequences]
            for i in range(generate - 1)
        ]
        started = time.perf_counter()
        for start in range(0, len(rows), CHUNK):
            self._run(rows[start : start + CHUNK])
        all_begun = time.perf_counter()
        for step in steps:
            self._run(step)
        end = time.perf_counter()
        decoded = count * (generate - 1)
        return {"seconds": end - started, "decode_seconds": end - all_begun, "decoded": decoded}

    def _ids(self, count: int) -> list[int]:
        return [self.random.randrange(self.vocabulary) for _ in range(count)]

    def _step(self, tokens: list[int], *, wanted: bool) -> None:
        last = len(tokens) - 1
        self._run([(token, self.position + i, 0, wanted and i == last) for i, token in enumerate(tokens)])
        self.position += len(tokens)

    def _run(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """One step of (token, position, sequence, whether to compute logits)."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted
        status = api.llama_decode(self.context, batch)
        if status:
            raise RuntimeError(f"llama_decode gave {status}")
        for i, row in enumerate(rows):
            if row[3]:
                api.llama_get_logits_ith(self.context, i)  # waits until they are computed


class Worker:
    """The calls that the parent makes."""

    runner: Runner

    def open(self, model: str, threads: int, context: int, sequences: int = 1) -> dict[str, Any]:
        self.runner = Runner(model, threads, context, sequences)
        # "CPU : AVX = 1 | AVX2 = 1 | …": what it was compiled with.
        flags = re.findall(r"(\w+) = 1", api.llama_print_system_info().decode())
        return {"load_s": self.runner.load_seconds, "version": api.__version__, "system": " ".join(flags)}

    def reset(self) -> None:
        self.runner.reset()

    def prefill(self, tokens: int) -> dict[str, float]:
        return {"seconds": self.runner.prefill(tokens)}

    def decode(self, tokens: int) -> dict[str, float]:
        return {"seconds": self.runner.decode(tokens)}

    def streams(self, **how: int) -> dict[str, float]:
        return self.runner.streams(**how)


if __name__ == "__main__":
    worker = Worker()
    calls = {name: getattr(worker, name) for name in ("open", "reset", "prefill", "decode", "streams")}
    beside.serve({"peak_memory": beside.peak_memory, **calls})
