"""Health, models and metrics over HTTP, on olivine-mini."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from olivine import box, open_checkpoint
from olivine.llm import LLM
from olivine.memory import Need
from olivine.server.loader import Loader, Room
from olivine.server.models import ServedModel
from olivine.server.settings import Settings
from oracles.serving import serving
from oracles.waiting import eventually

MESSAGES = [{"role": "user", "content": "Tell me a story about a fox."}]


class GatedLoader(Loader):
    """Loads on one thread, when it may, as many models as `fits`."""

    def __init__(self, fits: int = 10) -> None:
        super().__init__({"device": "cpu", "threads": 1, "context": 512, "sequences": 4})
        self.may_load = threading.Event()
        self.may_load.set()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked = threading.Event()
        self._fits = fits

    def room(self, device: str, loaded: Sequence[Need]) -> Room:
        free = (1 << 40) if len(loaded) < self._fits else 0
        return Room(free, free)

    def load(self, *arguments: Any) -> LLM:
        assert self.may_load.wait(120)
        llm = super().load(*arguments)
        submit = llm.submit_chat

        def gated(*args: Any, **options: Any) -> Any:
            self.asked.set()
            assert self.may_answer.wait(120)
            return submit(*args, **options)

        llm.submit_chat = gated  # type: ignore[method-assign]
        return llm


def chat(url: str, model: str, **more: Any) -> httpx.Response:
    body = {"model": model, "messages": MESSAGES, "max_tokens": 8, "seed": 1, **more}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=240)


def state_of(url: str, model: str) -> str:
    found: str = httpx.get(f"{url}/v1/models/{model}").json()["state"]
    return found


def sample(url: str, name: str, **labels: str) -> float:
    text = httpx.get(f"{url}/metrics").text
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    (value,) = [each.value for each in samples if each.name == name and labels.items() <= each.labels.items()]
    return float(value)


@pytest.fixture(scope="module")
def loader() -> GatedLoader:
    return GatedLoader()


@pytest.fixture(scope="module")
def many(loader: GatedLoader, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with two models that are loaded at first use, and one that cannot be."""
    broken = tmp_path_factory.mktemp("models") / "broken.gguf"
    broken.write_bytes(b"GGUF and nothing more")
    models = [
        ServedModel("mini", path=box.FILE, aliases=["small"]),
        ServedModel("org/mini:q8", path=box.FILE),
        ServedModel("broken", path=broken),
    ]
    with serving(models, loader=loader) as url:
        yield url


def test_models_are_listed_whether_they_are_loaded_or_not(many: str) -> None:
    listed = httpx.get(f"{many}/v1/models").json()
    assert listed["object"] == "list" and httpx.get(f"{many}/models").status_code == 200
    mini, other, broken = listed["data"]
    assert (mini["id"], other["id"], mini["object"]) == ("mini", "org/mini:q8", "model")
    assert mini["max_model_len"] == 512 and mini["aliases"] == ["small"]
    assert mini["meta"]["n_ctx_train"] == 2048 and mini["meta"]["n_params"] > 10_000_000
    assert mini["meta"]["size"] == box.FILE.stat().st_size
    assert mini["capabilities"] == {"vision": False, "audio": False, "tools": False, "reasoning": False}
    assert broken["problem"].startswith("broken: ") and broken["state"] == "unloaded"


def test_a_models_name_may_have_slashes_and_colons_in_a_path(many: str) -> None:
    for path in ("/v1/models/org/mini:q8", "/models/org/mini:q8", "/v1/models/org%2Fmini%3Aq8"):
        assert httpx.get(many + path).json()["id"] == "org/mini:q8"
    response = httpx.get(f"{many}/v1/models/minni")
    assert response.status_code == 404 and "nearest: mini" in response.json()["error"]["message"]


def test_the_first_request_loads_a_model_and_another_can_be_unloaded(many: str) -> None:
    response = chat(many, "org/mini:q8")
    assert response.status_code == 200 and response.json()["model"] == "org/mini:q8"
    assert state_of(many, "org/mini:q8") == "loaded"
    unloaded = httpx.post(f"{many}/models/unload", json={"model": "org/mini:q8"})
    assert unloaded.status_code == 200 and unloaded.json()["state"] == "unloaded"
    assert chat(many, "org/mini:q8").json()["choices"] == response.json()["choices"]
    assert httpx.post(f"{many}/v1/models/load", json={"model": "mini"}).status_code == 405
    assert httpx.post(f"{many}/models/load", json={}).status_code == 400


def test_a_model_that_cannot_be_loaded_is_a_503_in_words_and_others_go_on(many: str, tmp_path: Path) -> None:
    response = chat(many, "broken")
    assert response.status_code == 503 and response.headers["x-should-retry"] == "false"
    message = response.json()["error"]["message"]
    assert message.startswith("broken could not be loaded: broken: ") and "/" not in message
    assert chat(many, "small").status_code == 200


def test_the_load_as_events(many: str) -> None:
    httpx.post(f"{many}/models/unload", json={"model": "mini"})
    response = httpx.post(f"{many}/models/load", json={"model": "mini", "stream": True}, timeout=240)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    assert events[0]["state"] == "unloaded" and events[0]["bytes"] == 0
    assert events[-1]["state"] == "loaded" and events[-1]["bytes"] == events[-1]["total"] > 10_000_000
    response = httpx.post(f"{many}/models/load", json={"model": "broken", "stream": True}, timeout=240)
    last = [line for line in response.text.splitlines() if line][-1]
    assert json.loads(last[6:])["error"].startswith("broken: version: ")


def test_all_loads_and_unloads_as_events(many: str) -> None:
    httpx.post(f"{many}/models/load", json={"model": "mini"}, timeout=240)
    with httpx.stream("GET", f"{many}/models/events") as response:
        lines = (json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: "))
        assert [next(lines)["model"] for _ in range(3)] == ["mini", "org/mini:q8", "broken"]
        httpx.post(f"{many}/models/unload", json={"model": "mini"})
        heard = [next(lines), next(lines)]
    assert [(each["model"], each["state"], each["reason"]) for each in heard] == [
        ("mini", "unloading", "asked"), ("mini", "unloaded", "asked")
    ]  # fmt: skip


def test_the_head_of_a_stream_has_an_end(many: str) -> None:
    with httpx.Client() as client:
        for _ in range(2):  # on the same connection
            response = client.head(f"{many}/models/events", timeout=20)
            assert response.status_code == 200 and response.content == b""
            assert response.headers["content-type"].startswith("text/event-stream")


def test_unloading_a_busy_model_is_a_409(many: str, loader: GatedLoader) -> None:
    loader.asked.clear()
    loader.may_answer.clear()
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(chat(many, "mini").status_code))
    thread.start()
    try:
        eventually(loader.asked.is_set)
        refused = httpx.post(f"{many}/models/unload", json={"model": "mini"})
        assert refused.status_code == 409
        assert refused.json()["error"]["message"] == "mini answers 1 request: unload it when it is idle"
    finally:
        loader.may_answer.set()
    thread.join()
    assert answers == [200]
    assert httpx.post(f"{many}/models/unload", json={"model": "mini"}).status_code == 200


def test_health_and_metrics_answer_while_a_model_decodes(many: str) -> None:
    body = {"model": "mini", "messages": MESSAGES, "max_tokens": 400, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{many}/v1/chat/completions", json=body, timeout=240) as stream:
        lines = stream.iter_lines()
        next(lines)
        for path in ("/health", "/metrics", "/v1/models", "/props"):
            assert httpx.get(many + path).status_code == 200
        assert list(lines)[-2] == "data: [DONE]"


def test_a_client_that_goes_away_during_a_load_frees_its_place(many: str, loader: GatedLoader) -> None:
    httpx.post(f"{many}/models/unload", json={"model": "mini"})
    loader.may_load.clear()
    try:
        where, body = httpx.URL(many), json.dumps({"model": "mini", "messages": MESSAGES}).encode()
        with socket.create_connection((where.host, where.port), 120) as client:
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
            client.sendall(head % len(body) + body)
            eventually(lambda: sample(many, "olivine:num_requests_waiting", model_name="mini") == 1)
        eventually(lambda: sample(many, "olivine:num_requests_waiting", model_name="mini") == 0)
        gone = {"handler": "/v1/chat/completions", "status": "499"}
        eventually(lambda: 'status="499"' in httpx.get(f"{many}/metrics").text)
        assert sample(many, "olivine:http_requests_total", **gone) == 1
        assert state_of(many, "mini") == "loading"
    finally:
        loader.may_load.set()
    assert chat(many, "mini").status_code == 200


def test_health_is_503_while_models_are_loaded_at_the_start() -> None:
    loader = GatedLoader()
    loader.may_load.clear()
    with serving([ServedModel("mini", path=box.FILE, preload=True)], loader=loader) as url:
        response = httpx.get(f"{url}/health")
        assert response.status_code == 503 and response.json()["status"] == "loading"
        assert response.json()["error"]["message"] == "mini: is being loaded"
        loader.may_load.set()
        eventually(lambda: httpx.get(f"{url}/v1/health").status_code == 200)
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}


def test_health_is_503_where_a_model_could_not_be_loaded_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with serving([ServedModel("x", path=tmp_path / "x.gguf", pinned=True)]) as url:
        eventually(lambda: httpx.get(f"{url}/health").json()["status"] == "error")
        assert httpx.get(f"{url}/health").status_code == 503


def test_health_is_503_where_no_step_ends_though_requests_wait(mini: LLM) -> None:
    with serving([ServedModel("mini", mini)], Settings(stall=-1.0)) as url:
        response = httpx.get(f"{url}/health")
        assert response.status_code == 503 and response.json()["status"] == "stalled"


def test_health_is_503_where_the_engine_failed() -> None:
    with (
        LLM(open_checkpoint(box.FILE), device="cpu", threads=1) as llm,
        serving([ServedModel("mini", llm)]) as url,
    ):
        assert httpx.get(f"{url}/health").status_code == 200
        llm._engine._give_up(RuntimeError("lost"))
        response = httpx.get(f"{url}/health")
        assert response.status_code == 503 and response.json()["status"] == "failed"


def test_two_models_that_do_not_fit_together_answer_many_clients() -> None:
    models = [ServedModel(name, path=box.FILE) for name in ("a", "b")]
    with serving(models, loader=GatedLoader(fits=1)) as url:
        expected = chat(url, "a").json()["choices"]
        results: list[Any] = []

        def ask(name: str) -> None:
            for _ in range(3):
                results.append(chat(url, name).json().get("choices"))

        threads = [threading.Thread(target=ask, args=(name,)) for name in "abab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [expected] * 12
        assert [state_of(url, name) for name in "ab"].count("loaded") == 1
        assert sample(url, "olivine:request_success_total", model_name="b", finished_reason="length") == 6


def test_props_are_those_of_llama_cpps_server(url: str, mini: LLM) -> None:
    props = httpx.get(f"{url}/props").json()
    assert props["default_generation_settings"]["n_ctx"] == mini.context
    assert props["default_generation_settings"]["params"]["top_k"] == mini.sampling.top_k
    assert props["chat_template"] == mini.conversations.template.source
    assert props["total_slots"] == 8 and props["modalities"]["vision"] is False
    assert "model_path" not in props
    slots = httpx.get(f"{url}/slots")
    assert slots.status_code == 501 and slots.json()["error"]["code"] == "not_implemented"
    with serving([ServedModel("mini", mini)], Settings(show_paths=True)) as shown:
        assert httpx.get(f"{shown}/props").json()["model_path"] == str(mini.checkpoint.path)


def test_metrics_count_requests_tokens_and_times(many: str) -> None:
    label = {"model_name": "org/mini:q8"}
    chat(many, "org/mini:q8")
    counted = ("olivine:generation_tokens_total", "olivine:time_to_first_token_seconds_count",
               "olivine:inter_token_latency_seconds_count", "olivine:request_params_n_sum",
               "olivine:e2e_request_latency_seconds_count", "olivine:request_generation_tokens_sum",
               "olivine:request_queue_time_seconds_count")  # fmt: skip
    before = [sample(many, name, **label) for name in counted]
    ok = {"handler": "/v1/chat/completions", "status": "200"}
    responses = sample(many, "olivine:http_requests_total", **ok)
    assert len(chat(many, "org/mini:q8", n=2, stop=[]).json()["choices"]) == 2
    after = [sample(many, name, **label) for name in counted]
    assert [b - a for a, b in zip(before, after, strict=True)] == [16, 2, 14, 2, 1, 16, 2]
    assert sample(many, "olivine:http_requests_total", **ok) == responses + 1


def test_client_errors_are_counted_as_4xx(url: str) -> None:
    httpx.get(f"{url}/nothing/here")
    assert sample(url, "olivine:http_requests_total", handler="", method="GET", status="404") >= 1
    httpx.post(f"{url}/v1/chat/completions", json={"messages": 5})
    labels = {"handler": "/v1/chat/completions", "status": "400"}
    assert sample(url, "olivine:http_requests_total", **labels) >= 1


def test_metrics_in_the_format_of_openmetrics(url: str) -> None:
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    response = httpx.get(f"{url}/metrics", headers=accept)
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")
