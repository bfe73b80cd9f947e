"""native/build.py: what it says without a compiler, and how it tells systems apart."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BUILD: dict[str, Any] = runpy.run_path(str(ROOT / "native" / "build.py"))


def compiler(folder: Path, target: str, version: str = "clang version 22") -> str:
    """A compiler that says what it compiles for, and compiles nothing."""
    path = folder / "c++"
    path.write_text(
        f'#!/bin/sh\ncase $1 in -dumpmachine) echo "{target}";; --version) echo "{version}";; esac\n'
    )
    path.chmod(0o755)
    return str(path)


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++ -O1")
    with pytest.raises(SystemExit) as caught:
        BUILD["build"](tmp_path / "libolivine.so")
    message = str(caught.value)
    assert "needs a C++20 compiler, and there is no '/nowhere/c++' here" in message
    assert "apt-get install g++" in message and "xcode-select --install" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("target", "machine", "name"),
    [
        ("x86_64-linux-gnu", "x86_64", "libolivine.so"),
        ("aarch64-linux-gnu", "aarch64", "libolivine.so"),
        ("riscv64-unknown-linux-musl", "riscv64", "libolivine.so"),
        ("arm64-apple-darwin25.1.0", "aarch64", "libolivine.dylib"),
        ("x86_64-w64-windows-gnu", "x86_64", "olivine.dll"),
        ("x86_64-pc-windows-msvc", "x86_64", "olivine.dll"),
        ("x86_64-w64-mingw32", "x86_64", "olivine.dll"),
    ],
)
def test_the_target_of_a_compiler(
    target: str, machine: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, target))
    found, system = BUILD["target_of_compiler"](BUILD["compiler_command"]())
    assert found == machine and BUILD["library_name"]() == name
    assert set(BUILD["COMPILE"]) == set(BUILD["LINK"]) == set(BUILD["LIBRARY"]) and system in BUILD["LINK"]


def test_gcc_is_refused_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, "x86_64-w64-mingw32", "g++ (GCC) 14.2.0"))
    with pytest.raises(SystemExit, match="does not align AVX vectors"):
        BUILD["build"](tmp_path / "olivine.dll")
