"""`olivine chat --web`: a server, its page, and the browser."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import webbrowser
from pathlib import Path

import click
import httpx
import pytest

from olivine.cli.chat import web
from olivine.cli.chat.command import command
from olivine.server.settings import Settings
from oracles.ports import free_port


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["-s", "Be kind"], "--system"), (["--temp", "0"], "--temperature"), (["-c"], "--continue")],
)
def test_what_the_page_decides_is_no_option(arguments: list[str], named: str) -> None:
    context = command.make_context("chat", ["--web", *arguments])
    with pytest.raises(
        click.UsageError, match=f"^{named} is for the terminal: with --web, set it on the page"
    ):
        web.refuse_others(context)


def test_how_a_model_runs_is_an_option() -> None:
    arguments = [
        "m.gguf",
        "--mmproj",
        "towers.gguf",
        "--web",
        "--context",
        "64",
        "-t",
        "1",
        "--device",
        "cpu",
        "--kv-type",
        "f32",
        "--reproducible",
    ]
    web.refuse_others(command.make_context("chat", arguments))


def test_a_port_in_use_is_told_and_another_one_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sockets = web.sockets_of(Settings(port=port))
    with sockets[0] as found:
        assert found.getsockname()[1] != port
    told = capsys.readouterr().err
    assert f"port {port} is in use" in told and "not on this page" in told


def test_a_free_port_is_the_servers_own(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    with web.sockets_of(Settings(port=port))[0] as found:
        assert found.getsockname()[1] == port
    assert capsys.readouterr().err == ""


def test_no_browser_is_opened_in_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    class Graphical(webbrowser.BaseBrowser):
        def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
            opened.append(url)
            return True

    monkeypatch.delenv("BROWSER", raising=False)
    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser("false"))
    web.show("http://one")
    monkeypatch.setattr(webbrowser, "get", Graphical)
    web.show("http://two")

    def none() -> None:
        raise webbrowser.Error("none")

    monkeypatch.setattr(webbrowser, "get", none)
    web.show("http://three")
    assert opened == ["http://two"]


@pytest.mark.skipif(os.name == "nt", reason="the browser is a shell script")
def test_the_page_is_served_and_opened(tmp_path: Path) -> None:
    browser, asked = tmp_path / "browser", tmp_path / "asked"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path / "new"}\nmv {tmp_path / "new"} {asked}\n')
    browser.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-m", "olivine", "chat", "--web", "-t", "1", "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "BROWSER": f"{browser} %s"},
    ) as process:
        assert process.stdout is not None
        try:
            lines = [process.stdout.readline(), process.stdout.readline()]
            url = lines[1].removeprefix("the chat page is at ").split(" ")[0]
            assert lines[0].startswith("olivine-mini · ") and url.startswith("http://127.0.0.1:"), lines
            until = time.monotonic() + 60
            while not asked.exists() and time.monotonic() < until:
                time.sleep(0.05)
            assert asked.read_text().strip() == url
            page = httpx.get(url, headers={"accept": "text/html"})
            assert page.status_code == 200 and "<!doctype html>" in page.text
        finally:
            process.send_signal(signal.SIGINT)
            err = process.communicate(timeout=120)[1]
    assert process.returncode == 0, err
    assert "GET" not in err  # no log of requests
