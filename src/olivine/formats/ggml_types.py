"""The numbers that GGUF files use for tensor types."""

from __future__ import annotations

from olivine.dtypes import DTYPES, DType

# fmt: off
TYPE_NAMES: dict[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0", 42: "Q2_0",
}
# Types that files had once: their numbers are not used again.
REMOVED_NAMES: dict[int, str] = {
    4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8",
    36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
}
# fmt: on

SUPPORTED: dict[int, DType] = {number: DTYPES[name] for number, name in TYPE_NAMES.items() if name in DTYPES}


def why_unsupported(number: int) -> str:
    """What to say of a tensor whose type is not in `SUPPORTED`."""
    if number in TYPE_NAMES:
        return f"type {TYPE_NAMES[number]} (number {number}) is not supported"
    if number in REMOVED_NAMES:
        return f"type {REMOVED_NAMES[number]} (number {number}) was removed from the format: not supported"
    return f"type number {number} is unknown: not supported"
