"""Towers on the CPU backend against the reference backend, and bit for bit against themselves."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from olivine.backends import Batch
from olivine.backends.cpu import CpuProgram, lower
from olivine.backends.reference import ReferenceProgram
from olivine.dtypes import F32
from olivine.errors import OlivineError
from olivine.formats import open_checkpoint
from olivine.loading import model_of
from olivine.plan import Trace, trace
from olivine.tensor import Tensor
from olivine.towers import Encoder, Tower, towers_of
from oracles import folders, seeing
from oracles.isas import ISAS, error, use

# Heads of 72 columns, as SigLIP has them, and images of more rows than a tile of attention or a page has.
_SIGLIP = {
    **folders.MULTIMODAL["gemma3"][1]["vision_config"], "hidden_size": 144, "num_attention_heads": 2,
    "image_size": 168,
}  # fmt: skip
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "siglip": ("gemma3", "vision", {"vision_config": _SIGLIP, "mm_tokens_per_image": 9}),
    "gemma4-clipped": ("gemma4-e2b", "vision", {}),
    "gemma4-standardized": ("gemma4-31b", "vision", {}),
    "gemma4-audio": ("gemma4-e2b", "audio", {}),
    "unified-vision": ("gemma4-12b", "vision", {}),
    "unified-audio": ("gemma4-12b", "audio", {}),
}


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    with use(request.param):
        yield request.param


def parts_of(name: str, width: int) -> list[seeing.Features]:
    """Random images of odd sizes, or sounds."""
    rng = np.random.default_rng(3)
    if name == "siglip":
        shapes = [(12, 12), (12, 12)]
    elif name == "unified-vision":
        shapes = [(9, 11), (1, 1), (17, 2)]
    else:
        shapes = [(12, 15), (3, 3), (21, 3), (3, 36)]
    pool = {"siglip": 4, "unified-vision": 1}.get(name, 3)
    if not name.endswith("audio"):
        return [
            seeing.Features(rng.random((c * r, width), np.float32), seeing.cells(c, r, pool))
            for c, r in shapes
        ]
    parts = []
    for rows, last in ((70, 3), (1, 1), (33, 4)):
        at = np.zeros((rows, 2), np.int32)
        at[:, 0] = 4
        at[-1, 0] = last
        parts.append(seeing.Features(rng.standard_normal((rows, width)).astype(np.float32), at))
    return parts


@functools.cache
def made(name: str) -> tuple[Tower, list[seeing.Features], list[np.ndarray]]:
    """A tower, what it encodes, and the reference backend's result."""
    family, kind, more = CASES[name]
    with tempfile.TemporaryDirectory() as folder:  # the map outlives the file's name
        checkpoint = open_checkpoint(folders.write_multimodal(family, Path(folder), **more))
        (tower,) = [each for each in towers_of(checkpoint, model_of(checkpoint))[0] if each.kind == kind]
        assert tower.built.plan.input is not None
        parts = parts_of(name, tower.built.plan.input.out.width)
        return tower, parts, Encoder(tower, "reference").encode(parts)


@pytest.mark.parametrize("name", CASES)
def test_soft_tokens_agree_with_the_reference_backend(name: str, isa: str) -> None:
    """Bound: 4 %, as for all prompt rows (a cache and products in bfloat16)."""
    tower, parts, expected = made(name)
    found = Encoder(tower, "cpu", threads=2).encode(parts)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert error(ours, theirs) < 0.04


def test_heads_that_are_padded_to_whole_tiles(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    """Heads of 72 in a cache for 96: zeros add nothing, whatever the instruction set."""
    tower, parts, expected = made("siglip")
    assert {group.head_dim for group in tower.built.plan.groups} == {72}
    plain = Encoder(tower, "cpu", threads=2).encode(parts)
    monkeypatch.setattr(lower, "stored_head_dim", lambda plan, head_dim, cache_type: -(-head_dim // 32) * 32)
    for found, theirs, same in zip(
        Encoder(tower, "cpu", threads=2).encode(parts), expected, plain, strict=True
    ):
        assert error(found, theirs) < 0.04
        assert error(found, same) < 1e-4 if isa != "amx" else (found == same).all()


@pytest.mark.parametrize("name", CASES)
def test_an_image_gives_the_same_bits_alone_in_any_order_and_with_any_threads(name: str, isa: str) -> None:
    tower, parts, _ = made(name)
    encoder = Encoder(tower, "cpu", threads=2)
    together = encoder.encode(parts)
    for part, expected in zip(parts, together, strict=True):
        assert (encoder.encode([part])[0] == expected).all()
    for found, expected in zip(encoder.encode(parts[::-1]), together[::-1], strict=True):
        assert (found == expected).all()
    for found, expected in zip(Encoder(tower, "cpu", threads=1).encode(parts), together, strict=True):
        assert (found == expected).all()


@pytest.mark.parametrize("name", CASES)
def test_ops_that_run_together_give_the_bits_that_each_gives_alone(
    monkeypatch: pytest.MonkeyPatch, name: str, isa: str
) -> None:
    """Limits are exact wherever they are applied, and so are norms, activations and gates of single rows."""
    tower, parts, _ = made(name)
    together = Encoder(tower, "cpu", threads=2).encode(parts)
    monkeypatch.setattr(lower, "group_ops", lambda plan: [[op] for op in plan.ops])
    for found, expected in zip(Encoder(tower, "cpu", threads=2).encode(parts), together, strict=True):
        assert (found == expected).all()


@pytest.mark.parametrize("width", [40, 2600])
def test_many_rows_are_multiplied_in_blocks_with_the_same_bits(width: int, isa: str) -> None:
    """More prompt rows than a block of the GEMM has, more columns, and a bias: as each image alone."""
    shapes = {"a.weight": (70, width), "a.bias": (70,), "b.weight": (33, width)}

    def forward(t: Trace, _: None) -> None:
        x = t.input(width)
        y = t.columns(t.linear(x, "a", 70), 0, 33)
        t.finish(hidden=t.take_outputs(t.add(y, t.linear(x, "b", 33))))

    rng = np.random.default_rng(0)
    plan = trace("linears", forward, None, shapes)
    weights = {
        name: (Tensor(name, F32, shape, rng.standard_normal(shape, np.float32).view(np.uint8).reshape(-1)),)
        for name, shape in shapes.items()
    }
    x, length = rng.standard_normal((1200, width), np.float32), 400

    def run(kind: Any, rows: np.ndarray, **options: Any) -> np.ndarray:
        count = np.arange(len(rows), dtype=np.int32)
        batch = Batch(
            tokens=0 * count, sequences=count // length, positions=count % length, outputs=count, tables=(),
            embeddings=rows, last=0 * count + np.int32(length - 1),
        )  # fmt: skip
        hidden: np.ndarray = kind(plan, weights, page_counts=[], **options).step(batch).hidden
        return hidden

    together = run(CpuProgram, x, threads=3)
    assert error(together, run(ReferenceProgram, x)) < 0.02
    for start in range(0, len(x), length):
        alone = run(CpuProgram, np.ascontiguousarray(x[start : start + length]), threads=1)
        assert np.array_equal(alone, together[start : start + length])


def test_convolutions_have_as_many_channels_as_kernels_have_room_for(isa: str) -> None:
    """The most of them, and not one more, whoever made the plan."""
    rng = np.random.default_rng(0)
    for channels in (7274, 7275):

        def forward(t: Trace, _: None, channels: int = channels) -> None:
            t.finish(
                hidden=t.take_outputs(t.conv(t.input(4 * channels), "a", channels, 8, steps=2, frames=4))
            )

        shape = (8, channels, 3, 3)
        plan = trace("conv", forward, None, {"a.weight": shape})
        values = rng.standard_normal(shape, np.float32)
        weights = {"a.weight": (Tensor("a.weight", F32, shape, values.view(np.uint8).reshape(-1)),)}
        if channels > 7274:
            with pytest.raises(OlivineError, match="a convolution of more than 7274 channels"):
                CpuProgram(plan, weights, page_counts=[], threads=1)
            continue
        count = np.arange(40, dtype=np.int32)
        batch = Batch(
            tokens=0 * count, sequences=0 * count, positions=count, outputs=count, tables=(),
            last=0 * count + 39, embeddings=rng.standard_normal((40, 4 * channels), np.float32),
            coordinates=np.stack([0 * count + 4, 0 * count], 1),
        )  # fmt: skip
        expected = ReferenceProgram(plan, weights, page_counts=[]).step(batch).hidden
        program = CpuProgram(plan, weights, page_counts=[], threads=1)
        assert error(program.step(batch).hidden, expected) < 0.02


def test_sounds_of_more_channels_are_refused_by_name(tmp_path: Path) -> None:
    more = {"audio_config": {**folders._GEMMA4_AUDIO, "subsampling_conv_channels": [5000, 1]}}
    with pytest.raises(OlivineError, match="the audio tower has 5000 channels, and at most 4096"):
        checkpoint = open_checkpoint(folders.write_multimodal("gemma4-e2b", tmp_path, **more))
        towers_of(checkpoint, model_of(checkpoint))
