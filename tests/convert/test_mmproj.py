"""The second file of models that see and hear, against the published models and llama.cpp."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from olivine.cli.convert import command
from olivine.convert import convert
from olivine.errors import ModelError, OlivineError, RequestError
from oracles import folders, llama_cpp

TOWERS = re.compile(r"(model\.)?(vision_|audio_|multi_modal_|embed_vision|embed_audio)")
LIMITS = (".input_min", ".input_max", ".output_min", ".output_max")
ENDINGS = (".weight", ".bias", *LIMITS)
# Of Gemma 4 12B, which the gguf library does not know yet.
UNIFIED = {
    "patch_dense": "v.patch_embd",
    "patch_ln1": "v.patch_norm.1",
    "patch_ln2": "v.patch_norm.2",
    "pos_norm": "v.patch_norm.3",
    "pos_embedding.weight": "v.position_embd.weight",
}


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("multimodal")
    return functools.cache(lambda family: folders.write_multimodal(family, root / family))


def expected_tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """What llama.cpp's converter makes of the towers: by its own table of names."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 8)
    for name, value in load_file(folder / "model.safetensors").items():
        if not TOWERS.match(name):
            continue
        name = name.replace(".linear.weight", ".weight").replace("_projection_weight", "_projection.weight")
        if name.endswith(("per_dim_scale", "position_embedding_table", "pos_embedding")):
            name += ".weight"
        if "audio_tower" in name:
            name = name.replace("model.audio_tower.", "conformer.")
            if "per_dim_scale" in name:
                value = torch.nn.functional.softplus(value)
            if "depthwise_conv1d" in name:
                value = value.squeeze(1)
        elif "vision_embedder" in name:
            name = name.replace("model.vision_embedder.", "")
            if "pos_embedding" in name:
                value = value.permute(1, 0, 2)
            elif "patch_dense.weight" in name or "patch_ln1" in name:
                value = value.unflatten(-1, (48, 48, 3)).movedim(-1, -3).flatten(-3)
        elif "patch_embedder.input_proj" in name:
            value = value.reshape(len(value), 16, 16, 3).permute(0, 3, 1, 2)
        elif "soft_emb_norm" in name:
            value = value + 1
        if "encoder." in name:
            both = ("model.vision_tower.encoder.", "vision_model.model.")
            siglip = ("vision_tower.encoder.", "vision_tower.vision_model.encoder.")
            name = name.replace(*both) if name.startswith("model.") else name.replace(*siglip)
        elif name.startswith(("vision_tower.embeddings.", "vision_tower.post_")):
            name = name.replace("vision_tower.", "vision_tower.vision_model.")
        mapped = names.get_name(name, try_suffixes=ENDINGS)
        if mapped is None:
            stem = name if name in UNIFIED else name.rpartition(".")[0]
            mapped = UNIFIED[stem] + name.removeprefix(stem)
        yield mapped, value.reshape(1) if value.ndim == 0 else value


def read(path: Path) -> dict[str, gguf.ReaderTensor]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


@pytest.mark.parametrize("family", folders.MULTIMODAL)
def test_every_tensor_is_in_one_of_the_two_files(family: str, folder_of: Any, tmp_path: Path) -> None:
    source = folder_of(family)
    report = convert(source, tmp_path / "made.gguf", "F32")
    assert report.warnings == ()
    assert report.mmproj is not None and report.mmproj.path == tmp_path / "mmproj-made-F32.gguf"
    assert report.mmproj.bytes == report.mmproj.path.stat().st_size
    text, towers = read(report.path), read(report.mmproj.path)
    expected = dict(expected_tensors(source))
    assert towers.keys() == expected.keys()
    for name, tensor in towers.items():
        assert tuple(tensor.shape[::-1]) == expected[name].shape, name
        values = tensor.data.astype(np.float32).reshape(expected[name].shape)
        if name == "mm.input_projection.weight" and family == "gemma3":  # F16 whatever is asked for
            values, expected[name] = values.astype(np.float16), expected[name].half()
        np.testing.assert_allclose(values, expected[name], rtol=2e-7, atol=0, err_msg=name)
    generated = {"rope_freqs.weight"} & text.keys()
    all_names = load_file(source / "model.safetensors").keys()
    assert len(text) - len(generated) == sum(not TOWERS.match(name) for name in all_names)
    assert not text.keys() & towers.keys()


SIGHT = {
    "clip.has_vision_encoder": True,
    "clip.use_gelu": True,
    "clip.vision.projection_dim": 256,
    "clip.vision.embedding_length": 64,
    "clip.vision.feed_forward_length": 96,
    "clip.vision.attention.head_count": 4,
    "clip.vision.attention.layer_norm_epsilon": pytest.approx(1e-6),
}
KEYS: dict[str, dict[str, Any]] = {
    "gemma3": {
        **SIGHT,
        "clip.projector_type": "gemma3",
        "clip.vision.image_size": 56,
        "clip.vision.patch_size": 14,
        "clip.vision.block_count": 3,
        "clip.vision.image_mean": [0.5] * 3,
        "clip.vision.image_std": [0.5] * 3,
        "clip.vision.projector.scale_factor": 2,
    },
    "gemma4-31b": {
        **SIGHT,
        "clip.vision.projector_type": "gemma4v",
        "clip.vision.image_size": 224,
        "clip.vision.patch_size": 16,
        "clip.vision.block_count": 2,
        "clip.vision.image_mean": [0.0] * 3,
        "clip.vision.image_std": [1.0] * 3,
    },
}
KEYS["gemma4-e2b"] = {
    **KEYS["gemma4-31b"],
    "clip.has_audio_encoder": True,
    "clip.audio.projector_type": "gemma4a",
    "clip.audio.projection_dim": 256,
    "clip.audio.embedding_length": 64,
    "clip.audio.feed_forward_length": 256,
    "clip.audio.block_count": 2,
    "clip.audio.attention.head_count": 4,
    "clip.audio.attention.layer_norm_epsilon": pytest.approx(1e-6),
    "clip.audio.num_mel_bins": 128,
}
KEYS["gemma4-12b"] = {
    **KEYS["gemma4-e2b"],
    "clip.vision.projector_type": "gemma4uv",
    "clip.audio.projector_type": "gemma4ua",
    "clip.audio.embedding_length": 640,
    **{
        f"clip.{tower}.{key}": 0
        for tower in ("vision", "audio")
        for key in ("feed_forward_length", "block_count", "attention.head_count")
    },
}
del KEYS["gemma4-12b"]["clip.use_gelu"]


@pytest.mark.parametrize("family", folders.MULTIMODAL)
def test_metadata(family: str, folder_of: Any, tmp_path: Path) -> None:
    report = convert(folder_of(family), tmp_path / "made.gguf", "BF16", mmproj="only")
    fields = gguf.GGUFReader(report.path).fields
    told = {key: field.contents() for key, field in fields.items() if not key.startswith("GGUF.")}
    general = {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "general.name": family,
        "general.file_type": 32,
    }
    assert told == {**general, **KEYS[family]}
    kinds = {int: gguf.GGUFValueType.UINT32, bool: gguf.GGUFValueType.BOOL, str: gguf.GGUFValueType.STRING}
    for key, value in told.items():
        assert fields[key].types[-1] == kinds.get(type(value), gguf.GGUFValueType.FLOAT32), key


def test_colours_are_the_processors(tmp_path: Path) -> None:
    source = folders.write_multimodal("gemma3", tmp_path / "hf")

    def colours() -> Any:
        path = convert(source, tmp_path / "made.gguf", "F16", mmproj="only", force=True).path
        fields = gguf.GGUFReader(path).fields
        return [fields[f"clip.vision.image_{key}"].contents() for key in ("mean", "std")]

    (source / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0, 0.25, 1], "image_std": [1] * 3})
    )
    assert colours() == [[0, 0.25, 1], [1, 1, 1]]
    (source / "processor_config.json").write_text(json.dumps({"image_processor": {"image_std": [2, 2, 2]}}))
    assert colours() == [[0, 0.25, 1], [2, 2, 2]]
    for wrong in ([0.5] * 2, 0.5, ["a"] * 3, [True] * 3):
        (source / "processor_config.json").write_text(json.dumps({"image_mean": wrong}))
        with pytest.raises(ModelError, match=r"image_mean = .*, not three numbers"):
            colours()


@pytest.mark.parametrize("family", folders.MULTIMODAL)
@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_K_M"])
def test_types_are_those_of_the_published_conversion(
    family: str, kind: str, folder_of: Any, tmp_path: Path
) -> None:
    report = convert(folder_of(family), tmp_path / "made.gguf", kind)
    assert report.mmproj is not None
    wanted = "BF16" if kind == "BF16" else "F16"
    assert report.mmproj.path.name == f"mmproj-made-{wanted}.gguf"
    always_f32 = {
        "v.position_embd.weight",
        "a.conv1d.0.weight",
        "a.conv1d.1.weight",
        "a.input_projection.weight",
    }
    for name, tensor in read(report.mmproj.path).items():
        expected = wanted
        convolution = name == "v.patch_embd.weight" and (family == "gemma3" or wanted == "BF16")
        if len(tensor.shape) == 1 or name in always_f32 or name.endswith("conv_dw.weight") or convolution:
            expected = "F32"
        elif name == "mm.input_projection.weight" and family == "gemma3":
            expected = "F16"
        assert tensor.tensor_type.name == expected, name


def test_the_prefixes_of_the_hub(folder_of: Any, tmp_path: Path) -> None:
    """Published Gemma 3 has a `vision_model` in its names, and others a `model` before all of them."""
    made = convert(folder_of("gemma3"), tmp_path / "a.gguf", "F16", mmproj="only").path.read_bytes()
    tensors = load_file(folder_of("gemma3") / "model.safetensors")
    source = tmp_path / "gemma3"
    source.mkdir()
    (source / "config.json").write_bytes((folder_of("gemma3") / "config.json").read_bytes())
    for before in ("", "model."):
        renamed = {
            name.replace("language_model.model.", "model.language_model.")
            if name.startswith("language_model")
            else before + name.replace("vision_tower.", "vision_tower.vision_model."): value
            for name, value in tensors.items()
        }
        renamed[f"{before}vision_tower.vision_model.head.probe"] = torch.zeros(
            1, 1, 64
        )  # of no use to Gemma 3
        save_file(renamed, source / "model.safetensors")
        path = convert(source, tmp_path / "b.gguf", "F16", mmproj="only", force=True).path
        assert path.read_bytes() == made


def test_limits_may_be_infinite(tmp_path: Path) -> None:
    source = folders.write_multimodal("gemma4-e2b", tmp_path / "hf", dtype="bfloat16")
    tensors = load_file(source / "model.safetensors")
    tensors["model.vision_tower.encoder.layers.1.mlp.up_proj.input_max"].fill_(torch.inf)
    del tensors["model.vision_tower.encoder.layers.0.mlp.up_proj.input_min"]  # as good as infinite
    save_file(tensors, source / "model.safetensors")
    made = read(convert(source, tmp_path / "made.gguf", "F16", mmproj="only").path)
    assert made["v.blk.1.ffn_up.input_max"].data.tolist() == [np.inf]
    assert made["v.blk.1.ffn_up.input_min"].data.tolist() == [-2.0]
    assert "v.blk.0.ffn_up.input_min" not in made


# ---- what is written where


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("gemma.gguf", "Q8_0", "mmproj-gemma-F16.gguf"),
        ("gemma-q8_0.gguf", "Q8_0", "mmproj-gemma-F16.gguf"),
        ("gemma.Q4_K_M.gguf", "Q4_K", "mmproj-gemma-F16.gguf"),
        ("gemma-BF16.gguf", "bf16", "mmproj-gemma-BF16.gguf"),
        ("gemma-Q4_0", "Q8_0", "mmproj-gemma-Q4_0-F16.gguf"),
    ],
)
def test_the_second_files_name(name: str, kind: str, expected: str, folder_of: Any, tmp_path: Path) -> None:
    report = convert(folder_of("gemma4-12b"), tmp_path / name, kind)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, expected])
    assert report.mmproj is not None and report.mmproj.path.name == expected


def test_one_file_or_the_other(folder_of: Any, tmp_path: Path) -> None:
    source, made = folder_of("gemma4-12b"), tmp_path / "made.gguf"
    report = convert(source, made, "Q8_0", mmproj="without")
    assert report.mmproj is None and [*tmp_path.iterdir()] == [made]
    report = convert(source, tmp_path / "towers.gguf", "F16", mmproj="only")
    assert report.mmproj is None and len([*tmp_path.iterdir()]) == 2
    (tmp_path / "mmproj-made-F16.gguf").write_bytes(b"old")
    before = made.read_bytes()
    with pytest.raises(RequestError, match=r"mmproj-made-F16.gguf exists; --force .*, --no-mmproj leaves it"):
        convert(source, tmp_path / "made-Q4_0.gguf", "Q4_0")
    with pytest.raises(RequestError, match=r"made\.gguf exists; --force replaces it$"):
        convert(source, made, "Q8_0")
    convert(source, made, "Q8_0", force=True)
    assert made.read_bytes() == before
    assert (tmp_path / "mmproj-made-F16.gguf").read_bytes() == (tmp_path / "towers.gguf").read_bytes()


def test_refusals(folder_of: Any, tmp_path: Path) -> None:
    def refused(source: Path, kind: str, match: str) -> None:
        with pytest.raises(RequestError, match=match):
            convert(source, tmp_path / "made.gguf", kind, mmproj="only")
        assert not list(tmp_path.glob("made*"))

    refused(folder_of("gemma3"), "Q8_0", "not quantized, to Q8_0 or any type: choose F16, BF16 or F32")
    refused(folder_of("gemma3"), "qwen3.c", "choose F16, BF16 or F32")
    text = folders.write("gemma3", tmp_path / "text")
    refused(text, "F16", "has no towers for images or sound")
    towers = convert(folder_of("gemma3"), tmp_path / "towers.gguf", "F32", mmproj="only").path
    with pytest.raises(RequestError, match="is a mmproj file: --mmproj-only makes it of the original"):
        convert(towers, tmp_path / "made.gguf", "F16")


def test_both_files_come_together_or_not_at_all(folder_of: Any, tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []

    def fail(done: int, total: int, name: str) -> None:
        seen.append((done, total, name))
        assert not list(tmp_path.glob("*.gguf"))
        if name == "mm.input_projection.weight":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(folder_of("gemma3"), tmp_path / "made.gguf", "Q8_0", progress=fail)
    assert not list(tmp_path.iterdir())
    assert {"token_embd.weight", "blk.6.ffn_up.weight"} < {name for _, _, name in seen}
    assert len(seen) > 100 and seen[-1][0] == seen[-1][1], "the bytes of both files are counted"


def test_the_command(folder_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.signal", lambda *handler: None)  # this process is not its own

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(command, [str(folder_of("gemma4-12b")), *arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    said = run(str(tmp_path / "made-Q8_0.gguf"), "--type", "Q8_0")
    assert "made-Q8_0.gguf, 4.9 MB" in said and "mmproj-made-F16.gguf, 1.3 MB" in said
    assert all(said.splitlines())  # no line is empty where there is nothing to warn of
    told = json.loads(run(str(tmp_path / "made.gguf"), "--type", "F32", "--json"))
    assert told["mmproj"]["destination"] == str(tmp_path / "mmproj-made-F32.gguf")
    assert told["mmproj"]["types"]["F32"]["tensors"] == 11
    assert "mmproj" not in json.loads(run(str(tmp_path / "a.gguf"), "--type", "F16", "--no-mmproj", "--json"))
    assert "v.gguf, 1.3 MB" in run(str(tmp_path / "v.gguf"), "--type", "F16", "--mmproj-only")
    assert not (tmp_path / "mmproj-a-F16.gguf").exists() and not (tmp_path / "mmproj-v-F16.gguf").exists()


def test_towers_that_lie_beside_a_gguf_model_are_named(
    folder_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are neither converted nor copied."""
    monkeypatch.setattr("signal.signal", lambda *handler: None)  # this process is not its own
    source, away = tmp_path / "made.gguf", tmp_path / "away"
    away.mkdir()
    convert(folder_of("gemma4-12b"), source, "F16")
    mmproj = tmp_path / "mmproj-made-F16.gguf"

    def run(destination: Path, *more: str) -> Any:
        return CliRunner().invoke(command, [str(source), str(destination), "--type", "F32", "-f", *more])

    warning = f"its towers for images and sound are in {mmproj}: copy that file too, or name it with --mmproj"
    assert f"warning       {warning}\n" in run(away / "b.gguf").stdout
    assert json.loads(run(away / "b.gguf", "--json").stdout)["warnings"] == [warning]
    refused = run(away / "c.gguf", "--mmproj-only").exception
    assert isinstance(refused, RequestError)
    assert str(refused) == f"{source} has its towers for images and sound in {mmproj}: copy that file"
    for quiet in (run(away / "b.gguf", "--no-mmproj"), run(tmp_path / "b.gguf")):
        assert quiet.exit_code == 0 and "mmproj" not in quiet.stdout

    # A file of another model, or none.
    convert(folder_of("gemma3"), mmproj, "F16", mmproj="only", force=True)
    for _ in range(2):
        assert "mmproj" not in run(away / "b.gguf").stdout
        assert "has no towers" in str(run(away / "c.gguf", "--mmproj-only").exception)
        mmproj.unlink(missing_ok=True)
    assert [*away.iterdir()] == [away / "b.gguf"]


# ---- models that are not what they say


def _without(name: str) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors.pop(name)


LAYER = "model.vision_tower.encoder.layers.1"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            _without(f"{LAYER}.self_attn.q_norm.weight"),
            r"layers\.1\.self_attn\.q_norm\.weight \[16\] is missing",
        ),
        (
            lambda t: t.update({f"{LAYER}.self_attn.q_norm.weight": torch.ones(8)}),
            r"q_norm\.weight is \[8\] and should be \[16\]",
        ),
        (
            lambda t: t.update({f"{LAYER}.layer_scalar": torch.ones(1)}),
            r"layers\.1\.layer_scalar \[1\] is not known",
        ),
        (
            lambda t: t.update({"vision_tower.std_bias": torch.ones(64)}),
            r"vision_tower\.std_bias and .*vision_tower\.std_bias are both|\.std_bias .* are both",
        ),
        (
            _without("model.embed_vision.embedding_projection.weight"),
            r"embedding_projection\.weight .* is missing",
        ),
    ],
    ids=["missing", "another shape", "unknown", "twice", "no projector"],
)
def test_tensors_that_do_not_fit(
    change: Callable[[dict[str, torch.Tensor]], object], match: str, tmp_path: Path
) -> None:
    source = folders.write_multimodal("gemma4-31b", tmp_path / "hf")
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(ModelError, match=match) as told:
        convert(source, tmp_path / "made.gguf", "F16")
    assert "--no-mmproj leaves them out" in str(told.value)
    assert not list(tmp_path.glob("*.gguf*"))


@pytest.mark.parametrize(
    ("family", "tower", "changes"),
    [
        ("gemma3", "vision", {"hidden_act": "gelu"}),
        ("gemma4-31b", "vision", {"rope_parameters": {"rope_type": "axial", "rope_theta": 1e4}}),
        ("gemma4-31b", "vision", {"hidden_activation": "silu"}),
        ("gemma4-31b", "vision", {"num_hidden_layers": 10**9}),
        ("gemma4-31b", "vision", {"hidden_size": "64"}),
        ("gemma4-31b", "vision", {"head_dim": 8}),
        ("gemma4-e2b", "audio", {"attention_logit_cap": 30.0}),
        ("gemma4-e2b", "audio", {"gradient_clipping": 1.0}),
        ("gemma4-e2b", "audio", {"subsampling_conv_channels": [128]}),
        ("gemma4-e2b", "audio", {"subsampling_conv_channels": None, "residual_weight": 1.0}),
        ("gemma4-12b", "audio", {"audio_embed_dim": 320}),
    ],
    ids=str,
)
def test_configurations_that_do_not_fit(
    family: str, tower: str, changes: dict[str, Any], folder_of: Any, tmp_path: Path
) -> None:
    source = tmp_path / "hf"
    source.mkdir()
    (source / "model.safetensors").symlink_to(folder_of(family) / "model.safetensors")
    config = json.loads((folder_of(family) / "config.json").read_text())
    config[f"{tower}_config"] |= changes
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(OlivineError, match=next(reversed(changes)) + "|q_norm"):
        convert(source, tmp_path / "made.gguf", "F16", mmproj="only")
    assert not list(tmp_path.glob("made*"))


# ---- what llama.cpp makes of it


def published_features(folder: Path, pixels: np.ndarray) -> np.ndarray:
    """What the published model hands its text model of an image, [tokens, D]."""
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    values = torch.tensor(pixels, dtype=torch.float32) / 255
    with torch.no_grad():
        if model.config.model_type == "gemma3":
            found = model.model.get_image_features((values.permute(2, 0, 1)[None] - 0.5) / 0.5)
        else:
            side = 48 if model.config.model_type == "gemma4_unified" else 16
            high, wide = (n // side for n in pixels.shape[:2])
            patches = values.unflatten(0, (high, side)).unflatten(2, (wide, side)).transpose(1, 2)
            places = torch.tensor([[(x, y) for y in range(high) for x in range(wide)]])
            found = model.model.get_image_features(patches.reshape(1, high * wide, -1), places)
    return torch.cat(list(found.pooler_output)).numpy()


@pytest.mark.parametrize("family", folders.MULTIMODAL)
@pytest.mark.parametrize("kind", ["F32", "F16"])
def test_llama_cpp_sees_what_the_published_model_sees(
    family: str, kind: str, folder_of: Any, tmp_path: Path
) -> None:
    llama_cpp.need()
    report = convert(folder_of(family), tmp_path / "made.gguf", kind)
    assert report.mmproj is not None
    # A size that none of them changes.
    shape = (56, 56, 3) if family == "gemma3" else (384, 480, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    theirs = llama_cpp.image_features(report.path, report.mmproj.path, pixels, tmp_path)
    expected = published_features(folder_of(family), pixels)
    assert theirs.shape == expected.shape
    # It multiplies in F16, and its GELU is a table.
    assert np.abs(theirs - expected).max() < 0.02 * expected.std() * (1 if family == "gemma3" else 2)


def test_a_model_in_the_cache_of_hugging_face_is_named_as_its_repository(tmp_path: Path) -> None:
    folder = tmp_path / "models--someone--Nice-Model" / "snapshots" / ("1" * 40)
    folders.write_multimodal("gemma3", folder)
    report = convert(folder, tmp_path / "made.gguf", "F16")
    assert report.mmproj is not None
    for path in (report.path, report.mmproj.path):
        assert gguf.GGUFReader(path).fields["general.name"].contents() == "Nice-Model"
