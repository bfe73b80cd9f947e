"""How a rank's process ends: with those that it is for, also where they were killed and could say nothing,
and not by what a terminal or a service manager sends to all processes of a program."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

LOOK = 1.0  # seconds between two looks
# What asks a program to end. Not every system has all of them.
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def start(target: Any, *args: object, name: str | None = None) -> BaseProcess:
    """Starts a rank's process, whose `target` calls `begin` first. Until then signals are held back in it:
    Python would end with a traceback where it still imports."""
    process = get_context("spawn").Process(target=target, args=args, name=name, daemon=True)
    if not hasattr(signal, "pthread_sigmask"):
        process.start()
        return process
    from multiprocessing import resource_tracker  # of the systems that have such masks

    resource_tracker.ensure_running()  # which would release them, if `start` were the first to need it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # a process has the mask of who starts it
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process


def begin() -> None:
    """Leaves signals to the process that started this one, and ends this one with it, whatever it waits
    for."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        # Forks of the parent keep the sentinel open: then the system gives this process another parent.
        while not wait([parent.sentinel], LOOK) and os.getppid() == parent.pid:
            pass
        os._exit(1)

    threading.Thread(target=watch, name="olivine-parent", daemon=True).start()


def end_with_driver(commands: Connection) -> threading.Event:
    """Ends this process if the driver does, until the event is set: the driver sends nothing before, so that
    what can be read is its end."""
    ready = threading.Event()

    def watch() -> None:
        while not ready.is_set():
            if wait([commands], LOOK) and not ready.is_set():
                os._exit(1)

    threading.Thread(target=watch, name="olivine-driver", daemon=True).start()
    return ready
