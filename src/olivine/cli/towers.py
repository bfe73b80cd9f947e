"""What `olivine inspect` shows of towers: their sizes, and what images and sounds cost in tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from olivine.cli.text import count, size
from olivine.media.options import BUDGETS, BudgetImage, SquareImage, VideoFrames
from olivine.models.siglip import SiglipConfig
from olivine.models.tower import BuiltTower

_TOKENS_A_SECOND = 25  # of sound: a token has 40 ms


def tower_facts(tower: BuiltTower) -> dict[str, Any]:
    """A tower as plain data. What the 12B has in its place has no layers."""
    types: dict[str, Counter[str]] = {}
    for tensor in tower.tensors:
        found = types.setdefault(tensor.dtype.name, Counter())
        found.update(tensors=1, bytes=tensor.nbytes)
    return {
        "kind": tower.kind,
        "name": tower.architecture.name,
        **{name: getattr(tower.config, name, None) for name in ("layers", "width", "hidden", "heads")},
        "soft_token_width": tower.config.projected,
        "parameters": sum(tensor.size for tensor in tower.tensors),
        "bytes": sum(tensor.nbytes for tensor in tower.tensors),
        "types": {name: dict(each) for name, each in sorted(types.items(), key=lambda it: -it[1]["bytes"])},
        "tokens": _tokens(tower),
    }


def _tokens(tower: BuiltTower) -> dict[str, Any]:
    """Soft tokens of an image, of a frame of a video, of a second of sound: the most that there are."""
    if tower.kind == "audio":
        return {"second": _TOKENS_A_SECOND}
    config = tower.config
    if isinstance(config, SiglipConfig):
        image = (config.side // config.pool) ** 2
        return {"image": image, "pan_and_scan": image * (1 + SquareImage().max_crops)}
    video = VideoFrames()
    assert isinstance(video.image, BudgetImage)
    return {
        "image": BudgetImage().budget,
        "image_budgets": list(BUDGETS),
        "video_frame": video.image.budget,
        "video_frames": video.frames,
    }


def tower_lines(towers: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for tower in towers:
        sizes = f"{count(tower['parameters'])} parameters, {size(tower['bytes'])}"
        if tower["layers"] is not None:
            shape = f"{tower['layers']} layers of width {tower['width']}, MLP {tower['hidden']}"
            sizes = f"{shape}, {tower['heads']} heads; {sizes}"
        types = (
            f"{name} {size(each['bytes'])} in {each['tensors']}" for name, each in tower["types"].items()
        )
        yield (
            tower["kind"],
            "\n".join([f"{tower['name']}: {sizes}", ", ".join(types), _cost(tower["tokens"])]),
        )


def _cost(tokens: dict[str, Any]) -> str:
    if "second" in tokens:
        return f"a second of sound is {tokens['second']} tokens"
    if "pan_and_scan" in tokens:
        return f"an image is {tokens['image']} tokens, with pan and scan up to {tokens['pan_and_scan']:,}"
    others = ", ".join(f"{each:,}" for each in tokens["image_budgets"] if each != tokens["image"])
    frames, each = tokens["video_frames"], tokens["video_frame"]
    return (
        f"an image is up to {tokens['image']} tokens (image_tokens: {others});\n"
        f"a video is {frames} frames of up to {each}: {frames * each:,}"
    )
