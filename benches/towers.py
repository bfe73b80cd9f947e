"""Towers at published shapes, with random weights: `PYTHONPATH=src:benches python benches/towers.py`.

    --device cuda|cpu     which backend; --threads on the CPU
    --check               first, small towers against the reference backend
    --transformers TYPE   in turn with the published model code, in that type (bfloat16, float32)

A photo is 4,096 patches for Gemma 3 4B and 2,520 for Gemma 4 E2B; a video is 60 frames of 630; sound is 30 s.
Times are of encoding alone: from patches or mel frames to soft tokens.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from olivine.dtypes import BF16, F32
from olivine.models import gemma4_audio, gemma4_vision, siglip
from olivine.models.tower import BuiltTower
from olivine.plan import Plan, trace
from olivine.tensor import Tensor
from olivine.towers import Encoder, Markers, Tower

SIGLIP = siglip.SiglipConfig(
    layers=27, width=1152, hidden=4304, heads=16, eps=1e-6, image=896, patch=14, pool=4, projected=2560,
    norm_offset=0.0,
)  # fmt: skip
GEMMA4 = gemma4_vision.Gemma4VisionConfig(
    layers=16, width=768, hidden=3072, heads=12, head_dim=64, eps=1e-6, patch=16, pool=3, positions=10240,
    standardize=False, projected=1536,
)  # fmt: skip
SOUND = gemma4_audio.Gemma4AudioConfig(
    layers=12, width=1024, hidden=4096, heads=8, channels=(128, 32), kernel=5, outputs=1536, projected=1536
)


class Names(Mapping[str, tuple[int, ...]]):
    """The shapes of a file that has every bias and limit which this tower's file has."""

    def __init__(self, endings: tuple[str, ...]) -> None:
        self._endings = endings

    def __getitem__(self, name: str) -> tuple[int, ...]:
        if name.endswith(self._endings) and not name.startswith("mm."):
            return ()
        raise KeyError(name)

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0


LIMITS = (".input_min", ".input_max", ".output_min", ".output_max")
CASES: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
    "gemma3-photo": (siglip, SIGLIP, (".bias",)),
    "gemma4-photo": (gemma4_vision, GEMMA4, LIMITS),
    "gemma4-video": (gemma4_vision, GEMMA4, LIMITS),
    "gemma4-sound": (gemma4_audio, SOUND, (*LIMITS, "out.bias")),
}


def random_weights(plan: Plan) -> dict[str, tuple[Tensor, ...]]:
    rng = np.random.default_rng(0)
    found = {}
    for weight in plan.weights:
        if weight.name.endswith(LIMITS):
            values = np.array([-6.0 if weight.name.endswith("min") else 6.0], np.float32)
        elif len(weight.shape) == 1:
            values = rng.standard_normal(weight.shape, np.float32) * 0.1 + float("norm" in weight.name)
        else:
            size = float(np.prod(weight.shape[1:], dtype=np.float64))
            values = rng.standard_normal(weight.shape, np.float32) / np.float32(size**0.5)
        dtype, data = F32, values
        if len(weight.shape) > 1:
            dtype, data = BF16, (values.view(np.uint32) >> 16).astype(np.uint16)
        found[weight.name] = (Tensor(weight.name, dtype, weight.shape, data.reshape(-1).view(np.uint8)),)
    return found


class Part(NamedTuple):
    rows: np.ndarray
    coordinates: np.ndarray


def picture(columns: int, lines: int, pool: int, width: int, seed: int = 0) -> Part:
    """Patches cell by cell."""
    y, x = np.mgrid[0:lines, 0:columns]
    order = np.lexsort((x.ravel() % pool, y.ravel() % pool, x.ravel() // pool, y.ravel() // pool))
    at = np.stack([x.ravel(), y.ravel()], 1)[order].astype(np.int32)
    rng = np.random.default_rng(seed)
    return Part(rng.random((len(at), width), np.float32), np.ascontiguousarray(at))


def sound(rows: int) -> Part:
    at = np.zeros((rows, 2), np.int32)
    at[:, 0] = 4
    return Part(np.random.default_rng(0).standard_normal((rows, 512), np.float32), at)


def parts_of(name: str, config: Any, small: bool = False) -> list[Part]:
    if name == "gemma3-photo":
        return [picture(config.side, config.side, config.pool, 3 * config.patch**2)]
    if name == "gemma4-photo":
        return [picture(*((12, 9) if small else (60, 42)), 3, 768)]
    if name == "gemma4-video":
        return [picture(30, 21, 3, 768, seed) for seed in range(3 if small else 60)]
    return [sound(40 if small else 750)]


def tower_of(name: str, config: Any) -> Tower:
    module, _, endings = CASES[name]
    plan = trace(name, module.forward, config, Names(endings))
    built = BuiltTower(module.TOWER, config, plan, random_weights(plan), ())
    return Tower(built, Markers("", "", "", ""), True, (0.0,) * 3, (1.0,) * 3, ())  # type: ignore[arg-type]


def flops(plan: Plan, parts: list[Part], per_token: int) -> float:
    """Of products and attention."""
    rows = sum(len(part.rows) for part in parts)
    counts, total = {"tokens": rows, "outputs": rows // per_token}, 0.0
    for op in plan.ops:
        out = op.output
        if op.kind == "linear" and out is not None:
            total += 2.0 * counts[out.rows] * np.prod(next(iter(op.weights())).shape)
        elif op.kind == "attention" and out is not None:
            total += 4.0 * sum(len(part.rows) ** 2 for part in parts) * out.width
    return float(total)


def error(ours: np.ndarray, theirs: np.ndarray) -> float:
    rows = np.sqrt(np.mean(np.square(ours - theirs), axis=1)) / theirs.std()
    return float(np.quantile(rows, 0.9))


def check(name: str, device: str, threads: int | None) -> None:
    config = replace(CASES[name][1], layers=2)
    if name == "gemma3-photo":
        config = replace(config, image=224)
    tower, parts = tower_of(name, config), parts_of(name, config, small=True)
    theirs = np.concatenate(Encoder(tower, "reference").encode(parts))
    encoder = Encoder(tower, device, threads)
    first = encoder.encode(parts)
    for _ in range(2):  # a graph gives the same bits, and so does a part alone
        assert all(np.array_equal(a, b) for a, b in zip(encoder.encode(parts), first, strict=True))
    assert np.array_equal(encoder.encode(parts[-1:])[0], first[-1])
    ours = np.concatenate(first)
    print(f"{name}: {error(ours, theirs):.2%} from the reference, {ours.shape}", flush=True)


def published(name: str, config: Any, parts: list[Part], dtype: str) -> Callable[[], Any]:
    """The published code on the same input."""
    import torch
    from transformers import AutoModel, Gemma4AudioConfig, Gemma4VisionConfig, SiglipVisionConfig

    kind = getattr(torch, dtype)
    torch.manual_seed(0)
    if name == "gemma3-photo":
        c = SiglipVisionConfig(
            hidden_size=config.width, intermediate_size=config.hidden, num_hidden_layers=config.layers,
            num_attention_heads=config.heads, image_size=config.image, patch_size=config.patch,
            hidden_act="gelu_pytorch_tanh", vision_use_head=False,
        )  # fmt: skip
        model = AutoModel.from_config(c, dtype=kind).eval()
        pixels = torch.rand(1, 3, config.image, config.image, dtype=kind)
        return lambda: model(pixel_values=pixels)
    if name == "gemma4-sound":
        model = AutoModel.from_config(Gemma4AudioConfig(), dtype=kind).eval()
        frames = torch.from_numpy(parts[0].rows.reshape(1, -1, 128)).to(kind)
        mask = torch.ones(frames.shape[:2], dtype=torch.bool)
        return lambda: model(frames, mask)
    c = Gemma4VisionConfig(
        hidden_size=config.width, intermediate_size=config.hidden, num_hidden_layers=config.layers,
        num_attention_heads=config.heads, num_key_value_heads=config.heads, head_dim=config.head_dim,
    )  # fmt: skip
    model = AutoModel.from_config(c, dtype=kind).eval()
    rows = torch.from_numpy(np.stack([part.rows for part in parts])).to(kind)
    at = torch.from_numpy(np.stack([part.coordinates for part in parts])).long()
    return lambda: model(pixel_values=rows, pixel_position_ids=at)


def timed(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each, in turn."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(-2, repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if repeat >= 0:
                found[name].append(time.perf_counter() - start)
    return found


def main() -> None:
    told = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=told)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--transformers", metavar="TYPE")
    chosen = parser.parse_args()
    for name in chosen.only.split(","):
        if chosen.check:
            check(name, chosen.device, chosen.threads)
        config = CASES[name][1]
        tower, parts = tower_of(name, config), parts_of(name, config)
        encoder = Encoder(tower, chosen.device, chosen.threads)
        calls: dict[str, Callable[[], Any]] = {"olivine": lambda e=encoder, p=parts: e.encode(p)}  # type: ignore[misc]
        if chosen.transformers:
            import torch

            torch.set_grad_enabled(False)
            if chosen.threads:
                torch.set_num_threads(chosen.threads)
            calls["transformers"] = published(name, config, parts, chosen.transformers)
        work = flops(tower.built.plan, parts, tower.rows_per_token)
        for who, seconds in timed(calls, chosen.repeats).items():
            spread = f"[{1e3 * min(seconds):.2f}–{1e3 * max(seconds):.2f}]"
            rate = work / statistics.median(seconds) / 1e12
            print(
                f"{name}, {who}: {1e3 * statistics.median(seconds):.2f} ms {spread}, {rate:.3g} TFLOP/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
