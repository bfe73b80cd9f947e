"""Which tensor gets which storage type: llama.cpp's rules, so a mixture here is the mixture out there."""

from __future__ import annotations

import re

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType

# What can be asked for → the type of most matrices, and the number that files carry for it.
KINDS: dict[str, tuple[GGMLQuantizationType, LlamaFileType]] = {
    "F32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "F16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "BF16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    "Q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "Q4_0": (GGMLQuantizationType.Q4_0, LlamaFileType.MOSTLY_Q4_0),
    "Q4_1": (GGMLQuantizationType.Q4_1, LlamaFileType.MOSTLY_Q4_1),
    "Q5_0": (GGMLQuantizationType.Q5_0, LlamaFileType.MOSTLY_Q5_0),
    "Q5_1": (GGMLQuantizationType.Q5_1, LlamaFileType.MOSTLY_Q5_1),
    "Q2_K": (GGMLQuantizationType.Q2_K, LlamaFileType.MOSTLY_Q2_K_S),
    "Q3_K": (GGMLQuantizationType.Q3_K, LlamaFileType.MOSTLY_Q3_K_S),
    "Q4_K": (GGMLQuantizationType.Q4_K, LlamaFileType.MOSTLY_Q4_K_S),
    "Q5_K": (GGMLQuantizationType.Q5_K, LlamaFileType.MOSTLY_Q5_K_S),
    "Q6_K": (GGMLQuantizationType.Q6_K, LlamaFileType.MOSTLY_Q6_K),
    "IQ4_NL": (GGMLQuantizationType.IQ4_NL, LlamaFileType.MOSTLY_IQ4_NL),
    "IQ4_XS": (GGMLQuantizationType.IQ4_XS, LlamaFileType.MOSTLY_IQ4_XS),
    "MXFP4": (GGMLQuantizationType.MXFP4, LlamaFileType.MOSTLY_MXFP4_MOE),
    "Q4_K_M": (GGMLQuantizationType.Q4_K, LlamaFileType.MOSTLY_Q4_K_M),
    "Q5_K_M": (GGMLQuantizationType.Q5_K, LlamaFileType.MOSTLY_Q5_K_M),
}

# A row that is no whole number of 256-blocks takes a type with blocks of 32.
_NARROW = {
    GGMLQuantizationType.Q2_K: GGMLQuantizationType.IQ4_NL,
    GGMLQuantizationType.Q3_K: GGMLQuantizationType.IQ4_NL,
    GGMLQuantizationType.IQ4_XS: GGMLQuantizationType.IQ4_NL,
    GGMLQuantizationType.Q4_K: GGMLQuantizationType.Q5_0,
    GGMLQuantizationType.Q5_K: GGMLQuantizationType.Q5_1,
    GGMLQuantizationType.Q6_K: GGMLQuantizationType.Q8_0,
}
_FLOATS = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)


def type_of(name: str, shape: tuple[int, ...], kind: str, layers: int, *, pure: bool) -> GGMLQuantizationType:
    """The storage type of a tensor in a file of that kind; `pure` leaves out every exception that can be."""
    if len(shape) == 1 or "ffn_gate_inp" in name:
        return GGMLQuantizationType.F32
    chosen = KINDS[kind][0]
    if name == "per_layer_model_proj.weight" and chosen not in _FLOATS:
        return GGMLQuantizationType.BF16  # never quantized, and published in this type
    if not pure and chosen not in _FLOATS:
        chosen = _exception(name, shape[-1], kind, layers) or chosen
    if shape[-1] % GGML_QUANT_SIZES[chosen][0]:
        chosen = _NARROW.get(chosen, chosen)
    if shape[-1] % GGML_QUANT_SIZES[chosen][0]:
        chosen = GGMLQuantizationType.F16
    return chosen


def _exception(name: str, inputs: int, kind: str, layers: int) -> GGMLQuantizationType | None:
    """The larger type of the head, and in the M mixtures of some attn_v and ffn_down."""
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        # The head too, in these models, and what is like it.
        return GGMLQuantizationType.Q8_0 if kind == "Q8_0" or inputs % 256 else GGMLQuantizationType.Q6_K
    match = re.fullmatch(r"blk\.(\d+)\.(attn_v|ffn_down|ffn_down_exps)\.weight", name)
    if kind.endswith("_M") and match and _more_bits(int(match[1]), layers):
        return GGMLQuantizationType.Q6_K
    return None


def _more_bits(layer: int, layers: int) -> bool:
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
