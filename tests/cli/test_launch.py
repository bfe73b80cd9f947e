"""`olivine launch`, with clients that are small scripts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from olivine.cli.clients import CLIENTS, Target
from oracles import tiny

CLIENT = f"""#!{sys.executable}
import json, os, sys, urllib.request
told = {{name: value for name, value in os.environ.items() if name.startswith(PREFIXES)}}
found = {{"arguments": sys.argv[1:], "environment": told}}
if "--ask" in sys.argv:
    url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/models"
    found["models"] = json.load(urllib.request.urlopen(url))
print(json.dumps(found))
sys.exit(int(os.environ.get("STATUS", "0")))
"""
PREFIXES = ("OPENAI", "ANTHROPIC", "CLAUDE", "OLLAMA", "OPENCODE", "GOOSE", "OLIVINE_API")


@pytest.fixture
def launch(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `olivine launch` where all clients are installed."""
    for client in CLIENTS.values():
        script = tmp_path / client.program
        script.write_text(CLIENT.replace("PREFIXES", repr(PREFIXES)), encoding="utf-8")
        script.chmod(0o755)

    def run(*arguments: str, path: str | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
        return subprocess.run(
            [sys.executable, "-m", "olivine", "launch", *arguments],
            env={**clean, "PATH": str(tmp_path) if path is None else path, **more},
            capture_output=True,
            text=True,
            encoding="utf-8",
            stdin=subprocess.DEVNULL,
            timeout=200,
        )

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


def test_a_server_that_does_not_start_says_why(launch: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    run = launch("claude", "-m", str(tmp_path / "broken.gguf"))
    assert run.returncode == 1 and "broken.gguf" in run.stderr and "Traceback" not in run.stderr
