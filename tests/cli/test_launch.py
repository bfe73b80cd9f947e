"""`olivine launch`, with clients that are small scripts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from olivine.cli.clients import CLIENTS, Target
from oracles import tiny
from oracles.waiting import eventually

# The command. What it does on a hang-up is said, because under nohup the tests and what they start ignore it.
HEARS = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from olivine.cli.main import main
sys.argv[0] = "olivine"
main()
"""
CLIENT = f"""#!{sys.executable}
import json, os, sys, time, urllib.request
told = {{name: value for name, value in os.environ.items() if name.startswith(PREFIXES)}}
found = {{"arguments": sys.argv[1:], "environment": told}}
if "--ask" in sys.argv:
    url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/models"
    found["models"] = json.load(urllib.request.urlopen(url))
print(json.dumps(found), flush=True)
if "--stay" in sys.argv:
    time.sleep(200)
sys.exit(int(os.environ.get("STATUS", "0")))
"""
PREFIXES = ("OPENAI", "ANTHROPIC", "CLAUDE", "OLLAMA", "OPENCODE", "GOOSE", "OLIVINE_API")


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `olivine launch` where all clients are installed; ends what is left of it after the test."""
    for client in CLIENTS.values():
        script = tmp_path / client.program
        script.write_text(CLIENT.replace("PREFIXES", repr(PREFIXES)), encoding="utf-8")
        script.chmod(0o755)

    begun: list[subprocess.Popen[str]] = []

    def start(*arguments: str, path: str | None = None, **more: str) -> subprocess.Popen[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
        process = subprocess.Popen(
            [sys.executable, "-c", HEARS, "launch", *arguments],
            env={**clean, "PATH": str(tmp_path) if path is None else path, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        begun.append(process)
        return process

    yield start
    for process in begun:
        if process.poll() is None:
            for each in [*children(process.pid), process.pid]:
                os.kill(each, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def launch(begin: Any) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `olivine launch` to its end."""

    def run(*arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
        process = begin(*arguments, **options)
        stdout, stderr = process.communicate(timeout=200)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    return run


@pytest.fixture
def server() -> Iterator[str]:
    """Something that lists models, if the key is right."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers["Authorization"] in ("Bearer olivine", "Bearer secret")
            body = json.dumps({"data": [{"id": "first"}, {"id": "second"}]} if known else {}).encode()
            self.send_response(200 if known else 401)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_is_told_of_the_server(launch: Any, server: str, name: str) -> None:
    run = launch(name, "--url", server, "--", "--more", "x y", STATUS="3")
    assert run.returncode == 3, run.stderr
    found = json.loads(run.stdout)
    target = Target(server, "first")
    assert found["environment"] == CLIENTS[name].environment(target)
    assert found["arguments"] == [*CLIENTS[name].arguments(target), "--more", "x y"]
    assert server in run.stdout and ("first" in run.stdout or name == "open-webui")


def test_what_is_printed_is_what_is_set(launch: Any, server: str) -> None:
    lines = launch("claude", "--url", server, "-m", "second", "--api-key", "secret", "--print")
    assert lines.stdout == "\n".join(CLIENTS["claude"].lines(Target(server, "second", "secret"))) + "\n"
    assert "ANTHROPIC_AUTH_TOKEN=secret" in lines.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["emacs"], "'emacs' is not one of 'claude', 'codex'"),
        (["claude", "-m", "third"], "has no model 'third'; it has: first, second"),
        (["claude", "--api-key", "wrong"], "wants a key: --api-key, or the variable OLIVINE_API_KEY"),
        (["claude", "--url", "http://127.0.0.1:1"], "there is no server at http://127.0.0.1:1: start one"),
        (["claude", "--url", "nonsense"], "'nonsense' has no http:// before it."),
        (["claude", "--print", "--url", "http://localhost:abc"], "'http://localhost:abc' is no address of"),
    ],
)
def test_mistakes_are_told(launch: Any, server: str, arguments: list[str], message: str) -> None:
    run = launch(*arguments, OLIVINE_URL=server)
    assert run.returncode in (1, 2) and message in run.stderr and run.stdout == ""


def test_a_client_that_is_missing_is_a_line(launch: Any, server: str) -> None:
    run = launch("codex", "--url", server, path="/nowhere")
    assert run.returncode == 1
    assert run.stderr == "Error: codex is not installed: npm install -g @openai/codex\n"


def test_a_server_is_started_and_ended_with_the_client(launch: Any, tmp_path: Path) -> None:
    model = tiny.write("tiny-qwen3", "Q8_0", tmp_path)
    run = launch("claude", "-m", str(model), "--", "--ask")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    (served,) = found["models"]["data"]
    assert served["id"] == found["environment"]["ANTHROPIC_MODEL"] == model.stem
    url = found["environment"]["ANTHROPIC_BASE_URL"]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_a_context_of_0_is_the_models_own(launch: Any, tmp_path: Path) -> None:
    run = launch("claude", "-m", str(tiny.write("tiny-qwen3", "Q8_0", tmp_path)), "-c", "0")
    assert run.returncode == 0, run.stderr


def test_the_model_of_the_settings_is_served_where_none_is_named(launch: Any, tmp_path: Path) -> None:
    model = tiny.write("tiny-qwen3", "Q8_0", tmp_path)
    run = launch("claude", OLIVINE_MODEL=str(model))
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["environment"]["ANTHROPIC_MODEL"] == model.stem


@pytest.mark.parametrize("settings", [{}, {"OLIVINE_MODEL": "olivine-mini"}])
def test_nothing_is_started_with_the_storyteller_in_the_box(launch: Any, settings: dict[str, str]) -> None:
    run = launch("claude", **settings)
    assert run.returncode == 2 and run.stdout == ""
    assert "olivine-mini is too small for claude: name a model with -m" in run.stderr


def children(process: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def ended(processes: list[int]) -> bool:
    """Whether these processes end soon; they do not outlive the tests."""
    try:
        eventually(lambda: not any(Path(f"/proc/{each}").exists() for each in processes), seconds=20)
    except AssertionError:
        for each in processes:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        return False
    return True


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks Linux which processes there are")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_that_loads_is_ended_with_the_command(begin: Any, tmp_path: Path, number: int) -> None:
    command = begin("claude", "-m", str(tiny.write("tiny-qwen3", "Q8_0", tmp_path)))
    eventually(lambda: children(command.pid) != [])
    (server,) = children(command.pid)
    eventually(lambda: b"serve" in Path(f"/proc/{server}/cmdline").read_bytes())
    time.sleep(0.1)
    command.send_signal(number)
    assert command.wait(timeout=240) == -number
    assert ended([server])


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks Linux which processes there are")
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_the_client_and_its_server_are_ended_with_the_command(
    begin: Any, tmp_path: Path, number: int
) -> None:
    model = tiny.write("tiny-qwen3", "Q8_0", tmp_path)
    command = begin("claude", "-m", str(model), "--", "--stay")
    assert json.loads(command.stdout.readline())["arguments"][-1] == "--stay"
    started = children(command.pid)
    assert len(started) == 2
    command.send_signal(number)
    assert command.wait(timeout=240) == -number
    assert ended(started)


def test_a_server_that_does_not_start_says_why(launch: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    run = launch("claude", "-m", str(tmp_path / "broken.gguf"))
    assert run.returncode == 1 and "broken.gguf" in run.stderr and "Traceback" not in run.stderr
