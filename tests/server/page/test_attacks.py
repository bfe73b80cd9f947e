"""What a hostile model writes, in a real browser: nothing of it runs, loads or leaves the page."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Route, expect

from olivine.server.page import FILES
from oracles.chat_page import ChatPage, Visit
from oracles.scripted_server import ScriptedServer

ASSETS = FILES / "assets"
LIST = Path(__file__).parents[3] / "web" / "test" / "attacks.ts"
# Elements and attributes that run or load something, or change what is outside of the message.
FORBIDDEN = (
    "script, iframe, object, embed, link, style, img, svg, video, audio, form, base, meta, template, "
    "foreignObject, annotation-xml, maction, [src], [srcdoc], [style], [id], [name], [action], [formaction], "
    "[autofocus], a:not([rel~=noopener]), "
    "a:not([href^='https://']):not([href^='http://']):not([href^='mailto:'])"
)
HANDLERS = """root => [...root.querySelectorAll('*')].flatMap(each => [...each.attributes])
  .filter(each => /^on|xlink/.test(each.name)).length"""
OWN = {"/v1/chat/completions", "/v1/models", "/props"} | {f"/assets/{path.name}" for path in ASSETS.iterdir()}


def attacks() -> list[str]:
    """The strings of web/test/attacks.ts."""
    found = re.findall(
        r"""^  (?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'),$""", LIST.read_text(), re.MULTILINE
    )
    strings = [double or single for double, single in found]
    assert len(strings) >= 60
    escapes = {"n": "\n", "t": "\t"}
    return [
        re.sub(
            r"\\(u[0-9a-f]{4}|.)",
            lambda m: chr(int(m[1][1:], 16)) if len(m[1]) == 5 else escapes.get(m[1], m[1]),
            each,
        )
        for each in strings
    ]


def document() -> str:
    """All attacks: as they are, within a word, in a table, a quotation, a list and formulas."""
    parts = []
    for attack in attacks():
        line = attack.replace("\n", " ")
        parts += [
            attack,
            f"word {line} word",
            f"> {line}",
            f"- {line}",
            f"| a |\n| - |\n| {line} |",
            f"${line}$",
        ]
        parts += [f"$$\n{attack}\n$$", f"```html\n{attack}\n```"]
    return "\n\n".join(parts) + "\n\nThe end of the attacks."


@pytest.mark.parametrize(
    "field", ["content", pytest.param("reasoning_content", marks=pytest.mark.exhaustive)]
)
def test_nothing_that_a_model_writes_runs_or_loads(
    visit: Visit, stand_in: ScriptedServer, field: str
) -> None:
    """The fixture fails the test for an error, a dialog, a violation of the policy, a foreign request."""
    chat = visit(stand_in.url)
    asked: list[str] = []
    chat.page.on("request", lambda request: asked.append(urlsplit(request.url).path))
    chat.send("Go on")
    text = document()
    for start in range(0, len(text), 997):  # blocks are drawn half done
        stand_in.feed(**{field: text[start : start + 997]})
    stand_in.feed("Done.")
    stand_in.end()
    chat.finished()
    answer = chat.answer
    if field == "reasoning_content":
        answer.locator("details.thinking summary").click()
    expect(answer).to_contain_text("The end of the attacks.")
    expect(answer.locator("math").first).to_be_attached()
    expect(answer.locator(".hljs-tag, .hljs-name").first).to_be_attached()
    shown = answer.locator(".markdown")
    for at in range(shown.count()):
        part = shown.nth(at)
        assert (
            part.evaluate(
                "(root, forbidden) => [...root.querySelectorAll(forbidden)].map(e => e.outerHTML)", FORBIDDEN
            )
            == []
        )
        assert part.evaluate(HANDLERS) == 0
    assert set(asked) <= OWN
    # Titles, file names and the speech of screen readers take text as text.
    assert chat.page.evaluate("document.querySelectorAll('#app').length") == 1


def test_names_and_questions_are_text(visit: Visit, stand_in: ScriptedServer) -> None:
    stand_in.models[0]["id"] = "<img src=x onerror=alert(1)>"
    chat = visit(stand_in.url)
    question = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    chat.send(question)
    function = {"name": "<b onclick=alert(1)>", "arguments": '{"a": "</code><script>alert(1)</script>"}'}
    stand_in.feed(tool_calls=[{"index": 0, "id": "<c>", "type": "function", "function": function}])
    stand_in.end("tool_calls")
    chat.finished()
    expect(chat.questions.locator(".typed")).to_have_text(question)
    expect(chat.page.locator(".sidebar button.title")).to_have_text(question)
    expect(chat.answer.locator(".call summary")).to_contain_text("Called <b onclick=alert(1)>")
    assert (
        chat.page.evaluate("document.querySelectorAll('main img, main script, nav img, nav script').length")
        == 0
    )


def test_a_link_opens_elsewhere_and_knows_nothing_of_the_page(chat: ChatPage) -> None:
    """Only a click of the user loads another origin. The page is not its opener, nor its referrer."""
    chat.force("[a page](https://example.org/there)")
    answer = chat.ask("Link")
    heard: list[dict[str, str]] = []

    def respond(route: Route) -> None:
        heard.append(route.request.headers)
        route.fulfill(body="<title>other</title>", content_type="text/html")

    chat.faults.origins.add("https://example.org")
    chat.page.context.route("https://example.org/**", respond)
    with chat.page.expect_popup() as popup:
        answer.get_by_role("link", name="a page").click()
    popup.value.wait_for_load_state()
    assert popup.value.evaluate("window.opener") is None
    assert popup.value.evaluate("document.referrer") == "" and "referer" not in heard[0]
