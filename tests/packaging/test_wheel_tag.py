"""native/wheel_tag.py: the platform tag of the wheel, from what the library needs."""

from __future__ import annotations

import re
import runpy
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from olivine.backends.cpu import native

ROOT = Path(__file__).parents[2]
TAG: dict[str, Any] = runpy.run_path(str(ROOT / "native" / "wheel_tag.py"))
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads an ELF file")


@pytest.mark.parametrize(
    ("versions", "minor"),
    [
        (["GLIBC_2.2.5", "GLIBC_2.14"], 17),
        (["GLIBC_2.2.5", "GLIBCXX_3.4.22"], 24),
        (["GLIBC_2.27", "GLIBCXX_3.4.22", "CXXABI_1.3.11", "GCC_3.0"], 27),
        (["GLIBC_2.29", "GLIBCXX_3.4.22"], 31),
        (["GLIBC_2.17", "GLIBCXX_3.4.29"], 34),
        (["GLIBC_2.38", "CXXABI_1.3.13"], 39),
        (["GLIBC_2.17", "CXXABI_1.3.15"], 39),
        (["GLIBC_2.17", "GLIBCXX_3.4.99"], None),  # of a libstdc++ that is not known yet
        (["GLIBC_2.99"], None),
        (["GLIBC_2.36", "GLIBC_ABI_DT_RELR"], None),
        (["GLIBC_2.17", "GLIBC_PRIVATE"], None),
        (["GLIBCXX_3.4.22"], None),  # on another C library
        ([], None),
    ],
)
def test_the_oldest_glibc_that_has_all(versions: list[str], minor: int | None) -> None:
    assert TAG["oldest_glibc"](versions) == minor


@on_linux
def test_the_tag_of_the_library_names_no_python_and_its_own_architecture() -> None:
    library = Path(native.__file__).with_name("libolivine.so")
    machine = {62: "x86_64", 183: "aarch64"}[struct.unpack_from("<H", library.read_bytes(), 18)[0]]
    assert re.fullmatch(rf"(many)?linux(_2_\d+)?_{machine}", TAG["platform_tag"](library))


@on_linux
def test_what_the_library_needs_is_what_readelf_finds() -> None:
    if shutil.which("readelf") is None:
        pytest.skip("no readelf is installed (binutils)")
    library = Path(native.__file__).with_name("libolivine.so")
    needed = TAG["requirements"](library.read_bytes())
    shown = subprocess.run(["readelf", "-dVW", library], capture_output=True, text=True, check=True).stdout
    assert {name for name, _ in needed} == set(re.findall(r"\(NEEDED\).*\[(.*)\]", shown))
    section = shown[shown.index("Version needs") :]
    assert sorted(v for _, versions in needed for v in versions) == sorted(
        re.findall(r"Name: (\S+)", section)
    )


@on_linux
def test_a_library_that_needs_more_than_the_system_is_for_this_machine_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = Path(native.__file__).with_name("libolivine.so")
    needed = [("libc.so.6", ["GLIBC_2.17"]), ("libmine.so.1", [])]
    monkeypatch.setitem(TAG["platform_tag"].__globals__, "requirements", lambda elf: needed)
    assert re.fullmatch(r"linux_\w+", TAG["platform_tag"](library))


def test_what_is_no_elf_file_is_refused() -> None:
    with pytest.raises(ValueError, match="no 64-bit"):
        TAG["requirements"](b"MZ" + bytes(100))
