"""Conversations in files: JSON with messages as OpenAI's API has them. And files of the state folder."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from olivine.chat.messages import Media, Message, messages_of
from olivine.errors import RequestError
from olivine.folders import state_folder

LARGEST = 64 << 20  # bytes of a conversation
MANY = 1 << 20  # lists and objects in it


def state_file(name: str) -> Path | None:
    """A file in the state folder that only this user may read; None where there can be none."""
    try:
        path = _made_state_folder() / name
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError:
        return None
    return path


def _made_state_folder() -> Path:
    folder = state_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def save(path: Path, messages: Sequence[Message], model: str) -> None:
    """Writes a conversation: the whole file or nothing of it."""
    told = {"model": model, "messages": [_with_media(message) for message in messages]}
    text = json.dumps(told, ensure_ascii=False, indent=2) + "\n"
    try:
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            # A path that is no UTF-8 becomes an escape of JSON, and is that path again when it is read.
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as out:
                out.write(text)
            os.replace(part, path)
        except BaseException:
            os.unlink(part)
            raise
    except OSError as error:
        raise RequestError(f"{path}: cannot be written: {error.strerror}") from None


def _with_media(message: Message) -> dict[str, Any]:
    """A message with the sources of its media, which templates do not need: the path of each, or what the
    file that it was loaded from had."""
    told = message.as_dict()
    if message.media:
        for part, shown in zip(message.content, told["content"], strict=True):
            if isinstance(part, Media):
                shown[part.kind] = part.source
    return told


def load(path: Path) -> tuple[list[Message], str | None]:
    """The messages of a file, and its model. A list of messages alone will do."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > LARGEST or data.count(b"[") + data.count(b"{") > MANY:
        raise RequestError(f"{path}: is too large to be a conversation")
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise RequestError(f"{path}: is not JSON; /save writes files that can be loaded") from None
    model = None
    if isinstance(value, dict):
        model = value["model"] if isinstance(value.get("model"), str) else None
        value = value.get("messages")
    if not isinstance(value, list):
        raise RequestError(f"{path}: has no list of messages")
    try:
        return messages_of(value) if value else [], model
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from None


def remember(messages: Sequence[Message], model: str) -> None:
    """Saves the last conversation for `--continue`. A failure is ignored, and leaves the one before."""
    with contextlib.suppress(RequestError, OSError):
        save(_made_state_folder() / "last.json", messages, model)


def recall() -> tuple[list[Message], str | None]:
    """The last conversation; an error if there is none."""
    path = state_folder() / "last.json"
    if not path.exists():
        raise RequestError("there is no conversation to continue yet")
    return load(path)


def revise(before: Sequence[Message], after: Sequence[Message], model: str) -> None:
    """Messages were removed from a conversation: `--continue` does not find them any more either.

    `before` are its messages without the system's. Another conversation that is remembered stays.
    """
    with contextlib.suppress(RequestError, OSError):
        if not before or split(recall()[0])[1] != list(before):
            return
        if split(after)[1]:
            remember(after, model)
        else:
            (state_folder() / "last.json").unlink()


def split(messages: Sequence[Message]) -> tuple[str | None, list[Message]]:
    """The system's message at the beginning, and the others."""
    if messages and messages[0].role in ("system", "developer"):
        return messages[0].text, list(messages[1:])
    return None, list(messages)
