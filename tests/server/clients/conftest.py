"""A server whose model thinks: olivine-mini, in whose prompts a thought is open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from olivine.formats import open_checkpoint
from olivine.llm import LLM
from olivine.server.models import ServedModel
from oracles.serving import serving

TEMPLATE = """\
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}
{%- if tools %}<tool_call>{{ tools | tojson }}</tool_call>
{% endif %}
{%- if add_generation_prompt %}assistant: {% if enable_thinking is not defined or enable_thinking -%}
<think>
{% else %}<think>

</think>

{% endif %}{% endif %}"""


@pytest.fixture(scope="session")
def thinking_url() -> Iterator[str]:
    checkpoint = replace(open_checkpoint("olivine-mini"), chat_template=TEMPLATE)
    with (
        LLM(checkpoint, device="cpu", threads=1) as llm,
        serving([ServedModel("thinker", llm)]) as url,
    ):
        yield url
