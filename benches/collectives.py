"""How long ranks take to meet: an all-reduce of two processes, in shared memory and by gloo.

python benches/collectives.py [--ranks 2] [--width 4096] [--rows 1 512]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import time
from pathlib import Path

import numpy as np

from olivine.backends.base import Collectives
from olivine.cluster.rendezvous import Address, listening


def member(way: str, where: str, ranks: int, rank: int, listener: socket.socket | None = None) -> Collectives:
    if way == "shm":
        from olivine.backends.cpu.shm import ShmCollectives

        return ShmCollectives(Path(where), ranks, 1, rank, 0)
    from olivine.cluster.torch_collectives import GlooCollectives

    return GlooCollectives(where, ranks, 1, rank, 0, 60.0, listener)


def measure(collectives: Collectives, rows: int, width: int, seconds: float) -> list[float]:
    """Seconds of each all-reduce. All ranks make the same number of them."""
    x = np.ones((rows, width), np.float32)
    count = 20
    began = time.perf_counter()
    for _ in range(count):
        collectives.all_reduce(x)
    each = (time.perf_counter() - began) / count
    more = collectives.all_reduce(np.full((1, 1), max(20.0, seconds / each), np.float32))
    times = []
    for _ in range(int(more[0, 0])):
        began = time.perf_counter()
        collectives.all_reduce(x)
        times.append(time.perf_counter() - began)
    return times


def follow(
    way: str, where: str, ranks: int, rank: int, shapes: list[tuple[int, int]], seconds: float
) -> None:
    collectives = member(way, where, ranks, rank)
    for rows, width in shapes:
        measure(collectives, rows, width, seconds)


def run(
    way: str, ranks: int, shapes: list[tuple[int, int]], seconds: float
) -> dict[tuple[int, int], list[float]]:
    """The times of every shape, sorted."""
    if way == "shm":
        from olivine.backends.cpu.shm import shared_file

        with shared_file(ranks, 1) as file:
            return run_at(str(file), way, ranks, shapes, seconds)
    listener = listening("127.0.0.1")
    return run_at(str(Address(*listener.getsockname())), way, ranks, shapes, seconds, listener)


def run_at(
    where: str,
    way: str,
    ranks: int,
    shapes: list[tuple[int, int]],
    seconds: float,
    listener: socket.socket | None = None,
) -> dict[tuple[int, int], list[float]]:
    context = multiprocessing.get_context("spawn")
    others = [
        context.Process(target=follow, args=(way, where, ranks, rank, shapes, seconds), daemon=True)
        for rank in range(1, ranks)
    ]
    for each in others:
        each.start()
    collectives = member(way, where, ranks, 0, listener)
    found = {shape: sorted(measure(collectives, *shape, seconds)) for shape in shapes}
    for each in others:
        each.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 512])
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--ways", nargs="+", default=["shm", "gloo"], choices=["shm", "gloo"])
    args = parser.parse_args()
    shapes = [(rows, args.width) for rows in args.rows]
    print(f"{args.ranks} ranks, load {os.getloadavg()[0]:.1f}; µs: least, median, 90 %")
    for way in args.ways:
        for (rows, width), times in run(way, args.ranks, shapes, args.seconds).items():
            least, median, most = (1e6 * times[int(at * (len(times) - 1))] for at in (0.0, 0.5, 0.9))
            print(f"{way:>5}  {rows:>4} × {width}  {least:>9.1f} {median:>9.1f} {most:>9.1f}  ({len(times)})")


if __name__ == "__main__":
    main()
