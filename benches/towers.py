"""Towers at published shapes, with random weights: `python benches/towers.py [--device cuda|cpu]`.

    --transformers   beside the published model code in float32 and bfloat16, in turn (on the CPU; needs torch)
    --check          first, small towers against the reference backend

A photo of Gemma 3 4B is 4,096 patches, one of Gemma 4 E2B 2,520; a video is 60 frames of 630; sound is 30 s.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from olivine.backends import Batch, CompileOptions, backend
from olivine.dtypes import BF16, F32
from olivine.models import gemma4_audio, gemma4_vision, siglip
from olivine.plan import Plan, trace
from olivine.tensor import Tensor

SIGLIP = siglip.SiglipConfig(
    layers=27, width=1152, hidden=4304, heads=16, eps=1e-6, image=896, patch=14, pool=4, projected=2560,
    norm_offset=0.0,
)  # fmt: skip
GEMMA4 = gemma4_vision.Gemma4VisionConfig(
    layers=16, width=768, hidden=3072, heads=12, head_dim=64, eps=1e-6, patch=16, pool=3, positions=10240,
    standardize=False, projected=1536,
)  # fmt: skip
SOUND = gemma4_audio.Gemma4AudioConfig(
    layers=12, width=1024, hidden=4096, heads=8, channels=(128, 32), kernel=5, outputs=1536, projected=1536
)


class Names(Mapping[str, tuple[int, ...]]):
    """The shapes of a file that has every bias and limit which this tower's file has."""

    def __init__(self, endings: tuple[str, ...]) -> None:
        self._endings = endings

    def __getitem__(self, name: str) -> tuple[int, ...]:
        if name.endswith(self._endings) and not name.startswith("mm."):
            return ()
        raise KeyError(name)

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0


LIMITS = (".input_min", ".input_max", ".output_min", ".output_max")
CASES: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
    "gemma3-photo": (siglip, SIGLIP, (".bias",)),
    "gemma4-photo": (gemma4_vision, GEMMA4, LIMITS),
    "gemma4-video": (gemma4_vision, GEMMA4, LIMITS),
    "gemma4-sound": (gemma4_audio, SOUND, (*LIMITS, "out.bias")),
}
SMALL: dict[str, dict[str, Any]] = {
    "gemma3-photo": {"layers": 2, "image": 224},
    "gemma4-photo": {"layers": 2},
    "gemma4-video": {"layers": 2},
    "gemma4-sound": {"layers": 2},
}


def random_weights(plan: Plan) -> dict[str, tuple[Tensor, ...]]:
    rng = np.random.default_rng(0)
    found = {}
    for weight in plan.weights:
        if weight.name.endswith(LIMITS):
            values = np.array([-6.0 if weight.name.endswith("min") else 6.0], np.float32)
        elif len(weight.shape) == 1:
            values = rng.standard_normal(weight.shape, np.float32) * 0.1 + float("norm" in weight.name)
        else:
            size = float(np.prod(weight.shape[1:], dtype=np.float64))
            values = rng.standard_normal(weight.shape, np.float32) / np.float32(size**0.5)
        if len(weight.shape) > 1:
            stored = (values.view(np.uint32) >> 16).astype(np.uint16)
            found[weight.name] = (Tensor(weight.name, BF16, weight.shape, stored.reshape(-1).view(np.uint8)),)
        else:
            found[weight.name] = (Tensor(weight.name, F32, weight.shape, values.reshape(-1).view(np.uint8)),)
    return found


class Part(NamedTuple):
    rows: np.ndarray
    coordinates: np.ndarray


def picture(columns: int, lines: int, pool: int, width: int, seed: int = 0) -> Part:
    """Patches cell by cell."""
    y, x = np.mgrid[0:lines, 0:columns]
    order = np.lexsort((x.ravel() % pool, y.ravel() % pool, x.ravel() // pool, y.ravel() // pool))
    at = np.stack([x.ravel(), y.ravel()], 1)[order].astype(np.int32)
    rng = np.random.default_rng(seed)
    return Part(rng.random((len(at), width), np.float32), np.ascontiguousarray(at))


def sound(rows: int) -> Part:
    at = np.zeros((rows, 2), np.int32)
    at[:, 0] = 4
    return Part(np.random.default_rng(0).standard_normal((rows, 512), np.float32), at)


def parts_of(name: str, config: Any) -> list[Part]:
    if name == "gemma3-photo":
        return [picture(config.side, config.side, config.pool, 3 * config.patch**2)]
    if name == "gemma4-photo":
        return [picture(60, 42, 3, 768)]
    if name == "gemma4-video":
        return [picture(30, 21, 3, 768, seed) for seed in range(60 if config.layers > 2 else 3)]
    return [sound(750 if config.layers > 2 else 40)]


def batch_of(parts: list[Part], per_token: int, page_size: int, groups: int) -> Batch:
    lengths = [len(part.rows) for part in parts]
    counts = [-(-length // page_size) for length in lengths]
    table = np.full((len(parts), max(counts)), -1, np.int32)
    for sequence, (start, count) in enumerate(zip(np.cumsum([0, *counts]), counts, strict=False)):
        table[sequence, :count] = np.arange(start, start + count)
    rows = sum(lengths)
    return Batch(
        tokens=np.zeros(rows, np.int32),
        sequences=np.repeat(np.arange(len(parts), dtype=np.int32), lengths),
        positions=np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        outputs=np.arange(0, rows, per_token, dtype=np.int32),
        tables=(table,) * groups,
        embeddings=np.concatenate([part.rows for part in parts]),
        last=np.repeat(np.array(lengths, np.int32) - 1, lengths).astype(np.int32),
        coordinates=np.concatenate([part.coordinates for part in parts]),
    )


def compiled(name: str, device: str, config: Any, threads: int | None = None) -> tuple[Any, Batch]:
    module, _, endings = CASES[name]
    plan = trace(name, module.forward, config, Names(endings))
    parts = parts_of(name, config)

    def pages(page_size: int, *_: Any) -> tuple[list[int], int]:
        return [sum(-(-len(part.rows) // page_size) for part in parts)] * len(plan.groups), 0

    options = CompileOptions(pages, threads=threads)
    program = backend(device)(plan, random_weights(plan), options).program
    return program, batch_of(parts, config.rows_per_token, program.page_size, len(plan.groups))


def flops(plan: Plan, batch: Batch) -> float:
    """Of products and attention."""
    total = 0.0
    rows = {"tokens": len(batch.tokens), "outputs": len(batch.outputs)}
    lengths = np.bincount(batch.sequences)
    for op in plan.ops:
        if op.kind == "linear":
            total += 2.0 * rows[op.output.rows] * np.prod(next(iter(op.weights())).shape)  # type: ignore[union-attr]
        elif op.kind == "attention":
            total += 4.0 * float((lengths**2).sum()) * op.output.width  # type: ignore[union-attr]
    return total


def error(ours: np.ndarray, theirs: np.ndarray) -> float:
    rows = np.sqrt(np.mean(np.square(ours - theirs), axis=1)) / theirs.std()
    return float(np.quantile(rows, 0.9))


def check(name: str, device: str) -> None:
    config = replace(CASES[name][1], **SMALL[name])
    theirs = (lambda pair: pair[0].step(pair[1], logits=False).hidden)(compiled(name, "reference", config))
    program, batch = compiled(name, device, config)
    first = program.step(batch, logits=False).hidden
    for _ in range(2):  # a graph gives the same bits
        assert np.array_equal(program.step(batch, logits=False).hidden, first)
    print(f"{name}: {error(first, theirs):.2%} from the reference, {first.shape}", flush=True)


def timed(call: Callable[[], Any], repeats: int) -> str:
    call(), call()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return f"{1e3 * statistics.median(found):.2f} ms [{1e3 * min(found):.2f}–{1e3 * max(found):.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    for name in chosen.only.split(","):
        if chosen.check:
            check(name, chosen.device)
        program, batch = compiled(name, chosen.device, CASES[name][1], chosen.threads)
        work = flops(program.plan, batch)
        told = timed(lambda program=program, batch=batch: program.step(batch, logits=False), chosen.repeats)
        print(f"{name}: {told}, {len(batch.outputs)} soft tokens, {work / 1e12:.2f} TFLOP", flush=True)


if __name__ == "__main__":
    main()
