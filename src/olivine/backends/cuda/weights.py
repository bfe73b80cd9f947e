"""Weights on the device, in the formats of formats.py.

Floats lie there as they are stored. Blocks of the GGUF types are unpacked into planes (codes, scales, …),
because blocks of 34 or 18 bytes allow no aligned loads. Bits change their places where that saves kernels
work, never their meaning. Planes have as many bytes as the file, but for Q4_K and Q5_K, whose scales of six
bits lie in bytes of their own, and for rows and columns that fill up a tile. Other types are decoded to BF16,
and so are experts of several types in one weight. `repack` then puts codes and scales into tiles.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from olivine.backends.base import Progress, Weights
from olivine.backends.cuda.formats import LAYOUTS, Format
from olivine.errors import ModelError
from olivine.plan import Plan
from olivine.tensor import Tensor

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BLOCKS = {
    "Q8_0": Format.INT8,
    "Q4_0": Format.Q4_0,
    "Q4_1": Format.Q4_1,
    "Q5_0": Format.Q5_0,
    "Q5_1": Format.Q5_1,
    "Q4_K": Format.Q4_K,
    "Q5_K": Format.Q5_K,
    "Q6_K": Format.Q6_K,
    "Q2_K": Format.Q2_K,
    "Q3_K": Format.Q3_K,
    "IQ4_NL": Format.IQ4_NL,
    "IQ4_XS": Format.IQ4_XS,
    "MXFP4": Format.MXFP4,
}
_ADDED_BYTES = {"Q4_K": 4, "Q5_K": 4}  # to a block, on the device: sixteen six-bit numbers become bytes
_GROUPS = (32, 64, 128)  # of int8 with a float32 scale a group
_CHUNK = 256 << 20
_ROOM = 5 << 28  # for steps and expanded slabs; and a tensor is there twice while it is unpacked


class PlanePointers(NamedTuple):
    """The planes of a weight, as kernels take them; None where the format has no such plane."""

    codes: torch.Tensor
    high: torch.Tensor | None  # more bits of each code
    scales: torch.Tensor | None
    minima: torch.Tensor | None
    halves: torch.Tensor | None  # float16 scales of a block of 256, by which its scales are scaled


@dataclass(frozen=True)
class Planes:
    """A matrix [n, k] on the device; planes that its format does not have are None."""

    format: Format
    n: int
    k: int
    codes: torch.Tensor
    high: torch.Tensor | None = None
    scales: torch.Tensor | None = None
    minima: torch.Tensor | None = None
    halves: torch.Tensor | None = None
    group: int = 32  # columns that share a scale, of INT8
    tiled: bool = False

    def pointers(self) -> PlanePointers:
        return PlanePointers(self.codes, self.high, self.scales, self.minima, self.halves)

    @property
    def nbytes(self) -> int:
        return sum(plane.nbytes for plane in self.pointers() if plane is not None)

    @property
    def tile_width(self) -> int:
        """Codes in a row of a tile."""
        return LAYOUTS[self.format].tile_width or min(self.group, 64)

    def stacks_with(self, other: Planes) -> bool:
        """Whether rows of both can be stacked into one matrix."""
        return (self.format, self.k, self.group, self.codes.dtype) == (
            other.format, other.k, other.group, other.codes.dtype
        )  # fmt: skip


def stack(parts: Sequence[Planes]) -> Planes:
    """The rows of all of them, in one matrix."""
    if len(parts) == 1:
        return parts[0]
    joined = [
        None if planes[0] is None else torch.cat([p for p in planes if p is not None])
        for planes in zip(*(part.pointers() for part in parts), strict=True)
    ]
    codes, high, scales, minima, halves = joined
    assert codes is not None
    first = parts[0]
    return Planes(
        first.format, sum(p.n for p in parts), first.k, codes, high, scales, minima, halves, first.group
    )


def repack(planes: Planes, experts: int = 1) -> Planes:
    """In tiles of eight rows: their codes some columns at a time, and their scales side by side, so that what
    a warp reads at once lies in one place. Padded with zeros. The planes given are overwritten.
    """
    if planes.tiled:
        return planes
    wide = planes.tile_width
    padded = [_padded(plane, planes.n, experts) for plane in planes.pointers()]
    codes, high, scales, minima, halves = padded
    assert codes is not None
    if codes.shape[1] % wide:
        codes = torch.nn.functional.pad(codes, (0, -codes.shape[1] % wide))
    _tile(codes, wide)
    if high is not None:
        _tile(high, wide if high.dtype == torch.uint8 else 1)
    for plane in (scales, minima, halves):
        if plane is not None:
            _tile(plane, 1)
    return Planes(
        planes.format, len(codes), planes.k, codes, high, scales, minima, halves, planes.group, tiled=True
    )


def _tile(plane: torch.Tensor, wide: int) -> None:
    """Eight rows at a time, in place, in chunks."""
    step = max(1, _CHUNK // (8 * plane.shape[1] * plane.element_size())) * 8
    for start in range(0, len(plane), step):
        rows = plane[start : start + step]
        tiles = rows.view(-1, 8, rows.shape[1] // wide, wide).transpose(1, 2)
        rows.copy_(tiles.clone(memory_format=torch.contiguous_format).view(rows.shape))


def _padded(plane: torch.Tensor | None, n: int, experts: int) -> torch.Tensor | None:
    """With rows of each expert padded to a multiple of eight."""
    if plane is None:
        return None
    height = n // experts
    if height % 8 == 0:
        return plane.view(n, -1)
    rows = plane.reshape(experts, height, -1)
    return torch.nn.functional.pad(rows, (0, 0, 0, -height % 8)).view(-1, rows.shape[2])


def interleave(a: Planes, b: Planes, experts: int = 1) -> Planes:
    """Eight rows of a, eight of b, and so on, padded with zeros: a tile then has gate and up of a column."""
    height = a.n // experts

    def mix(x: torch.Tensor | None, y: torch.Tensor | None) -> torch.Tensor | None:
        if x is None or y is None:
            return None
        pair = [
            torch.nn.functional.pad(p.reshape(experts, height, -1), (0, 0, 0, -height % 8)) for p in (x, y)
        ]
        mixed = torch.stack([p.view(experts, -1, 8, p.shape[2]) for p in pair], 2)
        return mixed.reshape(-1, pair[0].shape[2])

    codes, high, scales, minima, halves = (mix(*p) for p in zip(a.pointers(), b.pointers(), strict=True))
    assert codes is not None
    return Planes(a.format, len(codes), a.k, codes, high, scales, minima, halves, a.group)


def load(
    plan: Plan, weights: Weights, device: torch.device, reserve: int = 0, progress: Progress | None = None
) -> dict[str, Planes]:
    """Every weight of the plan. `reserve` bytes must be left for the KV cache."""
    _refuse_if_too_large(device_bytes(plan, weights), reserve, device)
    total = sum(part.nbytes for weight in plan.weights for part in weights[weight.name])
    found: dict[str, Planes] = {}
    done = 0
    for weight in plan.weights:
        parts, k = weights[weight.name], weight.shape[-1]
        planes = planes_of if _keeps_type(parts) else _decoded
        found[weight.name] = stack([planes(part, k, device) for part in parts])
        done += sum(part.nbytes for part in parts)
        if progress is not None:
            progress(done, total)
    return found


def device_bytes(plan: Plan, weights: Weights) -> int:
    """What the plan's weights take on the device."""
    found = 0
    for weight in plan.weights:
        parts = weights[weight.name]
        if not _keeps_type(parts):
            found += sum(2 * part.size for part in parts)
            continue
        (dtype, *_) = (part.dtype for part in parts)
        added = _ADDED_BYTES.get(dtype.name, 0)
        found += sum(part.nbytes + added * (part.size // dtype.block_size) for part in parts)
    return found


def spare_bytes(plan: Plan, weights: Weights) -> int:
    """Bytes that the device has left for a KV cache beside the weights."""
    return max(0, free_bytes() - int(0.9 * device_bytes(plan, weights)))


def free_bytes() -> int:
    """Bytes of the device for weights and KV cache: a part is left for steps and for what torch keeps."""
    return int(0.9 * (torch.cuda.mem_get_info()[0] - _ROOM))


def _keeps_type(parts: Sequence[Tensor]) -> bool:
    """Whether a weight stays in the type that it is stored in: in one for which there are kernels. Experts
    that a file stores one by one may differ in type, and one matrix has them all."""
    (first, *others) = (part.dtype for part in parts)
    grouped = first.scale_bytes > 0 and first.block_size in _GROUPS
    return (grouped or first.name in _FLOATS or first.name in _BLOCKS) and all(o == first for o in others)


def _refuse_if_too_large(total: int, reserve: int, device: torch.device) -> None:
    if device.type != "cuda":
        return
    free, whole = torch.cuda.mem_get_info(device)
    if total + reserve + _ROOM > free:
        raise ModelError(
            f"the model does not fit on the GPU: {total / 1e9:.1f} GB of weights, {reserve / 1e9:.1f} GB of "
            f"KV cache and {_ROOM / 1e9:.1f} GB for steps, and {free / 1e9:.1f} of {whole / 1e9:.1f} GB are "
            "free; take a smaller model or quantization, a shorter context, or device='cpu'"
        )


def planes_of(tensor: Tensor, k: int, device: torch.device) -> Planes:
    """The tensor's planes on the device."""
    name, n = tensor.dtype.name, tensor.size // k
    if name in _FLOATS:
        raw = _to_device(tensor.data, device)
        return Planes(Format.FLOAT, n, k, raw.view(_FLOATS[name]).view(n, k))
    if not _keeps_type([tensor]):
        return _decoded(tensor, k, device)
    if tensor.scales is not None:
        scales = torch.from_numpy(np.frombuffer(tensor.scales.tobytes(), "<f4").copy()).to(device)
        codes = _to_device(tensor.data, device).view(torch.int8).view(n, k)
        return Planes(Format.INT8, n, k, codes, scales=scales, group=tensor.dtype.block_size)
    return _unpack(name, n, k, _to_device(tensor.data, device).view(-1, tensor.dtype.block_bytes))


def _decoded(tensor: Tensor, k: int, device: torch.device) -> Planes:
    """The tensor's values in BF16, to which products would round them anyway."""
    if device.type == "meta":
        nothing = torch.empty((tensor.size // k, k), dtype=torch.bfloat16, device=device)
        return Planes(Format.FLOAT, tensor.size // k, k, nothing)
    from olivine.backends.reference import dequantize  # rare, and slow to import

    values = torch.from_numpy(np.ascontiguousarray(dequantize(tensor))).to(device).to(torch.bfloat16)
    return Planes(Format.FLOAT, tensor.size // k, k, values.view(-1, k))


def _to_device(data: np.ndarray, device: torch.device) -> torch.Tensor:
    """Copies the bytes in chunks, so that a file larger than memory can be copied from its map."""
    out = torch.empty(data.size, dtype=torch.uint8, device=device)
    if device.type == "meta":
        return out
    for start in range(0, data.size, _CHUNK):
        piece = data[start : start + _CHUNK]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the map is read-only: it is only read
            out[start : start + piece.size].copy_(torch.from_numpy(piece))
    return out


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    return blocks[:, at : at + 2].contiguous().view(torch.float16).reshape(-1)


def _word(blocks: torch.Tensor, at: int) -> torch.Tensor:
    return blocks[:, at : at + 4].contiguous().view(torch.int32).reshape(-1)


def _unpack(name: str, n: int, k: int, b: torch.Tensor) -> Planes:
    format = _BLOCKS[name]
    match name:
        case "Q8_0":
            codes = b[:, 2:].contiguous().view(torch.int8).reshape(n, k)
            return Planes(format, n, k, codes, scales=_half(b, 0))
        case "Q4_0" | "IQ4_NL":
            return Planes(format, n, k, b[:, 2:].contiguous(), scales=_half(b, 0))
        case "Q4_1":
            return Planes(format, n, k, b[:, 4:].contiguous(), scales=_half(b, 0), minima=_half(b, 2))
        case "Q5_0":
            return Planes(format, n, k, b[:, 6:].contiguous(), _fifth_bits(b[:, 2:6]), scales=_half(b, 0))
        case "Q5_1":
            codes, high = b[:, 8:].contiguous(), _fifth_bits(b[:, 4:8])
            return Planes(format, n, k, codes, high, _half(b, 0), _half(b, 2))
        case "MXFP4":
            return Planes(format, n, k, b[:, 1:].contiguous(), scales=b[:, 0].contiguous())
        case "IQ4_XS":
            scales = b[:, 4:8].contiguous().view(torch.int32)
            return Planes(format, n, k, _in_pairs(b[:, 8:]), scales=scales, halves=_word(b, 0))
        case "Q2_K":
            scales = b[:, :16].view(-1, 2, 4, 2).transpose(2, 3).contiguous().view(torch.int32)
            return Planes(format, n, k, b[:, 16:80].contiguous(), scales=scales, halves=_word(b, 80))
        case "Q3_K":
            codes, high = b[:, 32:96].contiguous(), b[:, :32].contiguous()
            return Planes(format, n, k, codes, high, _q3_scales(b[:, 96:108]), halves=_half(b, 108))
        case "Q6_K":
            # Of 128 columns: what belongs to every other 16 columns, twice.
            scales = (b[:, 192:208] ^ 128).view(-1, 2, 4, 2).transpose(2, 3).contiguous()
            low = b[:, :128].reshape(-1, 2, 2, 2, 16).transpose(2, 3).reshape(-1, 128)
            high = b[:, 128:192].contiguous()
            return Planes(format, n, k, low, high, scales.view(torch.int32), halves=_half(b, 208))
    halves = _word(b, 0)
    scales = _six_bit_scales(b[:, 4:16])
    if name == "Q4_K":
        return Planes(format, n, k, b[:, 16:].contiguous(), scales=scales, halves=halves)
    return Planes(format, n, k, b[:, 48:].contiguous(), b[:, 16:48].contiguous(), scales, halves=halves)


def _six_bit_scales(packed: torch.Tensor) -> torch.Tensor:
    """Scale and minimum of two runs of 32 columns in a word, [blocks, 4]."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([first & 63, (third & 15) | (first >> 6 << 4)], 1)
    minima = torch.cat([second & 63, (third >> 4) | (second >> 6 << 4)], 1)
    return torch.stack([scales, minima], 2).view(-1, 16).view(torch.int32)


def _q3_scales(packed: torch.Tensor) -> torch.Tensor:
    """Three words a block: the low four bits of the scales of its two units, and the high two bits of both,
    in the order from which `dequantize.q3_scales` makes bytes in the fewest steps."""
    low = torch.cat([packed[:, :8] & 15, packed[:, :8] >> 4], 1)
    high = torch.cat([(packed[:, 8:] >> shift) & 3 for shift in (0, 2, 4, 6)], 1)
    # Scales by unit, run of 64 columns and half of the run: a unit has every other 16 columns.
    low, high = (each.view(-1, 4, 2, 2).permute(0, 3, 1, 2) for each in (low, high))
    nibbles = low[..., 0] | (low[..., 1] << 4)
    two = high[..., 0] | (high[..., 1] << 2)
    pairs = two[:, :, 2:] | (two[:, :, :2] << 4)
    return torch.cat([nibbles.reshape(-1, 8), pairs.reshape(-1, 4)], 1).view(torch.int32)


def _in_pairs(codes: torch.Tensor) -> torch.Tensor:
    """Codes of each 64 columns as Q4_K has them, where a byte has those of two columns 32 apart, not 16."""
    first, second = codes.reshape(-1, 4, 2, 16).unbind(2)
    low, high = (first & 15) | (second << 4), (first >> 4) | (second & 240)
    return torch.cat([low, high], 2).view(-1, 128)


def _fifth_bits(packed: torch.Tensor) -> torch.Tensor:
    """Bit 8 b + 2 t + p of each word belongs to column 16 p + 4 t + b, as GEMV reads it."""
    words = packed.contiguous().view(torch.int32)
    found = torch.zeros_like(words)
    for column in range(32):
        p, t, b = column // 16, column % 16 // 4, column % 4
        found |= ((words >> column) & 1) << (8 * b + 2 * t + p)
    return found
