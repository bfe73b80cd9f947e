"""Products of decode rows with quantized weights, each alone on a GPU: whether a row has the same bits in all
tiles, and how many microseconds it takes in each.

    PYTHONPATH=src:tests:benches python benches/gpu_products.py --types Q4_K,Q6_K,Q8_0 --rows 16,32,64,128
    PYTHONPATH=src:tests:benches python benches/gpu_products.py --types Q4_K --check

A weight is there so often that it comes from memory each time, as in a model. `alone` is one row, which has a
kernel of its own; `eights` are programs of eight rows; `32/2@255×2` is a program with 32 rows of x, two tiles
of sixteen rows of the weight, and 255 registers a thread, which loads two steps at once; a star is at what
`tall_tiles` takes, an arrow at the fastest.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from olivine.backends.cuda.kernels.gemv import gemv
from olivine.backends.cuda.kernels.tall_gemv import tall_gemv
from olivine.backends.cuda.tiles import GemvTiles, TallTiles, gemv_tiles, tall_tiles
from olivine.backends.cuda.weights import Planes, planes_of, repack
from olivine.dtypes import DTYPES
from oracles.matrices import tensor_of

DEVICE = torch.device("cuda")
# Rows and columns, and whether a product may leave split-K sums.
SHAPES = {
    "gemma3-4b": {"qkv": (4096, 2560, False), "o": (2560, 2048, True), "gate-up": (20480, 2560, False),
                  "down": (2560, 10240, True)},
    "gemma3-1b": {"qkv": (1536, 1152, False), "gate-up": (13824, 1152, False), "down": (1152, 6912, True)},
    "qwen3-0.6b": {"qkv": (4096, 1024, False), "o": (1024, 2048, True), "gate-up": (6144, 1024, False),
                   "down": (1024, 3072, True), "head": (151936, 1024, False)},
}  # fmt: skip
# Rows of x, tiles of the weight, registers, and steps that are loaded at once.
TALL = ((16, 1, 128, 1), (16, 2, 128, 1), (16, 4, 255, 1), (16, 4, 255, 2), (32, 1, 128, 1), (32, 2, 168, 1),
        (32, 2, 255, 1), (32, 2, 255, 2), (32, 4, 255, 1), (64, 1, 168, 1), (64, 2, 168, 1),
        (64, 2, 255, 1))  # fmt: skip
_COLD = 160 << 20  # bytes, of which the L2 cache holds less than a third


def weight_of(kind: str, n: int, k: int) -> Planes:
    """Rows of random blocks, again and again."""
    part = planes_of(tensor_of(kind, 64, k), k, DEVICE)
    planes = [
        None if plane is None else plane.view(64, -1).repeat(-(-n // 64), 1)[:n].contiguous()
        for plane in part.pointers()
    ]
    codes, high, scales, minima, halves = planes
    assert codes is not None
    return repack(Planes(part.format, n, k, codes, high, scales, minima, halves, part.group))


def copies_of(weight: Planes) -> list[Planes]:
    count = max(2, min(64, -(-_COLD // weight.nbytes)))
    return [
        replace(weight, **{
            name: plane.clone()
            for name, plane in weight.pointers()._asdict().items()
            if plane is not None
        })
        for _ in range(count)
    ]  # fmt: skip


def named(tall: TallTiles) -> str:
    return f"{tall.batch}/{tall.tiles}@{tall.registers}" + (f"×{tall.at_once}" if tall.at_once > 1 else "")


def ways(weight: Planes, cut: GemvTiles, rows: int) -> dict[str, Callable[..., None]]:
    """Each way to multiply so many rows."""
    found: dict[str, Callable[..., None]] = {}

    def eights(x: torch.Tensor, given: Planes, out: torch.Tensor) -> None:
        gemv(x, given, out, replace(cut, eight_row_limit=rows))

    if rows <= 32:
        found["eights" if rows > 1 else "alone"] = eights
    for tall in (TallTiles(*each) for each in TALL):
        spilled = tall.registers < 255 and tall.batch * tall.tiles == 128 and cut.span == 64
        if tall.batch >= 2 * rows or (tall.batch < 32 and rows > 32) or spilled:
            continue

        def run(x: torch.Tensor, given: Planes, out: torch.Tensor, tall: TallTiles = tall) -> None:
            tall_gemv(x, given, out, cut, tall=tall)

        found[named(tall)] = run
    return found


def same_bits(weight: Planes, cut: GemvTiles, rows: int) -> list[str]:
    """Ways in which some row has other bits than among eight."""
    x = torch.randn(rows, weight.k, device=DEVICE).bfloat16()
    out = torch.zeros((cut.splits, rows, weight.n), device=DEVICE)
    gemv(x, weight, out, replace(cut, eight_row_limit=rows))
    one = torch.full_like(out[:, :1], float("nan"))
    gemv(x[-1:], weight, one, cut)
    found = [] if torch.equal(one, out[:, -1:]) else ["one row alone"]
    for name, run in ways(weight, cut, rows).items():
        other = torch.full_like(out, float("nan"))
        run(x, weight, other)
        if not torch.equal(out, other):
            found.append(name)
    return found if out.isfinite().all() and out.any() else ["numbers that are none"]


def microseconds(
    run: Callable[..., None], x: torch.Tensor, copies: Sequence[Planes], cut: GemvTiles
) -> float:
    out = torch.empty((cut.splits, len(x), copies[0].n), device=DEVICE)
    run(x, copies[0], out)  # is compiled
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in copies:
            run(x, weight, out)
    took = []
    for _ in range(4):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        took.append(1e3 * start.elapsed_time(end) / len(copies))
    return float(np.median(took[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--types", default="Q4_K,Q6_K,Q8_0")
    parser.add_argument("--rows", default="8,16,32,64,128")
    parser.add_argument("--models", default=",".join(SHAPES))
    parser.add_argument("--check", action="store_true", help="only whether bits are the same")
    given = parser.parse_args()
    counts = [int(count) for count in given.rows.split(",")]
    wrong = 0
    for kind in given.types.split(","):
        for model, name in ((m, n) for m in given.models.split(",") for n in SHAPES[m]):
            n, k, split_k = SHAPES[model][name]
            if k % DTYPES[kind].block_size:
                continue
            weight = weight_of(kind, n, k)
            cut = gemv_tiles(weight, split_k)
            copies = [] if given.check else copies_of(weight)
            reading = 1e6 * weight.nbytes / 4.09e12
            print(f"{kind} {model} {name} {n}×{k}, {cut.splits} splits: {reading:.1f} µs to read", flush=True)
            for rows in counts:
                off = same_bits(weight, cut, rows)
                wrong += bool(off)
                words = f"  {rows:>4} rows: bits {'differ in ' + ', '.join(off) if off else 'the same'}"
                if not given.check:
                    x = torch.randn(rows, k, device=DEVICE).bfloat16()
                    times = {w: microseconds(r, x, copies, cut) for w, r in ways(weight, cut, rows).items()}
                    star = named(tall_tiles(weight, cut, rows, cut.splits))
                    least = min(times, key=lambda way: times[way])
                    words += "".join(
                        f"  {way}{'*' if way == star else ''} {'→' if way == least else ''}{took:.1f}"
                        for way, took in times.items()
                    )
                print(words, flush=True)
            del copies, weight
            torch.cuda.empty_cache()
    if wrong:
        raise SystemExit(f"{wrong} products have rows with other bits")


if __name__ == "__main__":
    main()
