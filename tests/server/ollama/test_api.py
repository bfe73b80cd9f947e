"""Ollama's endpoints over HTTP: defaults, refusals, warnings."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from olivine import box
from olivine.llm import LLM
from olivine.server.errors import ApiError
from olivine.server.loader import Loader
from olivine.server.models import ServedModel
from olivine.server.ollama import generate
from olivine.server.ollama.fields import Options, seconds_of
from olivine.tokenizer import Infill
from oracles.serving import serving
from oracles.waiting import eventually

MESSAGES = [{"role": "user", "content": "Tell me a story about a fox."}]
BODY = {"model": "olivine-mini", "options": {"num_predict": 8, "seed": 7}}


def post(url: str, path: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{url}/api/{path}", json={**BODY, **fields}, timeout=240)


def test_streams_unless_told_otherwise(url: str, mini: LLM) -> None:
    response = post(url, "chat", messages=MESSAGES)
    assert response.headers["content-type"].startswith("application/x-ndjson")
    *lines, last = [json.loads(line) for line in response.text.splitlines()]
    expected = mini.chat(MESSAGES, max_tokens=8, seed=7)
    assert "".join(line["message"]["content"] for line in lines) == expected.content
    assert last["done_reason"] == "length" and last["eval_count"] == 8
    whole = post(url, "chat", messages=MESSAGES, stream=False).json()
    assert whole["message"] == {"role": "assistant", "content": expected.content}


def test_a_prompt_is_a_users_message_and_raw_is_text(url: str, mini: LLM) -> None:
    prompt = MESSAGES[0]["content"]
    found = post(url, "generate", prompt=prompt, stream=False).json()
    assert found["response"] == mini.chat(MESSAGES, max_tokens=8, seed=7).content
    system = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    found = post(url, "generate", prompt=prompt, system="Be brief.", stream=False).json()
    assert found["response"] == mini.chat(system, max_tokens=8, seed=7).content
    found = post(url, "generate", prompt="<bos>Once upon", raw=True, stream=False).json()
    expected = mini.generate("<bos>Once upon", max_tokens=8, seed=7, parse_special=True)
    assert (found["response"], found["prompt_eval_count"]) == (expected.text, expected.usage.prompt)
    lines = post(url, "generate", prompt="<bos>Once upon", raw=True).text.splitlines()
    assert "".join(json.loads(line)["response"] for line in lines) == expected.text


@pytest.mark.parametrize(
    ("path", "fields", "status", "error"),
    [
        ("chat", {"model": None, "messages": MESSAGES}, 400, "model is required"),
        ("chat", {"model": "olivine", "messages": MESSAGES}, 404, "nearest: olivine-mini"),
        ("chat", {"messages": "Hi"}, 400, "messages: "),
        ("chat", {"messages": [{"role": "fox", "content": "Hi"}]}, 400, "messages[0] has the role 'fox'"),
        ("chat", {"messages": MESSAGES, "think": True}, 400, "this model does not think"),
        ("chat", {"messages": MESSAGES, "think": "very"}, 400, "think is 'very'"),
        ("chat", {"messages": MESSAGES, "format": "yaml"}, 400, 'format is "json" or a JSON schema'),
        ("chat", {"messages": MESSAGES, "format": {"type": "fox"}}, 400, "fox"),
        ("chat", {"messages": MESSAGES, "options": {"temperature": -1}}, 400, "temperature must be"),
        ("chat", {"messages": MESSAGES, "options": {"top_k": "x"}}, 400, "options.top_k: "),
        ("chat", {"messages": MESSAGES, "keep_alive": "soon"}, 400, "keep_alive is 'soon'"),
        ("chat", {"messages": [{**MESSAGES[0], "images": ["aGk="]}]}, 400, "text only"),
        ("generate", {"prompt": "Hi", "images": ["aGk="]}, 400, "text only"),
        ("generate", {"prompt": "Hi", "template": "{{ .Prompt }}"}, 400, "template: the model's own"),
        ("generate", {"prompt": "Hi", "context": [1, 2]}, 400, "context: send the conversation as messages"),
        ("generate", {"prompt": "Hi", "suffix": "Ho"}, 400, "suffix: this model has no tokens for filling"),
        ("generate", {"prompt": "Hi", "raw": True, "system": "x"}, 400, "raw: a raw prompt has no place"),
        ("generate", {"prompt": "fox " * 3000}, 400, "and the context holds 2048"),
        ("embed", {"input": ["fox " * 3000]}, 400, "and the context holds 2048"),
        ("embed", {"input": "Hi", "dimensions": 0}, 400, "dimensions must be between 1 and 320, and is 0"),
        ("show", {"model": "nope"}, 404, "there is no model 'nope'"),
        ("pull", {"model": "nope"}, 404, "there is no model 'nope'"),
        ("push", {}, 501, "models are not uploaded over HTTP"),
        ("create", {}, 501, "models are not made over HTTP"),
        ("copy", {}, 501, "models are not copied over HTTP"),
        ("nothing", {}, 404, "there is no /api/nothing here"),
    ],
)
def test_refusals_are_in_ollamas_shape(
    url: str, path: str, fields: dict[str, Any], status: int, error: str
) -> None:
    response = post(url, path, **fields)
    assert response.status_code == status, response.text
    assert [*response.json()] == ["error"] and error in response.json()["error"]


def test_null_means_default(url: str) -> None:
    nothing = {"num_ctx": None, "temperature": None, "stop": None, "num_predict": 2}
    fields = {"think": None, "tools": None, "format": None, "keep_alive": None, "options": nothing}
    assert post(url, "chat", messages=MESSAGES, stream=None, **fields).status_code == 200


def test_what_is_not_followed_is_told(url: str) -> None:
    options = {"num_predict": 1, "num_ctx": 4096, "mirostat": 1, "num_gpu": 99, "num_thread": 2}
    response = post(url, "generate", prompt="Hi", stream=False, options=options, colour="red")
    assert response.status_code == 200
    assert response.headers["warning"] == (
        '299 olivine "ignored, because they are not known: colour", '
        '299 olivine "ignored, because they are not known: mirostat", '
        '299 olivine "num_ctx is 4096, and the context holds 2048: --context 4096 of olivine serve sets it"'
    )
    smaller = {"num_predict": 1, "num_ctx": 64}
    assert "warning" not in post(url, "generate", prompt="Hi", options=smaller).headers


def test_a_request_without_a_prompt_loads(url: str) -> None:
    assert post(url, "chat", messages=[]).json()["done_reason"] == "load"
    assert post(url, "generate").json()["response"] == ""
    assert post(url, "generate", keep_alive=0).json()["done_reason"] == "unload"


def test_keep_alive_says_how_long_a_model_stays() -> None:
    def loaded(url: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = httpx.get(f"{url}/api/ps", timeout=240).json()["models"]
        return found

    loader = Loader({"device": "cpu", "threads": 1})
    with serving([ServedModel("olivine-mini", path=box.FILE)], loader=loader) as url:
        assert loaded(url) == []
        assert post(url, "generate", keep_alive="5m").json()["done_reason"] == "load"
        (model,) = loaded(url)
        assert not model["expires_at"].startswith("9999")
        assert post(url, "generate", keep_alive=0).json()["done_reason"] == "unload"
        eventually(lambda: loaded(url) == [])
        assert post(url, "chat", messages=MESSAGES, keep_alive=0).status_code == 200
        eventually(lambda: loaded(url) == [])


def test_a_suffix_is_filled_up_to(url: str, mini: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Olivine-mini has no tokens for that, so a notation is invented."""
    tokens = mini.tokenizer.encode("A fox")
    stop = mini.generate(tokens, max_tokens=8, seed=7).tokens[5]
    monkeypatch.setattr(generate, "infill", lambda tokenizer, before, after: Infill(tokens, [stop]))
    found = post(url, "generate", prompt="def f(", suffix="return", stream=False).json()
    assert found["response"] == mini.generate(tokens, max_tokens=8, seed=7, stop_tokens=[stop]).text
    assert found["done_reason"] == "stop"


@pytest.mark.parametrize("field", [{"system": "x"}, {"images": ["aGk="]}, {"think": True}, {"think": "low"}])
@pytest.mark.parametrize("text", [{"raw": True}, {"suffix": "return"}, {}])
def test_what_a_text_has_no_place_for_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch, text: dict[str, Any], field: dict[str, Any]
) -> None:
    as_text_only(monkeypatch)
    refused = post(url, "generate", prompt="Once", stream=False, **text, **field)
    assert refused.status_code == 400, refused.text
    assert "has no place for system, images or think" in refused.json()["error"]


@pytest.mark.parametrize("text", [{"raw": True}, {"suffix": "return"}, {}])
def test_empty_fields_are_no_reason_to_refuse_a_text(
    url: str, monkeypatch: pytest.MonkeyPatch, text: dict[str, Any]
) -> None:
    as_text_only(monkeypatch)
    for think in (False, None):
        empty = {"system": "", "images": [], "think": think}
        answer = post(url, "generate", prompt="Once", stream=False, **text, **empty)
        assert answer.status_code == 200, answer.text


def as_text_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Olivine-mini as a model that has no chat template, and tokens for filling in."""
    monkeypatch.setattr(generate, "_chats", lambda llm, body: False)
    monkeypatch.setattr(generate, "infill", lambda tokenizer, *texts: Infill(tokenizer.encode("A fox"), []))


def test_texts_are_cut_for_an_embedding_only_if_that_is_asked_for(url: str, mini: LLM) -> None:
    found = post(url, "embed", input=["fox " * 3000, "fox"], truncate=True).json()
    assert found["prompt_eval_count"] == mini.context + len(mini.tokenizer.encode("fox"))
    short = post(url, "embed", input="fox", dimensions=8).json()["embeddings"][0]
    assert len(short) == 8 and sum(x * x for x in short) == pytest.approx(1, abs=1e-5)


def test_whether_the_server_is_there(url: str) -> None:
    assert httpx.get(url).text.startswith("Ollama is running") and httpx.head(url).status_code == 200
    assert httpx.get(f"{url}/api/version").json()["version"].count(".") == 2


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        (None, None),
        (0, 0),
        (-1, -1),
        (300.5, 300.5),
        ("0", 0),
        ("5", 5),
        ("-1", -1),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        ("-1m", -60),
        ("0" * 63 + "5", 5),
    ],
)
def test_durations_are_gos(duration: Any, seconds: float | None) -> None:
    assert seconds_of(duration) == seconds


@pytest.mark.parametrize("duration", ["", "soon", "m", "5m later", "5 m", float("nan"), float("inf")])
def test_other_durations_are_refused(duration: Any) -> None:
    with pytest.raises(ApiError, match="keep_alive is"):
        seconds_of(duration)


@pytest.mark.parametrize("duration", ["0" * 65, "-1h" + "1h" * 40, "1" * 1_000_000])
def test_a_duration_is_refused_by_its_length_alone(duration: str) -> None:
    with pytest.raises(ApiError, match="keep_alive is"):
        seconds_of(duration)


@pytest.mark.parametrize(("count", "most"), [(None, None), (-1, None), (-2, None), (0, None), (9, 9)])
def test_no_limit_is_as_many_as_fit(count: int | None, most: int | None) -> None:
    assert Options(num_predict=count, seed=-1).generation() == {"max_tokens": most}


@pytest.mark.parametrize(("given", "most"), [(-1, 0), (0, 0), (1, 1), (40, 40)])
def test_a_top_k_below_1_is_all_tokens(given: int, most: int) -> None:
    assert Options(top_k=given).generation()["top_k"] == most
