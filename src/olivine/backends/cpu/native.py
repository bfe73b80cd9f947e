"""The native library through ctypes: its structs, its functions, and its errors as exceptions.

Mirrors native/src/olivine.h line by line. ctypes releases the interpreter lock during every call.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from olivine.backends.owner import Owner
from olivine.dtypes import DTYPES
from olivine.errors import ModelError, OlivineError
from olivine.tensor import Bytes, Tensor

ABI = 14
GROUPED = 16  # OLV_GROUPED: between the types that kernels read and those that are expanded to it
TYPES = {name: index + (index >= GROUPED) for index, name in enumerate(DTYPES)}
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "relu": 2, "sigmoid": 3}


class Weight(ctypes.Structure):
    _fields_ = (
        ("type", c_int32),
        ("group", c_int32),
        ("data", c_void_p),
        ("scales", c_void_p),
        ("n", c_int64),
        ("k", c_int64),
    )


class Op(ctypes.Structure):
    _fields_ = (
        ("kind", c_int32),
        ("outputs", c_int32),
        ("out", c_int64),
        ("a", c_int64),
        ("b", c_int64),
        ("c", c_int64),
        ("width", c_int64),
        ("a_width", c_int64),
        ("weight", c_int32),
        ("bias", c_int32),
        ("up", c_int32),
        ("down", c_int32),
        ("count", c_int32),
        ("top_k", c_int32),
        ("normalize", c_int32),
        ("activation", c_int32),
        ("passing", c_int32),
        ("cache", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("window", c_int32),
        ("size", c_int32),
        ("table", c_int32),
        ("interleaved", c_int32),
        ("pad", c_int32),
        ("start", c_int32),
        ("bidirectional", c_int32),
        ("strides", c_int32 * 2),
        ("steps", c_int32),
        ("frames", c_int32),
        ("eps", c_float),
        ("offset", c_float),
        ("scale", c_float),
    )

    def __setattr__(self, name: str, value: Any) -> None:
        """ctypes cuts integers to the bits of the field, without a word."""
        super().__setattr__(name, value)
        found = getattr(self, name)
        if (tuple(found) if name == "strides" else found) != value and not isinstance(found, float):
            raise ModelError(f"a plan with {name} = {value}, which the CPU backend does not hold in 32 bits")


class Batch(ctypes.Structure):
    _fields_ = (
        ("rows", c_int64),
        ("outputs", c_int64),
        ("sequences", c_int64),
        ("tokens", c_void_p),
        ("sequence", c_void_p),
        ("position", c_void_p),
        ("last", c_void_p),
        ("generated", c_void_p),
        ("output_rows", c_void_p),
        ("tables", POINTER(c_void_p)),
        ("table_pages", POINTER(c_int64)),
        ("embeddings", c_int64),
        ("embedding_rows", c_void_p),
        ("embedding", c_void_p),
        ("coordinates", c_void_p),
    )


# Op, x and its width, out and its width, rows; see olv_meet.
Meet = ctypes.CFUNCTYPE(c_int, c_int64, c_void_p, c_int64, c_void_p, c_int64, c_int64)


class Plan(ctypes.Structure):
    _fields_ = (
        ("ops", POINTER(Op)),
        ("op_count", c_int64),
        ("weights", POINTER(Weight)),
        ("weight_count", c_int64),
        ("frequencies", POINTER(c_float)),
        ("frequency_start", POINTER(c_int64)),
        ("magnitudes", POINTER(c_float)),
        ("axes", POINTER(c_int32)),
        ("table_count", c_int64),
        ("cache_group", POINTER(c_int32)),
        ("cache_kv_heads", POINTER(c_int32)),
        ("cache_head_dim", POINTER(c_int32)),
        ("cache_count", c_int64),
        ("cache_type", c_int32),
        ("group_pages", POINTER(c_int64)),
        ("group_count", c_int64),
        ("page_size", c_int64),
        ("token_width", c_int64),
        ("output_width", c_int64),
        ("hidden", c_int64),
        ("hidden_width", c_int64),
        ("logits", c_int64),
        ("logits_width", c_int64),
        ("shm", c_void_p),
        ("meet", Meet),
    )


class Sampling(ctypes.Structure):
    _fields_ = (
        ("temperature", c_float),
        ("top_k", c_int32),
        ("top_p", c_double),
        ("log_min_p", c_float),
        ("repetition_penalty", c_float),
        ("presence_penalty", c_float),
        ("frequency_penalty", c_float),
        ("repeat_last_n", c_int64),
        ("seed", c_uint64),
        ("bias_tokens", c_void_p),
        ("bias", c_void_p),
        ("bias_count", c_int64),
    )


class Draw(ctypes.Structure):
    _fields_ = (
        ("sampling", Sampling),
        ("prompt", c_void_p),
        ("prompt_count", c_int64),
        ("output", c_void_p),
        ("output_count", c_int64),
        ("mask", c_void_p),
        ("stop", c_void_p),
        ("stop_count", c_int64),
        ("at_least", c_int64),
        ("logprobs", c_int32),
        ("forced", c_int32),
    )


class Drawn(ctypes.Structure):
    _fields_ = (
        ("tokens", c_void_p),
        ("counts", c_void_p),
        ("ends", c_void_p),
        ("logprobs", c_void_p),
        ("top", c_int64),
        ("top_tokens", c_void_p),
        ("top_logprobs", c_void_p),
    )


OPEN, STOPPED, BROKEN, NOTHING, REFUSED = range(5)  # olv_end
Ready = ctypes.CFUNCTYPE(None)


_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "olv_abi": (c_int, ()),
    "olv_last_error": (c_char_p, ()),
    "olv_isa": (c_char_p, ()),
    "olv_set_isa": (c_int, (c_char_p,)),
    "olv_pool_new": (c_void_p, (c_int,)),
    "olv_pool_free": (None, (c_void_p,)),
    "olv_shm_bytes": (c_int64, (c_int, c_int)),
    "olv_shm_join": (c_void_p, (c_void_p, c_int, c_int, c_int, c_int64)),
    "olv_shm_leave": (None, (c_void_p,)),
    "olv_shm_close": (None, (c_void_p,)),
    "olv_shm_meet": (c_int, (c_void_p, c_int, c_void_p, c_int64, c_void_p, c_int64, c_int64)),
    "olv_program_new": (c_void_p, (c_void_p, POINTER(Plan))),
    "olv_program_free": (None, (c_void_p,)),
    "olv_step": (c_int, (c_void_p, POINTER(Batch), c_void_p, c_void_p)),
    "olv_generate": (c_int, (c_void_p, POINTER(Batch), POINTER(Draw), c_int64, POINTER(Drawn), Ready)),
    "olv_one_kind": (c_int, (c_void_p,)),
    "olv_profile": (None, (c_void_p, POINTER(c_double))),
    "olv_convert": (c_int, (POINTER(Weight), c_int, c_void_p)),
    "olv_guard": (c_int, (c_void_p, c_int64, c_char_p)),
    "olv_unguard": (None, (c_void_p,)),
    "olv_linear": (c_int, (c_void_p, POINTER(Weight), c_void_p, c_int64, c_int, c_void_p)),
    "olv_sample": (c_int, (c_void_p, c_int64, POINTER(Draw), c_uint32, POINTER(Drawn))),
    "olv_noise": (None, (c_uint64, c_uint32, c_void_p, c_int64, c_void_p)),
    "olv_dequantize": (c_int, (POINTER(Weight), c_int64, c_void_p)),
    "olv_read_bandwidth": (c_double, (c_void_p, c_int64, c_int)),
    "olv_peak": (c_double, (c_void_p, c_int, c_int)),
}


@cache
def lib() -> ctypes.CDLL:
    """The library, loaded once."""
    name = {"darwin": "libolivine.dylib", "win32": "olivine.dll"}.get(sys.platform, "libolivine.so")
    path = Path(os.environ.get("OLIVINE_LIBRARY") or Path(__file__).with_name(name))
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise OlivineError(
            f"the native library of the CPU backend cannot be loaded ({error}); "
            "install Olivine again with a C++ compiler at hand, or use the reference backend"
        ) from error
    if not all(hasattr(loaded, function) for function in _FUNCTIONS) or loaded.olv_abi() != ABI:
        raise OlivineError(f"{path} was built for another version of Olivine: install the package again")
    for function, (result, arguments) in _FUNCTIONS.items():
        getattr(loaded, function).restype = result
        getattr(loaded, function).argtypes = arguments
    wanted = os.environ.get("OLIVINE_ISA")
    if wanted and loaded.olv_set_isa(wanted.encode()):
        raise OlivineError(
            f"OLIVINE_ISA asks for {wanted!r}, which this CPU or this build does not have; "
            "known: amx, avx512, avxvnni, avx2 (x86-64), i8mm, dotprod, neon (aarch64), plain. "
            "Leave it unset for the best there is"
        )
    return loaded


def check(failed: bool) -> None:
    """Raises the library's last error."""
    if failed:
        raise OlivineError(lib().olv_last_error().decode("utf-8", "replace"))


class Pool:
    """A native thread pool; its threads end with it."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.owner = Owner()
        self.handle = lib().olv_pool_new(threads)
        check(not self.handle)

    def close(self) -> None:
        """Ends the threads. Closing twice is fine."""
        if getattr(self, "handle", None) and self.owner.here:  # a forked child cannot join the threads
            lib().olv_pool_free(self.handle)
            self.handle = None

    def __del__(self) -> None:
        self.close()


def guard(owner: object, file: Bytes, path: str) -> None:
    """While `owner` lives: if reading the truncated file ends the process, print the reason first."""
    if not lib().olv_guard(file.ctypes.data, file.size, os.fsencode(path)):
        weakref.finalize(owner, lib().olv_unguard, file.ctypes.data).atexit = False


def weight_of(tensor: Tensor) -> Weight:
    """A tensor as a struct of the library. The caller keeps the tensor alive."""
    grouped = tensor.scales is not None
    return Weight(
        type=GROUPED if grouped else TYPES[tensor.dtype.name],
        group=tensor.dtype.block_size if grouped else 0,
        data=tensor.data.ctypes.data,
        scales=tensor.scales.ctypes.data if tensor.scales is not None else None,
        n=tensor.row_count,
        k=tensor.shape[-1],
    )
