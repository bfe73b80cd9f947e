"""qwen3.c's prompt files: prompts of one question, with %s for the system's and the user's text."""

from __future__ import annotations

import json
from collections.abc import Mapping


def template_of(files: Mapping[str, str], ours: str) -> str:
    """A template that renders such prompts as the files have them, and longer conversations as ours does."""
    cases: list[str] = []
    for kind, text in files.items():
        system, thinking = "system" in kind, "thinking" in kind
        pieces = text.split("%s")
        if len(pieces) != 2 + system:
            continue  # not what it should be
        roles = "['system', 'user']" if system else "['user']"
        off = "enable_thinking is defined and not enable_thinking"
        asked = f"not ({off})" if thinking else off
        condition = f"not tools and messages | map(attribute='role') | list == {roles} and {asked}"
        texts = [json.dumps(piece) for piece in pieces]
        body = texts[0] + "".join(f" ~ messages[{i}].content ~ {piece}" for i, piece in enumerate(texts[1:]))
        cases.append(
            f"{{%- {'el' if cases else ''}if {condition} and add_generation_prompt %}}{{{{- {body} }}}}"
        )
    if not cases:
        return ours
    return "\n".join([*cases, "{%- else %}", ours, "{%- endif %}"])
