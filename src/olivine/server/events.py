"""Server-sent events as bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def quoted(text: str) -> bytes:
    """A text as JSON."""
    return encode_basestring(text).encode()


def named_event(data: Mapping[str, Any]) -> bytes:
    """An event whose name is the type of its data, as Anthropic's streams and OpenAI's responses have it."""
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), _encode(data).encode())
