"""Server-sent events as bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring
from typing import Any

# JSON as streams send it. One encoder for all: json.dumps would make one for each call.
dumps: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def quoted(text: str) -> bytes:
    """A text as JSON."""
    return encode_basestring(text).encode()


def named_event(data: Mapping[str, Any]) -> bytes:
    """An event whose name is the type of its data, as Anthropic's streams and OpenAI's responses have it."""
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), dumps(data).encode())
