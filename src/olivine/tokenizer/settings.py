"""Special tokens from the small JSON files of a Hugging Face folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from olivine.errors import TokenizerError, is_unicode, printable

_LARGEST_FILE = 64 << 20
LARGEST_ID = 1 << 24
NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass
class Settings:
    """Merged from tokenizer_config.json, special_tokens_map.json, added_tokens.json, generation_config.json
    and config.json; the first that says something wins, and the ids that end a reply are collected from
    all."""

    named: dict[str, str] = field(default_factory=dict)  # bos_token, eos_token, pad_token, unk_token
    extra_special: set[str] = field(default_factory=set)
    added: dict[int, AddedToken] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)  # bos_token, … where a file gives an id
    stop_ids: set[int] = field(default_factory=set)
    add_bos: bool | None = None
    add_eos: bool | None = None
    vocab_size: int = 0

    @classmethod
    def read(cls, folder: Path) -> Settings:
        settings = cls()
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            settings._read_names(_json(folder / name), folder / name)
        for text, token_id in _json(folder / "added_tokens.json").items():
            settings.added.setdefault(
                _token_id(token_id, folder / "added_tokens.json", printable(text)),
                AddedToken(text, normalized=False),
            )
        for name in ("generation_config.json", "config.json"):
            settings._read_ids(_json(folder / name), folder / name)
        return settings

    def _read_names(self, data: dict[str, Any], path: Path) -> None:
        for key in NAMES:
            if data.get(key) is not None:
                self.named.setdefault(key, _content(data[key], path, key))
        for key in ("additional_special_tokens", "extra_special_tokens"):
            extra = data.get(key) or []
            if not isinstance(extra, (list, dict)):
                raise TokenizerError(f"{path}: {key}: a list wanted")
            values = extra.values() if isinstance(extra, dict) else extra
            self.extra_special.update(_content(value, path, key) for value in values)
        decoder = data.get("added_tokens_decoder") or {}
        if not isinstance(decoder, dict):
            raise TokenizerError(f"{path}: added_tokens_decoder: an object wanted")
        for key, entry in decoder.items():
            where = f"added_tokens_decoder: {printable(key)}"
            if not key.isascii() or not key.isdigit() or not isinstance(entry, dict):
                raise TokenizerError(f"{path}: {where}: an id and an object wanted")
            flags = {name: entry.get(name, False) for name in ("single_word", "lstrip", "rstrip", "special")}
            flags["normalized"] = entry.get("normalized", not flags["special"])
            if not all(isinstance(flag, bool) for flag in flags.values()):
                raise TokenizerError(f"{path}: {where}: flags must be true or false")
            token_id = _token_id(int(key[:20]), path, where)
            self.added.setdefault(token_id, AddedToken(_content(entry, path, where), **flags))
        for key, attribute in (("add_bos_token", "add_bos"), ("add_eos_token", "add_eos")):
            if isinstance(data.get(key), bool) and getattr(self, attribute) is None:
                setattr(self, attribute, data[key])

    def _read_ids(self, data: dict[str, Any], path: Path) -> None:
        inner = data.get("text_config")
        for source in (data, inner) if isinstance(inner, dict) else (data,):
            for key in NAMES:
                value = source.get(f"{key}_id")
                if value is None:
                    continue
                values = value if isinstance(value, list) else [value]
                ids = [_token_id(item, path, f"{key}_id") for item in values]
                if key == "eos_token":
                    self.stop_ids.update(ids)
                if ids:
                    self.ids.setdefault(key, ids[0])
            if source.get("vocab_size") is not None:
                self.vocab_size = max(self.vocab_size, _token_id(source["vocab_size"], path, "vocab_size"))


def _json(path: Path) -> dict[str, Any]:
    """A JSON object, empty when there is no such file."""
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise TokenizerError(f"{path}: too large")
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise TokenizerError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path}: not JSON: {str(error)[:200]}") from error
    if not isinstance(data, dict):
        raise TokenizerError(f"{path}: a JSON object wanted")
    return data


def _content(value: Any, path: Path, key: str) -> str:
    """A token's text: a string, or an object with `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise TokenizerError(f"{path}: {key}: a token wanted")
    if not is_unicode(text):
        raise TokenizerError(f"{path}: {key}: not valid Unicode")
    return text


def _token_id(value: Any, path: Path, key: str) -> int:
    if type(value) is not int or not 0 <= value < LARGEST_ID:
        raise TokenizerError(f"{path}: {key}: {printable(str(value), 40)} is not a token id")
    return value
