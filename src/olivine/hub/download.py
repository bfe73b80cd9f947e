"""Downloading: into the cache of huggingface_hub and by its client, in a way that can be interrupted.

huggingface_hub removes what it has of a file when a download ends early. So files are fetched here, by its
`http_get`, into a file that stays and is continued; a file whose hash is right is put into the cache as
huggingface_hub would have put it, which finds it there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from olivine import __version__
from olivine.errors import DownloadError
from olivine.hub.failures import telling
from olivine.hub.names import Name, parse
from olivine.hub.remote import MAIN, Remote, RemoteFile, api, endpoint, look_up, part_of

SPARE = 64 << 20  # bytes that stay free on the disk
_READ = 1 << 20

# Called with a file, "download" or "check", and how many of its bytes are done.
Report = Callable[[RemoteFile, str, int], None]


def pull(name: Name, report: Report | None = None) -> Path:
    """Downloads a model, or what is missing of it; where it is. Nothing is asked."""
    return fetch(look_up(name), report)


def pull_text(text: str) -> Path:
    """`pull` of a name as it was typed."""
    name = parse(text)
    assert name is not None and name.repo, "a MissingModelError has such a name"
    return pull(name)


def fetch(remote: Remote, report: Report | None = None) -> Path:
    """Downloads what is missing of these files, and checks its hashes."""
    report = report or _silent
    refuse_full_disk(remote)
    api()
    with telling(remote.repo):
        for file in remote.files:
            _fetch(remote, file, report)
        main = remote.folder / "refs" / MAIN
        main.parent.mkdir(parents=True, exist_ok=True)
        main.write_text(remote.commit, encoding="utf-8")
    return remote.path


def refuse_full_disk(remote: Remote) -> None:
    """An error if what is missing does not fit on the disk."""
    missing = remote.missing_bytes
    free = free_disk(remote.folder)
    if missing and missing + SPARE > free:
        raise DownloadError(
            f"{remote.repo} needs {missing / 1e9:.2f} GB on the disk, and {free / 1e9:.2f} GB is free in "
            f"{remote.folder.parent}: make room, or set HF_HUB_CACHE to a folder on another disk",
            code="disk_full",
        )


def free_disk(folder: Path) -> int:
    """Bytes that are free where a folder is, or will be."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _fetch(remote: Remote, file: RemoteFile, report: Report) -> None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import WeakFileLock

    if not (remote.snapshot / file.path).exists():
        blob = remote.folder / "blobs" / file.blob
        lock = remote.folder.parent / ".locks" / remote.folder.name / f"{file.blob}.lock"
        for folder in (blob.parent, lock.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(lock):  # the one that huggingface_hub takes for the same file
            if not blob.exists():
                _download(remote, file, part_of(blob), report)
                _check(remote, file, part_of(blob), report)
                os.replace(part_of(blob), blob)
        hf_hub_download(
            remote.repo,
            file.path,
            revision=remote.commit,
            cache_dir=remote.folder.parent,
            endpoint=endpoint(),
        )
    report(file, "download", file.bytes)


def _download(remote: Remote, file: RemoteFile, part: Path, report: Report) -> None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    url = hf_hub_url(remote.repo, file.path, revision=remote.commit, endpoint=endpoint())
    # Compressed, a file could not be continued in its middle.
    headers = {
        **build_hf_headers(library_name="olivine", library_version=__version__),
        "Accept-Encoding": "identity",
    }
    with open(part, "ab") as out:
        if out.tell() > file.bytes:
            out.truncate(0)
            out.seek(0)
        report(file, "download", out.tell())
        counted: Any = _Counted(out, lambda done: report(file, "download", done))
        http_get(url, counted, resume_size=out.tell(), headers=headers, expected_size=file.bytes)


def _check(remote: Remote, file: RemoteFile, part: Path, report: Report) -> None:
    """Whether a file is what the hub says it is; one that is not is removed."""
    large = len(file.blob) == 64
    hashed = hashlib.sha256() if large else hashlib.sha1(b"blob %d\0" % part.stat().st_size)
    done = 0
    with open(part, "rb") as source:
        while data := source.read(_READ):
            hashed.update(data)
            done += len(data)
            if large:
                report(file, "check", done)
    if hashed.hexdigest() != file.blob:
        part.unlink()
        raise DownloadError(
            f"{remote.repo}: {file.path} came with a wrong hash ({hashed.hexdigest()[:12]} in place of "
            f"{file.blob[:12]}), so it was removed: pull again; if that happens twice, the proxy or mirror "
            f"({endpoint()}) changes files",
            code="wrong_hash",
        )


class _Counted:
    """A file that says how long it is with each write."""

    def __init__(self, file: BinaryIO, report: Callable[[int], None]) -> None:
        self._file = file
        self._report = report

    def write(self, data: bytes) -> int:
        written = self._file.write(data)
        self._report(self._file.tell())
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _silent(file: RemoteFile, stage: str, done: int) -> None:
    pass
