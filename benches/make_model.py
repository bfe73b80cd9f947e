"""Writes a model file with the shape of a published model and random weights.

    python benches/make_model.py qwen3-0.6b --type Q4_K_M -o qwen3-0.6b-Q4_K_M.gguf
    python benches/make_model.py qwen3-0.6b --type qwen3.c -o qwen3-0.6b.bin

Speed does not depend on the values of the weights, so no download is needed to measure it. The model's output
is noise, but its logits are finite and differ.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from synthetic import KINDS, SHAPES, write_gguf, write_qwen3c

QWEN3C = "qwen3.c"


def make(shape: str, kind: str, path: Path, *, seed: int = 0, pure: bool = False) -> Path:
    """Writes the file; `shape` is a key of SHAPES, `kind` one of KINDS or "qwen3.c"."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == QWEN3C:
        return write_qwen3c(path, SHAPES[shape], seed=seed)
    return write_gguf(path, SHAPES[shape], kind, name=f"{shape} random", seed=seed, pure=pure)


def made(shape: str, kind: str, folder: Path) -> Path:
    """The file in `folder`, written if it is not there yet."""
    path = folder / f"{shape}-{kind}.{'bin' if kind == QWEN3C else 'gguf'}"
    if not path.exists():
        print(f"making {path}", file=sys.stderr)
        make(shape, kind, path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("shape", choices=SHAPES, metavar="SHAPE", help=", ".join(SHAPES))
    parser.add_argument(
        "--type", choices=[*KINDS, QWEN3C], default="Q8_0", metavar="TYPE", help=", ".join([*KINDS, QWEN3C])
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--pure", action="store_true", help="one type for every matrix, without llama.cpp's exceptions"
    )
    given = parser.parse_args()
    if given.type == QWEN3C and SHAPES[given.shape].architecture != "qwen3":
        parser.error("qwen3.c runs Qwen3 and nothing else")
    started = time.perf_counter()
    make(given.shape, given.type, given.output, seed=given.seed, pure=given.pure)
    size = given.output.stat().st_size
    print(f"{given.output}: {size / 1e6:.1f} MB in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
