"""Random matrices in any storage type, made of random blocks rather than of quantized floats."""

from __future__ import annotations

import gguf
import numpy as np

from olivine.dtypes import DTYPES


def random_blocks(dtype: str, shape: tuple[int, ...], rng: np.random.Generator, scale: float) -> np.ndarray:
    """Random bytes of the type for a matrix, with its half-precision scales made small and finite."""
    info = DTYPES[dtype]
    if dtype in ("F32", "F16", "BF16"):
        values = (rng.standard_normal(shape) * scale).astype(np.float32)
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[dtype])
    blocks = shape[-1] // info.block_size
    raw = rng.integers(0, 256, (shape[0], blocks, info.block_bytes), dtype=np.uint8)
    # Where the halves lie in a block, and how large the codes (and sub-scales) times it can get.
    halves = {
        "Q4_0": ((0, 8),),
        "Q4_1": ((0, 8), (2, 1)),
        "Q5_0": ((0, 16),),
        "Q5_1": ((0, 16), (2, 1)),
        "Q8_0": ((0, 128),),
        "Q2_K": ((80, 24), (82, 8)),
        "Q3_K": ((108, 64),),
        "Q4_K": ((0, 320), (2, 32)),
        "Q5_K": ((0, 640), (2, 32)),
        "Q6_K": ((208, 2048),),
        "IQ4_NL": ((0, 127),),
        "IQ4_XS": ((0, 2048),),
        "MXFP4": (),
        "NVFP4": (),
        "IQ1_S": ((0, 10),),
        "IQ1_M": (),
        "IQ2_XXS": ((0, 100),),
        "IQ2_XS": ((0, 100),),
        "IQ2_S": ((0, 100),),
        "IQ3_XXS": ((0, 300),),
        "IQ3_S": ((0, 300),),
        "TQ1_0": ((52, 2),),
        "TQ2_0": ((64, 2),),
    }[dtype]
    for at, reach in halves:
        d = np.float16(2 * scale / reach)
        raw[:, :, at : at + 2] = np.array([d], np.float16).view(np.uint8)
    if dtype == "MXFP4":
        raw[:, :, 0] = rng.integers(122, 125, raw.shape[:2])
    if dtype == "NVFP4":  # four scales, unsigned, with four bits of exponent and three of mantissa
        raw[:, :, :4] = rng.integers(8, 32, (*raw.shape[:2], 4))
    if dtype == "IQ1_M":  # the half is in the upper bits of four words
        d = int(np.array([scale / 5], np.float16).view(np.uint16)[0])
        for i in range(4):
            raw[:, :, 49 + 2 * i] = raw[:, :, 49 + 2 * i] & 15 | (d >> 4 * i & 15) << 4
    return raw.reshape(shape[0], -1)
