"""The versions of what Olivine runs on, and the extras that are installed."""

from __future__ import annotations

import contextlib
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from olivine import __version__
from olivine.doctor.section import Section

PACKAGES = ("numpy", "tokenizers", "llguidance", "jinja2", "click", "rich", "huggingface_hub")
# What an extra of pyproject.toml installs, and what it is for.
EXTRAS = {
    "serve": (
        ("starlette", "uvicorn", "pydantic", "prometheus-client", "httptools", "python-multipart", "uvloop"),
        "olivine serve",
    ),
    "media": (("pillow", "av", "soundfile", "soxr"), "images, sounds and videos"),
    "cuda": (("torch", "triton"), "NVIDIA GPUs"),
}


def versions() -> Section:
    section = Section("versions")
    packages = {name: version(name) for name in PACKAGES}
    extras: dict[str, dict[str, Any]] = {}
    for extra, (names, purpose) in EXTRAS.items():
        found = {name: version(name) for name in names if name != "uvloop" or sys.platform != "win32"}
        extras[extra] = {"purpose": purpose, "packages": found, "complete": None not in found.values()}
    section.facts = {
        "olivine": __version__,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": system(),
        "packages": packages,
        "extras": extras,
    }
    section.tell("olivine", __version__)
    section.tell("Python", f"{platform.python_version()} ({platform.python_implementation()})")
    section.tell("system", system())
    section.tell("packages", ", ".join(f"{name} {each or 'missing'}" for name, each in packages.items()))
    for extra, facts in extras.items():
        found = facts["packages"]
        missing = [name for name, each in found.items() if each is None]
        there = ", ".join(f"{name} {each}" for name, each in found.items() if each is not None)
        if missing:
            how = f"for {facts['purpose']}: pip install 'olivine[{extra}]'"
            there = f"not installed; {how}" if not there else f"{there}; {', '.join(missing)} missing, {how}"
        section.tell(f"[{extra}]", there)
    return section


def version(package: str) -> str | None:
    """Of an installed package, without importing it."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def system(release: Path = Path("/etc/os-release")) -> str:
    """The operating system, its version, and the architecture."""
    name = f"{platform.system()} {platform.release()}"
    with contextlib.suppress(OSError):
        for line in release.read_text(errors="replace").splitlines():
            if line.startswith("PRETTY_NAME="):
                name = f"{line.partition('=')[2].strip().strip(chr(34))}, {name}"
    libc = " ".join(platform.libc_ver()).strip()
    return ", ".join(part for part in (name, platform.machine(), libc) if part)
