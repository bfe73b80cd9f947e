"""What `olivine.bench` computes around the clock: costs, spreads, and talking to children."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

import olivine
from olivine.bench import measure as module
from olivine.bench.child import Child
from olivine.bench.costs import costs
from olivine.bench.measure import Settings, measure
from olivine.bench.spread import Spread
from olivine.errors import OlivineError
from olivine.loading import model_of
from synthetic import SHAPES, write_gguf


def test_a_token_reads_every_weight_once_and_one_row_of_the_embedding(tmp_path: Path) -> None:
    checkpoint = olivine.open_checkpoint(write_gguf(tmp_path / "m.gguf", SHAPES["tiny-qwen3"], "Q4_K_M"))
    model = model_of(checkpoint)
    everything = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
    row = checkpoint.tensors["token_embd.weight"].nbytes // SHAPES["tiny-qwen3"].vocabulary
    assert costs(model.plan, model.weights, 1).decode_bytes == everything + row  # the head is the embedding


@pytest.mark.parametrize("kind", ["Q4_K_M", "BF16"])
def test_a_prompt_multiplies_every_matrix_and_attends_within_windows(kind: str, tmp_path: Path) -> None:
    shape = SHAPES["tiny-gemma3"]
    model = model_of(olivine.open_checkpoint(write_gguf(tmp_path / "m.gguf", shape, kind)))
    prompt = 40
    layer = sum(outputs * inputs for outputs, inputs in shape.matrices().values())
    head = shape.vocabulary * shape.width  # for the last token alone
    linear = 2 * (prompt * shape.layers * layer + head)
    everything = prompt * (prompt + 1) // 2
    window = sum(min(position + 1, 16) for position in range(prompt))
    attention = 4 * shape.heads * shape.head_dim * (everything + 5 * window)
    found = costs(model.plan, model.weights, prompt)
    if kind == "BF16":
        assert (found.prefill_int8, found.prefill_float) == (0, linear + attention)
    else:
        assert (found.prefill_int8, found.prefill_float) == (linear, attention)


def test_ratios_are_taken_repeat_by_repeat() -> None:
    # A machine that slows down to half its speed: the ratio does not notice.
    ours, theirs = Spread.of([20.0, 20.0, 10.0]), Spread.of([10.0, 10.0, 5.0])
    ratio = ours.over(theirs)
    assert (ratio.low, ratio.median, ratio.high) == (2.0, 2.0, 2.0)
    assert Spread.of([3.0, 1.0, 2.0]).to_json() == {
        "median": 2.0,
        "low": 1.0,
        "high": 3.0,
        "values": [3.0, 1.0, 2.0],
    }


def test_the_cache_holds_what_is_measured() -> None:
    assert Settings(Path("m"), prompt=512, generate=64).context == 512
    assert Settings(Path("m"), prompt=512, generate=64, depth=1000).context == 1280
    assert Settings(Path("m"), prompt=1, generate=1).context == 256


def child(code: str) -> Child:
    return Child("engine", [sys.executable, "-c", code])


def test_what_a_child_prints_does_not_disturb_its_answers() -> None:
    code = "from olivine.bench.serve import serve; serve({'f': lambda x: print('noise') or {'twice': 2 * x}})"
    with child(code) as engine:
        assert engine.ask("f", x=4) == {"twice": 8}
        assert engine.ask("f", x=5) == {"twice": 10}


def test_a_childs_error_is_raised_and_the_child_lives_on() -> None:
    code = "from olivine.bench.serve import serve; serve({'f': lambda x: {'y': 1 / x}})"
    with child(code) as engine:
        with pytest.raises(OlivineError, match="engine: division by zero"):
            engine.ask("f", x=0)
        assert engine.ask("f", x=2) == {"y": 0.5}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit('no such thing')", "engine: ended with status 1: no such thing"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "ended by SIGILL\n.*gcc 12"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL$"),
    ],
)
def test_a_child_that_dies_says_why(code: str, message: str) -> None:
    with child(code) as engine, pytest.raises(OlivineError, match=message):
        engine.ask("anything")


def test_an_interpreter_that_is_not_there_is_named() -> None:
    with pytest.raises(OlivineError, match="cannot start /nowhere/python"):
        Child("engine", ["/nowhere/python"])


class Machine:
    """A child that answers at once: a prompt of 512 in 2 s, 64 tokens in 4 s, a machine as told."""

    costs: ClassVar = {"decode_bytes": 10**8, "prefill_int8": 9 * 10**10, "prefill_float": 10**10}
    bandwidth: ClassVar = 4e9
    peak: ClassVar[dict[str, float]] = {}

    def __init__(self, name: str, command: list[str]) -> None:
        self.name, self.started = name, 0.0

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...

    def ask(self, what: str, **how: Any) -> Any:
        match what:
            case "open":
                facts = {"load_s": 1.0, "device": "cpu×1 plain", "architecture": "a", "file_bytes": 1}
                return {**facts, "costs": self.costs}
            case "prefill" | "decode":
                return {"seconds": {"prefill": 2.0, "decode": 4.0}[what]}
            case "peak_memory":
                return {"bytes": 1}
            case "image":
                return {}  # it takes text only
            case "machine":
                assert how["bytes"] == self.costs["decode_bytes"]  # in the caches if the weights are
                return {"isa": "plain", "bandwidth": self.bandwidth, "peak": self.peak}
        return None


@pytest.mark.parametrize(
    ("peak", "bandwidth", "prefill_share", "decode_share"),
    [
        ({"f32": 2e11}, 4e9, 0.25, 0.4),  # 100 Gop in 2 s; 64 tokens of 0.1 GB in 4 s
        ({"int8": 9e11, "bf16": 1e11}, 4e9, 0.1, 0.4),
        ({}, 4e9, None, 0.4),
        ({"f32": 2e11}, 0.0, 0.25, None),
    ],
)
def test_shares_are_of_the_limits_that_were_measured(
    peak: dict[str, float],
    bandwidth: float,
    prefill_share: float | None,
    decode_share: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Machine, "peak", peak)
    monkeypatch.setattr(Machine, "bandwidth", bandwidth)
    monkeypatch.setattr(module, "Child", Machine)
    monkeypatch.setattr(module, "SETTLE", 0)
    (run,) = measure(Settings(Path("m"), repeats=2, threads=(1,))).runs
    (side,) = run.sides
    for share, expected in ((side.prefill_share, prefill_share), (side.decode_share, decode_share)):
        assert (share and share.median) == (expected if expected is None else pytest.approx(expected))
    assert set(run.peak) == set(peak) and (run.bandwidth is None) == (not bandwidth)
