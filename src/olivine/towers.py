"""The towers of a model: found in its folder, or in the mmproj file that lies beside it or is given.

A `Tower` knows what its family needs (markers, how images are preprocessed); an `Encoder` is one that a
backend has compiled, and turns features into soft tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from olivine import models
from olivine.backends import Batch, Compiled, CompileOptions, backend
from olivine.errors import ModelError, OlivineError, printable
from olivine.formats import Checkpoint, open_checkpoint
from olivine.formats.processor import colours
from olivine.hub import files
from olivine.hub.local import projector_of
from olivine.models import gemma4_audio, gemma4_unified, gemma4_vision, siglip
from olivine.models.tower import BuiltTower, TowerArchitecture, build_gguf, build_hf

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Markers:
    """Tokens around the soft tokens of an image or a sound, and the one that stands for each of them."""

    begin: str
    soft: str
    end: str
    placeholder: str  # what a chat template writes for the whole
    around: str = ""  # text before and after it


_GEMMA3 = Markers("<start_of_image>", "<image_soft_token>", "<end_of_image>", "<start_of_image>", "\n\n")
_GEMMA4_IMAGE = Markers("<|image>", "<|image|>", "<image|>", "<|image|>")
_GEMMA4_AUDIO = Markers("<|audio>", "<|audio|>", "<audio|>", "<|audio|>")
GEMMA4_VIDEO = Markers("<|image>", "<|video|>", "<image|>", "<|video|>")  # of a frame

# By `model_type`, or the text model's `general.architecture`; of several, an mmproj file says which.
_FAMILIES: dict[str, tuple[tuple[TowerArchitecture, Markers], ...]] = {
    "gemma3": ((siglip.TOWER, _GEMMA3),),
    "gemma4": ((gemma4_vision.TOWER, _GEMMA4_IMAGE), (gemma4_audio.TOWER, _GEMMA4_AUDIO)),
    "gemma4_unified": ((gemma4_unified.VISION, _GEMMA4_IMAGE), (gemma4_unified.AUDIO, _GEMMA4_AUDIO)),
}
_GGUF_FAMILIES = {"gemma3": ("gemma3",), "gemma4": ("gemma4", "gemma4_unified")}


@dataclass(frozen=True)
class Tower:
    """A tower of a model."""

    built: BuiltTower
    markers: Markers
    bidirectional: bool  # the text model's rows of an image see the whole of it
    mean: tuple[float, float, float]  # of pixels, for towers that want them normalized
    deviation: tuple[float, float, float]
    files: tuple[Path, ...]

    @property
    def kind(self) -> Literal["vision", "audio"]:
        return self.built.kind

    @property
    def config(self) -> Any:
        return self.built.config

    @property
    def rows_per_token(self) -> int:
        return self.built.config.rows_per_token

    @property
    def most_tokens(self) -> int:
        """Soft tokens of the largest image; a piece of sound has fewer."""
        c = self.built.config
        return (c.side // c.pool) ** 2 if isinstance(c, siglip.SiglipConfig) else _LARGEST_IMAGE

    @property
    def most_rows(self) -> int:
        return self.most_tokens * self.rows_per_token

    @property
    def step_rows(self) -> int:
        """The most rows of a step. Small images go together; of sound, whose convolutions take much memory,
        a piece of half a minute is enough."""
        return self.most_rows if self.kind == "audio" else max(self.most_rows, _TOGETHER)

    @property
    def weight_bytes(self) -> int:
        return sum(part.nbytes for parts in self.built.weights.values() for part in parts)

    @property
    def step_bytes(self) -> int:
        """What the largest step takes at most: its input, activations, a copy of an input of a product, and
        keys and values in 16 bits."""
        plan, rows = self.built.plan, self.step_rows
        widths = [op.output.width for op in plan.ops if op.output is not None]
        copies = 4 * rows * (widths[0] + max(widths))
        cache = (rows + _PARTS * _LARGEST_PAGE) * sum(group.bytes_per_token(2) for group in plan.groups)
        return copies + plan.activation_bytes(rows, rows // self.rows_per_token) + cache


_LARGEST_IMAGE = 1120  # soft tokens, of Gemma 4
_TOGETHER = 4096  # rows of small images that are encoded in one step
_PARTS = 64  # images of it
_LARGEST_PAGE = 64  # rows; of an image the last page may be nearly empty


def longest_block(towers: Iterable[Tower]) -> int:
    """The most rows that a step of the text model must take at once: an image that sees all of itself."""
    return max((tower.most_tokens for tower in towers if tower.bidirectional), default=0)


@dataclass(frozen=True)
class _Text:
    """What a tower must know of the text model."""

    family: str
    width: int
    bidirectional: bool  # inside images


def towers_of(
    checkpoint: Checkpoint, model: models.Model, mmproj: Path | None = None
) -> tuple[tuple[Tower, ...], tuple[str, ...]]:
    """The towers of a model, and warnings. `mmproj` is a file that the user named; without it, one that lies
    beside a GGUF model is taken, unless it does not fit."""
    if mmproj is not None and checkpoint.naming == "hf":
        raise ModelError(f"{checkpoint.path} has its towers in itself: {mmproj} is for a GGUF model")
    bidirectional = bool(getattr(model.config, "bidirectional_images", True))
    text = _Text(checkpoint.architecture, model.config.width, bidirectional)
    if checkpoint.naming == "hf":
        return _of_folder(checkpoint, text), ()
    return _of_file_beside(checkpoint, text) if mmproj is None else (_of_file(mmproj, text), ())


def _of_folder(checkpoint: Checkpoint, text: _Text) -> tuple[Tower, ...]:
    from olivine.backends.reference import dequantize

    towers = []
    for architecture, markers in _FAMILIES.get(text.family, ()):
        built = build_hf(architecture, checkpoint.metadata, checkpoint.tensors, text.width, dequantize)
        if built is not None:
            folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
            told = colours(folder, *architecture.table.colours) if built.kind == "vision" else {}
            towers.append(_tower(built, markers, text, told, checkpoint.files))
    return tuple(towers)


def is_mmproj(file: Checkpoint) -> bool:
    """Whether a file has towers and no text model."""
    return file.naming == "gguf" and file.metadata.get("general.architecture") == "clip"


def towers_in(file: Checkpoint) -> tuple[BuiltTower, ...]:
    """The towers of an mmproj file, whatever model it is for."""
    return tuple(built for built, _ in _built(file, [*_FAMILIES]))


def _of_file(path: Path, text: _Text) -> tuple[Tower, ...]:
    """The towers of an mmproj file, if it is for this text model."""
    file = open_checkpoint(path)
    if not is_mmproj(file):
        raise ModelError(f"{path} is no mmproj file: it holds {file.architecture!r}")
    towers = []
    for built, markers in _built(file, _GGUF_FAMILIES.get(text.family, ()), text.family):
        if built.config.projected != text.width:
            raise ModelError(
                f"{path} is for another model: its soft tokens have {built.config.projected} columns, "
                f"and this model's embeddings have {text.width}"
            )
        told = {key: file.metadata.get(f"clip.{built.kind}.{key}") for key in ("image_mean", "image_std")}
        towers.append(_tower(built, markers, text, told, file.files))
    return tuple(towers)


def _built(
    file: Checkpoint, families: Sequence[str], text: str | None = None
) -> Iterator[tuple[BuiltTower, Markers]]:
    """The towers of an mmproj file that these families know; `text` is the text model's architecture."""
    from olivine.backends.reference import dequantize

    known = [pair for name in families for pair in _FAMILIES[name]]
    projectors = dict(_projectors(file))
    if not projectors:
        raise ModelError(f"{file.path} holds neither a vision nor an audio tower")
    for kind, projector in projectors.items():
        for architecture, markers in known:
            if (architecture.table.about, architecture.projector) == (kind, projector):
                yield build_gguf(architecture, file.metadata, file.tensors, dequantize), markers
                break
        else:
            wanted = ", ".join(sorted(pair[0].projector for pair in known)) or "none"
            told = f"its {kind} projector is {printable(str(projector))!r}"
            raise ModelError(
                f"{file.path} cannot be used: {told}, and these are known: {wanted}"
                if text is None
                else f"{file.path} is for another model: {told}, and for {printable(text)} models these are "
                f"known: {wanted}"
            )


def _projectors(file: Checkpoint) -> Iterator[tuple[str, Any]]:
    for kind in ("vision", "audio"):
        if file.metadata.get(f"clip.has_{kind}_encoder") is True:
            own = file.metadata.get(f"clip.{kind}.projector_type")
            yield kind, file.metadata.get("clip.projector_type") if own is None else own


_TYPES = ("BF16", "F16", "F32", "Q8_0")  # of mmproj files, in the order in which they are preferred


def _of_file_beside(checkpoint: Checkpoint, text: _Text) -> tuple[tuple[Tower, ...], tuple[str, ...]]:
    """The towers of the mmproj file beside a GGUF model, and warnings. Of several, those that do not fit are
    other models'; the same towers in several types are one choice."""
    fitting, warnings = dict[Path, tuple[Tower, ...]](), []
    for path in _beside(checkpoint):
        try:
            fitting[path] = _of_file(path, text)
        except OlivineError as error:
            warnings.append(f"{printable(path.name)} is not used: {error}")
    if not fitting:
        return (), tuple(warnings)
    if len({files.words(path.name) for path in fitting}) > 1:
        several = ", ".join(printable(path.name) for path in [*fitting][:4])
        return (), (f"several mmproj files lie beside the model ({several}): name one with --mmproj",)
    return fitting[min(fitting, key=_place)], ()


def _beside(checkpoint: Checkpoint) -> list[Path]:
    """The mmproj files that may belong to a GGUF model: those of its own name, or all in its folder."""
    model = checkpoint.files[0] if checkpoint.files else checkpoint.path
    if (projector := projector_of(model)) is not None:
        return [projector]
    try:
        paths = sorted(path for path in model.parent.iterdir() if path.suffix.lower() == ".gguf")
    except OSError:
        return []
    found = [path for path in paths if "mmproj" in path.name.lower() and path != model]
    own = set(files.named_as(model.name, [path.name for path in found]))
    return [path for path in found if path.name in own]


def _place(path: Path) -> int:
    """The place of a file's type in `_TYPES`."""
    kind = files.type_of(path.name)
    return _TYPES.index(kind) if kind in _TYPES else len(_TYPES)


def _tower(
    built: BuiltTower, markers: Markers, text: _Text, told: Mapping[str, Any], files: tuple[Path, ...]
) -> Tower:
    pixels = []
    for key, usual in zip(("image_mean", "image_std"), built.architecture.table.colours, strict=True):
        values = (usual,) * 3 if told.get(key) is None else tuple(float(value) for value in told[key])
        if len(values) != 3 or not np.isfinite(values).all() or (key == "image_std" and min(values) <= 0):
            raise ModelError(f"the vision tower has {key} = {values!r:.60}, which no three colours have")
        pixels.append((values[0], values[1], values[2]))
    sees = built.kind == "vision" and text.bidirectional
    return Tower(built, markers, sees, pixels[0], pixels[1], files)


# ---- running


class TowerInput(Protocol):
    """One image, frame or sound, as `media.Features` has it."""

    @property
    def rows(self) -> Float32: ...
    @property
    def coordinates(self) -> npt.NDArray[np.int32]: ...


class Encoder:
    """A tower on a backend."""

    def __init__(self, tower: Tower, device: str, threads: int | None = None) -> None:
        self.tower = tower

        def pages(page_size: int, *_: Any, **__: Any) -> tuple[list[int], int]:
            # One image, or several of which each has a page that is not full.
            count = -(-tower.step_rows // page_size) + _PARTS
            return [count] * len(tower.built.plan.groups), 0

        options = CompileOptions(pages, threads=threads)
        self.compiled: Compiled = backend(device)(tower.built.plan, tower.built.weights, options)

    def encode(self, parts: Sequence[TowerInput]) -> list[Float32]:
        """The soft tokens of each part: [tokens, D]. A part gives the same bits alone and among others."""
        found: list[Float32] = []
        for together in _batches(parts, min(_TOGETHER, self.tower.step_rows)):
            batch = batch_of(self.tower, together, self.compiled.program.page_size)
            hidden = self.compiled.program.step(batch, logits=False).hidden
            counts = [len(part.rows) // self.tower.rows_per_token for part in together]
            found += np.split(hidden, np.cumsum(counts)[:-1])
        return found


def batch_of(tower: Tower, parts: Sequence[TowerInput], page_size: int) -> Batch:
    """The parts as sequences of one batch."""
    lengths = [len(part.rows) for part in parts]
    for length in lengths:
        if not 0 < length <= tower.most_rows or length % tower.rows_per_token:
            raise OlivineError(f"a {tower.kind} tower cannot encode {length} rows")
    rows = sum(lengths)
    sequences = np.repeat(np.arange(len(parts), dtype=np.int32), lengths)
    counts = [-(-length // page_size) for length in lengths]
    table = np.full((len(parts), max(counts)), -1, np.int32)
    for sequence, (start, count) in enumerate(zip(np.cumsum([0, *counts]), counts, strict=False)):
        table[sequence, :count] = np.arange(start, start + count)
    return Batch(
        tokens=np.zeros(rows, np.int32),
        sequences=sequences,
        positions=np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        outputs=np.arange(0, rows, tower.rows_per_token, dtype=np.int32),
        tables=(table,) * len(tower.built.plan.groups),
        embeddings=parts[0].rows if len(parts) == 1 else np.concatenate([part.rows for part in parts]),
        last=np.repeat(np.array(lengths, np.int32) - 1, lengths).astype(np.int32),
        coordinates=np.concatenate([part.coordinates for part in parts]),
    )


def _batches(parts: Iterable[TowerInput], most: int) -> Iterator[list[TowerInput]]:
    """Parts in order, as many as may be encoded together: up to so many rows."""
    held: list[TowerInput] = []
    for part in parts:
        rows = sum(len(each.rows) for each in held) + len(part.rows)
        if held and (rows > most or len(held) == _PARTS):
            yield held
            held = []
        held.append(part)
    if held:
        yield held


__all__ = [
    "GEMMA4_VIDEO",
    "Encoder",
    "Markers",
    "Tower",
    "TowerInput",
    "batch_of",
    "is_mmproj",
    "longest_block",
    "towers_in",
    "towers_of",
]
