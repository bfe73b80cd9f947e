"""What a name means: a short name, or a repository on Hugging Face. Pure: neither disk nor network."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from olivine.errors import RequestError, printable
from olivine.hub.aliases import Alias, aliases, defaults

HOSTS = ("huggingface.co/", "www.huggingface.co/", "hf.co/")
MODEL_FILES = (".gguf", ".safetensors", ".bin")
LATEST = "latest"  # the tag that Ollama adds where there is none
_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
_PLAIN = re.compile(rf"(?P<family>{_WORD})(?::(?P<tag>{_TAG}))?")
_REPO = re.compile(rf"(?P<repo>{_WORD}/{_WORD})(?::(?P<tag>{_TAG}))?")
_FILE = re.compile(rf"(?P<repo>{_WORD}/{_WORD})/(?:(?:resolve|blob|tree)/(?P<revision>[^/]+)/?)?(?P<file>.*)")


@dataclass(frozen=True)
class Name:
    """A name as it was typed, and what it means. Without `repo` it is a word that only this disk may know."""

    text: str
    repo: str = ""  # publisher/repository
    tag: str = ""  # the quantization that is asked for
    file: str = ""  # the file that is asked for
    alias: Alias | None = None


def parse(text: str) -> Name | None:
    """The meaning of a name; None where it can only be a path or a text. An address of another revision than
    main is a `RequestError`."""
    rest, hosted = text, False
    for scheme in ("https://", "http://", "hf://"):
        rest, hosted = rest.removeprefix(scheme), hosted or rest.startswith(scheme)
    for host in HOSTS:
        rest, hosted = rest.removeprefix(host), hosted or rest.startswith(host)
    if not hosted and is_pathlike(text):
        return None
    if hosted:
        rest = rest.partition("?")[0].rstrip("/")
    if found := _REPO.fullmatch(rest):
        return Name(text, found["repo"], _tag(found["tag"]))
    if hosted:
        return _of_address(text, rest)
    if found := _PLAIN.fullmatch(text):
        return _plain(text, found["family"].lower(), _tag(found["tag"]))
    return None


def _of_address(text: str, rest: str) -> Name | None:
    """A file of a repository, or a repository with its branch, by the address of its page."""
    named = _FILE.fullmatch(rest)
    if named is None:
        return None
    if named["revision"] not in (None, "main"):
        without = f"hf.co/{named['repo']}" + (f"/{named['file']}" if named["file"] else "")
        raise RequestError(
            f"{printable(text)} names the revision {printable(named['revision'])}, and only main is read: "
            f"{printable(without)}"
        )
    return Name(text, named["repo"], file=named["file"])


def is_pathlike(text: str) -> bool:
    """Whether a text that names no file was meant to: by its beginning or its end."""
    begins = text.startswith(("./", "../", "~")) or os.path.isabs(text)
    return begins or text.lower().endswith(MODEL_FILES)


def nearest(text: str, more: Iterable[str] = ()) -> list[str]:
    """The known names that are most like this one, at most three; `more` are known beside the short ones."""
    known = {name.lower(): name for name in [*more, *defaults(), *aliases()]}
    wanted = text.lower()
    found = difflib.get_close_matches(wanted, known, 3, 0.6)
    if not found:  # gemma → gemma3, gemma-3-1b → gemma3:1b
        letters = re.sub(r"[^a-z]", "", wanted.partition(":")[0])
        found = [name for name in known if len(letters) > 2 and letters.startswith(_family(name))][:3]
    return [known[name] for name in found]


def _family(name: str) -> str:
    """The letters that a short name begins with: gemma of gemma3:1b."""
    found = re.match(r"[a-z]+", name)
    return found[0] if found else name


def _plain(text: str, family: str, tag: str) -> Name:
    """A short name, or one with a quantization (gemma3:4b-q8_0), or a word that is not known here."""
    size = tag.lower()
    alias = aliases().get(f"{family}:{size}") if size else defaults().get(family)
    if alias is not None:
        return Name(text, alias.repo, alias.type, alias=alias)
    head, dash, kind = size.rpartition("-")
    alias = aliases().get(f"{family}:{head}") if dash else None
    if alias is not None:
        return Name(text, alias.repo, kind.upper(), alias=alias)
    return Name(text, tag=tag)


def _tag(tag: str | None) -> str:
    return "" if tag is None or tag.lower() == LATEST else tag
