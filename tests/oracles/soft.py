"""Prompts with soft tokens: random embeddings at some positions, in the published model and in ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import transformers

from olivine.backends import Batch, Program
from olivine.engine import MediaBlock
from oracles import folders, published, running

# The tokens of an image or a video, and of a sound, in `mm_token_type_ids`.
IMAGE, AUDIO = 1, 3


@dataclass(frozen=True)
class Prompt:
    """Tokens, and the blocks that stand in for some of them."""

    tokens: list[int]
    blocks: list[MediaBlock]

    def cut(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """Chunks of the given sizes in turn, none of which cuts a bidirectional block."""
        found, start, turn = [], 0, 0
        while start < len(self.tokens):
            end = min(len(self.tokens), start + sizes[turn % len(sizes)])
            for block in self.blocks:
                if block.bidirectional and block.start < end < block.end:
                    end = block.end
            found.append((start, end))
            start, turn = end, turn + 1
        return found


def prompt(
    length: int,
    spans: Sequence[tuple[int, int]],
    width: int,
    *,
    bidirectional: bool = True,
    seed: int = 0,
    vocabulary: int = published.VOCABULARY,
) -> Prompt:
    """Random tokens, with random embeddings at the `spans` (start, rows)."""
    rng = np.random.default_rng(seed)
    tokens = [int(token) for token in rng.integers(3, vocabulary, length)]
    blocks = []
    for number, (start, rows) in enumerate(spans):
        embeddings = rng.standard_normal((rows, width)).astype(np.float32)
        blocks.append(MediaBlock(start, embeddings, bytes([seed % 256, number]), bidirectional))
    return Prompt(tokens, blocks)


def multimodal(case: published.Case) -> Any:
    """The published model with towers around a small text model."""
    kind = case.config.__name__.removesuffix("TextConfig")
    towers = next(options for name, options in folders.MULTIMODAL.values() if name == kind)
    config = getattr(transformers, f"{kind}Config")
    model = getattr(transformers, f"{kind}ForConditionalGeneration")
    torch.manual_seed(0)
    text = {**published.COMMON, **case.options}
    # Tokens that the small vocabulary has: the published code looks up their rows.
    markers = {"image_token_id": 1, "video_token_id": 1, "audio_token_id": 2} if kind != "Gemma3" else {}
    how = {key: "eager" for key in ("attn_implementation", "experts_implementation") if key in text}
    made = config(text_config=text, **how, **towers, **markers)
    return published.randomize(model(made))


def published_logits(model: Any, given: Prompt, kind: int = IMAGE) -> np.ndarray:
    """The published model's logits of every position, [T, V]."""
    ids = torch.tensor([given.tokens])
    kinds = torch.zeros_like(ids)
    with torch.no_grad():
        for block in given.blocks:
            ids[0, block.start : block.end] = 0
            kinds[0, block.start : block.end] = kind
        text = model.model.language_model
        rows = text.embed_tokens(ids)
        for block in given.blocks:
            rows[0, block.start : block.end] = torch.from_numpy(block.embeddings)
        more: dict[str, Any] = {"mm_token_type_ids": kinds}
        if isinstance(model, transformers.Gemma3ForConditionalGeneration):
            more = {"token_type_ids": kinds}
        elif getattr(text.config, "hidden_size_per_layer_input", 0):
            more["per_layer_inputs"] = text.get_per_layer_inputs(ids, None)
        elif isinstance(model, transformers.Gemma4UnifiedForConditionalGeneration):
            # As `generate` does. A plain forward of this class has another mask, which no user meets.
            where = {"past_key_values": None, "position_ids": torch.arange(len(given.tokens))[None]}
            masks = model.create_masks_for_generate(model.config, rows, None, **where, **more)
            more = {"attention_mask": masks}
        found: np.ndarray = model(inputs_embeds=rows, **more).logits[0].float().numpy()
        return found


def batch_of(session: running.Session, parts: Sequence[tuple[int, Prompt, int, int]]) -> Batch:
    """The chunks [start, end) of the prompts of some sequences, as (sequence, prompt, start, end)."""
    batch = session.batch([(sequence, p.tokens[start:end], False) for sequence, p, start, end in parts])
    rows, embeddings, last, at = [], [], batch.positions.copy(), 0
    for _, given, start, end in parts:
        for block in given.blocks:
            for position in range(max(start, block.start), min(end, block.end)):
                rows.append(at + position - start)
                embeddings.append(block.embeddings[position - block.start])
                if block.bidirectional:
                    last[rows[-1]] = block.end - 1
        at += end - start
    if not rows:
        return batch
    return replace(
        batch,
        embedding_rows=np.array(rows, np.int32),
        embeddings=np.array(embeddings, np.float32),
        last=last,
    )


def logits_of(program: Program, given: Prompt, sizes: Sequence[int], seed: int = 0) -> np.ndarray:
    """Our logits of every position, in chunks of the given sizes or of a block more."""
    session = running.Session(program, 1, len(given.tokens), seed)
    steps = [batch_of(session, [(0, given, start, end)]) for start, end in given.cut(sizes)]
    return np.concatenate([program.step(batch).logits for batch in steps])
