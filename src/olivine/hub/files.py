"""Which files of a repository make up a model: one quantization with all its parts and its mmproj file, or
the safetensors once. Pure: names in, names out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from posixpath import basename, dirname

# Quantizations in the order of preference where none is asked for: 4 bits, then more, then less.
PREFERRED = (
    "Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "IQ4_XS", "IQ4_NL", "Q5_K_M", "Q5_K_S", "Q5_0", "Q6_K", "Q8_0",
    "Q3_K_L", "Q3_K_M", "Q2_K", "BF16", "F16", "F32",
)  # fmt: skip
PREFERRED_MMPROJ = ("F16", "BF16", "Q8_0", "F32")
# Files that a folder of safetensors is read with, besides the weights.
BESIDE = (
    "config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json",
    "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "chat_template.jinja", "chat_template.json", "preprocessor_config.json",
    "processor_config.json", "video_preprocessor_config.json", "additional_chat_templates/tool_use.jinja",
)  # fmt: skip
_TYPE = re.compile(
    r"(?<![A-Z0-9])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|BF16|FP16|F16|FP32|F32))(?![A-Z0-9])"
)
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.ASCII | re.IGNORECASE)
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors", re.ASCII)
_SINGLE = "model.safetensors"


@dataclass(frozen=True)
class Variant:
    """A GGUF model of a repository: the files of one quantization, in the order of its parts."""

    tag: str  # the quantization, or the file's name where it does not tell one
    files: tuple[str, ...]
    complete: bool = True  # no part is missing


def type_of(path: str) -> str:
    """The quantization that a file's name tells, or its folder's: "Q4_K_M"; "" where none does."""
    for name in (stem_of(basename(path)), *reversed(dirname(path).split("/"))):
        if found := _TYPE.findall(name.upper()):
            return {"FP16": "F16", "FP32": "F32"}.get(found[-1], found[-1])
    return ""


def variants(paths: Iterable[str]) -> list[Variant]:
    """The GGUF models among these files, without their mmproj files."""
    groups: dict[str, list[tuple[int, int, str]]] = {}
    for path in sorted(paths):
        if not path.lower().endswith(".gguf") or is_mmproj(path):
            continue
        part = _PART.fullmatch(path)
        stem = part["stem"] if part else path[: -len(".gguf")]
        number, count = (int(part["number"]), int(part["count"])) if part else (1, 1)
        groups.setdefault(stem, []).append((number, count, path))
    found = []
    for stem, parts in groups.items():
        complete = [number for number, _, _ in parts] == list(range(1, parts[0][1] + 1))
        tag = type_of(parts[0][2]) or basename(stem)
        found.append(Variant(tag, tuple(path for _, _, path in parts), complete))
    return found


def is_mmproj(path: str) -> bool:
    return "mmproj" in basename(path).lower()


def choose(found: Sequence[Variant], tag: str = "", file: str = "") -> Variant | None:
    """The variant of that quantization or file; without either, the first in the order of `PREFERRED`."""
    if file:
        return next((each for each in found if file in each.files), None)
    if tag:
        names = [each for each in found if tag.upper() == stem_of(each.files[0]).upper()]
        exact = [*names, *(each for each in found if tag.upper() == each.tag.upper())]
        ends = [each for each in found if each.tag.upper() == f"UD-{tag.upper()}"]
        return next(iter([*exact, *ends]), None)
    order = {kind: place for place, kind in enumerate(PREFERRED)}
    return min(found, key=lambda each: order.get(each.tag.removeprefix("UD-"), len(order)), default=None)


def mmproj_of(paths: Iterable[str], variant: Variant) -> str | None:
    """The mmproj file for a variant: beside it, or at the top of the repository; of several, those of its own
    name."""
    folders = {dirname(variant.files[0]), ""}
    found = [path for path in paths if path.lower().endswith(".gguf") and is_mmproj(path)]
    found = sorted(path for path in found if dirname(path) in folders)
    found = named_as(variant.files[0], found)
    order = {kind: place for place, kind in enumerate(PREFERRED_MMPROJ)}
    return min(found, key=lambda path: order.get(type_of(path), len(order)), default=None)


def named_as(model: str, mmprojs: Sequence[str]) -> list[str]:
    """Of these mmproj files those of a model's own name, or all of them if it is not told:
    `mmproj-NAME-F16.gguf` and `NAME.mmproj-f16.gguf` are for NAME-Q4_K_M.gguf."""
    name = words(model)
    own = [path for path in mmprojs if (found := words(path)) and found == name[: len(found)]]
    longest = max((len(words(path)) for path in own), default=0)
    return [path for path in own if len(words(path)) == longest] or [*mmprojs]


def words(path: str) -> tuple[str, ...]:
    """The words of a file's name, without the type of an mmproj file."""
    stem = stem_of(path).lower()
    for kind in PREFERRED_MMPROJ:
        stem = re.sub(rf"(^|[-._]){kind.lower()}(?=$|[-._])", "", stem)
    return tuple(word for word in re.split(r"[-._]+", stem) if word not in ("", "mmproj"))


def safetensors(paths: Iterable[str]) -> list[str]:
    """The files of a safetensors model, its weights once: neither `original/` nor consolidated copies."""
    paths = list(paths)
    top = [path for path in paths if "/" not in path]
    weights = [_SINGLE] if _SINGLE in top else sorted(path for path in top if _SHARD.fullmatch(path))
    if not weights or "config.json" not in top:
        return []
    beside = [path for path in BESIDE if path in paths]
    return [path for path in beside if len(weights) > 1 or not path.endswith(".index.json")] + weights


def stem_of(name: str) -> str:
    """The name of a model's file without its folder, its ending and the number of its part."""
    part = _PART.fullmatch(name)
    if part:
        return basename(part["stem"])
    return basename(name[: -len(".gguf")] if name.lower().endswith(".gguf") else name)
