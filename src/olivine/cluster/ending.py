"""A rank's process ends with those that it is for, also where they were killed and could say nothing."""

from __future__ import annotations

import os
import threading
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait

LOOK = 1.0  # seconds between two looks


def end_with_parent() -> None:
    """Ends this process as soon as the one that started it has ended, whatever it waits for."""
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
