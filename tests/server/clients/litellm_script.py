"""Run by test_litellm.py with litellm's own interpreter: asks the server at argv[1], prints JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched

import litellm

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
DAY = {
    "type": "object",
    "properties": {"weather": {"enum": ["rain", "sun"]}},
    "required": ["weather"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
MESSAGES = [{"role": "user", "content": "Tell me a story about a fox."}]


def main(url: str) -> dict[str, Any]:
    server = {"api_base": f"{url}/v1", "api_key": "none", "num_retries": 0}

    def ask(**options: Any) -> Any:
        given = {"model": "openai/olivine-mini", "messages": MESSAGES, "max_tokens": 12, "seed": 7, **server}
        return litellm.completion(**{**given, **options})

    whole = ask()
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    choice = {"type": "function", "function": {"name": "weather"}}
    message = ask(tools=TOOLS, tool_choice=choice, max_tokens=150).choices[0].message
    (call,) = message.tool_calls
    history = [*MESSAGES, message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    after = ask(messages=history, tools=TOOLS, tool_choice="none")
    form = {"type": "json_schema", "json_schema": {"name": "day", "strict": True, "schema": DAY}}
    vectors = litellm.embedding(
        model="openai/olivine-mini", input=["a fox"], encoding_format="float", **server
    )
    return {
        "text": whole.choices[0].message.content,
        "finish": whole.choices[0].finish_reason,
        "completion_tokens": whole.usage.completion_tokens,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
        "streamed_tokens": next(
            chunk.usage.completion_tokens for chunk in chunks if getattr(chunk, "usage", None)
        ),
        "call": {"name": call.function.name, "arguments": call.function.arguments},
        "after_call": after.choices[0].message.content,
        "json": ask(response_format=form, max_tokens=150).choices[0].message.content,
        "embedding": vectors.data[0]["embedding"],
        "errors": {
            "long": failure(lambda: ask(messages=[{"role": "user", "content": "fox " * 9000}])),
            "model": failure(lambda: ask(model="openai/gpt-9")),
            "bad": failure(lambda: ask(temperature=-1)),
        },
    }


def failure(work: Callable[[], Any]) -> str:
    try:
        work()
    except Exception as error:
        return type(error).__name__
    return "none"


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
