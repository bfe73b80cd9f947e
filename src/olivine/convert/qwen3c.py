"""qwen3.c's files: `X.bin` with the weights, `X.bin.tokenizer`, and four prompt templates.

Byte for byte what its own exporter writes: float32 norms, then every matrix as int8 values followed by one
float32 scale for each group of them. formats/ajc1.py and tokenizer/qwen3c.py read them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from olivine import models
from olivine.convert.stream import Output, in_order, in_type
from olivine.convert.vocabulary import lost_ends, refuse_other_tokens
from olivine.dtypes import F32
from olivine.errors import ModelError, TokenizerError, printable
from olivine.formats.ajc1 import MAGIC
from olivine.models.qwen3 import Qwen3Config
from olivine.models.rope import Rope
from olivine.tensor import Bytes, Tensor
from olivine.tokenizer.bpe import byte_level_bytes, utf8
from olivine.tokenizer.gguf import CONTROL, KEY, NORMAL, UNUSED, USER_DEFINED, from_gguf
from olivine.tokenizer.qwen3c import from_bytes

HEADER_BYTES = 256
_VERSION = 1
_GROUP = 64
_NOT_A_MERGE = -1e6
_TEMPLATE_ENDINGS = ("", ".with-thinking", ".with-system", ".with-system-and-thinking")
# The endings of the files beside X.bin.
COMPANIONS = (".tokenizer", *(f".template{ending}" for ending in _TEMPLATE_ENDINGS))
# In the order of the file.
_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_down", "ffn_up")


@dataclass(frozen=True)
class Shape:
    """The header's numbers."""

    width: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    context: int
    head_dim: int
    shared: bool  # the LM head is tied to the embedding
    group: int

    @classmethod
    def of(cls, model: models.Model) -> Shape:
        """The shape of a model that qwen3.c can run; it has the rest of the configuration in its code."""
        c = model.config
        if not isinstance(c, Qwen3Config) or not c.qk_norm or c.experts is not None:
            raise ModelError("qwen3.c runs dense Qwen3 models and nothing else")
        plain = Rope(c.head_dim, 1e6).frequencies
        fixed = {
            "rotary embeddings of base 1e6 without scaling": all(
                math.isclose(a, b, rel_tol=1e-5) for a, b in zip(plain, c.rope.frequencies, strict=True)
            ),
            "norms with an epsilon of 1e-6": math.isclose(c.eps, 1e-6, rel_tol=1e-5),
            "no sliding windows": not any(c.windows),
            "no biases": not any(name.endswith(".bias") for name in model.weights),
        }
        for what, holds in fixed.items():
            if not holds:
                raise ModelError(f"qwen3.c has it in its code that a model has {what}; this one differs")
        group = _GROUP
        while c.width % group:
            group //= 2
        for what, row in (("MLP", c.hidden), ("attention", c.heads * c.head_dim)):
            if group < 2 or row % group:
                raise ModelError(f"qwen3.c's groups of {group} do not divide this model's {what}, {row} wide")
        rows = model.weights["token_embd.weight"][0].shape[0]
        shared = _same(model, "token_embd.weight", "output.weight")
        return cls(
            c.width, c.hidden, c.layers, c.heads, c.kv_heads, rows, c.context, c.head_dim, shared, group
        )

    @property
    def header(self) -> bytes:
        numbers = (self.width, self.hidden, self.layers, self.heads, self.kv_heads, self.vocabulary)
        more = (self.context, self.head_dim, int(self.shared), self.group)
        return (MAGIC + struct.pack("<11i", _VERSION, *numbers, *more)).ljust(HEADER_BYTES, b"\0")

    @property
    def nbytes(self) -> int:
        return HEADER_BYTES + self.norm_bytes + self.matrix_bytes

    @property
    def norm_bytes(self) -> int:
        return 4 * (2 * self.layers * (self.width + self.head_dim) + self.width)

    @property
    def matrix_bytes(self) -> int:
        attention = 2 * self.width * self.head_dim * (self.heads + self.kv_heads)
        values = self.layers * (attention + 3 * self.width * self.hidden)
        values += self.vocabulary * self.width * (1 if self.shared else 2)
        return values + values // self.group * 4

    def norms(self) -> Iterator[str]:
        for stem in ("attn_norm", "ffn_norm"):
            yield from (f"blk.{i}.{stem}.weight" for i in range(self.layers))
        yield "output_norm.weight"
        for stem in ("attn_q_norm", "attn_k_norm"):
            yield from (f"blk.{i}.{stem}.weight" for i in range(self.layers))

    def matrices(self) -> Iterator[str]:
        yield "token_embd.weight"
        for stem in _MATRICES:
            yield from (f"blk.{i}.{stem}.weight" for i in range(self.layers))
        if not self.shared:
            yield "output.weight"


def model_file(model: models.Model, shape: Shape, threads: int) -> Iterator[tuple[str, bytes | memoryview]]:
    """The bytes of `X.bin` in order, each piece with the name of its tensor."""
    yield "header", shape.header
    for name in shape.norms():
        (norm,) = model.weights[name]
        yield name, in_type(norm, F32).data

    outputs = []
    for name in shape.matrices():
        (matrix,) = model.weights[name]
        outputs.append(Output.of(name, matrix, F32))
    jobs = ((output, piece) for output in outputs for piece in output.pieces())

    def run(job: tuple[Output, Tensor]) -> Bytes:
        return _grouped(job[1], shape.group)

    # Scales follow the values of a whole matrix.
    scales: list[bytes] = []
    left = 0
    for (output, piece), both in in_order(jobs, run, threads):
        yield output.info.name, both[: piece.size].data
        scales.append(both[piece.size :].tobytes())
        left = (left or math.prod(output.info.shape)) - piece.size
        if left == 0:
            yield output.info.name, b"".join(scales)
            scales.clear()


def _grouped(piece: Tensor, group: int) -> Bytes:
    """int8 values, then float32 scales: the largest value of a group is 127."""
    values = in_type(piece, F32).view("<f4").reshape(-1, group)
    if not np.isfinite(values).all():
        raise ModelError(
            f"{printable(piece.name)} holds a value that is not a number, or infinite: check the source"
        )
    scales = np.abs(values).max(axis=1) / np.float32(127)
    codes = np.rint(values / np.where(scales == 0, np.float32(1), scales)[:, None]).astype(np.int8)
    return np.concatenate([codes.reshape(-1).view(np.uint8), scales.astype("<f4").view(np.uint8)])


def _same(model: models.Model, one: str, other: str) -> bool:
    """Whether two weights are tied: only the first exists, or they are equal."""
    if other not in model.weights:
        return True
    (a,), (b,) = model.weights[one], model.weights[other]
    return a.dtype == b.dtype and np.array_equal(a.data, b.data)


def tokenizer_file(
    metadata: Mapping[str, Any], stop_ids: Collection[int] = ()
) -> tuple[bytes, tuple[str, ...]]:
    """`X.bin.tokenizer` from GGUF's metadata, and warnings: raw bytes, and scores that give the order of
    merges. It is read back, and refused if that gives another tokenizer. `stop_ids` are tokens that end a
    reply and that the metadata may lack."""
    if metadata.get(f"{KEY}model") != "gpt2":
        raise TokenizerError("qwen3.c needs Qwen's own tokenizer: byte-level BPE")
    tokenizer = from_gguf(metadata)  # refuses lists that are missing, too short or of something else
    if f"{KEY}token_type" not in metadata:
        raise TokenizerError(f"{KEY}token_type is missing: nothing says which tokens are not made by merging")
    tokens: Sequence[str] = metadata[f"{KEY}tokens"]
    types = np.asarray(metadata[f"{KEY}token_type"])[: len(tokens)]
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(metadata.get(f"{KEY}merges", ())):
        cut = merge.find(" ", 1)
        ranks.setdefault(merge[:cut] + merge[cut + 1 :], rank)
    count = len(tokens)
    while count and types[count - 1] == UNUSED:
        count -= 1
    records, longest = [], 0
    for token, kind in zip(tokens[:count], types[:count].tolist(), strict=True):
        added = kind in (CONTROL, USER_DEFINED)
        data = utf8(token) if added else byte_level_bytes(token)
        score = _NOT_A_MERGE if added or token not in ranks else -math.log(ranks[token] + 1)
        longest = max(longest, len(data))
        records.append(struct.pack("<fI", score, len(data)) + data)
    if tokenizer.bos_id is None or tokenizer.eos_id is None:
        raise TokenizerError("qwen3.c's tokenizer files name a BOS and an EOS token; this model lacks one")
    data = struct.pack("<III", longest, tokenizer.bos_id, tokenizer.eos_id) + b"".join(records)
    # The file does not name a pre-tokenizer: readers use Qwen's.
    made = from_bytes(data, len(tokens), ".tokenizer")
    refuse_other_tokens(tokenizer, made, np.flatnonzero(types == NORMAL), "qwen3.c")
    return data, lost_ends({*stop_ids, *tokenizer.stop_ids}, made, "qwen3.c has no place")


def templates(chat_template: str | None) -> dict[str, str]:
    """The four prompts with %s for the system and user messages; none if the template is not Qwen's.

    Keys are endings of file names."""
    if chat_template is None or "<|im_start|>" not in chat_template:
        return {}
    user = "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n"
    system = "<|im_start|>system\n%s<|im_end|>\n"
    # A model that always thinks, or never does, has no such switch.
    quiet = "<think>\n\n</think>\n\n" if "enable_thinking" in chat_template else ""
    texts = (user + quiet, user, system + user + quiet, system + user)
    return {f".template{ending}": text for ending, text in zip(_TEMPLATE_ENDINGS, texts, strict=True)}
