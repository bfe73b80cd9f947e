"""Windows, as far as can be told without it: Olivine is imported where POSIX is missing."""

from __future__ import annotations

import select
import subprocess
import sys
from pathlib import Path

import pytest

import olivine
from olivine.media.limits import Limits
from olivine.media.process import WorkerProcess

SOURCE = Path(olivine.__file__).parent

# Modules of others come first: on this system they do not ask whether it is there.
IMPORTS = """
import importlib, os, select, signal, sys
import asyncio, multiprocessing, selectors, socketserver, subprocess, tempfile, uvicorn
for name in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty", "uvloop"):
    sys.modules[name] = None
for module, names in {
    os: "fork getloadavg getuid killpg register_at_fork sched_getaffinity setsid statvfs sysconf",
    select: "poll",
    signal: "SIGALRM SIGBUS SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGTSTP SIGUSR1 SIGWINCH setitimer",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_every_module_is_imported_without_what_windows_lacks() -> None:
    paths = [path.relative_to(SOURCE.parent).with_suffix("") for path in sorted(SOURCE.rglob("*.py"))]
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    skipped = (
        "olivine.backends.cuda",
        "olivine.__main__",
        "olivine.bench.llama_worker",
        "olivine.ray",
    )  # need more than Olivine
    chosen = [name for name in names if not name.startswith(skipped)]
    run = subprocess.run([sys.executable, "-c", IMPORTS, *chosen], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_media_say_that_they_are_not_decoded_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "poll")
    with pytest.raises(olivine.OlivineError, match="not decoded on Windows yet"):
        WorkerProcess(Limits())
