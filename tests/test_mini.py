"""tools/mini: what olivine-mini is trained on is what its template writes, and tells of what is asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import jinja2
import pytest

import olivine

TOOLS = Path(__file__).parents[1] / "tools" / "mini"
STORIES = [
    """Once upon a time, there was a fox named Lily. The fox had a red boat. One day, the fox took the boat to
the lake. She met a turtle there. "Can I ride in your boat?" asked the turtle. "Yes," said the fox. The boat
was small, but they had fun. When the sun went down, the turtle thanked the fox and they both went home.""",
    """One day, a boy named Tom found a kite near the barn. The kite was blue and big. A goat came and looked
at the kite. "Do not eat my kite!" said Tom. The goat was sad. Tom gave the goat an apple. Then the goat took
the kite, and it flew high above the barn. Tom and the goat were friends from that day on.""",
]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its modules by name; they are scripts, with names that others have too."""
    monkeypatch.syspath_prepend(str(TOOLS))
    names = {path.stem for path in TOOLS.glob("*.py")}
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    yield import_module
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(before)


def test_chats_are_written_as_the_template_writes_them(tool: Any) -> None:
    written: list[str] = []

    class Tokenizer:
        def encode_batch(self, parts: list[str], add_special_tokens: bool) -> list[Any]:
            written.extend(parts)
            return [type("Encoding", (), {"ids": [0]})] * len(parts)

    encoder = object.__new__(tool("data").Encoder)
    encoder.tokenizer = Tokenizer()
    chat = [
        ("system", "Be kind."),
        ("user", "hi"),
        ("model", "Hello!"),
        ("user", "A fox"),
        ("model", "Once."),
    ]
    encoder.encode(chat)
    template = olivine.open_checkpoint("olivine-mini").chat_template
    assert template == (TOOLS / "chat_template.jinja").read_text(encoding="utf-8")
    roles = {"model": "assistant"}
    messages = [{"role": roles.get(role, role), "content": text} for role, text in chat]
    rendered = jinja2.Environment().from_string(template).render(messages=messages, bos_token="<bos>")
    assert "".join(written) == rendered


def test_stories_tell_of_what_is_asked_for(tool: Any) -> None:
    """Of nouns that came in for others too, and of words that nobody knows."""
    mentions, Tale = tool("checks").mentions, tool("tales").Tale
    writer = tool("chats").ChatWriter(seed=3, strange=["zorkle", "gubbin"])
    asked = []
    for _ in range(400):
        for story in STORIES:
            tale, nouns, person = writer._subject(Tale(story))
            assert nouns and all(mentions(tale.text, noun) for noun in nouns), (nouns, tale.text)
            assert person is None or person in tale.text
            asked += nouns
    assert {"fox", "kite", "zorkle", "gubbin"} < set(asked)
    assert len(set(asked)) > 150


def test_held_out_words_are_never_asked_for(tool: Any) -> None:
    strange, unseen = tool("strange"), tool("words").UNSEEN
    texts = [f"He saw a {noun}, and then the gubbin." for noun in unseen]
    assert strange.found(texts, known=()) == ["gubbin"]
    assert strange.found(texts, known={"gubbin"}) == []
    rng = tool("random").Random(1)
    words = {strange.coined(rng) for _ in range(3000)}
    assert len(words) > 2500 and words.isdisjoint(unseen)
    assert sum(y in unseen for _, _, y in tool("checks").prompts()) == 40
