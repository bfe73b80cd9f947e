"""What the hub has: the files of a repository, and which of them a name asks for."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivine.errors import DownloadError, printable
from olivine.hub import files, local
from olivine.hub.names import Name

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MAIN = "main"
DEFAULT_ENDPOINT = "https://huggingface.co"
# Bytes between two reports, and the most that an interruption loses. huggingface_hub's 10 MB are a long time
# on a slow line.
CHUNK = 1 << 20
_SHOWN_VARIANTS = 12
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository. `blob` names its content: the SHA-256 of a large file, else what git hashes."""

    path: str
    bytes: int
    blob: str


@dataclass(frozen=True)
class Remote:
    """The files on the hub that make up a model, at one commit."""

    repo: str
    commit: str
    tag: str  # the quantization; "" for safetensors
    files: tuple[RemoteFile, ...]
    opened: str  # the file that is opened; "" is the folder
    license: str = ""

    def __post_init__(self) -> None:
        # Both become names of files: a hub, or a mirror of it, must not choose where they lie.
        if not _COMMIT.fullmatch(self.commit):
            raise DownloadError(
                f"{self.repo}: the hub ({endpoint()}) told no commit, but {self.commit!r:.80}"
            )
        for file in self.files:
            if not _HASH.fullmatch(file.blob):
                raise DownloadError(
                    f"{self.repo}: the hub ({endpoint()}) told no hash of {printable(file.path)}, but "
                    f"{file.blob!r:.80}"
                )

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def folder(self) -> Path:
        """The repository's folder in the cache."""
        return local.hub_cache() / f"models--{self.repo.replace('/', '--')}"

    @property
    def snapshot(self) -> Path:
        return self.folder / "snapshots" / self.commit

    @property
    def path(self) -> Path:
        """Where the model will be."""
        return self.snapshot / self.opened if self.opened else self.snapshot

    def here(self, file: RemoteFile) -> int:
        """How many bytes of a file are in the cache."""
        blob = self.folder / "blobs" / file.blob
        if (self.snapshot / file.path).exists() or blob.exists():
            return file.bytes
        try:
            return min(file.bytes, part_of(blob).stat().st_size)
        except OSError:
            return 0

    @property
    def missing_bytes(self) -> int:
        return self.bytes - sum(self.here(file) for file in self.files)


def part_of(blob: Path) -> Path:
    """Where a file lies while it is incomplete: the name that huggingface_hub gave it before version 2."""
    return blob.with_name(f"{blob.name}.incomplete")


def endpoint() -> str:
    """The hub, or a mirror of it, as huggingface_hub's variable names it."""
    return (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")


def is_offline() -> bool:
    told = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value.upper() in ("1", "ON", "YES", "TRUE") for value in told)


def api() -> HfApi:
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()  # there are ours
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    constants.DOWNLOAD_CHUNK_SIZE = CHUNK
    return HfApi(endpoint=endpoint())


def look_up(name: Name) -> Remote:
    """Asks the hub what a name means now. Errors say what to do."""
    from olivine.hub.failures import telling

    if is_offline():
        raise DownloadError(
            f"{name.text} is not on this machine, and HF_HUB_OFFLINE forbids to ask for it: unset it",
            code="offline",
        )
    with telling(name.repo):
        info = api().model_info(name.repo, files_metadata=True)
    found = {each.rfilename: _file(each) for each in info.siblings or ()}
    tag, chosen, opened = chosen_files(name, [*found])
    return Remote(
        repo=info.id or name.repo,
        commit=str(info.sha),
        tag=tag,
        files=tuple(found[path] for path in chosen),
        opened=opened,
        license=str(getattr(info.card_data, "license", "") or "") if info.card_data else "",
    )


def chosen_files(name: Name, paths: Sequence[str]) -> tuple[str, list[str], str]:
    """The quantization, the files and the one that is opened."""
    weights = files.safetensors(paths)
    variants = files.variants(paths)
    if weights and not name.tag and not name.file:
        return "", weights, ""
    if not variants:
        raise DownloadError(f"{name.repo} {_without_models(name, paths, weights)}", code="not_found")
    variant = files.choose(variants, name.tag, name.file)
    if variant is None:
        tags = [each.tag for each in variants]
        more = f" and {len(tags) - _SHOWN_VARIANTS} more" if len(tags) > _SHOWN_VARIANTS else ""
        raise DownloadError(
            f"{name.repo} has no {name.file or name.tag}: it has {', '.join(tags[:_SHOWN_VARIANTS])}{more}",
            code="not_found",
        )
    if not variant.complete:
        raise DownloadError(f"{name.repo}: parts of {variant.tag} are missing there", code="not_found")
    wants_towers = name.alias is None or name.alias.tower_bytes > 0
    mmproj = files.mmproj_of(paths, variant) if wants_towers else None
    return variant.tag, [*variant.files, *([mmproj] if mmproj else ())], variant.files[0]


def _without_models(name: Name, paths: Sequence[str], weights: Sequence[str]) -> str:
    if weights:
        return f"has no GGUF files, of which {name.file or name.tag} could be one: olivine pull {name.repo}"
    if any(path.endswith((".bin", ".pt", ".pth")) for path in paths):
        return "has its weights in PyTorch's own format, which can run code: look for safetensors or GGUF"
    if any("safetensors" in path for path in paths):
        return "has safetensors that are no whole model (an adapter, or Mistral's own form)"
    return "has no model: neither GGUF files nor safetensors"


def _file(sibling: Any) -> RemoteFile:
    lfs = sibling.lfs
    blob = (lfs["sha256"] if isinstance(lfs, dict) else lfs.sha256) if lfs else sibling.blob_id
    return RemoteFile(sibling.rfilename, int(sibling.size or 0), str(blob or ""))
