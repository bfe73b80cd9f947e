"""What a chat template takes, found by rendering small conversations: templates do not say it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any
from weakref import WeakMethod

from olivine.errors import RequestError

Turn = tuple[str, Any]  # role and content


class Probes:
    """What one template takes. `render` is the template's method that renders messages."""

    def __init__(self, render: Callable[[Sequence[Mapping[str, Any]]], str]) -> None:
        self._method = WeakMethod(render)  # a cycle would keep a template, and all that holds it, in memory

    def _render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The rendered messages; nothing where the template refuses them.

        In a thread of its own: Jinja's errors hold frames until a collection, and those of the caller would
        hold a whole model.
        """
        found = [""]

        def run() -> None:
            render = self._method()
            assert render is not None, "the template has its probes"
            with suppress(RequestError):
                found[0] = render(messages)

        thread = threading.Thread(target=run, name="olivine-probe")
        thread.start()
        thread.join()
        return found[0]

    @cached_property
    def user_parts(self) -> bool:
        """Whether a user's content may be a list of parts. Some templates show the first of them only."""
        text = self._rendered(("user", [*_parts("olivine"), *_parts("peridot")]))
        quoted = "'olivine'" in text or '"olivine"' in text  # a list as Python or JSON writes it
        return "olivine" in text and "peridot" in text and not quoted

    @cached_property
    def texts(self) -> frozenset[str]:
        """The roles whose content may be a text. Some templates take lists of parts only."""
        found = {"tool"}
        if self._takes_text((), "user"):
            found.add("user")
        user: Turn = ("user", "a" if "user" in found else _parts("a"))
        if self._takes_text((user,), "assistant", user):
            found.add("assistant")
        found |= {role for role in ("system", "developer") if self._takes_text((), role, user)}
        return frozenset(found)

    @cached_property
    def developers(self) -> bool:
        """Whether it knows developers."""
        return self._shows("olivine", self._turn("developer", "olivine"), self._turn("user", "a"))

    @cached_property
    def systems(self) -> bool:
        """Whether it has a place for a system message."""
        return self._takes("olivine", ("system", "olivine"), ("user", "a"))

    @cached_property
    def several_systems(self) -> bool:
        """Whether a conversation may begin with several system messages."""
        return self._takes("olivine peridot", ("system", "olivine"), ("system", "peridot"), ("user", "a"))

    @cached_property
    def later_systems(self) -> bool:
        """Whether a system message may stand behind others, and stays there."""
        turns = (
            ("system", "olivine"),
            ("user", "a"),
            ("assistant", "peridot"),
            ("system", "garnet"),
            ("user", "b"),
            ("system", "topaz"),
        )
        return self._takes("olivine peridot garnet topaz", *turns)

    @cached_property
    def several_calls(self) -> bool:
        """Whether an assistant's message may have several calls: some templates refuse that."""
        return self._renders_calls(2) or not self._renders_calls(1)

    def _renders_calls(self, count: int) -> bool:
        ids = [f"olivine0{number}" for number in range(count)]  # nine characters, as some of Mistral's want
        function = {"name": "olivine", "arguments": {}}
        called = [{"id": each, "type": "function", "function": function} for each in ids]
        messages = [
            dict(zip(("role", "content"), self._turn("user", "a"), strict=True)),
            {"role": "assistant", "content": "", "tool_calls": called},
            *({"role": "tool", "tool_call_id": each, "content": "b"} for each in ids),
        ]
        return bool(self._render(messages))

    @cached_property
    def _judged(self) -> bool:
        """Whether it renders a question alone. One that wants more, such as tools, is taken as it is."""
        return self._shows("olivine", self._turn("user", "olivine"))

    def _takes(self, words: str, *turns: tuple[str, str]) -> bool:
        return not self._judged or self._shows(words, *(self._turn(role, text) for role, text in turns))

    def _takes_text(self, before: Sequence[Turn], role: str, *after: Turn) -> bool:
        return self._shows("olivine", *before, (role, "olivine"), *after) or not self._shows(
            "olivine", *before, (role, _parts("olivine")), *after
        )

    def _turn(self, role: str, text: str) -> Turn:
        return role, text if role in self.texts else _parts(text)

    def _shows(self, words: str, *turns: Turn) -> bool:
        """Whether these words are in the rendered turns, in their order."""
        at = 0
        text = self._rendered(*turns)
        for word in words.split():
            at = text.find(word, at) + 1
            if not at:
                return False
        return True

    def _rendered(self, *turns: Turn) -> str:
        return self._render([{"role": role, "content": content} for role, content in turns])


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]
