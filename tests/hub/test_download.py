"""Downloads with the real client from a hub on this machine, and all that can go wrong."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

import olivine
from hub.stand_in import Hub, Repository
from olivine.errors import DownloadError
from olivine.hub import download, local, remote, removal
from olivine.hub.names import Name, parse

DATA = bytes(range(256)) * 12_000  # 3 MB: several reports of a megabyte


def named(text: str) -> Name:
    name = parse(text)
    assert name is not None
    return name


def fetched(text: str = "a/b-GGUF", **options: Any) -> Path:
    return download.pull(named(text), **options)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client waits before it tries again."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)


def blobs(tmp_path: Path) -> dict[str, int]:
    found = (tmp_path / "cache").glob("models--*/blobs/*")
    return {path.name[64:] or "whole": path.stat().st_size for path in found}


def test_only_what_is_needed_is_downloaded(hub: Hub, tmp_path: Path) -> None:
    hub.add(
        "a/b-GGUF", {"README.md": b"!", "x-Q4_K_M.gguf": DATA, "x-Q8_0.gguf": b"8", "mmproj-f16.gguf": b"m"}
    )
    told: list[tuple[str, str, int]] = []
    path = fetched(report=lambda file, stage, done: told.append((file.path, stage, done)))
    assert path.read_bytes() == DATA and path == local.models()[0].path
    assert [*hub.sent] == ["x-Q4_K_M.gguf", "mmproj-f16.gguf"]
    own = [(stage, done) for name, stage, done in told if name == "x-Q4_K_M.gguf"]
    assert own[0] == ("download", 0) and own[-1] == ("download", len(DATA))
    assert [done for stage, done in own if stage == "download"] == sorted(
        done for s, done in own if s == "download"
    )
    assert len(own) > 6 and ("check", len(DATA)) in own
    # huggingface_hub itself finds it, without a network.
    cached = huggingface_hub.try_to_load_from_cache("a/b-GGUF", "x-Q4_K_M.gguf", tmp_path / "cache")
    assert cached == str(path)


def test_what_is_here_is_not_downloaded_again(hub: Hub) -> None:
    hub.add("a/b-GGUF", {"x-Q4_K_M.gguf": DATA})
    assert fetched() == fetched()
    assert len(hub.downloads()) == 1
    hub.add("a/b-GGUF", {"x-Q4_K_M.gguf": DATA, "README.md": b"new"}, commit="2" * 40)
    assert fetched().parent.name == "2" * 40 and len(hub.downloads()) == 1, "another commit, the same file"


def test_safetensors_come_with_their_settings(hub: Hub) -> None:
    small = {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "README.md": b"!",
        "original/model.safetensors": b"x",
    }
    hub.add("a/tiny", {**small, "model.safetensors": DATA, "consolidated.safetensors": DATA})
    folder = fetched("a/tiny")
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert local.models()[0].path == folder


def test_a_cut_connection_is_continued(hub: Hub) -> None:
    hub.add("a/b-GGUF", {"x-Q4_K_M.gguf": DATA})
    hub.cut_after = [1_500_000, 900_000]
    assert fetched().read_bytes() == DATA
    ranges = [headers.get("range") for method, path, headers in hub.asked if path.startswith("/cdn/")]
    assert ranges[0] is None and ranges[1] == f"bytes={1 << 20}-" and len(ranges) == 3


def test_an_interrupted_download_goes_on_later(hub: Hub, tmp_path: Path) -> None:
    hub.add("a/b-GGUF", {"x-Q4_K_M.gguf": DATA})

    def interrupt(file: remote.RemoteFile, stage: str, done: int) -> None:
        if done > 2_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetched(report=interrupt)
    assert blobs(tmp_path) == {".incomplete": 2 << 20}, "Ctrl-C keeps what is there"
    assert local.models() == [] and remote.look_up(named("a/b-GGUF")).missing_bytes == len(DATA) - (2 << 20)
    assert fetched().read_bytes() == DATA
    assert hub.asked[-2][2]["range"] == f"bytes={2 << 20}-"
    assert blobs(tmp_path) == {"whole": len(DATA)}


def test_a_server_without_ranges_begins_anew(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = hub.add("a/b-GGUF", {"x-Q4_K_M.gguf": DATA})
    part = remote.part_of(tmp_path / "cache/models--a--b-GGUF/blobs" / repository.blob("x-Q4_K_M.gguf"))
    part.parent.mkdir(parents=True)
    part.write_bytes(DATA[:1000])
    hub.without_ranges = True
    assert fetched().read_bytes() == DATA


def test_a_wrong_hash_is_an_error_and_the_file_is_removed(hub: Hub, tmp_path: Path) -> None:
    hub.add("a/b-GGUF", {"x-Q4_K_M.gguf": DATA})
    hub.altered = True
    with pytest.raises(
        DownloadError, match=r"x-Q4_K_M.gguf came with a wrong hash .* so it was removed"
    ) as caught:
        fetched()
    assert caught.value.code == "wrong_hash"
    assert blobs(tmp_path) == {} and local.models() == []
    hub.altered = False
    assert fetched().read_bytes() == DATA


def test_small_files_are_checked_too(hub: Hub) -> None:
    repository = hub.add("a/tiny", {"config.json": b"{}", "model.safetensors": b"x"})
    repository.blob = lambda path: "3" * (64 if path.endswith("tensors") else 40)  # type: ignore[method-assign]
    with pytest.raises(DownloadError, match=r"config\.json came with a wrong hash"):
        fetched("a/tiny")


def test_a_gated_repository_says_where_to_accept_and_how_to_log_in(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("a/b-GGUF", {"x-Q4_K_M.gguf": DATA}, gated=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/no/token")
    with pytest.raises(DownloadError) as caught:
        fetched()
    assert caught.value.code == "gated"
    assert "https://huggingface.co/a/b-GGUF" in str(caught.value) and "HF_TOKEN" in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    with pytest.raises(DownloadError, match="your token has no access to a/b-GGUF yet"):
        fetched()
    monkeypatch.setenv("HF_TOKEN", "hf_accepted")
    assert fetched().read_bytes() == DATA
    sent = [headers for method, path, headers in hub.asked if path.startswith("/cdn/")]
    assert sent and not any("authorization" in headers for headers in sent), "no token for another host"


def test_a_rate_limit_says_when_to_come_back(hub: Hub) -> None:
    hub.limited = True
    with pytest.raises(DownloadError, match="try again in 7 seconds") as caught:
        fetched()
    assert caught.value.code == "rate_limited"


def test_a_repository_that_is_not_there(hub: Hub) -> None:
    with pytest.raises(DownloadError, match=r"there is no repository nobody/gemma3 .*gemma3") as caught:
        fetched("nobody/gemma3")
    assert caught.value.code == "not_found"


def test_a_hub_that_cannot_be_reached(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1:9 cannot be reached") as caught:
        fetched()
    assert caught.value.code == "unreachable"


def test_offline_nothing_is_asked(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("a/b-GGUF", {"x-Q4_K_M.gguf": DATA})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE") as caught:
        fetched()
    assert caught.value.code == "offline" and hub.asked == []


def test_a_disk_without_room_is_refused_before_anything_is_downloaded(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("a/b-GGUF", {"x-Q4_K_M.gguf": DATA})
    monkeypatch.setattr(download, "free_disk", lambda folder: 1_000_000)
    with pytest.raises(
        DownloadError, match=r"needs 0.00 GB on the disk, and 0.00 GB is free in .*cache"
    ) as caught:
        fetched()
    assert caught.value.code == "disk_full" and hub.downloads() == []


def test_a_disk_that_fills_up_keeps_what_is_there(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("a/b-GGUF", {"x-Q4_K_M.gguf": DATA})

    def full(self: Any, data: bytes) -> int:
        if self._file.tell():
            raise OSError(errno.ENOSPC, "No space left on device")
        return int(self._file.write(data))

    with monkeypatch.context() as patched:
        patched.setattr(download._Counted, "write", full)
        with pytest.raises(DownloadError, match="the disk is full") as caught:
            fetched()
    assert caught.value.code == "disk_full" and blobs(tmp_path) == {".incomplete": 1 << 20}
    assert fetched().read_bytes() == DATA


def test_load_downloads_only_when_it_is_told_to(hub: Hub) -> None:
    hub.add("ggml-org/gemma-3-1b-it-GGUF", {"m-Q4_K_M.gguf": olivine.box.FILE.read_bytes()})
    with pytest.raises(olivine.CheckpointError, match="olivine pull gemma3:1b"):
        olivine.load("gemma3:1b")
    assert hub.asked == []
    with olivine.load("gemma3:1b", download=True, threads=1, sequences=1) as llm:
        assert llm.generate("Once", max_tokens=1).usage.completion == 1
    with olivine.load("gemma3:1b", threads=1, sequences=1) as llm:
        assert "gemma" in repr(llm) or "m-Q4_K_M" in repr(llm)


# ---- deleting


def test_a_model_is_deleted_and_another_one_of_its_repository_stays(hub: Hub, tmp_path: Path) -> None:
    hub.add("a/b-GGUF", {"x-Q4_K_M.gguf": DATA, "x-Q8_0.gguf": b"8" * 50, "mmproj-f16.gguf": b"m" * 70})
    fetched()
    kept = fetched("a/b-GGUF:Q8_0")
    four = next(each for each in local.models() if each.tag == "Q4_K_M")
    assert removal.remove(four) == len(DATA)
    assert [each.tag for each in local.models()] == ["Q8_0"] and kept.read_bytes() == b"8" * 50
    assert (kept.parent / "mmproj-f16.gguf").read_bytes() == b"m" * 70, "the other one uses it"
    assert removal.remove(local.models()[0]) == 120 + len(b"1" * 40)
    assert local.models() == [] and not [*(tmp_path / "cache").glob("models--*")]


def test_what_two_revisions_share_goes_with_both(hub: Hub, tmp_path: Path) -> None:
    hub.add("a/tiny", {"config.json": b"{}", "model.safetensors": DATA})
    fetched("a/tiny")
    hub.add("a/tiny", {"config.json": b"{ }", "model.safetensors": DATA}, commit="2" * 40)
    fetched("a/tiny")
    (model,) = local.models()
    assert removal.remove(model) >= len(DATA) and not [*(tmp_path / "cache").glob("models--*")]


def test_of_two_models_of_one_type_only_the_named_one_is_deleted(hub: Hub) -> None:
    hub.add("a/b", {"foo-Q8_0.gguf": DATA, "bar-Q8_0.gguf": b"8" * 50, "mmproj-f16.gguf": b"m" * 70})
    foo, bar = fetched("hf.co/a/b/foo-Q8_0.gguf"), fetched("hf.co/a/b/bar-Q8_0.gguf")
    known = {each.id: each for each in local.models()}
    assert {name: each.path for name, each in known.items()} == {"a/b:foo-Q8_0": foo, "a/b:bar-Q8_0": bar}
    for name, model in known.items():
        assert local.locate(named(name)) == model, "an id always finds its model"
    assert removal.remove(known["a/b:foo-Q8_0"]) == len(DATA)
    assert not foo.exists() and bar.read_bytes() == b"8" * 50
    assert (bar.parent / "mmproj-f16.gguf").exists(), "the other one uses it"
    (left,) = local.models()
    assert left.id == "a/b:Q8_0" and removal.remove(left) > 50 and local.models() == []


@pytest.mark.parametrize("told", ["../../../victim", "", "a" * 63, "A" * 64, "a" * 64 + "\n"])
def test_what_a_hub_calls_a_file_or_a_commit_is_no_path(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    hub.add("a/c-GGUF", {"x-Q8_0.gguf": DATA}, commit=told)
    with pytest.raises(DownloadError, match="no commit"):
        fetched("a/c-GGUF")
    monkeypatch.setattr(Repository, "blob", lambda repository, path: told)
    hub.add("a/b-GGUF", {"x-Q8_0.gguf": DATA})
    with pytest.raises(DownloadError, match="no hash"):
        fetched("a/b-GGUF")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
