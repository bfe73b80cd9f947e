"""What glibc's malloc keeps, and that asking for it is safe elsewhere."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from olivine import malloc

# Prints in how many arenas eight threads got their memory: malloc_info lists one <heap> for each.
ARENAS = """
import ctypes, sys, threading
from olivine import malloc

if sys.argv[1:]:
    malloc.limit_arenas(int(sys.argv[1]))
c = ctypes.CDLL(None)
together = threading.Barrier(8)

def allocate():
    together.wait()
    for _ in range(1000):
        c.malloc(1000)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for each in threads:
    each.start()
for each in threads:
    each.join()
c.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(c.fdopen(1, b"w"))
c.malloc_info(0, out)
c.fflush(out)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has arenas")
def test_threads_share_as_many_arenas_as_are_permitted():
    def arenas(*arguments):
        run = [sys.executable, "-c", ARENAS, *arguments]
        return subprocess.run(run, check=True, capture_output=True, text=True).stdout.count("<heap ")

    assert arenas() > 2
    assert arenas("2") <= 2


def test_it_is_safe_anywhere(monkeypatch):
    malloc.return_freed()
    monkeypatch.setattr(malloc.sys, "platform", "win32")
    malloc.return_freed()
    malloc.limit_arenas(2)
