"""Names: what they mean, and what is offered for those that mean nothing."""

from __future__ import annotations

import pytest

from olivine.errors import RequestError
from olivine.hub.aliases import aliases, defaults
from olivine.hub.names import nearest, parse

GEMMA = "ggml-org/gemma-3-4b-it-GGUF"


@pytest.mark.parametrize(
    ("text", "repo", "tag", "file"),
    [
        ("gemma3", GEMMA, "Q4_K_M", ""),
        ("gemma3:latest", GEMMA, "Q4_K_M", ""),
        ("Gemma3:4B", GEMMA, "Q4_K_M", ""),
        ("gemma3:4b-q8_0", GEMMA, "Q8_0", ""),
        ("google/gemma-3-1b-it", "google/gemma-3-1b-it", "", ""),
        ("a/b-GGUF:Q4_K_M", "a/b-GGUF", "Q4_K_M", ""),
        ("a/b-GGUF:latest", "a/b-GGUF", "", ""),
        ("hf.co/a/b-GGUF:Q8_0", "a/b-GGUF", "Q8_0", ""),
        ("hf://a/b", "a/b", "", ""),
        ("https://huggingface.co/a/b/", "a/b", "", ""),
        ("https://huggingface.co/a/b/tree/main", "a/b", "", ""),
        ("https://huggingface.co/a/b/resolve/main/c.gguf?download=true", "a/b", "", "c.gguf"),
        ("https://huggingface.co/a/b/blob/main/Q4/c.gguf", "a/b", "", "Q4/c.gguf"),
        ("my-model", "", "", ""),
    ],
)
def test_a_name_means(text: str, repo: str, tag: str, file: str) -> None:
    name = parse(text)
    assert name is not None and (name.repo, name.tag, name.file) == (repo, tag, file)


@pytest.mark.parametrize(
    "text",
    [
        "https://huggingface.co/a/b/resolve/v1.0/c.gguf",
        "hf.co/a/b/tree/v1.0",
        "hf.co/a/b/blob/refs%2Fpr%2F1/c.gguf",
    ],
)
def test_a_revision_other_than_main_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match=r"only main is read: hf\.co/a/b"):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "/a/b",
        "./a",
        "../a/b",
        "~/a",
        "a/b.gguf",
        "model.bin",
        "Tell me more",
        "a/b/c",
        "",
        "a:b:c",
        "a/b\n",
        "-x",
    ],
)
def test_a_path_or_a_text_is_no_name(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    ("text", "first"),
    [("gema3", "gemma3"), ("gemma3:2b", "gemma3:27b"), ("gemma-3-1b", "gemma3:1b"), ("llama3", "llama3.2")],
)
def test_a_wrong_name_gets_the_nearest(text: str, first: str) -> None:
    found = nearest(text)
    assert found[0] == first and len(found) <= 3
    assert nearest("xyzzy") == []


def test_the_names_on_this_disk_are_near_too() -> None:
    assert nearest("mein-modell", ["mein-model"]) == ["mein-model"]


def test_every_family_has_one_default_and_every_alias_is_whole() -> None:
    families = [alias.family for alias in aliases().values()]
    assert [family for family in families if family not in defaults()] == []
    assert len([alias for alias in aliases().values() if alias.default]) == len(set(families))
    for alias in aliases().values():
        name = parse(alias.name)
        assert name is not None and name.alias is alias and alias.repo.count("/") == 1
        assert 0 < alias.bytes < 1e11 and 0 < alias.active <= 1 and alias.context >= 2048 and alias.license
        assert set(alias.can) <= {"vision", "audio", "tools", "thinking"}
        assert bool(alias.tower_bytes) == bool({"vision", "audio"} & set(alias.can))


def test_a_window_bounds_the_cache() -> None:
    alias = aliases()["gemma3:4b"]
    # 5 layers keep all tokens, 29 keep 1,024; K and V of 4 heads of 256 each, 2 bytes an element.
    assert alias.cache_bytes(8192) == 2 * 2048 * (5 * 8192 + 29 * 1024)
    assert alias.cache_bytes(512) == 2 * 2048 * 34 * 512
