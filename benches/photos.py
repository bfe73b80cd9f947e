"""A photo from its file to soft tokens, in turn with the published code:

    PYTHONPATH=src:benches python benches/photos.py PHOTO.jpg [--threads N] [--layers N] [--folder DIR]

The towers of Gemma 3 4B and Gemma 4 E2B at their published shapes, with random weights in BF16, are written
by transformers to a folder, which both read. Decoding is in it, and so is the worker process that does it.
`--folder` keeps the models, each with its mmproj file in BF16 beside it, for others to read.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

from olivine.convert import convert
from olivine.formats import open_checkpoint
from olivine.loading import model_of
from olivine.media import MediaProcessor
from olivine.media.options import BudgetImage, SquareImage
from olivine.towers import Encoder, towers_of
from towers import error, timed

TEXT = {
    "num_hidden_layers": 1, "intermediate_size": 256, "num_attention_heads": 1, "num_key_value_heads": 1,
    "head_dim": 64, "vocab_size": 512, "vocab_size_per_layer_input": 512, "num_kv_shared_layers": 0,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
TOKENS = {"boi_token_index": 3, "eoi_token_index": 4, "image_token_index": 5}
GEMMA3 = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16, "num_hidden_layers": 27,
    "image_size": 896, "patch_size": 14, "vision_use_head": False,
}  # fmt: skip
GEMMA4 = {"num_hidden_layers": 16, "use_clipped_linears": True}
SQUARE = {"size": {"height": 896, "width": 896}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def made(name: str, folder: Path, layers: int | None) -> Any:
    """The published model, which is written to the folder."""
    torch.manual_seed(0)
    if name == "gemma3":
        vision = {**GEMMA3, **({} if layers is None else {"num_hidden_layers": layers})}
        text = {**TEXT, "hidden_size": 2560}
        config = transformers.Gemma3Config(
            text_config=text, vision_config=vision, mm_tokens_per_image=256, **TOKENS
        )
        model = transformers.Gemma3ForConditionalGeneration(config)
    else:
        vision = {**GEMMA4, **({} if layers is None else {"num_hidden_layers": layers})}
        text = {**TEXT, "hidden_size": 1536, "hidden_size_per_layer_input": 0}
        config = transformers.Gemma4Config(text_config=text, vision_config=vision, audio_config=None)
        model = transformers.Gemma4ForConditionalGeneration(config)
    for key, value in model.named_buffers():
        if key.endswith(("_min", "_max")):
            value.fill_(-6.0 if key.endswith("_min") else 6.0)
    for key, value in model.named_parameters():
        if value.abs().sum() == 0 and "bias" not in key:
            torch.nn.init.normal_(value, std=0.02)
    model.to(torch.bfloat16).eval().save_pretrained(folder)
    return model


def published(name: str, model: Any, photo: str, kind: torch.dtype) -> Callable[[], np.ndarray]:
    """Gemma 4's is the processor in torchvision, Gemma 3's too where that is installed."""
    if name == "gemma3":
        processor = transformers.Gemma3ImageProcessor(**SQUARE)
    else:
        processor = transformers.Gemma4ImageProcessor()
    model = model.to(kind)

    def run() -> np.ndarray:
        given = processor(images=Image.open(photo).convert("RGB"), return_tensors="pt")
        if name == "gemma3":
            found = model.model.get_image_features(given["pixel_values"].to(kind))
        else:
            places = (
                given["image_position_ids"] if "image_position_ids" in given else given["pixel_position_ids"]
            )
            found = model.model.get_image_features(given["pixel_values"].to(kind), places)
        soft = torch.cat([each.reshape(-1, each.shape[-1]) for each in found.pooler_output])
        return np.asarray(soft.float())

    return run


def main() -> None:
    told = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=told)
    parser.add_argument("photo")
    parser.add_argument("--only", default="gemma3,gemma4")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder")
    chosen = parser.parse_args()
    torch.set_grad_enabled(False)
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    with tempfile.TemporaryDirectory() as scratch, MediaProcessor() as media:
        for name in chosen.only.split(","):
            folder = Path(chosen.folder or scratch) / name
            model = made(name, folder, chosen.layers)
            checkpoint = open_checkpoint(folder)
            (tower,) = towers_of(checkpoint, model_of(checkpoint))[0]
            if chosen.folder:
                convert(folder, folder / "mmproj.gguf", "BF16", mmproj="only", force=True)
            encoder = Encoder(tower, chosen.device, chosen.threads)
            options = SquareImage() if name == "gemma3" else BudgetImage(280)

            def ours(options: Any = options, encoder: Encoder = encoder) -> np.ndarray:
                return np.concatenate(encoder.encode(media.prepare("image", chosen.photo, options).parts))

            prepared = timed({"": lambda o=options: media.prepare("image", chosen.photo, o)}, 3)[""]  # type: ignore[misc]
            print(f"{name}: preparing alone {1e3 * statistics.median(prepared):.1f} ms", flush=True)
            for kind in (torch.bfloat16, torch.float32):
                theirs = published(name, model, chosen.photo, kind)
                print(f"{name}: {error(ours(), theirs()):.2%} from transformers in {kind}", flush=True)
                times = timed({"olivine": ours, f"transformers {kind}": theirs}, chosen.repeats)
                (mine, other) = (statistics.median(seconds) for seconds in times.values())
                both = f"{1e3 * mine:.0f} ms, transformers in {kind} {1e3 * other:.0f}"
                print(f"{name}: {both}: {other / mine:.2f}×", flush=True)


if __name__ == "__main__":
    main()
