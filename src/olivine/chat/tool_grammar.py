"""Grammars of tool calls, for requests that must make one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from olivine.chat.grammar import lark_grammar
from olivine.chat.parsers import Format
from olivine.chat.parsers.rules import Rules

MOST = 16  # calls in one answer that must make some: small models never stop by themselves


def calls_grammar(
    format: Format, tools: Sequence[Mapping[str, Any]], tokens: Mapping[str, int], several: bool = True
) -> str:
    """One call of these functions, or up to `MOST`, in llguidance's form. `tokens` are the markers that are
    tokens of the vocabulary."""
    rules = Rules(tokens)
    calls = format.call_rules(rules, [tool["function"] for tool in tools])
    between = json.dumps(format.between_calls)
    more = f"({between} call){{0,{MOST - 1}}}" if several else ""
    if format.brackets is not None:
        opens, closes = map(rules.marker, format.call or ("", ""))
        first, last = map(json.dumps, format.brackets)
        start = f"{opens} {first} call {more} {last} {closes}"
    elif format.bare and several:
        start = f'call | "[" call ({between} call){{1,{MOST - 1}}} "]"'
    else:
        start = f"call {more}"
    return lark_grammar("\n".join([f"start: {start}", f"call: {' | '.join(calls)}", *rules.lines]))
