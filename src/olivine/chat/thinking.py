"""Whether a model reasons before it answers: one switch for all spellings of clients."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from olivine.errors import RequestError

_WORDS = {
    "on": True,
    "true": True,
    "yes": True,
    "enabled": True,
    "auto": None,
    "adaptive": None,
} | dict.fromkeys(("off", "false", "no", "none", "disabled"), False)
# Variables by which templates switch thoughts.
SWITCHES = frozenset({"enable_thinking", "thinking", "reasoning_effort"})
EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")


def is_thinking_word(word: str) -> bool:
    """Whether `Thinking.of` knows a word."""
    return word in _WORDS or word in EFFORTS


@dataclass(frozen=True)
class Thinking:
    """`on` is None where nothing was asked for: the template's default."""

    on: bool | None = None
    effort: str | None = None

    @classmethod
    def of(cls, value: Any) -> Thinking:
        """From True, False, None, "on", "off", "high" …, or an object such as {"effort": "low"}."""
        if value is None or isinstance(value, bool):
            return cls(value)
        if isinstance(value, Thinking):
            return value
        if isinstance(value, Mapping):
            keys = ("effort", "enabled", "type")
            inner = next((value[key] for key in keys if value.get(key) is not None), None)
            if not isinstance(inner, Mapping):
                return cls.of(inner)
        word = value.strip().lower() if isinstance(value, str) else ""
        if word in _WORDS:
            return cls(_WORDS[word])
        if word in EFFORTS:
            return cls(True, word)
        known = ", ".join(["on", "off", *EFFORTS])
        raise RequestError(f"think is {str(value)[:40]!r}; known: {known}")

    @classmethod
    def asked(cls, request: Mapping[str, Any]) -> Thinking:
        """From the fields of a request: `think`, `thinking`, `reasoning`, `reasoning_effort`,
        `enable_thinking`, and the last two inside of `chat_template_kwargs`."""
        inner = request.get("chat_template_kwargs")
        for fields in (request, inner if isinstance(inner, Mapping) else {}):
            for key in ("think", "thinking", "enable_thinking", "reasoning", "reasoning_effort"):
                if fields.get(key) is not None:
                    return cls.of(fields[key])
        return cls()

    def for_template(self, variables: Collection[str]) -> Thinking:
        """The same for a template with these variables: where it has no efforts, "minimal" is off, and every
        other effort is on."""
        if self.effort is None or "reasoning_effort" in variables:
            return self
        return Thinking(self.effort != "minimal")

    def variables(self) -> dict[str, Any]:
        """The variables for templates."""
        found: dict[str, Any] = {}
        if self.on is not None:
            found |= {"enable_thinking": self.on, "thinking": self.on}
        if self.effort is not None:
            found["reasoning_effort"] = self.effort
        return found


def budget_asked(request: Mapping[str, Any]) -> int | None:
    """How many tokens of thought a request allows: `thinking_budget`, `reasoning_budget`, `budget_tokens` of
    `thinking`, or `max_tokens` of `reasoning`. None, and -1 in llama.cpp's words: any number."""
    given: list[Any] = [request.get("thinking_budget"), request.get("reasoning_budget")]
    for name, key in (("thinking", "budget_tokens"), ("reasoning", "max_tokens")):
        value = request.get(name)
        given.append(value.get(key) if isinstance(value, Mapping) else None)
    found = next((each for each in given if each is not None), None)
    return None if found == -1 else found
