"""stories15M, a llama2.c checkpoint, writing many stories at once.

All rows of a batch are at the same position, so a step is a CUDA graph with fixed shapes: one graph for
every 32 positions, which reads the cache only as far as it is filled.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import torch
from pieces import BEGIN, Pieces
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import rms_norm, silu

HEADS, CONTEXT, SPAN = 6, 256, 32


def read_llama2c(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint in llama2.c's first format, matrices as [out, in]."""
    data = path.read_bytes()
    width, hidden, layers, heads, kv_heads, vocab, context = struct.unpack("7i", data[:28])
    if (heads, kv_heads, context) != (HEADS, HEADS, CONTEXT) or vocab < 0:
        raise SystemExit(f"{path} is not stories15M")
    shapes = {
        "embed": (vocab, width),
        "attn_norm": (layers, width),
        **dict.fromkeys(("wq", "wk", "wv", "wo"), (layers, width, width)),
        "ffn_norm": (layers, width),
        "gate": (layers, hidden, width),
        "down": (layers, width, hidden),
        "up": (layers, hidden, width),
        "norm": (width,),
    }
    floats, at, tensors = np.frombuffer(data, "<f4", offset=28), 0, {}
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        tensors[name] = torch.from_numpy(floats[at : at + size].reshape(shape).copy())
        at += size
    return tensors


def save(folder: Path, tensors: dict[str, Tensor], pieces: Pieces) -> None:
    """Only the rows of tokens that stories are made of: the head is most of the work of a step.

    Rows that training never met have kept their large norm, and say which tokens those are.
    """
    small = tensors["embed"].norm(dim=1) < 0.65
    keep = [i for i, piece in enumerate(pieces.pieces) if i <= 2 or (small[i] and piece.isascii())]
    kept = {**tensors, "embed": tensors["embed"][list(keep)]}
    save_file({k: t.half().contiguous() for k, t in kept.items()}, folder / "stories15m.safetensors")
    texts = [pieces.pieces[i].replace("<0x0A>", "\n") for i in keep]
    named = {"pieces": texts, "scores": [round(pieces.scores[i], 1) for i in keep]}
    (folder / "stories15m.json").write_text(json.dumps(named))


def load(folder: Path) -> tuple[dict[str, Tensor], Pieces]:
    return load_file(folder / "stories15m.safetensors"), Pieces.read(folder)


class Storyteller:
    def __init__(
        self,
        tensors: dict[str, Tensor],
        batch: int,
        device: str,
        temperature: float = 0.75,
        min_p: float = 0.04,
    ) -> None:
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.w = {name: tensor.to(device, dtype) for name, tensor in tensors.items()}
        self.temperature, self.min_p = temperature, min_p
        self.layers, self.width = self.w["attn_norm"].shape
        self.size = self.width // HEADS
        shape = (self.layers, batch, HEADS, CONTEXT, self.size)  # [L, B, H, T, d]
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        angles = torch.outer(
            torch.arange(CONTEXT), 10000.0 ** (-torch.arange(0, self.size, 2) / self.size)
        )  # [T, d/2]
        self.cos, self.sin = (f(angles).to(device, dtype) for f in (torch.cos, torch.sin))
        self.at = torch.zeros(1, dtype=torch.long, device=device)
        self.places = torch.arange(CONTEXT, device=device)
        self.told = torch.full((batch, CONTEXT), BEGIN, device=device)  # [B, T]
        self.forced = torch.full((batch, CONTEXT), -1, device=device)
        self.graphs: list[torch.cuda.CUDAGraph] = []
        if device == "cuda":
            try:
                self._capture()
            except RuntimeError as error:
                print(f"no CUDA graphs, {error}", flush=True)
                self.graphs = []

    def write(self, prompts: list[list[int]]) -> None:
        """Begins a story for each prompt. On the GPU this returns before they are told."""
        forced = np.full(tuple(self.forced.shape), -1, np.int64)
        for row, prompt in zip(forced, prompts, strict=True):
            row[1 : 1 + len(prompt)] = prompt[: CONTEXT - 1]
        self.forced.copy_(torch.from_numpy(forced))
        self.at.zero_()
        self.told.fill_(BEGIN)
        for at in range(CONTEXT - 1):
            if self.graphs:
                self.graphs[at // SPAN].replay()
            else:
                self._step(at // SPAN * SPAN + SPAN)

    def stories(self) -> np.ndarray:
        """The token ids [B, T] of what was written; what follows a second BEGIN is another story."""
        return self.told.cpu().numpy().astype(np.uint16)

    @torch.no_grad()
    def _step(self, filled: int) -> None:
        """Reads the token at `at`, writes the one after it, and looks at `filled` places of the cache."""
        w = self.w
        x = w["embed"][self.told.index_select(1, self.at).squeeze(1)]  # [B, D]
        hidden = (self.places[:filled] > self.at).to(x.dtype) * -1e4
        for layer in range(self.layers):
            h = rms_norm(x, (self.width,), w["attn_norm"][layer], 1e-5)
            q, k = (self._rotated(h @ w[name][layer].T) for name in ("wq", "wk"))  # [B, H, d]
            v = (h @ w["wv"][layer].T).view(-1, HEADS, self.size)
            keys, values = self.keys[layer], self.values[layer]
            keys.index_copy_(2, self.at, k.unsqueeze(2))
            values.index_copy_(2, self.at, v.unsqueeze(2))
            scores = torch.matmul(keys[:, :, :filled], q.unsqueeze(3)).squeeze(3) * self.size**-0.5 + hidden
            share = torch.softmax(scores.float(), -1).to(x.dtype)  # [B, H, T]
            mixed = torch.matmul(share.unsqueeze(2), values[:, :, :filled])  # [B, H, 1, d]
            x = x + mixed.reshape(-1, self.width) @ w["wo"][layer].T
            h = rms_norm(x, (self.width,), w["ffn_norm"][layer], 1e-5)
            x = x + (silu(h @ w["gate"][layer].T) * (h @ w["up"][layer].T)) @ w["down"][layer].T
        logits = rms_norm(x, (self.width,), w["norm"], 1e-5) @ w["embed"].T  # [B, V]
        chosen = self._draw(logits)
        after = self.at + 1
        forced = self.forced.index_select(1, after).squeeze(1)
        self.told.index_copy_(1, after, torch.where(forced >= 0, forced, chosen).unsqueeze(1))
        self.at.add_(1)

    def _rotated(self, x: Tensor) -> Tensor:
        """llama2.c turns neighboring pairs."""
        even, odd = x.view(-1, HEADS, self.size // 2, 2).unbind(-1)
        cos, sin = self.cos[self.at], self.sin[self.at]  # [1, d/2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(2)

    def _draw(self, logits: Tensor) -> Tensor:
        scaled = logits.float() / self.temperature
        scaled = scaled.masked_fill(scaled < scaled.amax(-1, keepdim=True) + np.log(self.min_p), -1e9)
        return (scaled - torch.empty_like(scaled).exponential_().log()).argmax(-1)

    def _capture(self) -> None:
        """One graph a span. A step is run outside of graphs first, as CUDA's libraries want it."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._step(CONTEXT)
        torch.cuda.current_stream().wait_stream(side)
        for filled in range(SPAN, CONTEXT + 1, SPAN):
            self.at.zero_()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._step(filled)
            self.graphs.append(graph)
