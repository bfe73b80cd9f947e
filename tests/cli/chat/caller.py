"""`python caller.py chat MODEL --tools FILE`: `olivine chat` whose model calls add(1, 2), then answers."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from olivine import LLM, Message
from olivine.chat.messages import ToolCall
from olivine.cli.main import main
from olivine.engine import Timings, Usage
from olivine.reply import Delta, Reply


def scripted(self: LLM, messages: Sequence[Message], **options: Any) -> Generator[Delta, None, None]:
    last = messages[-1]
    calls = [ToolCall("1", "add", '{"a": 1, "b": 2}')] if last.role == "user" else []
    text = "" if calls else f"It gave: {last.text}"
    message = Message("assistant", text, tool_calls=calls)
    yield Delta(text, tokens=[1], reply=Reply(message, "stop", Usage(completion=1), Timings(), 0, [1]))


if __name__ == "__main__":
    LLM.stream_chat = scripted  # type: ignore[method-assign, assignment]
    main()
