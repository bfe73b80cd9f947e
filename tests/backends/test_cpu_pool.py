"""The native thread pool where the system gives it no threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import olivine

SOURCE = str(Path(olivine.__file__).parents[1])
FEW = """
import mmap, resource, sys
from olivine.backends.cpu import native
from olivine.errors import OlivineError

native.lib()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
room = (8 << 20 if stack == resource.RLIM_INFINITY else stack) * 8
resource.setrlimit(resource.RLIMIT_AS, (used + room, resource.RLIM_INFINITY))
try:
    mmap.mmap(-1, 2 * room)
    sys.exit("no limit")  # an emulator of user programs keeps to none
except OSError:
    pass
try:
    native.Pool(500)
except OlivineError as error:
    print(error)
print(native.Pool(2).threads)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the size of the address space is read from /proc")
@pytest.mark.skipif("sanitize" in os.environ.get("OLIVINE_LIBRARY", ""), reason="it reserves terabytes")
def test_threads_that_cannot_be_started_are_an_error_and_no_end() -> None:
    run = subprocess.run(
        [sys.executable, "-c", FEW],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
        timeout=120,
    )
    if run.stderr.strip() == "no limit":
        pytest.skip("this system sets no limit to the address space")
    refused, usable = run.stdout.splitlines()
    assert "of the 500 threads: use fewer (-t)" in refused and usable == "2", run.stderr
