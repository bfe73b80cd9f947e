"""Towers against the published models, from folders and from mmproj files."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from olivine.backends.reference import dequantize
from olivine.convert import convert
from olivine.errors import ModelError, OlivineError
from olivine.formats import open_checkpoint
from olivine.loading import model_of
from olivine.models import gemma4_vision, siglip
from olivine.models.tower import DerivedTensor, build_gguf
from olivine.tensor import Tensor
from olivine.towers import Encoder, Tower, towers_of
from oracles import folders, seeing

SIZES = [(6, 9), (3, 3), (12, 3), (3, 6)]
FRAMES = [9, 1, 98, 2, 43, 4]  # 0.1 s, and others that end anywhere in a row


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A family's folder and its GGUF files, by names of options."""
    root = tmp_path_factory.mktemp("towers")

    @functools.cache
    def made(family: str) -> tuple[Path, Path]:
        folder = folders.write_multimodal(family, root / family)
        return folder, convert(folder, root / f"{family}-gguf" / "made.gguf", "F32").path

    (root / "x").mkdir()
    for family in folders.MULTIMODAL:
        (root / f"{family}-gguf").mkdir()
    return made


def found_in(path: Path, mmproj: Path | None = None) -> tuple[Tower, ...]:
    checkpoint = open_checkpoint(path)
    towers, warnings = towers_of(checkpoint, model_of(checkpoint), mmproj)
    assert warnings == ()
    return towers


def check(towers: tuple[Tower, ...], kind: str, parts: Any, expected: Any, atol: float = 1e-4) -> None:
    """All parts in one batch as the published model has them, and the same bits alone."""
    (tower,) = [tower for tower in towers if tower.kind == kind]
    encoder = Encoder(tower, "reference")
    found = encoder.encode(parts)
    assert [each.shape for each in found] == [each.shape for each in expected]
    for part, ours, theirs in zip(parts, found, expected, strict=True):
        assert np.abs(theirs).max() > 0.3, "values that say something"
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol)
        np.testing.assert_allclose(encoder.encode([part])[0], ours, rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_gemma3(form: str, files: Any) -> None:
    folder, file = files("gemma3")
    towers = found_in(folder if form == "folder" else file)
    assert [tower.kind for tower in towers] == ["vision"]
    # GGUF has the projection in F16, whatever is asked for.
    check(
        towers,
        "vision",
        *seeing.square(seeing.load("gemma3", folder), 3),
        atol=1e-4 if form == "folder" else 3e-3,
    )


@pytest.mark.parametrize("form", ["folder", "gguf"])
@pytest.mark.parametrize("family", ["gemma4-e2b", "gemma4-31b"])
def test_gemma4_vision(family: str, form: str, files: Any) -> None:
    folder, file = files(family)
    towers = found_in(folder if form == "folder" else file)
    model = seeing.load(family, folder)
    check(towers, "vision", *seeing.grids(model, SIZES, 3, 3 * 16 * 16))


@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_gemma4_audio(form: str, files: Any) -> None:
    folder, file = files("gemma4-e2b")
    towers = found_in(folder if form == "folder" else file)
    model = seeing.load("gemma4-e2b", folder)
    check(towers, "audio", *seeing.sounds(model, FRAMES))


def test_gemma4_audio_of_half_a_minute(files: Any) -> None:
    folder, _ = files("gemma4-e2b")
    check(found_in(folder), "audio", *seeing.sounds(seeing.load("gemma4-e2b", folder), [2989, 1099]))


@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_gemma4_unified(form: str, files: Any) -> None:
    folder, file = files("gemma4-12b")
    towers = found_in(folder if form == "folder" else file)
    assert [tower.kind for tower in towers] == ["vision", "audio"]
    model = seeing.load("gemma4-12b", folder)
    check(towers, "vision", *seeing.grids(model, [(5, 7), (1, 1), (8, 2)], 1, 3 * 48 * 48, merged=True))
    check(towers, "audio", *seeing.waves(model, [7, 1, 75]))


def test_what_a_family_says_of_its_towers(files: Any) -> None:
    (sight,) = found_in(files("gemma3")[0])
    assert sight.markers.placeholder == sight.markers.begin == "<start_of_image>"
    assert (sight.mean, sight.deviation, sight.rows_per_token) == ((0.5,) * 3, (0.5,) * 3, 4)
    assert sight.bidirectional
    for form in (0, 1):
        sight, sound = found_in(files("gemma4-e2b")[form])
        assert (sight.kind, sight.markers.soft, sight.rows_per_token) == ("vision", "<|image|>", 9)
        assert (sound.kind, sound.markers.end, sound.rows_per_token) == ("audio", "<audio|>", 1)
        assert not sound.bidirectional
    assert found_in(folders.write("gemma3", files("gemma3")[0].parent / "text")) == ()


def test_every_switch_of_a_vision_tower(tmp_path: Path) -> None:
    """Clipping and standardizing, alone and together, another pooling, and limits that limit nothing."""
    _, options = folders.MULTIMODAL["gemma4-31b"]
    for i, (more, pool) in enumerate([
        ({"use_clipped_linears": True, "standardize": True}, 3),
        ({"use_clipped_linears": False, "standardize": False, "pooling_kernel_size": 2}, 2),
    ]):  # fmt: skip
        vision = {**options["vision_config"], **more}
        folder = folders.write_multimodal("gemma4-31b", tmp_path / str(i), vision_config=vision)
        model = seeing.load("gemma4-31b", folder)
        sizes = [(2 * pool, pool), (pool, 3 * pool)]
        (tower,) = found_in(folder)
        assert any("clamp" in str(op) for op in tower.built.plan.ops) == more["use_clipped_linears"]
        check((tower,), "vision", *seeing.grids(model, sizes, pool, 768))
        made = convert(folder, tmp_path / f"{i}.gguf", "F32")
        assert made.mmproj is not None
        check(found_in(made.path, made.mmproj.path), "vision", *seeing.grids(model, sizes, pool, 768))


def test_limits_that_are_infinite_or_missing_limit_nothing(tmp_path: Path) -> None:
    folder = folders.write_multimodal("gemma4-e2b", tmp_path / "hf")
    tensors = load_file(folder / "model.safetensors")
    prefix = "model.vision_tower.encoder.layers.0.mlp.up_proj"
    tensors[f"{prefix}.input_max"].fill_(torch.inf)
    tensors[f"{prefix}.output_min"].fill_(-torch.inf)
    del tensors[f"{prefix}.output_max"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (tower, _) = found_in(folder)
    limits = {name for name in tower.built.weights if name.startswith("v.blk.0.ffn_up.")}
    assert limits == {"v.blk.0.ffn_up.weight", "v.blk.0.ffn_up.input_min"}
    model = seeing.load("gemma4-e2b", folder)
    check((tower,), "vision", *seeing.grids(model, [(6, 3)], 3, 768))


def mmproj_of(path: Path) -> Path:
    (found,) = path.parent.glob("mmproj*")
    return found


def test_an_old_file_with_up_and_down_in_each_others_place(files: Any) -> None:
    file = open_checkpoint(mmproj_of(files("gemma3")[1]))
    names = {
        name: name.replace("_up", "_DOWN").replace("_down", "_up").replace("_DOWN", "_down")
        for name in file.tensors
    }
    swapped = {names[name]: tensor for name, tensor in file.tensors.items()}
    old = build_gguf(siglip.TOWER, file.metadata, swapped, dequantize)
    new = build_gguf(siglip.TOWER, file.metadata, file.tensors, dequantize)
    assert old.plan == new.plan
    for name, (tensor,) in new.weights.items():
        assert old.weights[name][0].data is tensor.data or (old.weights[name][0].data == tensor.data).all()


def test_tensors_that_a_plan_reads_otherwise_are_computed_when_they_are_read(files: Any) -> None:
    """The 12 matrices of Gemma 4 E2B's audio tower take a tenth of a second, also where no sound comes."""
    for form in (0, 1):
        _, sound = found_in(files("gemma4-e2b")[form])
        (tensor,) = sound.built.weights["a.blk.0.attn_k_rel.weight"]
        assert isinstance(tensor, DerivedTensor) and "data" not in vars(tensor)
        assert tensor.nbytes == tensor.data.nbytes == 4 * 12 * 64 and tensor.data is tensor.data


def test_an_mmproj_file_beside_a_model(files: Any, tmp_path: Path) -> None:
    made = files("gemma4-e2b")[1]
    model, towers = tmp_path / "gemma-Q8_0.gguf", tmp_path / "mmproj-gemma-F16.gguf"
    shutil.copy(made, model)
    assert found_in(model) == ()
    shutil.copy(mmproj_of(made), towers)
    assert [tower.kind for tower in found_in(model)] == ["vision", "audio"]
    assert found_in(model)[0].files == (towers,)
    assert len(found_in(tmp_path)) == 2, "a folder with one model and its mmproj"
    # Another model's beside it; and none that has this one's name.
    shutil.copy(towers, tmp_path / "mmproj-other-F16.gguf")
    assert found_in(model)[0].files == (towers,)
    towers.rename(tmp_path / "third-mmproj.gguf")
    checkpoint = open_checkpoint(model)
    found, (warning,) = towers_of(checkpoint, model_of(checkpoint))
    assert found == () and warning == (
        "several mmproj files lie beside the model (mmproj-other-F16.gguf, third-mmproj.gguf): "
        "name one with --mmproj"
    )
    assert len(found_in(model, tmp_path / "third-mmproj.gguf")) == 2
    # Of several, those that do not fit are other models'.
    shutil.copy(mmproj_of(files("gemma3")[1]), tmp_path / "mmproj-other-F16.gguf")
    assert found_in(model)[0].files == (tmp_path / "third-mmproj.gguf",)


@pytest.mark.parametrize(
    ("model", "beside", "expected"),
    [
        ("gemma-3-4b-it-Q4_K_M", ["mmproj-gemma-3-4b-it-f16", "mmproj-gemma-3-12b-it-f16"], 0),
        ("gemma-3-4b-it-Q4_K_M", ["gemma-3-4b-it.mmproj-f16", "mmproj-gemma-3-4b-it-other"], 0),
        ("gemma-3-12b", ["mmproj-gemma-3-1-f16", "gemma_3_12b_mmproj", "mmproj-gemma-3"], 1),
        ("gemma-3-12b-00001-of-00002", ["mmproj-model-f16", "mmproj-gemma-3-12b"], 1),
        ("gemma-4-E2B-it-UD-Q4_K_XL", ["mmproj-F32", "mmproj-F16", "mmproj-BF16"], 2),
        ("Gemma-Q8_0", ["mmproj-gemma-Q8_0", "mmproj-gemma-F16"], 1),
        ("gemma", ["mmproj-a-F16", "mmproj-b-F16"], None),
    ],
)
def test_which_of_several_mmproj_files_is_a_models(
    model: str, beside: list[str], expected: int | None, files: Any, tmp_path: Path
) -> None:
    """By its name; the same towers in several types are one choice. Otherwise, none is guessed."""
    made = files("gemma4-e2b")[1]
    for name in beside:
        shutil.copy(mmproj_of(made), tmp_path / f"{name}.gguf")
    checkpoint = open_checkpoint(made)
    beside_it = replace(checkpoint, path=tmp_path / f"{model}.gguf", files=(tmp_path / f"{model}.gguf",))
    towers, warnings = towers_of(beside_it, model_of(checkpoint))
    if expected is None:
        assert towers == () and len(warnings) == 1
    else:
        assert towers[0].files == (tmp_path / f"{beside[expected]}.gguf",) and warnings == ()


def test_the_projector_of_an_ollama_model(files: Any, tmp_path: Path) -> None:
    """Blobs have no names: the manifest of the model says which one it is."""
    made, blobs = files("gemma4-e2b")[1], tmp_path / "blobs"
    blobs.mkdir()
    model, towers = (blobs / f"sha256-{digit * 64}" for digit in "12")
    shutil.copy(made, model)
    shutil.copy(mmproj_of(made), towers)
    assert found_in(model) == ()
    kinds = {"model": "1", "projector": "2"}
    layers = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digit * 64}"}
        for kind, digit in kinds.items()
    ]
    manifest = tmp_path / "manifests/registry.ollama.ai/library/seeing/latest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"layers": layers}))
    assert [tower.kind for tower in found_in(model)] == ["vision", "audio"]
    assert found_in(model)[0].files == (towers,)


def test_an_mmproj_file_that_does_not_fit(files: Any, tmp_path: Path) -> None:
    path = files("gemma4-e2b")[1]
    checkpoint = open_checkpoint(path)
    model = model_of(checkpoint)

    def refused(match: str, mmproj: Path, width: int = 256) -> None:
        with pytest.raises(ModelError, match=match):
            towers_of(checkpoint, replace(model, config=replace(model.config, width=width)), mmproj)

    own = mmproj_of(path)
    refused("its soft tokens have 256 columns, and this model's embeddings have 128", own, width=128)
    refused(
        "vision projector is 'gemma3', and for gemma4 models these are known: gemma4a, ",
        mmproj_of(files("gemma3")[1]),
    )
    refused("is no mmproj file: it holds 'gemma4'", path)
    found, (warning,) = towers_of(checkpoint, replace(model, config=replace(model.config, width=128)))
    assert found == () and "mmproj-made-F32.gguf is not used: " in warning
    folder = open_checkpoint(files("gemma4-e2b")[0])
    with pytest.raises(ModelError, match="has its towers in itself"):
        towers_of(folder, model, own)


def broken(tensors: dict[str, Tensor], name: str, shape: tuple[int, ...]) -> dict[str, Tensor]:
    tensor = tensors[name]
    data = np.zeros(int(np.prod(shape)) * tensor.dtype.block_bytes, np.uint8)
    return {**tensors, name: Tensor(name, tensor.dtype, shape, data)}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda m, t: t.pop("v.patch_embd.weight"), "the vision tower lacks v.patch_embd.weight"),
        (lambda m, t: t.pop("v.blk.1.ln2.weight"), r"v\.blk\.1\.ln2\.weight \[64\] is missing"),
        (
            lambda m, t: t.update(broken(t, "v.patch_embd.weight", (64, 5, 7, 1))),
            r"is \[64, 5, 7, 1\] and should be",
        ),
        (
            lambda m, t: t.update(broken(t, "v.position_embd.weight", (3, 128, 64))),
            r"is \[3, 128, 64\] and should",
        ),
        (
            lambda m, t: t.update(broken(t, "v.blk.0.attn_q_norm.weight", (0,))),
            r"is \[0\] and should be \[16\]",
        ),
        (lambda m, t: m.update({"clip.vision.attention.head_count": 5}), r"should be|multiple of 4"),
        (lambda m, t: m.update({"clip.vision.patch_size": 4096}), "should be"),
        (lambda m, t: m.update({"clip.vision.block_count": 0}), "block_count = 0, which must lie in"),
    ],
)
def test_mmproj_files_that_are_broken(change: Callable[..., object], match: str, files: Any) -> None:
    file = open_checkpoint(mmproj_of(files("gemma4-31b")[1]))
    metadata, tensors = dict(file.metadata), dict(file.tensors)
    build_gguf(gemma4_vision.TOWER, metadata, tensors, dequantize)
    change(metadata, tensors)
    with pytest.raises(ModelError, match=match):
        build_gguf(gemma4_vision.TOWER, metadata, tensors, dequantize)


def test_configurations_that_do_not_run(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(folders.write_multimodal("gemma4-e2b", tmp_path))

    def refused(match: str, about: str, **more: Any) -> None:
        metadata = {
            **checkpoint.metadata,
            f"{about}_config": {**checkpoint.metadata[f"{about}_config"], **more},
        }
        with pytest.raises(ModelError, match=match):
            towers_of(replace(checkpoint, metadata=metadata), model_of(checkpoint))

    refused("hidden_act = 'gelu', which is not supported in a tower for audio", "audio", hidden_act="gelu")
    refused("attention_context_left = 9", "audio", attention_context_left=9)
    refused("num_key_value_heads = 2", "vision", num_key_value_heads=2)
    refused("hidden_activation = 'relu'", "vision", hidden_activation="relu")


def test_parts_that_no_tower_takes(files: Any) -> None:
    sight, _ = found_in(files("gemma4-e2b")[0])
    encoder = Encoder(sight, "reference")
    for rows in (0, 8, 10_089):
        part = seeing.Features(np.zeros((rows, 768), np.float32), np.zeros((rows, 2), np.int32))
        with pytest.raises(OlivineError, match=f"a vision tower cannot encode {rows} rows"):
            encoder.encode([part])
    assert encoder.encode([]) == []
