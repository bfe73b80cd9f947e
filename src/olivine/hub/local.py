"""The models that are on this disk already: in the Hugging Face cache, and in the folders of LM Studio and
Ollama, which are read in place. Only names and sizes of files are looked at, and Ollama's manifests."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from olivine.hub import files
from olivine.hub.aliases import Alias, aliases
from olivine.hub.names import LATEST, Name

HUGGING_FACE = "Hugging Face"
LM_STUDIO = "LM Studio"
OLLAMA = "Ollama"
_OLLAMA_LIBRARY = "registry.ollama.ai/library/"
_OLLAMA_REGISTRY = "registry.ollama.ai/"
_LAYERS = {"application/vnd.ollama.image.model": "model", "application/vnd.ollama.image.projector": "mmproj"}
_MAX_MANIFEST_BYTES = 1 << 20


@dataclass(frozen=True)
class LocalModel:
    """A model on this disk, complete."""

    source: str  # whose folder it is
    repo: str  # publisher/repository; of Ollama, its name without the tag
    tag: str  # the quantization, "" where there is one only; of Ollama, the tag
    path: Path  # that is opened
    files: tuple[Path, ...]  # that it consists of, with the mmproj file
    mmproj: Path | None = None
    own_id: str = ""  # where the tag does not tell it from another model of its repository

    @property
    def id(self) -> str:
        """The name that always finds it."""
        return self.own_id or (f"{self.repo}:{self.tag}" if self.tag else self.repo)

    @property
    def alias(self) -> Alias | None:
        """The short name that means exactly these files."""
        if self.source == OLLAMA or self.own_id:
            return None
        found = (each for each in aliases().values() if each.repo == self.repo and each.type == self.tag)
        return next(found, None)

    @property
    def name(self) -> str:
        """What to call it: by a short name if there is one."""
        return self.alias.name if self.alias else self.id

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)

    @property
    def type(self) -> str:
        """The quantization, as far as names tell it."""
        return "" if self.source == OLLAMA else self.tag


def models(environment: Mapping[str, str] = os.environ) -> list[LocalModel]:
    """All models on this disk. What cannot be read is left out."""
    found = [*_hugging_face(hub_cache(environment))]
    for folder in lm_studio_folders(environment):
        found += _lm_studio(folder)
    for folder in ollama_folders(environment):
        found += _ollama(folder)
    return found


def locate(name: Name, known: Sequence[LocalModel] | None = None) -> LocalModel | None:
    """The model of that name on this disk, if it is there."""
    known = models() if known is None else known
    if not name.repo:
        return _by_word(name, known)
    wanted = name.repo.lower()
    same = [each for each in known if each.source != OLLAMA and each.repo.lower() == wanted]
    found = _of_repository(name, same)
    if found is None and name.alias is not None:
        # The same files by another publisher, or by Ollama under the same name.
        last = wanted.rpartition("/")[2]
        others = [each for each in known if each.repo.lower().rpartition("/")[2] == last]
        found = _of_repository(name, [each for each in others if each.source != OLLAMA])
        if found is None and name.tag == name.alias.type:
            found = _by_word(Name(name.alias.name, tag=name.alias.name.partition(":")[2]), known)
    if found is None:
        found = _by_word(name, known)  # Ollama has names with a slash, too
    return found


def _of_repository(name: Name, found: Sequence[LocalModel]) -> LocalModel | None:
    """That of several quantizations which a name asks for."""
    by_file = {each.path.as_posix(): each for each in reversed(found)}
    if name.file:
        # LM Studio may have it without the folder that it has on the hub.
        ends = (f"/{name.file}", f"/{name.file.rpartition('/')[2]}")
        return next((by_file[path] for end in ends for path in reversed(by_file) if path.endswith(end)), None)
    chosen = files.choose([files.Variant(each.tag, (each.path.as_posix(),)) for each in found], name.tag)
    return None if chosen is None else by_file[chosen.files[0]]


def _by_word(name: Name, known: Sequence[LocalModel]) -> LocalModel | None:
    """A model by its name in Ollama, by its file's name, or by the last part of its repository's."""
    word = name.text.lower().removeprefix("hf.co/")
    ollama = {each.id.lower(): each for each in known if each.source == OLLAMA}
    for spelled in (word, f"{word}:{LATEST}"):
        if spelled in ollama:
            return ollama[spelled]
    for each in known:
        stem = each.path.name.lower().removesuffix(".gguf")
        last = each.repo.rpartition("/")[2].lower()
        if word in (stem, last, f"{last}:{each.tag.lower()}", each.id.lower()):
            return each
    return None


def title(path: Path) -> str:
    """What a model's path is called: its file's or folder's name, unless that is a hash."""
    repository = path.parent.parent.name
    if path.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.rpartition("--")[2]
    if path.parent.name == "blobs":
        return next((each.id for each in models() if each.path == path), path.name)
    return path.name


# ---- where the folders are


def hub_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """The cache of huggingface_hub, by the same variables as it reads, without importing it."""
    home = environment.get("XDG_CACHE_HOME") or "~/.cache"
    hf_home = environment.get("HF_HOME") or os.path.join(home, "huggingface")
    cache = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    return _expanded(cache or os.path.join(hf_home, "hub"))


def lm_studio_folders(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """LM Studio's folder, which a file in the home folder may name, and where older versions have it."""
    homes = [_expanded("~/.lmstudio"), _expanded("~/.cache/lm-studio")]
    with suppress(OSError, UnicodeDecodeError):
        told = _expanded("~/.lmstudio-home-pointer").read_text(encoding="utf-8").strip()
        homes = [Path(told), *homes] if told and Path(told) not in homes else homes
    return [home / "models" for home in homes]


def ollama_folders(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Ollama's folder; its service on Linux has one of its own."""
    if told := environment.get("OLLAMA_MODELS"):
        return [_expanded(told)]
    return [_expanded("~/.ollama/models"), Path("/usr/share/ollama/.ollama/models")]


def _expanded(path: str) -> Path:
    return Path(os.path.expandvars(os.path.expanduser(path)))


# ---- what is in them


def _hugging_face(cache: Path) -> Iterator[LocalModel]:
    for folder in _folders(cache):
        kind, *parts = folder.name.split("--")
        if kind == "models" and parts:
            found: dict[str, LocalModel] = {}  # by its file in the repository; one of a folder has none
            for snapshot in snapshots(folder):
                for model in _models_in(snapshot, HUGGING_FACE, "/".join(parts)):
                    found.setdefault(model.path.relative_to(snapshot).as_posix(), model)
            yield from _told_apart([*found.values()])


def snapshots(repository: Path) -> list[Path]:
    """The revisions of a repository in the cache: what `main` was last, then the newest."""
    found = _folders(repository / "snapshots")
    main = ""
    with suppress(OSError, UnicodeDecodeError):
        main = (repository / "refs" / "main").read_text(encoding="utf-8").strip()
    return sorted(found, key=lambda each: (each.name != main, -_modified(each), each.name))


def _lm_studio(folder: Path) -> Iterator[LocalModel]:
    for publisher in _folders(folder):
        for repository in _folders(publisher):
            found = [*_models_in(repository, LM_STUDIO, f"{publisher.name}/{repository.name}")]
            yield from _told_apart(found)


def _told_apart(found: Sequence[LocalModel]) -> Iterator[LocalModel]:
    """The models of a repository: those of one tag by their files' names, those of one name by folders."""
    tags = Counter(each.tag for each in found)
    names = Counter(each.path.name for each in found)
    for each in found:
        if tags[each.tag] == 1:
            yield each
        elif names[each.path.name] == 1:
            yield replace(each, own_id=f"{each.repo}:{files.stem_of(each.path.name)}")
        else:
            yield replace(each, own_id=f"hf.co/{each.repo}/{each.path.parent.name}/{each.path.name}")


def _models_in(folder: Path, source: str, repo: str) -> Iterator[LocalModel]:
    """The complete models in a folder that has the files of one repository."""
    paths = [str(path.relative_to(folder).as_posix()) for path in _all_files(folder)]
    for variant in files.variants(paths):
        if variant.complete:
            mmproj = files.mmproj_of(paths, variant)
            own = [folder / path for path in variant.files]
            beside = None if mmproj is None else folder / mmproj
            all_files = (*own, *([beside] if beside else ()))
            yield LocalModel(source, repo, variant.tag, own[0], all_files, beside)
    found = files.safetensors(paths)
    if found and not _missing_shards(folder, found):
        yield LocalModel(source, repo, "", folder, tuple(folder / path for path in found))


def _missing_shards(folder: Path, found: Sequence[str]) -> bool:
    """Whether some of the shards are missing which the others' names or the index count."""
    shards = [path for path in found if "-of-" in path]
    return bool(shards) and len(shards) != int(shards[0].rpartition("-of-")[2].removesuffix(".safetensors"))


def _ollama(folder: Path) -> Iterator[LocalModel]:
    manifests = folder / "manifests"
    for manifest in _all_files(manifests):
        name = manifest.relative_to(manifests).parent.as_posix() + "/"
        for prefix in (_OLLAMA_LIBRARY, _OLLAMA_REGISTRY):
            name = name.removeprefix(prefix)
        layers = _layers(manifest, folder / "blobs")
        if "model" in layers:
            mmproj = layers.get("mmproj")
            own = (layers["model"], *([mmproj] if mmproj else ()))
            name = name.rstrip("/").removeprefix("hf.co/")
            yield LocalModel(OLLAMA, name, manifest.name, layers["model"], own, mmproj)


def projector_of(model: Path) -> Path | None:
    """The mmproj file of a model of Ollama: the files lie beside each other, and only a manifest says."""
    if model.parent.name != "blobs":
        return None
    return next((each.mmproj for each in _ollama(model.parent.parent) if each.path == model), None)


def _layers(manifest: Path, blobs: Path) -> dict[str, Path]:
    """The files of a model of Ollama that are there: a manifest names them by their hashes."""
    try:
        if manifest.stat().st_size > _MAX_MANIFEST_BYTES:
            return {}
        layers = json.loads(manifest.read_text(encoding="utf-8"))["layers"]
        found = {_LAYERS.get(each["mediaType"], ""): str(each["digest"]) for each in layers}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    digests = {kind: digest.replace(":", "-") for kind, digest in found.items() if kind}
    return {
        kind: blobs / digest
        for kind, digest in digests.items()
        if digest.replace("-", "").isalnum() and (blobs / digest).is_file()
    }


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    except OSError:
        return []


def _all_files(folder: Path) -> Iterator[Path]:
    """The files in a folder and those within it; links whose file is gone are none."""
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if os.path.isfile(path := os.path.join(root, name)) and not name.startswith("."):
                yield Path(path)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
