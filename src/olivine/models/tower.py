"""Towers: what the file of one provides, and how one is built from a folder or from an mmproj file.

Weights are named as GGUF names them. `tower_tables.py` has both formats' names; `derive` of a tower turns the
few tensors that lie otherwise in a file than its plan reads them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from olivine.dtypes import F32, DType
from olivine.errors import ModelError, printable
from olivine.models import check_weights, names
from olivine.models.fields import Fields
from olivine.models.tower_tables import LIMITS, PREFIXES, UNUSED, AnyValues, TowerTable, short_name
from olivine.plan import Plan, Trace, Value, trace
from olivine.tensor import Tensor

Naming = Literal["hf", "gguf"]
Shapes = Mapping[str, tuple[int, ...]]
Decode = Callable[[Tensor], npt.NDArray[np.float32]]


class TowerConfig(Protocol):
    @property
    def projected(self) -> int:
        """The columns of a soft token: the width of the text model."""
        ...

    @property
    def rows_per_token(self) -> int:
        """How many rows of input become one soft token."""
        ...


class DerivedTensor(Tensor):
    """A tensor that is computed when its bytes are first read: who is only asked about text never waits."""

    def __init__(
        self, name: str, dtype: DType, shape: tuple[int, ...], make: Callable[[], AnyValues]
    ) -> None:
        fields = {"name": name, "dtype": dtype, "shape": shape, "scales": None, "_make": make}
        for key, value in fields.items():
            object.__setattr__(self, key, value)

    @cached_property
    def data(self) -> npt.NDArray[np.uint8]:
        make: Callable[[], AnyValues] = self.__dict__["_make"]
        return np.ascontiguousarray(make()).reshape(-1).view(np.uint8)

    @property
    def nbytes(self) -> int:
        return self.size // self.dtype.block_size * self.dtype.block_bytes


class Stored:
    """The tensors of a tower by GGUF's names, in the form of either format."""

    def __init__(self, naming: Naming, tensors: dict[str, Tensor], decode: Decode) -> None:
        self.naming, self.tensors, self._decode = naming, tensors, decode

    def values(self, name: str) -> npt.NDArray[np.float32]:
        return self._decode(self.tensors[name]).reshape(self.tensors[name].shape)

    def change(self, name: str, new: tuple[int, ...], change: Callable[[AnyValues], AnyValues]) -> None:
        """Puts other values, in float32, in a tensor's place."""
        tensor = self.tensors[name]

        def make() -> AnyValues:
            return np.asarray(change(self._decode(tensor).reshape(tensor.shape)), "<f4")

        self.tensors[name] = DerivedTensor(name, F32, new, make)

    def rearrange(
        self, name: str, old: tuple[int, ...], new: tuple[int, ...], change: Callable[[AnyValues], AnyValues]
    ) -> None:
        """Moves elements, in the type in which they are stored if that has no blocks. A tensor of another
        shape is left as it is, and reported with all the others."""
        tensor = self.tensors.get(name)
        if tensor is None or tensor.shape != old:
            return
        if tensor.dtype.is_quantized:
            self.change(name, new, change)
        else:
            kind = f"<u{tensor.dtype.block_bytes}"
            self.tensors[name] = DerivedTensor(
                name, tensor.dtype, new, lambda: change(np.frombuffer(tensor.data, kind).reshape(old))
            )

    def as_matrix(self, name: str) -> None:
        """A convolution whose stride is its size is a matrix: all axes but the first are one."""
        tensor = self.tensors[name]
        self.tensors[name] = replace(tensor, shape=(tensor.shape[0], tensor.size // max(1, tensor.shape[0])))

    def __contains__(self, name: str) -> bool:
        return name in self.tensors


@dataclass(frozen=True)
class TowerArchitecture:
    """One tower's file."""

    name: str
    table: TowerTable
    from_hf: Callable[[Fields, Fields, int], Any]  # of the tower's section, the whole, the text model's width
    from_gguf: Callable[[Fields, Shapes], Any]  # of the keys after `clip.vision.` or `clip.audio.`
    derive: Callable[[Any, Stored], None]
    forward: Callable[[Trace, Any], None]

    @property
    def projector(self) -> str:
        """What an mmproj file calls it."""
        told = self.table.told
        return str(told.get("clip.projector_type") or told[f"clip.{self.table.about}.projector_type"])


@dataclass(frozen=True)
class BuiltTower:
    """A tower's plan with every weight it names."""

    architecture: TowerArchitecture
    config: TowerConfig
    plan: Plan
    weights: dict[str, names.Parts]
    tensors: tuple[Tensor, ...]  # as they lie in the file

    @property
    def kind(self) -> Literal["vision", "audio"]:
        return self.architecture.table.about


def build_hf(
    architecture: TowerArchitecture,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    width: int,
    decode: Decode,
) -> BuiltTower | None:
    """The tower of a folder; None if its configuration has none. `width` is that of the text model."""
    config = Fields(metadata)
    section = config.section(f"{architecture.table.about}_config")
    if section is None:
        return None
    section = section.with_defaults(architecture.table.defaults)
    _check_fixed(architecture.table, section)
    found = _from_hf(architecture.table, tensors)
    if not section.flag("use_clipped_linears", True):
        found = {name: tensor for name, tensor in found.items() if not name.endswith(LIMITS)}
    made = architecture.from_hf(section, config, width)
    return _build(architecture, made, Stored("hf", found, decode))


def build_gguf(
    architecture: TowerArchitecture,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    decode: Decode,
) -> BuiltTower:
    """The tower of an mmproj file."""
    about = architecture.table.about
    prefixes = ("a.", "mm.a.") if about == "audio" else ("v.", "mm.")
    found = {name: tensor for name, tensor in tensors.items() if name.startswith(prefixes)}
    if about == "vision":
        found = {name: tensor for name, tensor in found.items() if not name.startswith("mm.a.")}
    made = architecture.from_gguf(
        Fields(metadata, f"clip.{about}."), {name: tensor.shape for name, tensor in found.items()}
    )
    return _build(architecture, made, Stored("gguf", found, decode))


def _build(architecture: TowerArchitecture, config: TowerConfig, stored: Stored) -> BuiltTower:
    names.refuse_types(stored.tensors.values())
    tensors = tuple(stored.tensors.values())
    _check_missing(architecture.table, stored)
    for name in [name for name in stored.tensors if name.endswith(LIMITS)]:
        limit = stored.values(name).reshape(-1)
        if np.isfinite(limit).all():
            stored.change(name, limit.shape, lambda values: values.reshape(-1))
        else:
            del stored.tensors[name]  # limits nothing
    architecture.derive(config, stored)
    found = {name: (tensor,) for name, tensor in stored.tensors.items()}
    shapes = {name: tensor.shape for name, tensor in stored.tensors.items()}
    plan = trace(architecture.name, architecture.forward, config, shapes)
    check_weights(plan, found, shapes)
    return BuiltTower(architecture, config, plan, {w.name: found[w.name] for w in plan.weights}, tensors)


# ---- names


def _lines(table: TowerTable) -> dict[str, str]:
    """GGUF's names by Hugging Face's, with N for a layer."""
    found = {}
    for text in table.tensors.strip().splitlines():
        source, name, *_ = text.split()
        source = source if name.startswith("mm.") else table.home + source
        if name.endswith(".*"):
            for kind in ("weight", "bias"):
                found[source[:-1] + kind] = name[:-1] + kind
        else:
            found[source] = name
        if source.endswith(".linear.weight"):
            for limit in LIMITS:
                found[source.removesuffix("linear.weight") + limit] = name.removesuffix("weight") + limit
    return found


def _from_hf(table: TowerTable, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    lines, found = _lines(table), dict[str, Tensor]()
    for full, tensor in tensors.items():
        short = short_name(full)
        if not short.startswith(PREFIXES) or short.startswith(UNUSED):
            continue
        layer = re.search(r"layers\.(\d{1,4})\.", short)
        pattern = short if layer is None else short.replace(layer[0], "layers.N.", 1)
        if pattern in lines:
            name = lines[pattern] if layer is None else lines[pattern].replace("N", str(int(layer[1])), 1)
            if name in found:
                raise ModelError(f"{printable(full)} and {printable(found[name].name)} are both {name}")
            found[name] = tensor
    return found


def _check_missing(table: TowerTable, stored: Stored) -> None:
    """The tensors outside of layers must be there, before their shapes are asked."""
    optional = ("bias", *LIMITS, "v.std_bias", "v.std_scale")
    missing = [
        name for name in _lines(table).values() if "N" not in name and name not in stored
        and not name.endswith(optional)
    ]  # fmt: skip
    if missing:
        raise ModelError(f"the {table.about} tower lacks {', '.join(missing[:8])}")


def _check_fixed(table: TowerTable, c: Fields) -> None:
    """Refuses what a tower's forward has as a constant and the configuration has otherwise."""
    for key, usual in table.fixed.items():
        section, _, name = key.rpartition(".")
        told = c.section(section) if section else c
        if told is not None:
            found = told.text(name, usual) if isinstance(usual, str) else told.number(name, usual, low=-1.0)
            if found != usual:
                raise told.refuse(name, f"is not supported in a tower for {table.about}; only {usual!r} is")


# ---- parts that towers share


def clipped_linear(t: Trace, x: Value, name: str, width: int) -> Value:
    """A linear op whose input and output are limited, where the file has limits."""
    x = _limited(t, x, f"{name}.input")
    return _limited(t, t.linear(x, name, width), f"{name}.output")


def _limited(t: Trace, x: Value, stem: str) -> Value:
    low, high = (name if t.has(name) else None for name in (f"{stem}_min", f"{stem}_max"))
    return x if low is high is None else t.clamp(x, low, high)
