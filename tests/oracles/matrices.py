"""Random weights of every type, as a file has them and as the CUDA backend does, and random rows."""

from __future__ import annotations

import zlib

import numpy as np
import torch

from olivine.backends.cuda.weights import Planes, planes_of, repack
from olivine.dtypes import DTYPES, grouped_int8
from olivine.tensor import Tensor
from oracles.blocks import random_blocks

CPU = torch.device("cpu")


def tensor_of(kind: str, n: int, k: int, which: int = 0) -> Tensor:
    rng = np.random.default_rng([zlib.crc32(f"{kind}{n}{k}".encode()), which])
    if kind == "G64":
        codes = rng.integers(-127, 128, (n, k), dtype=np.int8)
        scales = rng.uniform(0.001, 0.02, n * k // 64).astype(np.float32)
        return Tensor("w", grouped_int8(64), (n, k), codes.view(np.uint8).reshape(-1), scales.view(np.uint8))
    raw = np.ascontiguousarray(random_blocks(kind, (n, k), rng, scale=k**-0.5)).view(np.uint8).reshape(-1)
    return Tensor("w", DTYPES[kind], (n, k), raw.copy())


def rows_of(count: int, width: int) -> np.ndarray:
    return np.random.default_rng(count + width).standard_normal((count, width)).astype(np.float32)


def close(ours: torch.Tensor, theirs: np.ndarray, bound: float) -> bool:
    difference = np.linalg.norm(ours.float().numpy() - theirs) / np.linalg.norm(theirs)
    return bool(difference < bound)


def matrix_of(tensor: Tensor, k: int) -> Planes:
    return repack(planes_of(tensor, k, CPU))
