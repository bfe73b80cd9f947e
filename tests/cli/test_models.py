"""pull, list, show, rm, ps and stop as a user types them, with a hub on this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
import httpx
import pexpect
import pytest

from hub.stand_in import Hub, running
from olivine import box, machine
from olivine.cli.main import COMMANDS, LazyGroup, cli
from olivine.cli.obtain import ModelCommand
from olivine.cli.options import ModelPath
from olivine.server.loader import Loader
from olivine.server.models import ServedModel
from oracles.commands import olivine
from oracles.serving import serving, serving_process
from oracles.terminal import spawn

REPO = "ggml-org/gemma-3-1b-it-GGUF"
FILE = "gemma-3-1b-it-Q4_K_M.gguf"


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with running() as hub:
        hub.add(REPO, {"README.md": b"!", FILE: box.FILE.read_bytes()}, license="gemma")
        hub.add("google/gemma-3-1b-it", {"config.json": b"{}", "model.safetensors": b"x"}, gated=True)
        yield hub


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the bandwidth of this machine is kept: nothing is measured."""
    folder = tmp_path_factory.mktemp("kept")
    (folder / machine.KEPT).write_text(json.dumps({machine.kept_as(): 2e10}))
    return str(folder)


@pytest.fixture
def home(hub: Hub, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a user who has no model."""
    found = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf"),
        "HOME": str(tmp_path),
        "OLLAMA_MODELS": str(tmp_path / "ollama"),
        "OLIVINE_CACHE": kept,
        "no_proxy": "*",
    }
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    for name in ("HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return found


def test_from_nothing_to_an_answer_and_back(home: dict[str, str], hub: Hub) -> None:
    refused = olivine("run", "gemma3:1b", "Tell me a story", "-n", "3")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(
        "Error: gemma3:1b: is not on this machine: olivine pull gemma3:1b downloads it"
    )
    size = box.FILE.stat().st_size
    pulled = olivine("pull", "gemma3:1b", "--json")
    facts = json.loads(pulled.stdout)
    assert (facts["downloaded"], facts["type"], facts["license"]) == (size, "Q4_K_M", "gemma")
    assert f"{FILE}: done (100 %" in pulled.stderr and "\x1b" not in pulled.stderr
    listed = json.loads(olivine("list", "--json").stdout)
    assert [each["name"] for each in listed] == ["olivine-mini", "gemma3:1b"]
    assert listed[1]["path"] == facts["path"] and listed[1]["where"] == "Hugging Face"
    answered = olivine("run", "gemma3:1b", "Tell me a story", "-n", "3", "-q")
    assert (answered.returncode, answered.stderr) == (0, "") and answered.stdout.strip()
    shown = olivine("show", "gemma3:1b").stdout
    assert "Hugging Face: " in shown and "license       Gemma" in shown and FILE in shown
    assert olivine("rm", "gemma3:1b").stdout == "gemma3:1b is deleted: 15.3 MB is free again\n"


def test_yes_downloads_and_says_what(home: dict[str, str]) -> None:
    run = olivine("run", "-y", "gemma3:1b", "Tell me a story", "-n", "3")
    assert run.returncode == 0 and run.stdout.strip()
    lines = run.stderr.splitlines()
    assert lines[0] == f"gemma3:1b is not on this machine: {REPO} has it."
    assert lines[1].startswith("Q4_K_M · 15.3 MB to download · license gemma · takes about ")
    speed = f"about {0.75 * 2e10 / box.FILE.stat().st_size:.0f} tok/s"
    assert "at a context of 4,096" in lines[1] and speed in lines[1] and "is free" in lines[1]


@pytest.mark.parametrize("arguments", [["run", "Tell me a story", "-n", "3"], ["chat", "-n", "3"]], ids=str)
def test_yes_downloads_the_model_of_the_settings_too(
    home: dict[str, str], tmp_path: Path, arguments: list[str]
) -> None:
    settings = {"OLIVINE_MODEL": "gemma3:1b", "OLIVINE_STATE": str(tmp_path)}
    refused = olivine(*arguments, text="Hello", **settings)
    assert refused.returncode == 1 and "olivine pull gemma3:1b downloads it" in refused.stderr
    run = olivine(*arguments, "-y", text="Hello", **settings)
    assert run.returncode == 0 and run.stdout.strip(), run.stderr
    assert run.stderr.startswith(f"gemma3:1b is not on this machine: {REPO} has it.")


def test_yes_downloads_the_model_of_the_settings_to_serve_it(
    home: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLIVINE_MODEL", "gemma3:1b")
    assert "olivine pull gemma3:1b downloads it" in olivine("serve", "--port", "0").stderr
    with serving_process("-y", "-t", "1", "--device", "cpu") as url:
        (served,) = httpx.get(f"{url}/v1/models").json()["data"]
    assert "gemma-3-1b-it" in served["id"]


def test_a_terminal_asks_once(home: dict[str, str], tmp_path: Path) -> None:
    with spawn("tokenize", "gemma3:1b", "Hello", state=tmp_path, **home) as terminal:
        terminal.expect("15.3 MB to download")
        terminal.expect(r"Download it\? \[Y/n\]: ")
        terminal.sendline("")
        terminal.expect("15.3/15.3 MB")
        terminal.expect("tokens")
        terminal.expect_exact(pexpect.EOF)
    assert terminal.wait() == 0


def test_names_that_are_wrong_say_what_to_do(home: dict[str, str]) -> None:
    for arguments, told in (
        (["pull", "gema3"], "gema3 is no name of a model"),
        (["pull", "google/gemma-3-1b-it"], "asks you to accept its license first"),
        (["pull", "olivine-mini"], "is a part of Olivine, and here: there is nothing to download"),
        (["rm", "olivine-mini"], "is a part of Olivine"),
        (["show", ""], "the name of the model is empty"),
        (["rm", str(box.FILE)], "is a file or folder of yours"),
        (["rm", "gemma3:1b"], "there is no model gemma3:1b on this machine"),
        (["run", "gema3"], "nearest: gemma3 (3.3 GB"),
    ):
        run = olivine(*arguments)
        assert run.returncode == 1 and told in run.stderr and "Traceback" not in run.stderr


def test_the_model_in_the_package_is_shown_as_such(home: dict[str, str]) -> None:
    lines = olivine("show", "olivine-mini").stdout.splitlines()
    assert lines[0].split() == ["name", "olivine-mini"]
    assert lines[1].split()[:3] == ["in", "the", "package:"] and not any(
        "repository" in each for each in lines
    )


def test_the_short_names_are_listed_with_what_fits(home: dict[str, str]) -> None:
    found = {each["name"]: each for each in json.loads(olivine("list", "--available", "--json").stdout)}
    assert found["gemma3:4b"]["default"] and found["gemma3:4b"]["can"] == ["vision"]
    assert not found["gemma3:1b"]["here"] and found["smollm2:135m"]["memory"] > 1e8
    shown = olivine("show", "gemma3:4b").stdout
    assert "not here: " in shown and "about 3.3 GB" in shown


def test_models_of_others_are_not_deleted(home: dict[str, str], tmp_path: Path) -> None:
    model = tmp_path / ".lmstudio/models/p/r/m-Q8_0.gguf"
    model.parent.mkdir(parents=True)
    model.write_bytes(box.FILE.read_bytes())
    blob = tmp_path / "ollama/blobs" / f"sha256-{'1' * 64}"
    manifest = tmp_path / "ollama/manifests/registry.ollama.ai/library/mine/latest"
    for path in (blob, manifest):
        path.parent.mkdir(parents=True)
    blob.write_bytes(box.FILE.read_bytes())
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'1' * 64}"}
    manifest.write_text(json.dumps({"layers": [layer]}))
    listed = {each["name"]: each["where"] for each in json.loads(olivine("list", "--json").stdout)}
    assert listed == {"olivine-mini": "the package", "p/r:Q8_0": "LM Studio", "mine:latest": "Ollama"}
    assert olivine("tokenize", "mine", "Hello").returncode == 0, "a blob is read in place"
    assert "belongs to LM Studio" in olivine("rm", "p/r").stderr and model.exists()
    assert "ollama rm mine:latest" in olivine("rm", "mine").stderr and blob.exists()


def test_every_command_that_takes_a_model_downloads_one() -> None:
    assert isinstance(cli, LazyGroup)
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        if any(isinstance(param.type, ModelPath) for param in command.params):
            assert isinstance(command, ModelCommand), name


def test_without_a_server_ps_and_stop_say_so(home: dict[str, str]) -> None:
    for arguments in (["ps"], ["stop", "--all"]):
        run = olivine(*arguments, "--url", "http://127.0.0.1:9")
        assert run.returncode == 1 and "there is no server at http://127.0.0.1:9" in run.stderr
    assert olivine("stop").returncode == 2


def test_ctrl_c_keeps_what_is_there(home: dict[str, str], hub: Hub, tmp_path: Path) -> None:
    hub.add("a/slow-GGUF", {"x-Q4_K_M.gguf": bytes(4 << 20)})
    hub.pause_after = 2 << 20
    process = subprocess.Popen(
        [sys.executable, "-m", "olivine", "pull", "a/slow-GGUF"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **home},
    )
    try:
        while not any(
            each.stat().st_size for each in (tmp_path / "hf/hub").glob("models--*/blobs/*.incomplete")
        ):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=240)[1].splitlines()
    finally:
        hub.pause_after = None
        process.kill()
    assert process.returncode == -signal.SIGINT
    assert told[-1].startswith("Stopped: ") and told[-1].endswith(" pull a/slow-GGUF")
    assert olivine("pull", "a/slow-GGUF").returncode == 0
    assert hub.asked[-2][2].get("range", "").startswith("bytes=")


def test_a_running_server_is_asked(home: dict[str, str]) -> None:
    loader = Loader({"threads": 1, "sequences": 1})
    with serving([ServedModel("mini", path=box.FILE, preload=True)], loader=loader) as url:
        while not (found := json.loads(olivine("ps", "--url", url, "--json").stdout)):
            time.sleep(0.1)
        assert [each["name"] for each in found] == ["mini"]
        assert "mini" in olivine("ps", "--url", url).stdout
        assert olivine("stop", "mini", "--url", url).stdout == "mini is unloaded\n"
        assert olivine("ps", "--url", url).stdout == "No model is loaded.\n"
        assert "nearest: mini" in olivine("stop", "nope", "--url", url).stderr


@contextmanager
def something_else(answer: bytes) -> Iterator[str]:
    """The address of a program that is no server of Olivine: it answers with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answers() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection:
                        connection.recv(1 << 16)
                        connection.sendall(answer)

        threading.Thread(target=answers, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "there is no server at {url} (SSH-2.0-OpenSSH_9.6"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + b'{"models": [{"model": "x"}]}', "{url} is no server of Olivine"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + b'{"models": 5}', "{url} is no server of Olivine"),
    ],
    ids=["ssh", "nameless", "no list"],
)
def test_another_program_is_no_traceback(home: dict[str, str], answer: bytes, told: str) -> None:
    with something_else(answer) as url:
        for run in (olivine("ps", "--url", url), olivine("stop", "--all", "--url", url)):
            assert run.returncode == 1 and run.stderr.startswith("Error: ")
            assert told.format(url=url) in run.stderr
        if answer.startswith(b"SSH"):
            run = olivine("launch", "claude", "--print", "--url", url)
            assert run.returncode == 1 and f"there is no server at {url}: start one" in run.stderr


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("localhost:8080", "has no http:// before it."),
        ("http://localhost:abc", "is no address of a server, such as http://127.0.0.1:8080."),
        ("http://local host:1", "is no address of a server"),
        ("ftp://localhost", "is no address of a server"),
        ("http://", "is no address of a server"),
    ],
)
def test_an_address_that_is_none_is_told(home: dict[str, str], url: str, told: str) -> None:
    for command in ("ps", "stop x", "launch claude --print"):
        run = olivine(*command.split(), "--url", url)
        assert run.returncode == 2 and f"{url!r} {told}" in run.stderr
    assert "(from the variable OLIVINE_URL)" in olivine("ps", OLIVINE_URL=url).stderr
