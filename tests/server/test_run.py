"""The server's process: its sockets, and how it ends."""

from __future__ import annotations

import errno
import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest

from olivine.llm import LLM
from olivine.server.endpoint import Server
from olivine.server.models import Models, ServedModel
from olivine.server.run import HttpServer, http_server, listen
from olivine.server.settings import Settings
from oracles.gate import Gate
from oracles.serving import serving
from oracles.waiting import eventually

LONG = {"messages": [{"role": "user", "content": "Tell me a story."}], "ignore_eos": True, "stream": True}


@contextmanager
def stoppable(mini: LLM, grace: float) -> Iterator[tuple[HttpServer, threading.Thread, str]]:
    (listening,) = listen("127.0.0.1", 0)
    running = http_server(Server(Settings(grace=grace), Models([ServedModel("olivine-mini", mini)])))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield running, thread, f"http://127.0.0.1:{listening.getsockname()[1]}/v1/chat/completions"
    finally:
        running.should_exit = running.force_exit = True
        thread.join(120)


def is_refused(url: str) -> bool:
    where = httpx.URL(url)
    with suppress(ConnectionResetError):
        try:
            socket.create_connection((where.host, where.port), 120).close()
        except ConnectionRefusedError:
            return True
    return False


def test_a_request_that_runs_is_finished(mini: LLM, gate: Gate) -> None:
    gate.close(after=2)
    with stoppable(mini, grace=600) as (running, thread, url):
        with httpx.stream("POST", url, json={**LONG, "max_tokens": 40}) as response:
            running.should_exit = True
            eventually(lambda: is_refused(url))
            gate.open()
            lines = [line for line in response.iter_lines() if line]
        thread.join(120)
        assert lines[-1] == "data: [DONE]" and '"finish_reason":"length"' in lines[-2]
        assert running.ended == (1, 0)


def test_an_introduction_that_cannot_be_printed_ends_the_server(mini: LLM) -> None:
    error = OSError(errno.ENOSPC, "No space left on device")

    def ready() -> None:
        raise error

    settings = Settings()
    running = http_server(Server(settings, Models([ServedModel("olivine-mini", mini)], settings)), ready)
    thread = threading.Thread(target=running.run, kwargs={"sockets": listen("127.0.0.1", 0)}, daemon=True)
    thread.start()
    thread.join(20)
    ended = not thread.is_alive()
    running.should_exit = True
    assert ended and running.failure is error


@pytest.mark.parametrize("resume", ["false", "true"])
def test_a_request_that_takes_too_long_is_cancelled_and_told(mini: LLM, resume: str) -> None:
    with stoppable(mini, grace=0) as (running, thread, url):
        headers = {"X-Stream-Resume": resume}
        with httpx.stream("POST", url, json=LONG, headers=headers, timeout=240) as response:
            lines = (line for line in response.iter_lines() if line)
            next(lines)
            running.should_exit = True
            *_, last = lines
        thread.join(120)
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert running.ended == (0, 1)
        eventually(lambda: mini.stats().running == 0)


def test_the_events_of_models_end_with_the_server(mini: LLM) -> None:
    """At once, and as an answer that is complete."""
    with stoppable(mini, grace=600) as (running, thread, url):
        with httpx.stream("GET", httpx.URL(url).join("/models/events"), timeout=240) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            running.should_exit = True
            assert not any(line.startswith("data: ") for line in lines)
        thread.join(60)
        assert not thread.is_alive() and running.ended == (1, 0)


def test_signals_after_the_requests_have_ended_change_nothing(mini: LLM) -> None:
    """Uvicorn would leave the application's own end out."""
    with stoppable(mini, grace=600) as (running, thread, url):
        with httpx.stream("POST", url, json=LONG, timeout=240) as response:
            lines = response.iter_lines()
            next(lines)
            for expected in (False, True):
                running._told(signal.SIGINT, None)
                assert (running.should_exit, running.force_exit) == (True, expected)
            assert any("shutting_down" in line for line in lines)
        thread.join(60)
        assert running.ended == (0, 1)
        running._told(signal.SIGINT, None)
        assert not running.force_exit


def test_a_server_that_stops_accepts_nothing_more(mini: LLM) -> None:
    with stoppable(mini, grace=1) as (running, thread, url):
        running.should_exit = True
        thread.join(120)
        with pytest.raises(httpx.ConnectError):
            httpx.post(url, json=LONG)
        assert running.ended == (0, 0)


def test_a_port_is_found_in_use_before_anything_else() -> None:
    (first,) = listen("127.0.0.1", 0)
    with first, pytest.raises(OSError) as error:
        listen("127.0.0.1", first.getsockname()[1])
    assert error.value.errno == errno.EADDRINUSE


def test_all_addresses_of_a_host_have_one_port() -> None:
    sockets = listen("localhost", 0)
    assert len({each.getsockname()[1] for each in sockets}) == 1
    for each in sockets:
        each.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer ключ".encode()}, 401),
        ({"Authorization": "Bearer one"}, 200),
        ({"X-Api-Key": "two"}, 200),
    ],
)
def test_a_server_with_keys_wants_one_of_them(mini: LLM, headers: dict[str, str], status: int) -> None:
    body = {**LONG, "max_tokens": 1, "stream": False}
    with serving([ServedModel("olivine-mini", mini)], Settings(api_keys=("one", "two"))) as url:
        response = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers)
    assert response.status_code == status
    if status == 401:
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
