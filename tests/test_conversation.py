"""LLM.chat, on small random models with real tokenizers, and on one that answers by the book."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import olivine
from olivine import LLM, Message, Reply, RequestError, conversation
from olivine.conversation import REMEMBERED
from olivine.formats import open_checkpoint
from olivine.reply import Delta
from oracles import real_models, tiny

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": CITY}},
    {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
]
SHAPES = ("tiny-qwen3", "tiny-gemma3", "tiny-llama")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {shape: tiny.write(shape, "Q8_0", folder) for shape in SHAPES}


@pytest.fixture(scope="module")
def llm(files: dict[str, Path]) -> Iterator[LLM]:
    with olivine.load(files["tiny-qwen3"], device="cpu", threads=1, context=2048) as llm:
        yield llm


def test_an_answer_in_pieces_is_the_answer(llm: LLM) -> None:
    options: dict[str, Any] = {"max_tokens": 60, "temperature": 1.0, "seed": 3}
    deltas = list(llm.stream_chat("Hi", **options))
    whole = llm.chat("Hi", **options)
    assert isinstance(whole, Reply)
    assert [delta.reply for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert "".join(delta.content for delta in deltas) == whole.content == str(whole)
    assert "".join(delta.reasoning for delta in deltas) == (whole.reasoning or "")
    assert [token for delta in deltas for token in delta.tokens] == whole.tokens
    assert whole.usage.completion == len(whole.tokens)
    assert whole.seed == 3
    last = deltas[-1].reply
    assert last is not None and last.message == whole.message


def test_an_answer_for_asyncio_is_the_same(llm: LLM) -> None:
    async def both() -> tuple[Reply, list[Delta]]:
        options: dict[str, Any] = {"max_tokens": 30, "temperature": 1.0, "seed": 4}
        return await llm.achat("Hi", **options), [delta async for delta in llm.astream_chat("Hi", **options)]

    reply, deltas = asyncio.run(both())
    assert reply.message == llm.chat("Hi", max_tokens=30, temperature=1.0, seed=4).message
    assert "".join(delta.content for delta in deltas) == reply.content


def test_leaving_the_loop_stops_the_generation(llm: LLM) -> None:
    for delta in llm.stream_chat("Hi", ignore_eos=True):
        if delta.tokens:
            break
    assert llm.chat("Hi", max_tokens=2).usage.completion <= 2
    stream = llm.stream_chat("Hi", ignore_eos=True)
    del stream
    assert llm.chat("Hi", max_tokens=2).usage.completion <= 2


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_required_calls_are_made(files: dict[str, Path], shape: str, choice: Any) -> None:
    """Qwen3's notation with marker tokens, and bare JSON. The clock takes any object, and a random model may
    not come to its end."""
    ended = 0
    with olivine.load(files[shape], device="cpu", threads=1, context=2048) as llm:
        for seed in range(20):
            if ended == 4:
                break
            options: dict[str, Any] = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
            deltas = list(
                llm.stream_chat("Hi", **options, temperature=1.0, seed=seed, max_tokens=400, think=False)
            )
            reply = deltas[-1].reply
            assert reply is not None
            assert reply.content == ""
            (call,) = reply.tool_calls
            if reply.finish_reason == "length":
                assert call.name == "clock", reply
                continue
            assert reply.finish_reason == "tool_calls", reply
            ended += 1
            assert call.name in ("weather", "clock") if choice == "required" else call.name == "weather"
            if call.name == "weather":
                jsonschema.validate(json.loads(call.arguments), CITY)
            pieces = [piece for delta in deltas for piece in delta.tool_calls]
            assert (pieces[0].id, pieces[0].name, pieces[0].index) == (call.id, call.name, 0)
            assert "".join(piece.arguments for piece in pieces) == call.arguments
    assert ended == 4


def test_a_schema_holds_behind_a_thought(llm: LLM) -> None:
    for think in (None, False):
        reply = llm.chat("Hi", response_format=CITY, think=think, temperature=1.0, seed=1, max_tokens=300)
        if reply.finish_reason == "stop":
            jsonschema.validate(json.loads(reply.content), CITY)
        else:
            assert reply.content == ""  # it thinks until the end


@pytest.mark.parametrize("shape", SHAPES)
def test_a_format_and_tools_allow_an_answer_of_that_form_or_calls(files: dict[str, Path], shape: str) -> None:
    with olivine.load(files[shape], device="cpu", threads=1, context=2048) as llm:
        call, answer = (
            llm.tokenizer.encode_rendered(text)[-1]
            for text in ("<tool_call>" if shape == "tiny-qwen3" else "{", "7")
        )

        def ask(rather: int, messages: Any = "Hi", **more: Any) -> Reply:
            form = {"type": "choice", "choices": ["7", "8"]}
            options = {"parallel_tool_calls": False, "think": False, "max_tokens": 200, **more}
            return llm.chat(
                messages,
                tools=TOOLS[:1],
                response_format=form,
                temperature=0,
                logit_bias={rather: 1000.0},
                **options,
            )

        called = ask(call)
        assert (called.content, [one.name for one in called.tool_calls]) == ("", ["weather"])
        jsonschema.validate(json.loads(called.tool_calls[0].arguments), CITY)
        assert (ask(answer).content, ask(answer).tool_calls) == ("7", [])
        required = ask(answer, tool_choice="required")
        assert (required.content, len(required.tool_calls)) == ("", 1)
        begun = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "I say "}]
        assert ask(call, begun).content in ("7", "8")  # what is continued is the answer


def test_a_schema_of_a_tool_that_no_grammar_keeps_is_no_reason_to_refuse_a_form(llm: LLM) -> None:
    """Nobody asked for it to be kept. What is wrong with the form itself is said, and of a required call."""
    unique = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": unique}}]
    form = {"type": "choice", "choices": ["7", "8"]}
    options: dict[str, Any] = {"think": False, "max_tokens": 100, "temperature": 0}
    (seven,) = llm.tokenizer.encode("7", add_special=False)
    reply = llm.chat("Hi", tools=tools, response_format=form, logit_bias={seven: 1000.0}, **options)
    assert reply.content == "7"
    (marker,) = llm.tokenizer.encode_rendered("<tool_call>")
    called = llm.chat("Hi", tools=tools, response_format=form, logit_bias={marker: 1000.0}, **options)
    assert called.content not in ("7", "8")
    with pytest.raises(RequestError, match="unevaluatedProperties"):
        llm.chat("Hi", tools=tools, response_format={"type": "object", "unevaluatedProperties": 1}, **options)
    with pytest.raises(RequestError, match="uniqueItems"):
        llm.chat("Hi", tools=tools, tool_choice="required", **options)


def test_only_a_grammar_of_calls_says_that_arguments_parse(llm: LLM) -> None:
    """A form may spell a call with any arguments: those are not given out before they are read."""
    spelled = {"type": "regex", "regex": r"<tool_call>x"}
    for options, expected in (
        ({"response_format": spelled}, False),
        ({"response_format": spelled, "tools": TOOLS}, False),
        ({"tools": TOOLS, "tool_choice": "required"}, True),
    ):
        assert llm.conversations.prepare("Hi", **options).required is expected  # type: ignore[arg-type]


def test_a_template_for_tools_is_used_where_there_are_tools(files: dict[str, Path]) -> None:
    """As transformers takes `tool_use` of several named templates."""
    plain = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    checkpoint = open_checkpoint(str(files["tiny-llama"]))
    with_tools = (
        plain + "<tools>{% for tool in tools %}{{ tool.function.name }}{% endfor %}</tools><tool_call>"
    )
    checkpoint = replace(checkpoint, chat_template=plain, tool_template=with_tools)
    with LLM(checkpoint, device="cpu", threads=1, context=1024) as llm:
        assert llm.render("Hi") == "Hi\n"
        called = f"<tools>{''.join(tool['function']['name'] for tool in TOOLS)}</tools><tool_call>"
        assert llm.render("Hi", tools=TOOLS) == f"Hi\n{called}"
        assert llm.render("Hi", tools=TOOLS, tool_choice="none") == "Hi\n"
        assert llm.conversations.format.name == "hermes"
        begun = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "So"}]
        assert llm.render(begun, tools=TOOLS) == "Hi\nSo"


def test_a_thought_whose_end_no_grammar_could_see_is_over_before_it_begins(files: dict[str, Path]) -> None:
    """The prompt opens a thought, and its markers are no tokens of this vocabulary."""
    template = (
        "{% for message in messages %}{{ message.content }}\n{% endfor %}"
        "{% if tools %}<tool_call>{% endif %}{% if add_generation_prompt %}<think>\n{% endif %}"
    )
    checkpoint = replace(open_checkpoint(str(files["tiny-llama"])), chat_template=template)
    with LLM(checkpoint, device="cpu", threads=1, context=1024) as llm:
        assert llm.conversations.format.thought[0] not in llm.conversations.markers
        form: Any = {"type": "choice", "choices": ["7", "8"]}
        thinking = [{"role": "user", "content": "Hi"}, {"role": "assistant", "reasoning_content": "So"}]
        for messages in ("Hi", thinking):
            answer = llm.chat(messages, response_format=form, max_tokens=20)
            assert answer.content in ("7", "8") and answer.reasoning is None
            called = llm.chat(
                messages, tools=TOOLS[:1], tool_choice="required", parallel_tool_calls=False, max_tokens=300
            )
            assert (called.content, called.reasoning) == ("", None)
            assert [call.name for call in called.tool_calls] == ["weather"]
        constrained, free = (llm.conversations.prepare("Hi", response_format=each) for each in (form, None))
        assert constrained.prompt.text == "Hi\n<think>\n\n</think>\n\n" and not constrained.thinking
        assert free.prompt.text == "Hi\n<think>\n" and free.thinking


def test_answers_of_a_real_model_are_read_from_the_cache() -> None:
    with olivine.load(real_models.SMOLLM2.path(), device="cpu", context=1024) as llm:
        messages: list[Any] = [{"role": "user", "content": "Write a short story about a fox."}]
        reply = llm.chat(messages, max_tokens=96, temperature=0)
        messages += [reply.message, Message("user", "Go on.")]
        request = llm.conversations.prepare(messages)
        assert sum(request.generated) >= 90
        again = llm.chat(messages, max_tokens=4)
        assert again.usage.cached >= 96


def test_prompts_are_the_published_ones_for_smollm2() -> None:
    with olivine.load(real_models.SMOLLM2.path(), device="cpu", context=256) as llm:
        request = llm.conversations.prepare("Hello")
        expected = (
            "1 9690 198 2683 359 253 5356 5646 11173 3365 3511 308 34519 28 7018 411 407 19712 8182 2 198 1"
        )
        assert request.tokens == [*map(int, expected.split()), 4093, 198, 19556, 2, 198, 1, 520, 9531, 198]
        assert llm.chat("Hello", max_tokens=1, temperature=0).tokens == [19556]


def test_several_answers_to_one_conversation(llm: LLM) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0}
    together = llm.chat_many(["Hi", [Message("user", "Ho")]], n=3, seed=5, **options)
    assert [reply.seed for reply in together] == [5, 6, 7, 5, 6, 7]
    alone = [llm.chat(text, seed=seed, **options).message for text in ("Hi", "Ho") for seed in (5, 6, 7)]
    assert [reply.message for reply in together] == alone
    assert len({reply.content + (reply.reasoning or "") for reply in together[:3]}) == 3
    assert llm.chat_many([]) == []


def test_what_several_answers_are_not(llm: LLM) -> None:
    with pytest.raises(RequestError, match="n must be at least 1"):
        llm.chat_many(["Hi"], n=0)
    with pytest.raises(RequestError, match="a list of conversations"):
        llm.chat_many("Hi")


def test_the_rendered_prompt_is_what_the_model_reads(llm: LLM) -> None:
    text = llm.render("Hi", tools=TOOLS, think=False)
    request = llm.conversations.prepare("Hi", tools=TOOLS, think=False)
    assert text == request.prompt.text
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert '"name": "weather"' in text and '"name": "weather"' not in llm.render(
        "Hi", tools=TOOLS, tool_choice="none"
    )


def weather(city: str) -> str:
    """Tells the weather of a city."""
    return f"rain in {city}"


def test_a_python_function_is_a_tool(llm: LLM) -> None:
    assert '"description": "Tells the weather of a city."' in llm.render("Hi", tools=[weather])
    options: dict[str, Any] = {"temperature": 1.0, "seed": 1, "max_tokens": 300, "think": False}
    reply = llm.chat("Hi", tools=[weather], tool_choice="required", parallel_tool_calls=False, **options)
    if reply.finish_reason == "tool_calls":
        (call,) = reply.tool_calls
        assert weather(**json.loads(call.arguments)).startswith("rain in ")


def test_a_named_tool_is_called_once(llm: LLM) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    unwilling = dict.fromkeys(llm.tokenizer.stop_ids, -50.0)
    options: dict[str, Any] = {"think": False, "max_tokens": 300, "logit_bias": unwilling}
    reply = llm.chat("Hi", tools=TOOLS, tool_choice=choice, **options)
    assert [call.name for call in reply.tool_calls] == ["weather"]
    assert reply.finish_reason == "tool_calls"


QUESTION = {"role": "user", "content": "Hi"}


def test_an_answer_continues_what_the_assistant_said(llm: LLM) -> None:
    messages = [QUESTION, {"role": "assistant", "content": "The sea is"}]
    assert llm.render(messages).endswith("<think>\n\n</think>\n\nThe sea is")
    reply = llm.chat(messages, max_tokens=8, temperature=1.0, seed=1, ignore_eos=True)
    rest = llm.generate(
        llm.render(messages), max_tokens=8, temperature=1.0, seed=1, ignore_eos=True, parse_special=True
    )
    assert reply.tokens == rest.tokens
    assert reply.reasoning is None and reply.content.rstrip() == rest.text.rstrip()


def test_an_assistant_s_message_without_anything_begins_nothing(llm: LLM) -> None:
    assert llm.render([QUESTION, {"role": "assistant", "content": ""}]) == llm.render("Hi")


def test_a_grammar_describes_the_continuation(llm: LLM) -> None:
    messages = [QUESTION, {"role": "assistant", "content": "I say"}]
    choice = {"type": "choice", "choices": [" yes", " no"]}
    assert llm.chat(messages, response_format=choice).content in (" yes", " no")


@pytest.mark.parametrize("think", [True, "high", {"effort": "low"}])
def test_a_model_that_does_not_think_is_not_asked_to(files: dict[str, Path], think: Any) -> None:
    with olivine.load(files["tiny-gemma3"], device="cpu", threads=1, context=64) as llm:
        with pytest.raises(RequestError, match="this model does not think"):
            llm.chat("Hi", think=think)
        assert llm.render("Hi", think=False) == llm.render("Hi", think="minimal") == llm.render("Hi")
        thought = {"role": "assistant", "reasoning_content": "hm"}
        with pytest.raises(RequestError, match="cannot continue the thought"):
            llm.render([QUESTION, thought])
        assert "hm" not in llm.render([QUESTION, {**thought, "content": "Yes"}])


def test_an_effort_is_on_or_off_where_the_template_knows_no_more(llm: LLM) -> None:
    assert llm.render("Hi", think="minimal") == llm.render("Hi", think=False)
    assert llm.render("Hi", think="low") == llm.render("Hi", think="max") == llm.render("Hi", think=True)


def test_what_is_printed_of_a_model_and_its_answers_is_short(llm: LLM) -> None:
    assert repr(llm).startswith("<LLM tiny-qwen3.gguf: qwen3, cpu×1 ") and repr(llm).endswith(
        ", context 2048>"
    )
    reply = llm.chat("Hi", max_tokens=200, ignore_eos=True)
    assert "tokens=200" in repr(reply) and len(repr(reply)) < 300
    completion = llm.generate("Hi", max_tokens=200, ignore_eos=True, seed=3)
    assert repr(completion).endswith("finish_reason='length', tokens=200, seed=3)")
    assert len(repr(completion)) < 200
    assert len(repr(llm.score("Hi", " there" * 50))) < 80


def test_template_options_may_have_any_name(llm: LLM) -> None:
    prompt = llm.render("Hi")
    for name in ("thinking", "messages", "tools", "variables", "format", "self"):
        assert llm.render("Hi", template_options={name: None}) == prompt


def test_a_required_call_behind_a_prefix_is_a_call(files: dict[str, Path]) -> None:
    begun = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Let me look."}]
    for shape in ("tiny-qwen3", "tiny-llama"):
        with olivine.load(files[shape], device="cpu", threads=1, context=1024) as llm:
            named = {"function": {"name": "clock"}}
            reply = llm.chat(begun, tools=TOOLS, tool_choice=named, max_tokens=100, temperature=0)
            assert [call.name for call in reply.tool_calls] == ["clock"] and reply.content == ""


def test_a_stream_may_be_dropped_while_another_one_is_remembered(llm: LLM) -> None:
    """Garbage is collected anywhere, in this case by the thread that has the lock of what is remembered."""
    conversations, done = llm.conversations, threading.Event()
    request = conversations.prepare("Hi")

    def drop() -> None:
        with conversations._lock:
            conversations.remember(request, [1])
        done.set()

    threading.Thread(target=drop, daemon=True).start()
    assert done.wait(120)


def test_answers_of_many_conversations_are_recognized(llm: LLM) -> None:
    """Several hundred, each by its last turn; of more, the latest."""
    conversations = llm.conversations
    requests = [conversations.prepare(f"Question {n}") for n in range(REMEMBERED + 10)]
    for request in requests:
        conversations.remember(request, [5])
        second = [*request.tokens, 5, 7]
        later = replace(request, tokens=second, generated=conversations._generated(second))
        conversations.remember(later, [6, 6])
    for n, request in enumerate(requests):
        found = conversations._generated([*request.tokens, 5, 7, 6, 6])[-4:]
        assert found == ([True, False, True, True] if n >= 10 else [False] * 4)


def test_what_is_remembered_of_answers_is_bounded(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    conversations = llm.conversations
    short, long = conversations.prepare("Hi"), conversations.prepare("Hello there, and so on")
    monkeypatch.setattr(conversation, "REMEMBERED_TOKENS", len(long.tokens) + 10)
    for request, tokens in ((short, [5]), (long, [])):
        conversations.remember(request, tokens)
    assert conversations._generated([*short.tokens, 5])[-1]  # no answer, nothing to remember
    conversations.remember(long, [5] * 10)
    assert not conversations._generated([*short.tokens, 5])[-1]
    assert conversations._generated([*long.tokens, 5])[-1]
    conversations.remember(long, [6] * 11)  # more than there is room for
    assert not conversations._generated([*long.tokens, 6])[-1]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice is 'sometimes'"),
        ({"tools": TOOLS, "tool_choice": {"function": {"name": "x"}}}, "names 'x'"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"think": "sideways"}, "sideways"),
        ({"think": []}, "think is"),
        ({"think": {"effort": {"effort": "low"}}}, "think is"),
        ({"template_options": ["x"]}, "template_options must be a mapping"),
        ({"template_options": {1: 2}}, "template_options must be a mapping"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, "text only"),
        ({"constraint": lambda: None}, "response_format"),
        ({"response_format": {"type": "object", "unevaluatedProperties": 1}}, "unevaluatedProperties"),
    ],
)
def test_what_makes_no_sense_is_refused(llm: LLM, options: dict[str, Any], complaint: str) -> None:
    messages = options.pop("messages", "Hi")
    with pytest.raises(RequestError, match=complaint):
        llm.chat(messages, **options)


def test_an_option_that_does_not_exist(llm: LLM) -> None:
    with pytest.raises(TypeError, match="temprature"):
        llm.chat("Hi", temprature=1)


def test_a_template_has_the_variables_of_its_model(files: dict[str, Path]) -> None:
    with olivine.load(files["tiny-gemma3"], device="cpu", threads=1, context=64) as llm:
        own = replace(llm.model.architecture, template_variables=lambda config: {"bos_token": "<here>"})
        llm.model = replace(llm.model, architecture=own)
        assert llm.render("Hi").startswith("<here>")


def test_a_template_s_complaint_is_the_message(files: dict[str, Path]) -> None:
    with olivine.load(files["tiny-gemma3"], device="cpu", threads=1, context=64) as llm:
        twice = [{"role": "user", "content": "a"}] * 2
        with pytest.raises(RequestError, match=r"^Conversation roles must alternate user/assistant"):
            llm.chat(twice)
