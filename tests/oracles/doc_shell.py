"""A shell for the commands of the documentation: bash, in which `olivine` is a fork of a process that has
imported it (oracles/commands.py), in a folder with stand-ins for the files that the pages name."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from oracles import commands
from oracles.documents import Transcript

CLIENT = """\
import json, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect(sys.argv[1])
    order = {"arguments": sys.argv[2:], "folder": os.getcwd(), "environment": dict(os.environ)}
    socket.send_fds(server, [json.dumps(order).encode()], [0, 1, 2])
    sys.exit(int(server.recv(64)) % 256)
"""
# What the user of this machine may have set, and a new one has not; but which library is tested is kept.
OWN = re.compile(r"(XDG|HF|OLLAMA)_|OLIVINE_(?!LIBRARY$|ISA$)")
OPERATORS = {"|", "||", "&&", ";", "&", "|&"}


@dataclass
class Shell:
    folder: Path
    programs: Path  # the folder with `olivine` in it

    def run(self, transcript: Transcript, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Runs a command; what a user types at a prompt of it (`>>> …`) is its standard input."""
        typed = [line[4:] for line in transcript.output.splitlines() if line.startswith(">>> ")]
        variables = {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "OLIVINE_STATE": str(self.folder / ".state"),
            "OLIVINE_CONFIG": "",  # the usual place, in this folder
            "XDG_CONFIG_HOME": "",
            "OMP_NUM_THREADS": "1",
            "PYTHONIOENCODING": "utf-8",
            "TERM": "dumb",
            "HF_HUB_OFFLINE": "1",
        }
        # `head` may end a pipe before all is written, which is no failure.
        strict = "" if "| head" in transcript.command else "set -o pipefail\n"
        return subprocess.run(
            ["bash", "-c", strict + transcript.command],
            cwd=self.folder,
            env={name: value for name, value in os.environ.items() if not OWN.match(name)} | variables,
            input="".join(f"{line}\n" for line in typed),
            capture_output=True,
            text=True,
            timeout=timeout,
        )


@contextmanager
def shell(folder: Path) -> Iterator[Shell]:
    programs = folder / ".programs"
    programs.mkdir()
    address = str(programs / "socket")
    (programs / "client.py").write_text(CLIENT)
    script = programs / "olivine"
    client = shlex.join([sys.executable, "-I", "-S", str(programs / "client.py"), address])
    script.write_text(f'#!/bin/sh\nexec {client} "$@"\n')
    script.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        thread = threading.Thread(target=_answer, args=(listener,), daemon=True)
        thread.start()
        try:
            yield Shell(folder, programs)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _answer(listener: socket.socket) -> None:
    """Starts what clients ask for, one after another, until the listener is shut down."""
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        with client:
            data, streams, _, _ = socket.recv_fds(client, 1 << 20, 3)
            order = json.loads(data)
            commands.start(order["arguments"], order["environment"], order["folder"], streams)
            client.send(str(commands.status()).encode())


def simple_commands(command: str) -> list[list[str]]:
    """The words of each program in a pipeline or list, without variables that are set before it."""
    reader = shlex.shlex(command.replace("\\\n", " ").replace("$'", "'"), posix=True, punctuation_chars=True)
    reader.commenters, reader.whitespace_split = "#", True
    found: list[list[str]] = [[]]
    for word in reader:
        if word in OPERATORS:
            found.append([])
        elif found[-1] or not _sets(word):
            found[-1].append(word)
    return [words for words in found if words]


def _sets(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier()
