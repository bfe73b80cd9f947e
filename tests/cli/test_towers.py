"""What `olivine inspect` shows of towers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from olivine.cli.towers import tower_facts
from olivine.convert import convert
from olivine.formats import open_checkpoint
from olivine.loading import model_of
from olivine.towers import towers_of
from oracles import folders
from oracles.commands import olivine

COSTS = {
    "image": 280, "image_budgets": [70, 140, 280, 560, 1120], "video_frame": 70, "video_frames": 32
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder, the same model as GGUF, and its mmproj file beside it."""
    root = tmp_path_factory.mktemp("towers")
    convert(folders.write_multimodal("gemma4-e2b", root / "hf"), root / "made.gguf", "F16")
    return root


def facts(*arguments: Any) -> Any:
    return json.loads(olivine("inspect", *arguments, "--json").stdout)


def test_inspect_shows_towers_and_what_media_cost(made: Path) -> None:
    lines = olivine("inspect", made / "made.gguf").stdout.splitlines()
    shown = {line[:14].strip(): line[14:] for line in lines if line[0] != " "}
    assert shown["towers"] == str(made / "mmproj-made-F16.gguf")
    shape = "2 layers of width 64, MLP 96, 4 heads; 152.2 K parameters, 338.4 kB"
    assert shown["vision"] == f"Gemma 4 vision: {shape}"
    text = "\n".join(line.strip() for line in lines)
    assert "F16 270.3 kB in 16, F32 68.1 kB in 69" in text
    assert "an image is up to 280 tokens (image_tokens: 70, 140, 560, 1,120);" in text
    assert "a video is 32 frames of up to 70: 2,240" in text and "a second of sound is 25 tokens" in text


def test_towers_as_json_from_a_folder_from_gguf_and_from_an_mmproj_file(made: Path) -> None:
    folder, gguf, alone = (facts(made / name) for name in ("hf", "made.gguf", "mmproj-made-F16.gguf"))
    assert gguf["towers"] == alone["towers"] and gguf["mmproj"] == [str(made / "mmproj-made-F16.gguf")]
    assert folder["mmproj"] == []
    for found in (folder, gguf):
        sight, sound = found["towers"]
        assert (sight["kind"], sight["layers"], sight["width"], sight["hidden"]) == ("vision", 2, 64, 96)
        assert (sound["kind"], sound["layers"], sound["heads"]) == ("audio", 2, 4)
        assert sight["tokens"] == COSTS and sound["tokens"] == {"second": 25}
        for tower in (sight, sound):
            assert tower["soft_token_width"] == 256
            assert sum(each["bytes"] for each in tower["types"].values()) == tower["bytes"]
    assert [tower["parameters"] for tower in folder["towers"]] == [
        tower["parameters"] for tower in gguf["towers"]
    ]
    assert alone["runs"] is False and "--mmproj" in alone["why_not"] and "tokenizer" not in alone
    # All of the file, and nothing twice.
    assert sum(tower["parameters"] for tower in alone["towers"]) == alone["parameters"]


def test_towers_that_are_elsewhere_or_do_not_fit(made: Path, tmp_path: Path) -> None:
    (tmp_path / "made.gguf").symlink_to(made / "made.gguf")
    assert facts(tmp_path / "made.gguf")["towers"] == []
    given = facts(tmp_path / "made.gguf", "--mmproj", made / "mmproj-made-F16.gguf")
    assert len(given["towers"]) == 2
    other = folders.write_multimodal("gemma3", tmp_path / "other")
    convert(other, tmp_path / "mmproj-made-F16.gguf", "F16", mmproj="only")
    found = facts(tmp_path / "made.gguf")
    assert found["towers"] == [] and "its vision projector is 'gemma3'" in " ".join(found["warnings"])


def test_an_image_of_gemma_3_is_256_tokens_and_with_crops_five_times_as_many(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(folders.write_multimodal("gemma3", tmp_path))
    ((tower,), _) = towers_of(checkpoint, model_of(checkpoint))
    published = replace(tower.config, image=896, patch=14, pool=4)
    found = tower_facts(replace(tower.built, config=published))
    assert found["tokens"] == {"image": 256, "pan_and_scan": 1280}
