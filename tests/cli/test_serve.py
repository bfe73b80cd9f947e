"""`olivine serve`: its options, what it prints, how it starts and ends."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import httpx
import pexpect
import pytest

from olivine.cli import serve, server_habits
from olivine.cli.serve import command, introduction, url_of
from olivine.server.settings import Settings
from oracles import terminal


def parsed(*arguments: str) -> dict[str, Any]:
    return command.make_context("serve", list(arguments)).params


@contextmanager
def started(
    *arguments: str, program: Sequence[str] = ("-m", "olivine"), **environment: str
) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, *program, "serve", "-t", "1", "--device", "cpu", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, **environment},
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=120)


def lines_of(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(count)]


def output_of(*arguments: str) -> tuple[int, str, str]:
    """The status, the output and the errors of a server that ends by itself."""
    with started(*arguments) as process:
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err


def test_every_setting_is_an_option() -> None:
    defaults = {each.name: each.default for each in dataclasses.fields(Settings)}
    assert {name: value for name, value in parsed().items() if name in defaults} == defaults


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["-c", "512"], "context", 512),
        (["-c", "0"], "context", 0),
        (["--ctx-size=512"], "context", 512),
        (["--max-model-len", "512"], "context", 512),
        (["-np", "4"], "sequences", 4),
        (["--max-num-seqs", "4"], "sequences", 4),
        (["--served-model-name", "x", "-a", "y"], "aliases", ("x", "y")),
        (["-m", "a.gguf"], "more_models", (Path("a.gguf"),)),
        (["--keepalive", "5m"], "idle_unload", 300),
    ],
)
def test_spellings_of_other_servers(arguments: list[str], name: str, value: Any) -> None:
    assert parsed(*arguments)[name] == value


def test_what_cannot_be_is_refused_with_what_to_do() -> None:
    own = {name for each in command.params for name in each.opts}
    for name, reason in server_habits.REFUSED.items():
        if name in own:
            continue
        with pytest.raises(click.UsageError) as error:
            parsed(name, "1")
        assert error.value.format_message() == f"{name}: {reason}"
        assert reason.endswith(".") and "\n" not in reason


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("box.example", "http://box.example:80"),
    ],
)
def test_the_url_is_one_that_can_be_typed(host: str, url: str) -> None:
    assert url_of(Settings(host=host), 80) == url


def test_no_key_is_printed() -> None:
    text = introduction("http://127.0.0.1:80", "m", keyed=True)
    assert 'ANTHROPIC_AUTH_TOKEN="$OLIVINE_API_KEY"' in text and '"Authorization: Bearer $OLIVINE' in text
    assert "api_key=os.environ" in text
    assert 'OLLAMA_API_KEY="$OLIVINE_API_KEY"' in text


def test_a_missing_package_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == "uvicorn" else name)
    with pytest.raises(click.ClickException) as error:
        serve.require_packages()
    assert error.value.message == "the server needs uvicorn, not installed here: pip install 'olivine[serve]'"


def test_a_port_in_use_is_a_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        found = output_of("--port", str(port))
    told = f"Error: port {port} is in use: choose another one (--port {port + 1}), or a free one (--port 0), "
    assert found == (1, "", f"{told}or stop what listens there\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-a", "x", "-a", "y"], "there are 2 names (--alias) for 1 models."),
        (["--pin", "nope", "--port", "0"], "nope"),
        (["--api-key", ""], "an API key is empty."),
        (["--api-key", "schlüssel"], "other characters than printable ASCII"),
        (["--api-key", " key"], "or spaces around it"),
        (["--cors", "http://page.example/"], "--cors http://page.example/ is no origin: "),
        (["--host", "no.such.host.invalid"], "cannot listen on --host no.such.host.invalid: "),
        (["/no/such.gguf", "--port", "0"], "/no/such.gguf: there is no such file or folder"),
    ],
)
def test_mistakes_are_told(arguments: list[str], message: str) -> None:
    status, out, err = output_of(*arguments)
    assert status in (1, 2) and out == "" and message in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_cleanly(number: int) -> None:
    with started("--port", "0") as process:
        lines_of(process, 1)
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "\nstopped; no request was running\n")


# `olivine serve` whose engine rests after its first steps, until the server knows which requests are running
# at its end.
HELD = """
import asyncio, threading
from olivine.backends.cpu import CpuProgram
from olivine.server.run import HttpServer

ending, steps = threading.Event(), iter(range(2))
generate, shutdown = CpuProgram.generate, HttpServer.shutdown

def held(*given):
    assert next(steps, None) is not None or ending.wait(120)
    return generate(*given)

async def shut_down(self, sockets=None):
    asyncio.get_running_loop().call_soon(ending.set)
    await shutdown(self, sockets)

CpuProgram.generate, HttpServer.shutdown = held, shut_down
from olivine.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("grace", "outputs", "last", "told"),
    [
        ("0", 8, '"code":"shutting_down"', "0 finished, 1 cancelled"),
        ("600", 1, "[DONE]", "1 finished, 0 cancelled"),
    ],
)
def test_a_stream_hears_that_it_stops(grace: str, outputs: int, last: str, told: str) -> None:
    body = {
        "messages": [{"role": "user", "content": "A tale of Zephyr"}],
        "max_tokens": 100 if outputs == 1 else 1900,
        "n": outputs,
        "ignore_eos": True,
        "stream": True,
    }
    arguments = ["--port", "0", "--grace", grace, "--log-format", "json"]
    with started(*arguments, program=("-c", HELD)) as process:
        url = lines_of(process, 2)[1].split()[2]
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=120) as response:
            lines = (line for line in response.iter_lines() if line)
            next(lines)
            process.send_signal(signal.SIGTERM)
            *_, found = lines
        _, err = process.communicate(timeout=120)
    assert last in found and process.returncode == 0
    logged, *_, farewell = [line for line in err.splitlines() if line]
    assert farewell == f"stopped; running requests: {told}"
    assert json.loads(logged)["path"] == "/v1/chat/completions" and "Zephyr" not in err


# `olivine serve` where a load has to wait for the kernels of a GPU. There is none: the CPU runs the model.
COMPILES = """
from olivine import loading
from olivine.backends.ahead import Ahead

class Compiling(Ahead):
    is_awaited = True
    def wait(self, progress=None):
        for done in (1, 3):
            progress(done, 3)

loading.compile_ahead = lambda *given: Compiling()
loading.choose_device = lambda wanted: ("cpu", ())
from olivine.__main__ import main
main()
"""


def test_kernels_that_are_compiled_are_one_line_of_the_log() -> None:
    arguments = ["serve", "-t", "1", "--port", "0", "--log-format", "json"]
    with subprocess.Popen(
        [sys.executable, "-c", COMPILES, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as process:
        lines_of(process, 1)
        process.terminate()
        _, err = process.communicate(timeout=120)
    logged, *others = [line for line in err.splitlines() if line]
    assert json.loads(logged)["message"].startswith("compiling kernels for the GPU")
    assert others == ["stopped; no request was running"]


def test_a_terminal_shows_how_many_kernels_are_compiled(tmp_path: Path) -> None:
    given = ["serve", "-t", "1", "--port", "0"]
    with terminal.spawn(*given, state=tmp_path, program=("-c", COMPILES)) as process:
        process.expect_exact("compiling kernels: 1 of 3")
        process.expect_exact("compiling kernels: 3 of 3")
        process.expect_exact("listening on")
        process.sendintr()
        process.expect_exact("stopped")
        process.expect_exact(pexpect.EOF)
    assert process.wait() == 0


def test_a_server_that_others_can_reach_is_warned_of() -> None:
    with started("--port", "0", "--host", "0.0.0.0") as process:
        lines_of(process, 1)
        process.terminate()
        _, err = process.communicate(timeout=120)
    assert err.startswith("warning: everyone who can reach 0.0.0.0 can use this server: ")


def test_what_it_prints_can_be_run() -> None:
    with started("--port", "0", "--alias", "mini") as process:
        lines = lines_of(process, 28)
        assert lines[0].startswith("mini · cpu×1") and lines[0].endswith("context 2,048\n")
        assert re.match(r"listening on http://127\.0\.0\.1:\d+  \(Ctrl-C", lines[1])
        assert lines[-1] == "ollama run mini\n"
        curl, python, shell = "".join(lines[3:]).split("\n\n")
        url, body = curl.split()[1], re.search(r"-d '(.*)'$", curl)
        assert body
        assert httpx.post(url, content=body[1], timeout=120).json()["model"] == "mini"
        run = subprocess.run(
            [sys.executable, "-c", python], capture_output=True, text=True, encoding="utf-8", timeout=120
        )
        assert run.returncode == 0 and len(run.stdout) > 20, run.stderr
        exports = "\n".join(line for line in shell.splitlines() if line.startswith("export"))
        printed = subprocess.run(
            ["sh", "-ec", f"{exports}\nenv"], capture_output=True, text=True, timeout=240
        )
        assert f"OPENAI_BASE_URL={url.removesuffix('/chat/completions')}\n" in printed.stdout
