"""Answers that begin with a text of the caller's, as transformers' continue_final_message has them."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from chat.conversations import conversation, text, tools
from chat.test_template import OURS, PUBLISHED, TOKENS
from olivine.chat import builtin
from olivine.chat.messages import Message, messages_of
from olivine.chat.parsers import FORMATS
from olivine.chat.prefix import Prefix
from olivine.chat.template import ChatTemplate
from olivine.chat.thinking import Thinking
from olivine.errors import RequestError
from tokenizer.samples import data_file

COUNT = 100
CHATML = builtin.source("chatml")


def oracle(source: str, messages: Any, given: Any, variables: Any, field: str | bool = True) -> str | None:
    try:
        rendered, _ = render_jinja_template(
            [messages], given, chat_template=source, continue_final_message=field, **TOKENS, **variables
        )
    except Exception:
        return None
    return rendered[0]


@cache
def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source, TOKENS, ["<|im_end|>", "<eos>"])


def ours(source: str, messages: Any, given: Any, variables: Any) -> str | None:
    template = compiled(source)
    *before, last = messages_of(messages)
    prefix = Prefix.of(last, template.format)
    assert prefix is not None
    try:
        return template.continued(before, given or [], Thinking(), prefix, variables).text
    except RequestError:
        return None


def sources() -> dict[str, tuple[str, str, dict[str, bool]]]:
    """Our source, the published one and its conversations, by name."""
    found = {name: (name, name, kind) for name, kind in PUBLISHED.items()}
    return found | {name: (name, theirs, PUBLISHED[theirs]) for name, theirs in OURS.items()}


@pytest.mark.parametrize("name", sources())
def test_a_text_to_be_continued_stands_as_transformers_puts_it(name: str) -> None:
    own, theirs, kind = sources()[name]
    published = data_file(f"templates/{theirs}.jinja").read_text()
    source = builtin.source(own) if own in OURS else published
    rng = random.Random(3)
    rendered = 0
    for _ in range(COUNT):
        messages = conversation(rng, **{**kind, "parts": False, "calls": False})
        while messages[-1]["role"] != "user":
            messages.pop()
        content = text(rng) or "Sure"
        messages.append({"role": "assistant", "content": content})
        given = tools(rng) if own != "google-gemma-3-it" and own != "gemma3" else None
        variables = {"date_string": "26 Jul 2024", "enable_thinking": rng.random() < 0.5}
        expected = oracle(published, messages, given, variables)
        if expected is not None and content.strip():
            assert ours(source, messages, given, variables) == expected
            rendered += 1
    assert rendered >= 40


@pytest.mark.parametrize("source", ["published", "built-in"])
def test_a_thought_to_be_continued_stands_as_transformers_puts_it(source: str) -> None:
    published = data_file("templates/Qwen-Qwen3-0.6B.jinja").read_text()
    used = published if source == "published" else builtin.source("qwen3")
    rng = random.Random(4)
    for _ in range(60):
        thought = (text(rng) or "Hm").strip("\n") or "Hm"
        messages = [{"role": "user", "content": text(rng)}]
        begun = {"role": "assistant", "content": "", "reasoning_content": thought}
        expected = oracle(published, [*messages, begun], None, {}, "reasoning_content")
        assert ours(used, [*messages, begun], None, {}) == expected
        both = {**begun, "content": "So it is"}
        assert ours(used, [*messages, both], None, {}) == oracle(published, [*messages, both], None, {})


@pytest.mark.parametrize(
    "name",
    ["google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved", "gemma4", "Qwen-Qwen3-0.6B", "qwen3"],
)
def test_thoughts_that_a_template_leaves_out_stand_as_the_model_writes_them(name: str) -> None:
    source = builtin.source(name) if name in OURS else data_file(f"templates/{name}.jinja").read_text()
    opens, between = (
        ("<think>\n", "\n</think>\n\n") if "wen" in name else ("<|channel>thought\n", "\n<channel|>")
    )
    question = {"role": "user", "content": "Why?"}
    thought = {"role": "assistant", "reasoning_content": "First I", "content": ""}
    found = ours(source, [question, thought], None, {})
    assert found is not None and found.endswith(f"\n{opens}First I")
    assert found.count(opens) == 1
    both = ours(source, [question, {**thought, "content": "Because"}], None, {})
    assert both is not None and both.endswith(f"\n{opens}First I{between}Because")
    spelled = {"role": "assistant", "content": f"{opens}First I"}
    assert ours(source, [question, spelled], None, {}) == found
    closed = {"role": "assistant", "content": f"{opens}First I{between}Because"}
    assert ours(source, [question, closed], None, {}) == both


def test_white_space_at_its_end_is_kept_where_the_template_keeps_it() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well, "}]
    assert (ours(CHATML, messages, None, {}) or "").endswith("<|im_start|>assistant\nWell, ")
    trimming = ours(builtin.source("gemma3"), messages, None, {}) or ""
    assert trimming.endswith("<start_of_turn>model\nWell,")


def test_special_tokens_in_a_prefix_are_text() -> None:
    template = ChatTemplate(CHATML, TOKENS, ["<|im_end|>"])
    prefix = Prefix("a<|im_end|>b<|im_end|>")
    prompt = template.continued([Message("user", "Hi")], [], Thinking(), prefix, {})
    end = prompt.text.index("a<|im_end|>")
    assert prompt.text.endswith("assistant\na<|im_end|>b<|im_end|>")
    assert prompt.literal == {end + 1, end + 12}


@pytest.mark.parametrize(
    "message",
    [
        Message("user", "Hi"),
        Message("assistant", ""),
        Message.of({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}),
    ],
)
def test_what_is_no_prefix(message: Message) -> None:
    assert Prefix.of(message, FORMATS["hermes"]) is None
