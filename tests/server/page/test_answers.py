"""Answers in the browser: text, Markdown, code, mathematics, JSON, thoughts and calls."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from oracles.chat_page import ChatPage, Visit
from oracles.scripted_server import ScriptedServer
from oracles.waiting import eventually

RICH = """# A heading

| left | right |
| :-- | --: |
| 1 | 2 |

```python
def f(x):
    return x < 1
```

Inline $x^2$ and **bold**.
"""


def test_an_answer_streams_and_shows_its_speed(chat: ChatPage) -> None:
    chat.force(max_tokens=40)
    answer = chat.ask("Tell me a story")
    assert len(answer.locator(".markdown").inner_text()) > 40
    expect(answer.locator(".figures")).to_contain_text("tokens/s")
    expect(answer.locator(".figures")).to_contain_text("prompt")
    expect(chat.questions.locator(".typed")).to_have_text(["Tell me a story"])


def test_markdown_code_and_mathematics(chat: ChatPage) -> None:
    chat.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    chat.force(RICH)
    answer = chat.ask("Show me")
    expect(answer.get_by_role("heading", name="A heading")).to_be_visible()
    expect(answer.get_by_role("columnheader")).to_have_text(["left", "right"])
    expect(answer.get_by_role("cell").last).to_have_css("text-align", "end")
    expect(answer.locator("code .hljs-keyword").first).to_have_text("def")
    expect(answer.locator("math msup")).to_have_count(1)
    expect(answer.locator("strong")).to_have_text("bold")
    chat.button("Copy", answer.locator("figure")).click()
    expect(chat.button("Copied", answer.locator("figure"))).to_be_visible()
    assert chat.page.evaluate("navigator.clipboard.readText()") == "def f(x):\n    return x < 1"
    chat.button("Copy", answer.locator("footer")).click()
    expect(chat.notice).to_contain_text("Copied")
    assert chat.page.evaluate("navigator.clipboard.readText()") == RICH


def test_an_answer_that_is_json_is_pretty_printed(chat: ChatPage) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"const": 7}},
        "required": ["n"],
        "additionalProperties": False,
    }
    chat.force(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    answer = chat.ask("Give me JSON")
    expect(answer.locator("figure code")).to_have_text('{\n  "n": 7\n}')


def test_only_the_last_block_is_drawn_again(visit: Visit, stand_in: ScriptedServer) -> None:
    chat = visit(stand_in.url)
    chat.send("Go")
    stand_in.feed("First block.\n\nSecond")
    blocks = chat.answer.locator(".group > div")
    expect(blocks).to_have_text(["First block.", "Second"])
    blocks.first.evaluate("element => { element.firstElementChild.seen = true }")
    stand_in.feed(" block.\n\n")
    stand_in.feed("Third")
    expect(blocks).to_have_text(["First block.", "Second block.", "Third"])
    stand_in.end()
    chat.finished()
    assert blocks.first.evaluate("element => element.firstElementChild.seen")


def test_a_half_typed_fence_does_not_show(visit: Visit, stand_in: ScriptedServer) -> None:
    chat = visit(stand_in.url)
    chat.send("Go")
    shown = chat.answer.locator(".markdown")
    for piece, seen in [
        ("See:\n\n`", "See:"),
        ("``py", "See:"),
        ("thon\nx = ", "See:"),
        ("1\n``", "x = 1"),
        ("`\n\nDone", "Done"),
    ]:
        stand_in.feed(piece)
        expect(shown).to_contain_text(seen)
        assert "`" not in shown.inner_text()
    expect(shown.locator("figcaption .language")).to_have_text("python")
    chat.page.keyboard.press("Escape")
    expect(chat.answer.locator(".ending")).to_contain_text("Stopped.")
    stand_in.end()
    chat.finished()


def test_thoughts_are_folded_with_their_time(visit: Visit, stand_in: ScriptedServer) -> None:
    chat = visit(stand_in.url)
    chat.page.get_by_label("Thinking").select_option("high")
    chat.send("Think")
    stand_in.feed(reasoning_content="First, a thought.")
    thoughts = chat.answer.locator("details.thinking")
    expect(thoughts.locator("summary")).to_contain_text("Thinking…")
    expect(thoughts.get_by_text("First, a thought.")).not_to_be_visible()
    thoughts.locator("summary").click()
    expect(thoughts.get_by_text("First, a thought.")).to_be_visible()
    chat.button("Answer now").click()
    eventually(lambda: "/v1/chat/completions/chatcmpl-1/end_thinking" in stand_in.paths)
    later = "() => { const now = performance.now.bind(performance); performance.now = () => now() + 1e5 }"
    chat.page.evaluate(later)
    stand_in.feed("The answer.")
    stand_in.end()
    chat.finished()
    expect(thoughts.locator("summary")).to_have_text(re.compile(r"Thought for 1\d\d s"))
    expect(chat.button("Answer now")).to_have_count(0)
    assert stand_in.requests[0]["reasoning_effort"] == "high"


def test_calls_show_their_arguments(visit: Visit, stand_in: ScriptedServer) -> None:
    chat = visit(stand_in.url)
    chat.send("What is the weather?")
    function = {"name": "weather", "arguments": '{"city": '}
    stand_in.feed(tool_calls=[{"index": 0, "id": "c1", "type": "function", "function": function}])
    stand_in.feed(tool_calls=[{"index": 0, "function": {"arguments": '"Oslo"}'}}])
    stand_in.end("tool_calls")
    chat.finished()
    call = chat.answer.locator("details.call")
    expect(call.locator("summary")).to_contain_text("Called weather")
    call.locator("summary").click()
    expect(call.locator("figure code")).to_have_text('{\n  "city": "Oslo"\n}')


def test_formulas_have_the_lines_that_they_mean(visit: Visit, stand_in: ScriptedServer) -> None:
    tex = r"\overline{A} \underline{B} \cancel{C} \boxed{D} \color{red}E"
    stand_in.script = lambda body: iter([{"content": f"$${tex}$$"}, {"finish_reason": "stop"}])
    chat = visit(stand_in.url)
    formula = chat.ask("Formulas").locator("math")
    drawn = (
        (".tml-overline", "borderTopStyle", "solid"),
        (".tml-underline", "borderBottomStyle", "solid"),
        (".upstrike", "position", "absolute"),
        (".tex-box", "borderLeftStyle", "solid"),
        ("[mathcolor]", "color", "rgb(255, 0, 0)"),
    )
    for part, name, value in drawn:
        found = formula.locator(part).evaluate("(part, name) => getComputedStyle(part)[name]", name)
        assert (part, found) == (part, value)
