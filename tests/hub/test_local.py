"""The models on this disk, in the folders of three programs, and finding them by name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import olivine
from olivine.errors import CheckpointError, MissingModelError, RequestError
from olivine.hub import find, local
from olivine.hub.names import parse
from olivine.server.sources import find_models

MAIN, OLD = "a" * 40, "b" * 40


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, and nothing of the real one."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cached(home: Path, repo: str, paths: list[str], commit: str = MAIN) -> Path:
    """A repository in the Hugging Face cache: links to blobs."""
    folder = home / ".cache/huggingface/hub" / f"models--{repo.replace('/', '--')}"
    for path in paths:
        link = folder / "snapshots" / commit / path
        blob = folder / "blobs" / f"{commit[0]}-{path.replace('/', '-')}"
        for each in (link, blob):
            each.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(path.encode())
        link.symlink_to(os.path.relpath(blob, link.parent))
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs/main").write_text(MAIN)
    return folder


def with_ollama(home: Path, name: str, layers: dict[str, str]) -> None:
    """A model of Ollama: a manifest that names blobs."""
    models = home / ".ollama/models"
    manifest = models / "manifests" / name
    entries = [{"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}", "size": 1}
               for kind, digest in layers.items()]  # fmt: skip
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"layers": entries}))
    (models / "blobs").mkdir(exist_ok=True)
    for digest in layers.values():
        (models / "blobs" / f"sha256-{digest}").write_bytes(b"GGUF")


def located(text: str) -> Path | None:
    name = parse(text)
    assert name is not None
    found = local.locate(name)
    return None if found is None else found.path


def test_a_snapshot_of_the_cache_is_found_by_all_its_names(home: Path) -> None:
    repo = "ggml-org/gemma-3-4b-it-GGUF"
    folder = cached(home, repo, ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-f16.gguf", "README.md"])
    snapshot = folder / "snapshots" / MAIN
    for text in (
        repo,
        f"{repo}:Q4_K_M",
        f"{repo}:q4_k_m",
        "gemma3",
        "gemma3:4b",
        "m-Q4_K_M",
        "gemma-3-4b-it-GGUF",
    ):
        assert located(text) == snapshot / "m-Q4_K_M.gguf" == find(text), text
    assert located(f"{repo}:Q8_0") == located("gemma3:4b-q8_0") == snapshot / "m-Q8_0.gguf"
    assert located("gemma3:1b") is None and located(f"{repo}:Q5_0") is None
    first = local.models()[0]
    assert (first.name, first.id, first.type) == ("gemma3:4b", f"{repo}:Q4_K_M", "Q4_K_M")
    assert first.mmproj == snapshot / "mmproj-f16.gguf" and first.bytes == len("m-Q4_K_M.ggufmmproj-f16.gguf")


def test_an_empty_name_is_not_the_folder_here(home: Path) -> None:
    (home / "model.safetensors").touch()
    for ask in (find, olivine.load):
        with pytest.raises(RequestError, match=r"^the name of the model is empty$"):
            ask("")


def test_what_is_incomplete_is_not_there(home: Path) -> None:
    cached(home, "a/split-GGUF", ["x-Q8_0-00001-of-00002.gguf"])
    cached(home, "a/sharded", ["config.json", "model-00001-of-00002.safetensors"])
    folder = cached(home, "a/gone-GGUF", ["x-Q8_0.gguf"])
    (folder / "blobs" / "a-x-Q8_0.gguf").unlink()
    assert local.models() == []


def test_main_is_preferred_and_an_older_revision_is_used_where_main_has_nothing(home: Path) -> None:
    folder = cached(home, "a/b-GGUF", ["x-Q8_0.gguf"], OLD)
    assert located("a/b-GGUF") == folder / "snapshots" / OLD / "x-Q8_0.gguf"
    cached(home, "a/b-GGUF", ["x-Q8_0.gguf"])
    assert located("a/b-GGUF") == folder / "snapshots" / MAIN / "x-Q8_0.gguf"


def test_safetensors_are_a_folder_with_the_repository_s_name(home: Path) -> None:
    folder = cached(home, "a/tiny", ["config.json", "model.safetensors", "tokenizer.json"])
    snapshot = folder / "snapshots" / MAIN
    assert located("a/tiny") == located("tiny") == snapshot
    assert local.title(snapshot) == "tiny"
    (served,) = find_models([snapshot])
    assert served.name == "tiny" and "a/tiny" in served.aliases


def test_lm_studio_and_its_older_folder(home: Path) -> None:
    for number, folder in enumerate((".lmstudio", ".cache/lm-studio")):
        model = home / folder / f"models/p{number}/gemma-3-1b-it-GGUF/gemma-3-1b-it-Q4_K_M.gguf"
        model.parent.mkdir(parents=True)
        model.write_bytes(b"GGUF")
    assert located("p1/gemma-3-1b-it-GGUF:Q4_K_M") == model
    # The same files by another publisher than the short name's.
    assert located("gemma3:1b") == home / ".lmstudio/models/p0/gemma-3-1b-it-GGUF/gemma-3-1b-it-Q4_K_M.gguf"
    moved = home / "elsewhere/models/p2/b/c.gguf"
    moved.parent.mkdir(parents=True)
    moved.write_bytes(b"GGUF")
    (home / ".lmstudio-home-pointer").write_text(str(home / "elsewhere"))
    assert located("p2/b") == located("c") == moved


def test_ollama_s_blobs_are_read_in_place(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_ollama(home, "registry.ollama.ai/library/gemma3/1b", {"model": "1" * 64, "template": "2" * 64})
    with_ollama(home, "registry.ollama.ai/someone/own/latest", {"model": "3" * 64, "projector": "4" * 64})
    with_ollama(home, "hf.co/a/b-GGUF/Q4_K_M", {"model": "5" * 64})
    blobs = home / ".ollama/models/blobs"
    assert located("gemma3:1b") == blobs / f"sha256-{'1' * 64}"
    assert located("someone/own") == located("someone/own:latest") == blobs / f"sha256-{'3' * 64}"
    assert located("hf.co/a/b-GGUF:Q4_K_M") == blobs / f"sha256-{'5' * 64}"
    own = next(each for each in local.models() if each.repo == "someone/own")
    assert own.mmproj == blobs / f"sha256-{'4' * 64}" and local.title(own.path) == "someone/own:latest"
    (blobs / f"sha256-{'1' * 64}").unlink()
    assert located("gemma3:1b") is None
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "nothing"))
    assert local.models() == []


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 200_000, "[]", '{"layers": 3}', '{"layers": [{"digest": 1}]}'], ids=len
)
def test_a_broken_manifest_is_left_out(home: Path, text: str) -> None:
    path = home / ".ollama/models/manifests/registry.ollama.ai/library/x/latest"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert local.models() == []


def test_a_manifest_names_no_file_outside_of_the_blobs(home: Path) -> None:
    (home / "secret").write_bytes(b"GGUF")
    with_ollama(home, "registry.ollama.ai/library/x/latest", {"model": "1" * 64})
    path = home / ".ollama/models/manifests/registry.ollama.ai/library/x/latest"
    path.write_text(path.read_text().replace(f"sha256:{'1' * 64}", "../../../secret"))
    assert local.models() == []


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({}, "{home}/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"HF_HOME": "/y"}, "/y/hub"),
        ({"HF_HOME": "/y", "HF_HUB_CACHE": "~/z"}, "{home}/z"),
        ({"HUGGINGFACE_HUB_CACHE": "/old"}, "/old"),
    ],
)
def test_the_cache_is_where_huggingface_hub_has_it(
    home: Path, variables: dict[str, str], folder: str
) -> None:
    assert str(local.hub_cache(variables)) == folder.format(home=home)


def test_a_path_that_exists_always_wins(home: Path) -> None:
    cached(home, "ggml-org/gemma-3-4b-it-GGUF", ["m-Q4_K_M.gguf"])
    (home / "gemma3").mkdir()
    assert find("gemma3") == Path("gemma3")
    assert find(Path("gemma3:4b")) == Path("gemma3:4b"), "a Path is never a name"


def test_a_name_that_is_not_here_says_how_to_get_it(home: Path) -> None:
    with pytest.raises(MissingModelError) as caught:
        olivine.load("gemma3:1b")
    assert str(caught.value) == (
        "gemma3:1b: is not on this machine: olivine pull gemma3:1b downloads it "
        "(ggml-org/gemma-3-1b-it-GGUF, about 0.8 GB)"
    )
    with pytest.raises(MissingModelError, match="olivine pull a/b downloads it"):
        olivine.open_checkpoint("a/b")


def test_a_wrong_name_gets_the_nearest_and_what_fits(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(home, "a/xyzzz-GGUF", ["x-Q8_0.gguf"])
    for text, free, told in (
        ("gema3", 8e9, "nearest: gemma3 (3.3 GB), gemma4 (6.3 GB), gemma3:4b (3.3 GB)"),
        (
            "gemma3:2b",
            4e9,
            "nearest: gemma3:27b (17.4 GB, too large for this machine), gemma3:12b (8.2 GB, too",
        ),
        (
            "phi4:14",
            1.5e9,
            "what fits the 1.5 GB of free memory: qwen2.5:1.5b, qwen2.5-coder:1.5b, gemma3:1b",
        ),
        ("xyzzz-GGU", 4e9, "nearest: a/xyzzz-GGUF:Q8_0 (on this machine)"),
        ("plugh", 1e6, "and no model of that name; all names: olivine list --available"),
    ):
        monkeypatch.setattr("olivine.hub.fit.free_memory", lambda device="cpu", free=free: int(free))
        with pytest.raises(CheckpointError) as caught:
            find(text)
        assert told in str(caught.value)
        assert "there is no such file or folder, and no model of that name" in str(caught.value)


def test_ids_tell_files_of_one_name_in_two_folders_apart(home: Path) -> None:
    cached(home, "a/b", ["it/x-Q8_0.gguf", "pt/x-Q8_0.gguf", "F16/y.gguf", "BF16/y.gguf"])
    found = local.models()
    assert len({each.id for each in found}) == 4
    for each in found:
        assert located(each.id) == each.path, each.id


def test_a_model_of_an_older_revision_stays_beside_one_of_the_newest(home: Path) -> None:
    folder = cached(home, "a/b-GGUF", ["x-Q4_K_M.gguf", "x-Q8_0.gguf"], OLD)
    cached(home, "a/b-GGUF", ["x-Q8_0.gguf"])
    assert located("a/b-GGUF:Q4_K_M") == folder / "snapshots" / OLD / "x-Q4_K_M.gguf"
    assert located("a/b-GGUF:Q8_0") == folder / "snapshots" / MAIN / "x-Q8_0.gguf"
    assert len(local.models()) == 2
