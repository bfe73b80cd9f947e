"""Replicas on a Ray cluster of two nodes: streams, prefixes, and what is lost when a replica is."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from olivine.ray import build_app

if TYPE_CHECKING:
    from oracles.ray_cluster import RayCluster

CONFIG = {
    "model": "olivine-mini",
    "replicas": 2,
    "ingresses": 1,
    "threads": 1,
    "context": 512,
    "log_format": "none",
}
LONG = 240.0  # seconds, on a machine that others use
PROMPT = "Once upon a time there was a fox who had a boat"


def deploy(**options: Any) -> None:
    from ray import serve

    serve.run(build_app({**CONFIG, **options}), name="olivine", route_prefix="/")


@pytest.fixture(scope="module")
def app(cluster: RayCluster) -> RayCluster:
    deploy()
    return cluster


def post(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=LONG)


def replicas(url: str) -> list[str]:
    """Their ids, from the labels of the metrics."""
    page = httpx.get(f"{url}/metrics", timeout=LONG).text
    return sorted({line.split('"')[1] for line in page.splitlines() if line.startswith("process_open_fds{")})


class Load:
    """Clients that ask without a pause, streamed and not, and what became of their requests."""

    def __init__(self, url: str, clients: int) -> None:
        self._url = url
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._texts: dict[int, str] = {}  # by seed: equal wherever it is answered
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(clients)]

    @contextmanager
    def running(self) -> Iterator[None]:
        for each in self._threads:
            each.start()
        try:
            yield
        finally:
            self._stop.set()
            for each in self._threads:
                each.join(LONG)
            assert not any(each.is_alive() for each in self._threads), "a request hangs"

    def wait(self, answered: int) -> None:
        """Until so many more are answered."""
        wanted, end = self.outcomes["answered"] + answered, time.monotonic() + LONG
        while self.outcomes["answered"] < wanted and time.monotonic() < end:
            time.sleep(0.05)
        assert self.outcomes["answered"] >= wanted, (self.outcomes, self.wrong)

    def _ask(self, client: int) -> None:
        draws = random.Random(client)
        while not self._stop.is_set():
            seed, streamed = draws.randrange(4), draws.random() < 0.5
            body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 24, "seed": seed}
            try:
                outcome, text = self._streamed(body) if streamed else self._whole(body)
            except Exception as error:
                outcome, text = f"{type(error).__name__}: {error}", ""
            self.outcomes[outcome] += 1
            if outcome == "answered" and text != self._texts.setdefault(seed, text):
                self.wrong.append(f"{seed}: {text!r}, not {self._texts[seed]!r}")
            elif outcome not in ("answered", "retry"):
                self.wrong.append(outcome)

    def _whole(self, body: dict[str, Any]) -> tuple[str, str]:
        response = post(self._url, **body)
        if response.status_code == 503 and "retry-after" in response.headers:
            return "retry", ""
        if response.status_code != 200:
            return f"{response.status_code} {response.text}", ""
        return "answered", response.json()["choices"][0]["message"]["content"]

    def _streamed(self, body: dict[str, Any]) -> tuple[str, str]:
        url = f"{self._url}/v1/chat/completions"
        with httpx.stream("POST", url, json={**body, "stream": True}, timeout=LONG) as response:
            lines = [each.removeprefix("data: ") for each in response.iter_lines() if each.startswith("data")]
            if response.status_code != 200:
                retry = response.status_code == 503 and "retry-after" in response.headers
                return ("retry", "") if retry else (f"{response.status_code}", "")
        *events, last = lines
        found = [json.loads(each) for each in events]
        if last != "[DONE]":  # the replica was gone
            error = json.loads(last)["error"]
            return ("retry" if error["code"] == "replica_failed" else str(error)), ""
        if sum(bool(each["choices"][0]["finish_reason"]) for each in found) != 1:
            return f"answered twice, or in part: {lines}", ""
        return "answered", "".join(each["choices"][0]["delta"].get("content") or "" for each in found)


def test_replicas_answer_stream_and_tell_their_metrics(app: RayCluster) -> None:
    assert httpx.get(f"{app.url}/health", timeout=LONG).json() == {"status": "ok"}
    assert len(replicas(app.url)) == 2
    load = Load(app.url, 1)
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 12, "seed": 1}
    assert load._streamed(body) == load._whole(body)
    assert post(app.url, messages="none").status_code == 400


def test_prompts_go_where_their_prefix_is_cached(app: RayCluster) -> None:
    stories = [f"{each} " * 60 for each in ["fox", "boat", "tree", "moon", "star", "bird", "fish", "king"]]
    asked = [(story, f"What then? {i}") for i in range(4) for story in stories]

    def cached(each: tuple[str, str]) -> bool:
        messages = [{"role": "system", "content": each[0]}, {"role": "user", "content": each[1]}]
        usage = post(app.url, messages=messages, max_tokens=1).json()["usage"]
        return bool(usage["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] / 2)

    with ThreadPoolExecutor(2) as pool:
        hits = [*pool.map(cached, asked)][len(stories) :]
    assert sum(hits) >= 0.8 * len(hits), hits


def actor(replica: str) -> Any:
    import ray

    return ray.get_actor(f"SERVE_REPLICA::olivine#Replica#{replica}", namespace="serve")


def kill(replica: str) -> None:
    import ray

    ray.kill(actor(replica))


def inside(replica: str, code: str) -> Any:
    """The value of an expression in a replica's process, where `llm` is its model."""
    import ray

    def run(self: Any, code: str) -> Any:
        deployed = self._replica_impl._user_callable_wrapper._callable
        return eval(code, {"llm": deployed._hosted.model.llm})

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return ray.get(actor(replica).__ray_call__.remote(run, code), timeout=LONG)


def metric(url: str, name: str) -> float:
    """Of all replicas together."""
    page = httpx.get(f"{url}/metrics", timeout=LONG).text
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(name))


def until(what: Callable[[], Any]) -> Any:
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.2)
    raise AssertionError("it did not come to that")


def wait_for_others(url: str, before: list[str], count: int) -> list[str]:
    """Until there are so many replicas, other ones than before."""
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        found = replicas(url)
        if len(found) == count and not {*found} & {*before}:
            return found
        time.sleep(0.2)
    raise AssertionError(f"{before} are still {replicas(url)}")


def test_a_client_that_leaves_ends_its_answer(app: RayCluster) -> None:
    before = metric(app.url, "olivine:generation_tokens_total")
    body = {"prompt": PROMPT, "max_tokens": 480, "ignore_eos": True, "stream": True, "n": 8}
    with httpx.stream("POST", f"{app.url}/v1/completions", json=body, timeout=LONG) as response:
        chunks = response.iter_bytes()  # held: without it the connection is closed
        next(chunks)
        assert metric(app.url, "olivine:num_requests_running") > 0
    until(lambda: metric(app.url, "olivine:num_requests_running") == 0)
    assert metric(app.url, "olivine:generation_tokens_total") - before < 8 * 480


def test_a_stream_is_found_by_its_name(app: RayCluster) -> None:
    """Whichever replica makes it."""
    body = {"prompt": PROMPT, "max_tokens": 40, "ignore_eos": True, "stream": True, "seed": 3}
    url, resumed = f"{app.url}/v1/completions", {"X-Stream-Resume": "true"}
    for _ in range(3):
        with httpx.stream("POST", url, json=body, headers=resumed, timeout=LONG) as response:
            name = response.headers["x-stream-id"]
            first = next(response.iter_lines())
        assert first == "id: 1"
        rest = httpx.get(f"{app.url}/v1/streams/{name}", headers={"Last-Event-ID": "1"}, timeout=LONG)
        assert rest.status_code == 200 and rest.text.startswith("id: 2") and "[DONE]" in rest.text
    assert httpx.get(f"{app.url}/v1/streams/unknown", timeout=LONG).status_code == 404


def test_a_killed_replica_loses_no_request(app: RayCluster) -> None:
    before = replicas(app.url)
    load = Load(app.url, 3)
    with load.running():
        load.wait(6)
        kill(before[0])
        load.wait(12)
    assert load.wrong == []


def test_replicas_that_are_redeployed_with_one_more_lose_no_request(app: RayCluster) -> None:
    before = until(lambda: found if len(found := replicas(app.url)) == 2 else None)
    load = Load(app.url, 3)
    with load.running():
        load.wait(6)
        deploy(replicas=3, max_body=1_000_000)
        wait_for_others(app.url, before, 3)
        load.wait(6)
    assert load.wrong == []


@pytest.mark.exhaustive
def test_replicas_that_are_killed_added_and_redeployed_lose_no_request(app: RayCluster) -> None:
    app.add_node(num_cpus=2)
    load = Load(app.url, 4)
    with load.running():
        for round in range(3):
            before = replicas(app.url)
            load.wait(20)
            kill(before[round % len(before)])
            load.wait(20)
            deploy(replicas=3 - round % 2, max_body=1_000_000 + round)
            wait_for_others(app.url, before, 3 - round % 2)
            load.wait(20)
    assert load.wrong == []
    assert load.outcomes["answered"] >= 180


@pytest.mark.exhaustive
def test_a_replica_whose_engine_failed_is_replaced(app: RayCluster) -> None:
    """Meanwhile the other one answers."""
    deploy()
    before = until(lambda: found if len(found := replicas(app.url)) == 2 else None)
    load = Load(app.url, 2)
    with load.running():
        load.wait(4)
        inside(before[0], "llm._engine._give_up(RuntimeError('broken by a test'))")
        load.wait(4)
        until(lambda: before[0] not in replicas(app.url) and len(replicas(app.url)) == 2)
        load.wait(4)
    assert load.wrong == []


@pytest.mark.exhaustive
def test_replicas_that_are_divided_into_ranks(app: RayCluster) -> None:
    """Each on a node of its own, in a placement group. A rank that is killed loses no request."""
    wanted = post(app.url, messages=[{"role": "user", "content": PROMPT}], max_tokens=8, seed=1)
    before = replicas(app.url)
    deploy(replicas=2, tensor_parallel=2)
    found = wait_for_others(app.url, before, 2)
    pids = [inside(each, "llm.program.pids") for each in found]
    assert all(len(each) == 1 for each in pids)
    load = Load(app.url, 2)
    with load.running():
        load.wait(6)
        os.kill(pids[0][0], signal.SIGKILL)
        load.wait(12)
        until(lambda: inside(found[0], "llm.program.pids") not in ([], pids[0]))
        load.wait(6)
    assert load.wrong == []
    assert replicas(app.url) == found  # the group was started again, and no replica was replaced
    assert wanted.status_code == 200


@pytest.mark.exhaustive
def test_replicas_come_with_requests_and_go_without(app: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from olivine.ray import app as application

    soon = {
        "upscale_delay_s": 2.0,
        "downscale_delay_s": 5.0,
        "look_back_period_s": 3.0,
        "metrics_interval_s": 1.0,
    }
    monkeypatch.setattr(application, "SCALING", soon)  # not half a minute up and ten minutes down
    deploy(replicas="1-3", sequences=2)
    until(lambda: len(replicas(app.url)) == 1)
    load = Load(app.url, 8)
    with load.running():
        until(lambda: len(replicas(app.url)) == 3)
        load.wait(8)
    until(lambda: len(replicas(app.url)) == 1)
    assert load.wrong == []
