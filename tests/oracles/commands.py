"""The `olivine` command in a process of its own, as a user runs it, without the time that imports take.

A process that has imported the command line forks for each call: as a program, this is that process. Starting
from nothing, and what a signal does meanwhile, has tests of its own in tests/cli.
"""

from __future__ import annotations

import atexit
import functools
import io
import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, cast


def olivine(*arguments: Any, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in this process's folder; `text` is its standard input."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8", **environment}
    given = [str(argument) for argument in arguments]
    pipes = [os.pipe() for _ in range(3)]
    (stdin, ours), *outputs = pipes
    start(given, variables, os.getcwd(), [stdin, *(write for _, write in outputs)])
    with ThreadPoolExecutor(3) as pool:
        pool.submit(_write, ours, text.encode())
        stdout, stderr = pool.map(_read, [read for read, _ in outputs])
    return subprocess.CompletedProcess(given, status(), stdout, stderr)


def start(arguments: list[str], environment: dict[str, str], folder: str, streams: list[int]) -> None:
    """Starts a command with these three streams, which are closed here; `status` waits for its end."""
    order = json.dumps({"arguments": arguments, "environment": environment, "folder": folder})
    socket.send_fds(_server(), [order.encode()], streams)
    for stream in streams:
        os.close(stream)


def status() -> int:
    return int(_server().recv(64))


def _write(pipe: int, data: bytes) -> None:
    with suppress(BrokenPipeError), open(pipe, "wb") as file:
        file.write(data)


def _read(pipe: int) -> str:
    with open(pipe, encoding="utf-8") as file:
        return file.read()


@functools.cache
def _server() -> socket.socket:
    """Where calls go. The process at its other end ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.PIPE,  # as the pipes that take the place of these
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    theirs.close()
    ours.settimeout(120)
    atexit.register(process.communicate)
    atexit.register(ours.close)  # first
    return ours


def _serve(orders: socket.socket) -> dict[str, Any]:
    """Forks for each order: returns in the child with it, and ends the parent when there are no more."""
    while True:
        data, pipes, _, _ = socket.recv_fds(orders, 1 << 20, 3)
        if not data:
            sys.exit()
        if child := os.fork():
            for pipe in pipes:
                os.close(pipe)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            orders.send(str(status).encode())
            continue
        orders.close()
        for number, pipe in enumerate(pipes):
            os.dup2(pipe, number)
            os.close(pipe)
        return dict(json.loads(data))


if __name__ == "__main__":
    import gc
    from importlib import import_module

    import olivine.__main__ as program
    from olivine.cli.main import COMMANDS

    for name in ("olivine.llm", "olivine.backends.cpu", *(module for module, _ in COMMANDS.values())):
        import_module(name)
    gc.freeze()
    order = _serve(socket.socket(fileno=int(sys.argv[1])))
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = [str(Path(program.__file__)), *order["arguments"]]
    encoding, _, errors = os.environ["PYTHONIOENCODING"].partition(":")
    for stream in (sys.stdin, sys.stdout):
        cast(io.TextIOWrapper, stream).reconfigure(encoding=encoding, errors=errors or "strict")
    cast(io.TextIOWrapper, sys.stderr).reconfigure(encoding=encoding)
    program.main()
