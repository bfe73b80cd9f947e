"""The settings panel, the model switch and the context meter in the browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from olivine.box import packaged
from olivine.llm import LLM, load
from olivine.server.loader import Loader
from olivine.server.models import ServedModel
from oracles.chat_page import ChatPage, Visit
from oracles.scripted_server import MODEL, ScriptedServer
from oracles.serving import serving


def sent(chat: ChatPage, question: str) -> dict[str, Any]:
    """The body of the request with this question."""
    with chat.page.expect_request("**/v1/chat/completions") as request:
        chat.ask(question)
    return request.value.post_data_json


def test_the_system_prompt_is_sent_and_kept(chat: ChatPage) -> None:
    chat.settings().get_by_label("System prompt").fill("Answer in verse.")
    chat.page.keyboard.press("Escape")
    expect(chat.page.get_by_role("dialog")).to_have_count(0)
    messages = sent(chat, "Hello")["messages"]
    assert [message["role"] for message in messages] == ["system", "user"]
    assert messages[0]["content"] == "Answer in verse."
    chat.page.reload()
    expect(chat.settings().get_by_label("System prompt")).to_have_value("Answer in verse.")


def test_sampling_shows_the_models_own_values_and_sends_what_is_set(chat: ChatPage, url: str) -> None:
    params = httpx.get(f"{url}/props").json()["default_generation_settings"]["params"]
    settings = chat.settings()
    temperature = settings.get_by_label("Temperature")
    expect(temperature).to_have_attribute(
        "placeholder", str(round(params["temperature"], 5)).removesuffix(".0")
    )
    temperature.fill("0.5")
    settings.get_by_label("Max tokens").fill("7")
    settings.get_by_label("Top k").fill("11")
    settings.get_by_label("Top k").fill("")
    chat.button("Close").click()
    body = sent(chat, "Hello")
    assert (
        body["temperature"] == 0.5 and body["max_tokens"] == 7 and "top_k" not in body and "seed" not in body
    )
    chat.button("Use the model's own", chat.settings()).click()
    expect(temperature).to_have_value("")
    chat.button("Close").click()
    chat.force("Yes.")
    assert "max_tokens" not in sent(chat, "Again")


class SlowLoader(Loader):
    """Loads half of a model, and the rest when it is told to; or fails."""

    def __init__(self) -> None:
        super().__init__({"device": "cpu", "threads": 1, "context": 256})
        self.go = threading.Event()
        self.failure: Exception | None = None

    def load(self, checkpoint: Any, need: Any, room: Any, progress: Any, mmproj: Any = None) -> LLM:
        progress(need.weights // 2, need.weights)
        assert self.go.wait(60)
        if self.failure:
            raise self.failure
        return super().load(checkpoint, need, room, progress)


@pytest.fixture
def slow(mini: LLM) -> Iterator[tuple[str, SlowLoader]]:
    loader = SlowLoader()
    with serving(
        [ServedModel("olivine-mini", mini), ServedModel("other", path=packaged())], loader=loader
    ) as url:
        yield url, loader
        loader.go.set()


def test_a_model_is_switched_to_and_loads_with_its_progress(
    visit: Visit, slow: tuple[str, SlowLoader]
) -> None:
    url, loader = slow
    chat = visit(url)
    chat.force("Loaded.")
    chat.ask("Hello")
    chat.page.get_by_role("combobox", name="Model").select_option("other")
    progress = chat.page.get_by_role("progressbar")
    expect(progress).to_have_attribute("value", "0.5")
    expect(progress).to_have_accessible_name("Loading the model: 50 %")
    loader.go.set()
    expect(progress).to_have_count(0)
    with chat.page.expect_request("**/v1/chat/completions") as request:
        chat.ask("Who is there?")
    assert request.value.post_data_json["model"] == "other"
    expect(chat.answer.get_by_role("heading")).to_have_text("other")
    chat.page.reload()
    expect(chat.page.get_by_role("combobox", name="Model")).to_have_value("other")


def test_a_load_that_fails_says_why_and_is_tried_again(visit: Visit, slow: tuple[str, SlowLoader]) -> None:
    url, loader = slow
    loader.failure = MemoryError("no room for the weights")
    loader.go.set()
    chat = visit(url)
    expect(chat.page.get_by_role("combobox", name="Model")).to_have_value("olivine-mini")
    chat.page.get_by_role("combobox", name="Model").select_option("other")
    expect(chat.failure).to_contain_text("The model could not be loaded.")
    loader.failure = None
    chat.button("Try again").click()
    expect(chat.failure).to_have_count(0)
    expect(chat.page.get_by_role("progressbar")).to_have_count(0)
    chat.force("Here.")
    chat.ask("Hello")


@pytest.fixture(scope="module")
def small() -> Iterator[str]:
    """A server whose model has a context of 64 tokens."""
    with (
        load("olivine-mini", device="cpu", threads=1, context=64) as llm,
        serving([ServedModel("small", llm)]) as url,
    ):
        yield url


def test_the_meter_warns_before_the_context_is_full(visit: Visit, small: str) -> None:
    chat = visit(small)
    meter = chat.page.get_by_role("meter")
    chat.force("Short.")
    chat.ask("Hello")
    expect(meter).to_have_attribute("max", "64")
    expect(chat.page.locator(".context.full")).to_have_count(0)
    chat.force(ignore_eos=True, max_tokens=60)
    chat.ask("Tell me a story")
    expect(chat.answer).to_contain_text("The answer was cut")
    expect(chat.page.locator(".context.full")).to_be_visible()
    expect(chat.page.get_by_text("The context is nearly full.")).to_be_attached()


def test_a_full_context_says_so_and_keeps_the_question(visit: Visit, small: str) -> None:
    chat = visit(small)
    chat.send("word " * 100)
    expect(chat.failure).to_contain_text("longer than the model's context")
    expect(chat.questions).to_have_count(1)
    chat.button("Edit", chat.questions.first).click()
    chat.page.get_by_role("textbox", name="Edit").fill("Hello")
    chat.force("Hello.")
    chat.button("Save and send").click()
    expect(chat.answer.locator(".markdown")).to_have_text("Hello.")
    expect(chat.failure).to_have_count(0)


def test_a_model_that_cannot_be_used_says_why(visit: Visit, stand_in: ScriptedServer) -> None:
    stand_in.models = [{**MODEL, "id": "broken", "problem": "no such file"}, MODEL]
    page = visit(stand_in.url).page
    expect(page.get_by_role("combobox", name="Model")).to_have_value("stand-in")
    expect(page.locator("option[value=broken]")).to_have_text("broken: no such file")
