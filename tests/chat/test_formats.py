"""What formats do to messages for the templates of their families. The templates here take tools, calls and
results as the published ones do, and little else."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from olivine.chat.messages import Message
from olivine.chat.parsers import granite, phi4, smollm3
from olivine.chat.prefix import Prefix
from olivine.chat.template import ChatTemplate
from olivine.chat.thinking import Thinking
from olivine.errors import RequestError

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALLS: list[Any] = [
    {"role": "user", "content": "1 + 2?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_0123456789", "function": {"name": "add", "arguments": '{"a": 1}'}}],
    },
    {"role": "tool", "tool_call_id": "call_0123456789", "content": "3"},
]
MISTRAL = """
{%- for m in messages %}
    {%- if m.role == 'user' %}[INST]{{ m.content }}[/INST]
    {%- elif m.tool_calls %}
        {%- for call in m.tool_calls %}
            {%- if call.id | length != 9 %}{{ raise_exception('nine!') }}{% endif -%}
            {%- set f = call.function -%}
            [TOOL_CALLS]{{ f.name }}[CALL_ID]{{ call.id }}[ARGS]{{ f.arguments | tojson }}
        {%- endfor %}
    {%- elif m.role == 'tool' %}
        {%- if m.tool_call_id | length != 9 %}{{ raise_exception('nine!') }}{% endif -%}
        [TOOL_RESULTS]{{ m.tool_call_id }}[TOOL_CONTENT]{{ m.content }}[/TOOL_RESULTS]
    {%- endif %}
{%- endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}"""
# As Ministral 3's and Magistral's: thoughts are parts of the content, and no field of the message.
MAGISTRAL = """
{%- macro shown(content) %}
    {%- if content is string %}{{ content }}{% else %}
        {%- for part in content %}
            {%- if part.type == 'text' %}{{ part.text }}
            {%- elif part.type == 'thinking' %}{{ '[THINK]' + part.thinking + '[/THINK]' }}
            {%- else %}{{ raise_exception('only text and thinking') }}{% endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- for m in messages %}
    {%- if m.role == 'system' %}[SYSTEM_PROMPT]{{ shown(m.content) }}[/SYSTEM_PROMPT]
    {%- elif m.role == 'user' %}[INST]{{ m.content }}[/INST]
    {%- elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]
    {%- else %}
        {%- if not m.content and not m.tool_calls %}{{ raise_exception('empty') }}{% endif %}
        {{- shown(m.content) }}
        {%- for call in m.tool_calls %}
            {{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + call.function.arguments | tojson }}
        {%- endfor %}
        {{- '</s>' }}
    {%- endif %}
{%- endfor %}
{%- if tools %}[AVAILABLE_TOOLS]{% endif %}"""
SMOLLM3 = """
{%- if xml_tools %}<tools>{% for tool in xml_tools %}{{ tool.name }}{% endfor %}</tools>{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}"""
PHI4 = (
    "{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message %}"
    "{{ '<|system|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|><|end|>' }}"
    "{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}"
)


def prompt(template: ChatTemplate, tools: Any = (), messages: Any = CALLS) -> str:
    return template.prompt([Message.of(each) for each in messages], tools).text


def test_ids_of_calls_become_nine_letters_and_digits_for_mistral() -> None:
    template = ChatTemplate(MISTRAL)
    for tools in (TOOLS, ()):
        text = prompt(template, tools)
        (called,) = re.findall(r"\[CALL_ID\](\w*)\[ARGS\]", text)
        (answered,) = re.findall(r"\[TOOL_RESULTS\](\w*)\[TOOL_CONTENT\]", text)
        assert called == answered and re.fullmatch(r"[a-zA-Z0-9]{9}", called)
    own = json.loads(json.dumps(CALLS).replace("call_0123456789", "aB3dE6gH9"))
    assert "[CALL_ID]aB3dE6gH9[ARGS]" in prompt(template, TOOLS, own)


def test_a_result_that_names_no_call_is_the_templates_own_complaint() -> None:
    lost = [CALLS[0], {"role": "tool", "content": "3"}]
    with pytest.raises(RequestError):
        prompt(ChatTemplate(MISTRAL), TOOLS, lost)


def test_mistrals_templates_have_thoughts_of_all_turns_in_the_content() -> None:
    turns = [
        {"role": "user", "content": "1 + 2?"},
        {**CALLS[1], "reasoning_content": "a sum"},
        CALLS[2],
        {"role": "assistant", "reasoning_content": "now I know", "content": "3"},
        {"role": "user", "content": "And 2 + 2?"},
    ]
    expected = (
        '[INST]1 + 2?[/INST][THINK]a sum[/THINK][TOOL_CALLS]add[ARGS]{"a": 1}</s>'
        "[TOOL_RESULTS]3[/TOOL_RESULTS][THINK]now I know[/THINK]3</s>[INST]And 2 + 2?[/INST][AVAILABLE_TOOLS]"
    )
    assert prompt(ChatTemplate(MAGISTRAL), TOOLS, turns) == expected
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "now I know"}], "closed": True}
    turns[3] = {"role": "assistant", "content": [thought, {"type": "text", "text": "3"}]}
    assert prompt(ChatTemplate(MAGISTRAL), TOOLS, turns) == expected
    own = "{% if m.reasoning_content %}{{ m.reasoning_content }}={% endif %}"  # one that takes the field
    template = ChatTemplate(MAGISTRAL.replace("{{- shown(m.content) }}", own + "{{ shown(m.content) }}"))
    assert "=3</s>" in prompt(template, TOOLS, turns) and "[THINK]" not in prompt(template, TOOLS, turns)


def test_a_thought_that_mistral_is_to_continue_stands_behind_its_marker() -> None:
    template = ChatTemplate(MAGISTRAL)
    begun = Prefix("", "First I", in_thought=True)
    text = template.continued([Message("user", "Why?")], (), Thinking(), begun, {}).text
    assert text == "[INST]Why?[/INST][THINK]First I"
    begun = Prefix("Because", "First I")
    text = template.continued([Message("user", "Why?")], (), Thinking(), begun, {}).text
    assert text == "[INST]Why?[/INST][THINK]First I[/THINK]Because"


@pytest.mark.parametrize("opens, closes", [("[THINK]", "[/THINK]"), ("<think>", "</think>")])
def test_a_thought_in_a_system_message_stands_between_the_models_markers(opens: str, closes: str) -> None:
    plain = "{% for m in messages %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]{% endfor %}"
    template = ChatTemplate(MAGISTRAL if opens == "[THINK]" else plain, special=(opens, closes))
    thought = {"type": "thinking", "thinking": f"Your {closes} thoughts"}
    parts = [{"type": "text", "text": f"Think {opens}:"}, thought, {"type": "text", "text": "Then answer."}]
    found = template.prompt([Message.of({"role": "system", "content": parts})])
    head = f"[SYSTEM_PROMPT]Think {opens}:"
    assert found.text == f"{head}{opens}Your {closes} thoughts{closes}Then answer.[/SYSTEM_PROMPT]"
    # Those that the message spells are text.
    assert found.literal == {found.text.index(opens), found.text.index(closes)}
    with pytest.raises(RequestError, match="only an assistant and the system think"):
        Message.of({"role": "user", "content": [thought]})


def test_smollm3_takes_functions_by_another_name_and_calls_as_text() -> None:
    template = ChatTemplate(SMOLLM3 + "{# <tool_call> #}")
    text = prompt(template, TOOLS)
    assert text.startswith("<tools>add</tools>")
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>' in text
    assert "<|im_start|>tool\n3<|im_end|>" in text
    assert "<tools>" not in prompt(template)
    newer = ChatTemplate(
        "{% if tools %}{% set xml_tools = tools %}{% endif %}{{ xml_tools | length }}<tool_call>"
    )
    assert prompt(newer, TOOLS) == "1<tool_call>"


def test_phi4_has_tools_in_its_system_message_and_calls_as_text() -> None:
    special = ("<|tool|>", "<|/tool|>", "<|tool_call|>", "<|/tool_call|>", "<|end|>")
    template = ChatTemplate(PHI4, special=special)
    rendered = template.prompt([Message.of(each) for each in CALLS], TOOLS)
    declared = '<|tool|>[{"name": "add", "parameters": {"type": "object"}}]<|/tool|>'
    assert rendered.text.startswith(f"<|system|>{declared}<|end|><|user|>1 + 2?<|end|>")
    written = '<|assistant|><|tool_call|>[{"name": "add", "arguments": {"a": 1}}]<|/tool_call|><|end|>'
    assert written in rendered.text
    assert rendered.text.index("<|tool_call|>") not in rendered.literal  # a token, not its spelling
    told = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "say <|tool_call|>"}]
    rendered = template.prompt([Message.of(each) for each in told], TOOLS)
    assert rendered.text.startswith(f"<|system|>Be brief.{declared}")
    assert rendered.text.index("<|tool_call|>") in rendered.literal
    assert "<|tool|>" not in prompt(template, (), CALLS[:1])


def test_calls_as_text_are_what_the_model_wrote() -> None:
    call = {"function": {"name": "add", "arguments": {"a": "é"}}}
    for module in (granite, phi4, smollm3):
        (made,) = module.adapt("", [{"role": "assistant", "content": "", "tool_calls": [call]}], ())
        assert '{"name": "add", "arguments": {"a": "é"}}' in made["content"]


def test_granite_3_has_calls_as_text() -> None:
    source = """
{%- if tools %}Respond only with <|tool_call|> followed by a JSON list.{{ tools | tojson }}{% endif %}
{%- for m in messages %}
    {{- '<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content + '<|end_of_text|>' }}
{%- endfor %}"""
    template = ChatTemplate(source, special=("<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>"))
    rendered = template.prompt([Message.of(each) for each in CALLS], TOOLS)
    written = (
        '<|start_of_role|>assistant<|end_of_role|><|tool_call|>[{"name": "add", "arguments": {"a": 1}}]<|'
    )
    assert written in rendered.text
    assert rendered.text.rindex("<|tool_call|>") not in rendered.literal  # a token, not its spelling
    knowing = ChatTemplate(source + "{{ messages[1].tool_calls | length }}")
    assert prompt(knowing, TOOLS).endswith("<|end_of_text|>1") and '"arguments"' not in prompt(knowing, TOOLS)


def test_the_first_granite_3_has_its_own_role_for_results() -> None:
    source = """
{%- for m in messages %}
    {%- if m['role'] in ['user', 'assistant'] or m['role'] == 'tool_response' %}
        {{- '<|start_of_role|>' + m['role'] + '<|end_of_role|>' + m['content'] + '<|end_of_text|>' }}
    {%- elif m['role'] == 'assistant_tool_call' %}<|tool_call|>{{ m['content'] }}{% endif %}
{%- endfor %}{% if tools %}{% endif %}"""
    assert prompt(ChatTemplate(source), TOOLS).endswith("tool_response<|end_of_role|>3<|end_of_text|>")


OLMO_THINK = """
{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}
    {%- if message['role'] == 'system' %}{{ message['content'] }}
        {%- if message.get('functions', none) is not none %} <functions>{{ message['functions'] }}</functions>
        {%- else %} You do not currently have access to any functions. <functions></functions>{% endif %}
    {%- elif message['role'] in ['user', 'assistant', 'environment'] %}{{ message['content'] or '' }}
        {%- if message.get('function_calls', none) is not none %}
            {{- '<function_calls>' + message['function_calls'] + '</function_calls>' }}
        {%- endif %}
    {%- endif %}{{ '<|im_end|>' }}
{%- endfor %}"""


def test_olmo_3_think_has_functions_in_its_system_message_and_results_from_the_environment() -> None:
    template = ChatTemplate(OLMO_THINK)
    declared = '<functions>[{"name": "add", "parameters": {"type": "object"}}]</functions>'
    text = prompt(template, TOOLS)
    assert text.startswith("<|im_start|>system\nYou are a helpful function-calling AI assistant. " + declared)
    assert text.endswith(
        "<|im_start|>assistant\n<function_calls>add(a=1)</function_calls><|im_end|>"
        "<|im_start|>environment\n3<|im_end|>"
    )
    told = prompt(template, TOOLS, [{"role": "system", "content": "Be brief."}, *CALLS])
    assert told.startswith(f"<|im_start|>system\nBe brief. {declared}")
    assert "any functions" in prompt(template, (), [{"role": "system", "content": "Be brief."}, CALLS[0]])
