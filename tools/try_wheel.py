"""Installs a wheel for each given Python in an empty environment, without a compiler, and asks for a story.

python tools/try_wheel.py dist/olivine-*.whl python3.10 python3.13
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

QUESTION = "Tell me a story about a fox and a boat"


def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done


def story(folder: Path, olivine: Path) -> tuple[float, float, int]:
    """Seconds from the start of the program to its end, those of CPU time, and the words that it printed."""
    environment = {"PATH": str(olivine.parent), "HOME": str(folder), "LANG": "C.UTF-8"}
    command = [str(olivine), "run", QUESTION, "--seed", "1"]
    start, used = time.perf_counter(), os.times()
    done = run(command, env=environment, cwd=folder, stdin=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - start, os.times()
    cpu = after.children_user + after.children_system - used.children_user - used.children_system
    return seconds, cpu, len(done.stdout.split())


def try_with(wheel: Path, python: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run([python, "-m", "venv", str(folder / "venv")])
        bin_ = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        installed = [
            str(bin_ / "python"),
            "-m",
            "pip",
            "--quiet",
            "--disable-pip-version-check",
            "install",
            str(wheel),
        ]
        # A compiler that fails: the wheel is for this Python, and none of its dependencies is compiled.
        run(installed, env={**os.environ, "CC": "/bin/false", "CXX": "/bin/false"})
        version = run([str(bin_ / "olivine"), "--version"]).stdout.strip()
        python_version = run([str(bin_ / "python"), "-VV"]).stdout.split()[1]
        runs = [story(folder, bin_ / "olivine") for _ in range(4)]
        words = min(words for *_, words in runs)
        if words < 30:
            raise SystemExit(f"a story of {words} words")
        seconds, cpu_seconds, _ = min(runs)
        print(f"Python {python_version}: {version}; a story of {words} words, from start to end:")
        print(f"  first run {runs[0][0]:.2f} s; best of 4 {seconds:.2f} s ({cpu_seconds:.2f} s of CPU time)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("pythons", nargs="*", default=[sys.executable])
    arguments = parser.parse_args()
    for python in arguments.pythons:
        try_with(arguments.wheel.resolve(), python)


if __name__ == "__main__":
    main()
