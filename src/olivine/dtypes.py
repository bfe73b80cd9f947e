"""The types in which weights are stored: how many elements share a block, and how many bytes a block has.

A leaf module: formats size their tensors with it, backends choose kernels by it. The values are decoded in
backends (`backends/reference/dequantize.py` is the definition).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DType:
    """A storage type. `block_bytes` bytes hold `block_size` consecutive elements of a row."""

    name: str
    block_size: int
    block_bytes: int
    # Bytes of scale per block that lie in a separate array (qwen3.c); 0 where the block holds everything.
    scale_bytes: int = 0
    runs: bool = True  # else it can be named and, where `block_bytes` is not 0, measured, but not decoded

    def __str__(self) -> str:
        return self.name

    @property
    def is_quantized(self) -> bool:
        return self.block_size > 1

    @property
    def bits(self) -> float:
        """Bits an element costs, scales included."""
        return 8 * (self.block_bytes + self.scale_bytes) / self.block_size

    def nbytes(self, elements: int) -> int:
        """Bytes of `elements` values, which must be whole blocks; separate scales not counted."""
        blocks, rest = divmod(elements, self.block_size)
        if rest:
            raise ValueError(f"{elements} elements are not whole blocks of {self.block_size} ({self.name})")
        return blocks * self.block_bytes


F32 = DType("F32", 1, 4)
F16 = DType("F16", 1, 2)
BF16 = DType("BF16", 1, 2)
Q4_0 = DType("Q4_0", 32, 18)
Q4_1 = DType("Q4_1", 32, 20)
Q5_0 = DType("Q5_0", 32, 22)
Q5_1 = DType("Q5_1", 32, 24)
Q8_0 = DType("Q8_0", 32, 34)
Q2_K = DType("Q2_K", 256, 84)
Q3_K = DType("Q3_K", 256, 110)
Q4_K = DType("Q4_K", 256, 144)
Q5_K = DType("Q5_K", 256, 176)
Q6_K = DType("Q6_K", 256, 210)
IQ4_NL = DType("IQ4_NL", 32, 18)
IQ4_XS = DType("IQ4_XS", 256, 136)
MXFP4 = DType("MXFP4", 32, 17)
# These, the CPU backend expands to int8 a few rows at a time (native/src/expand.h).
NVFP4 = DType("NVFP4", 64, 36)
IQ1_S = DType("IQ1_S", 256, 50)
IQ1_M = DType("IQ1_M", 256, 56)
IQ2_XXS = DType("IQ2_XXS", 256, 66)
IQ2_XS = DType("IQ2_XS", 256, 74)
IQ2_S = DType("IQ2_S", 256, 82)
IQ3_XXS = DType("IQ3_XXS", 256, 98)
IQ3_S = DType("IQ3_S", 256, 110)
TQ1_0 = DType("TQ1_0", 256, 54)
TQ2_0 = DType("TQ2_0", 256, 66)

DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4,
        NVFP4, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, TQ1_0, TQ2_0,
    )
}  # fmt: skip


def not_run(name: str, block_size: int = 1, block_bytes: int = 0) -> DType:
    """A type that no backend decodes; without sizes where those are not known."""
    return DType(name, block_size, block_bytes, runs=False)


def grouped_int8(group: int) -> DType:
    """qwen3.c's type: int8 values, and one float32 scale per `group` values in an array of its own."""
    return DType(f"Q8_G{group}", group, group, scale_bytes=4)
