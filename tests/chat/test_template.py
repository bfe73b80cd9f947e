"""Templates against the published ones, rendered by transformers. Skipped where the public data is absent."""

from __future__ import annotations

import random
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from chat.conversations import conversation, tools
from olivine.chat import builtin
from olivine.chat.messages import Message, tools_of
from olivine.chat.template import ChatTemplate
from olivine.errors import RequestError
from tokenizer.samples import data_file

COUNT = 1200
REFUSES_MOST = 4000  # conversations, of which enough remain
TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}
# Template, and what its conversations may hold.
PUBLISHED = {
    "google-gemma-3-it": {"calls": False, "parts": True, "alternate": True},
    "google-gemma-4-31B-it": {"parts": True},
    "google-gemma-4-31B-it-interleaved": {"parts": True},
    "Qwen-Qwen3-0.6B": {},
    "Qwen-Qwen2.5-7B-Instruct": {},
    "meta-llama-Llama-3.2-3B-Instruct": {},
}
OURS = {"gemma3": "google-gemma-3-it", "gemma4": "google-gemma-4-31B-it", "qwen3": "Qwen-Qwen3-0.6B"}


def cases(kind: dict[str, bool], seed: int, count: int = COUNT) -> Any:
    rng = random.Random(seed)
    for _ in range(count):
        variables: dict[str, Any] = {"date_string": "26 Jul 2024"}
        if rng.random() < 0.6:
            variables["enable_thinking"] = rng.random() < 0.5
        yield conversation(rng, **kind), tools(rng), rng.random() < 0.7, variables


def oracle(source: str, messages: Any, given: Any, prompt: bool, variables: Any) -> str | None:
    try:
        rendered, _ = render_jinja_template(
            [messages], given, chat_template=source, add_generation_prompt=prompt, **TOKENS, **variables
        )
    except Exception:
        return None
    return rendered[0]


def ours(template: ChatTemplate, messages: Any, given: Any, prompt: bool, variables: Any) -> str | None:
    try:
        return template.render(messages, given, variables, add_generation_prompt=prompt)
    except RequestError:
        return None


# One conversation in so many.
SHARES = [12, pytest.param(1, marks=pytest.mark.exhaustive)]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_templates_render_as_transformers_renders_them(name: str, share: int) -> None:
    source = data_file(f"templates/{name}.jinja").read_text()
    template = ChatTemplate(source, TOKENS)
    rendered = 0
    count = REFUSES_MOST if name.startswith("meta") else COUNT
    for messages, given, prompt, variables in cases(PUBLISHED[name], 1, count // share):
        expected = oracle(source, messages, given, prompt, variables)
        # transformers gives thoughts their other names; so does Message.for_template.
        named = [
            {"thinking": m["reasoning_content"], **m} if "reasoning_content" in m else m for m in messages
        ]
        assert ours(template, named, given, prompt, variables) == expected
        rendered += expected is not None
    assert rendered >= 1000 // share, "too many of the conversations are refused"


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", OURS)
def test_built_in_templates_render_as_the_published_ones(name: str, share: int) -> None:
    source = data_file(f"templates/{OURS[name]}.jinja").read_text()
    template = ChatTemplate(builtin.source(name), TOKENS)
    rendered = 0
    for messages, given, prompt, variables in cases(PUBLISHED[OURS[name]], 2, COUNT // share):
        expected = oracle(source, messages, given, prompt, variables)
        assert ours(template, messages, given, prompt, variables) == expected
        rendered += expected is not None
    assert rendered >= 1000 // share


@pytest.mark.parametrize("name", PUBLISHED)
def test_declarations_stand_in_the_prompt_as_they_were_given(name: str) -> None:
    source = data_file(f"templates/{name}.jinja").read_text()
    if "tools" not in source:
        pytest.skip("it has no place for tools")
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    given = [
        {"type": "function", "function": {"name": "weather", "parameters": schema}},
        {"type": "function", "function": {"parameters": schema, "strict": True, "name": "clock"}},
    ]
    variables = {"date_string": "26 Jul 2024"}
    expected = oracle(source, [{"role": "user", "content": "Hi"}], given, True, variables)
    prompt = ChatTemplate(source, TOKENS).prompt(
        [Message("user", "Hi")], tools_of(given), variables=variables
    )
    assert prompt.text == expected
