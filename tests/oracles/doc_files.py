"""Stand-ins for the models, texts and media that the documentation names, made where a block names them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from olivine import box
from oracles.real_models import QWEN_CODER, SMOLLM2

TEXT = "It was on a dreary night of November that I beheld the accomplishment of my toils. " * 120
Maker = Callable[[Path], object]


def _mini(path: Path) -> None:
    path.symlink_to(box.packaged())


def _folder(family: str, **changes: Any) -> Maker:
    """A small random model of the published code."""

    def make(path: Path) -> None:
        from oracles import folders

        path.mkdir()
        folders.write(family, path, **changes)

    return make


def _perceiving(family: str) -> Maker:
    """A small random model with towers, and a tokenizer that knows their markers."""

    def make(path: Path) -> None:
        from oracles import multimodal

        path.mkdir()
        multimodal.write(family, path)

    return make


def _towers(path: Path) -> None:
    from oracles import folders

    path.mkdir()
    folders.write_multimodal("gemma4-e2b", path)


def _photo(path: Path) -> None:
    import numpy as np
    from PIL import Image

    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)).save(path)


def _sound(path: Path) -> None:
    import numpy as np
    import soundfile

    soundfile.write(path, np.random.default_rng(0).standard_normal(24_000) * 0.1, 16_000)


def _film(path: Path) -> None:
    from media import clips

    path.write_bytes(clips.clip(40, sound=True))


# A name in the documentation → what makes a file or folder of that name.
MAKERS: dict[str, Maker] = {
    SMOLLM2.file: _mini,
    QWEN_CODER.file: _mini,
    "path/to/model.gguf": _mini,
    "model.gguf": _mini,
    "smol-F16.gguf": _mini,
    "smol-Q4_K_M.gguf": _mini,
    "frankenstein.txt": lambda path: path.write_text(TEXT, encoding="utf-8"),
    "report.txt": lambda path: path.write_text(TEXT[:400], encoding="utf-8"),
    # The rest takes torch and transformers: only blocks that are marked as slow name these.
    "gemma-3-4b-it": _perceiving("gemma3"),
    "gemma-4-E2B-it": _perceiving("gemma4-e2b"),
    "gemma3-odd": _folder("gemma3", query_pre_attn_scalar=50),
    "qwen3moe-raw": _folder("qwen3moe", norm_topk_prob=False),
    "gemma4-tiny": _towers,
    "Qwen3-0.6B": _folder("qwen3"),
    "photo.jpg": _photo,
    "rocket.jpg": _photo,
    "bikes.mp4": _film,
    "film.mp4": _film,
    "speech.wav": _sound,
    "talk.wav": _sound,
    "interview.mp3": _sound,
    "one.ogg": _sound,
}
REAL = {model.file: model for model in (SMOLLM2, QWEN_CODER)}


def provide(text: str, folder: Path, real: bool = False) -> None:
    """The files that a block names; `real`: the models themselves where they can be had."""
    for name, make in MAKERS.items():
        path = folder / name
        if (
            not (name in text or (name == "one.ogg" and "*.ogg" in text))
            or path.exists()
            or path.is_symlink()
        ):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if real and name in REAL:
            path.symlink_to(REAL[name].path())
        else:
            make(path)


def replaced(command: str, real: bool) -> bool:
    """Whether a command names a file that is only a stand-in."""
    return any(name in command for name in MAKERS if not (real and name in REAL))
