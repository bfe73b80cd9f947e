"""GGUF's numbers of tensor types."""

from __future__ import annotations

from olivine.dtypes import DTYPES, DType, not_run

# fmt: off
TYPE_NAMES: dict[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0", 42: "Q2_0",
}
# Types that were removed from the format; their numbers are not reused.
REMOVED_NAMES: dict[int, str] = {
    4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8",
    36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
}
# fmt: on

# Block size and bytes of the types that no backend supports.
_SIZES = {
    "Q8_1": (32, 36), "Q8_K": (256, 292), "I8": (1, 1), "I16": (1, 2), "I32": (1, 4), "I64": (1, 8),
    "F64": (1, 8), "Q1_0": (128, 18), "Q2_0": (64, 18),
}  # fmt: skip

SUPPORTED: dict[int, DType] = {number: DTYPES[name] for number, name in TYPE_NAMES.items() if name in DTYPES}


def type_of(number: int) -> DType:
    """The type with a number. Unsupported types have a name, and a size if it is known."""
    if number in SUPPORTED:
        return SUPPORTED[number]
    if number in TYPE_NAMES:
        return not_run(TYPE_NAMES[number], *_SIZES[TYPE_NAMES[number]])
    if number in REMOVED_NAMES:
        return not_run(f"{REMOVED_NAMES[number]} (removed from the format)")
    return not_run(f"number {number} (unknown)")
