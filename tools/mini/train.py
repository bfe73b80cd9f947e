"""The training: rows that wait on the device, a schedule that goes by the clock."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from data import LEARN, LONG, SHORT
from muon import Muon
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import Gemma4ForCausalLM

from tokenizer import BOS

IGNORED = -100


class Pool:
    """The rows there are so far, on the device. More are taken in while training goes on."""

    def __init__(self, folder: Path, device: str, held_out: int = 64) -> None:
        self.folder, self.device = folder, device
        self.rows = {
            length: torch.empty(0, length, dtype=torch.int16, device=device) for length in (SHORT, LONG)
        }
        self.held_out: dict[int, Tensor] = {}
        self._held_out, self._seen = held_out, set[Path]()
        self._order = {length: iter(()) for length in self.rows}

    def refresh(self) -> None:
        for length in self.rows:
            fresh = sorted(set(self.folder.glob(f"rows-*.{length}.npy")) - self._seen)
            self._seen.update(fresh)
            arrays = [torch.from_numpy(np.load(path).view(np.int16)) for path in fresh]
            for path in fresh:
                path.unlink()
            if not arrays:
                continue
            new = torch.cat(arrays)
            if length not in self.held_out:
                some = torch.randperm(len(new))
                cut = min(self._held_out * SHORT // length, len(new) // 10)
                self.held_out[length], new = new[some[:cut]].to(self.device), new[some[cut:]]
            self.rows[length] = torch.cat([self.rows[length], new.to(self.device)])
            self._order[length] = iter(())

    @property
    def tokens(self) -> int:
        return sum(rows.numel() for rows in self.rows.values())

    def batch(self, length: int, count: int) -> Tensor:
        """The next rows in an order that is drawn anew each time round. [count, length]"""
        picked = next(self._order[length], None)
        if picked is None:
            self._order[length] = self._shuffled(length, count)
            picked = next(self._order[length])
        return self.rows[length][picked]

    def _shuffled(self, length: int, count: int) -> Iterator[Tensor]:
        there = len(self.rows[length])
        order = torch.randperm(there, device=self.device)
        if there < count:
            order = order.repeat(math.ceil(count / max(there, 1)))[:count]
        return iter(order[: len(order) // count * count].split(count))


def unpacked(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, what is to be learned at each place (the next token), and whose chat it is. [B, T] each"""
    rows = rows.long() & 0xFFFF
    ids = rows & (LEARN - 1)
    following = torch.full_like(ids, IGNORED)
    following[:, :-1] = torch.where(rows[:, 1:] >= LEARN, ids[:, 1:], IGNORED)
    return ids, following, (ids == BOS).cumsum(1)


def masks(chat: Tensor, window: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """A token sees its own chat up to itself; on sliding layers only the last `window`. [B, 1, T, T]"""
    places = torch.arange(chat.size(1), device=chat.device)
    distance = places[:, None] - places[None, :]
    full = (chat[:, :, None] == chat[:, None, :]) & (distance >= 0)
    sliding = full & (distance < window)
    hidden = torch.finfo(dtype).min
    return {
        name: torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, hidden).unsqueeze(1)
        for name, seen in (("full_attention", full), ("sliding_attention", sliding))
    }


class Trainer:
    def __init__(
        self, model: Gemma4ForCausalLM, device: str, *, lr: float, tokens: int, compiled: bool = True
    ) -> None:
        self.model, self.device, self.peak, self.tokens = model.to(device), device, lr, tokens
        self.dtype = torch.bfloat16
        self.window = model.config.sliding_window
        self.loss = torch.compile(self.plain_loss, dynamic=False) if compiled else self.plain_loss
        weights = dict(model.named_parameters())
        matrices = {name: w for name, w in weights.items() if w.ndim == 2 and "embed_tokens" not in name}
        tables = [w for name, w in weights.items() if w.ndim == 2 and name not in matrices]
        norms = [w for w in weights.values() if w.ndim != 2]
        groups = [{"params": tables, "weight_decay": 0.01}, {"params": norms, "weight_decay": 0.0}]
        adam = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), eps=1e-10, fused=device == "cuda")
        self.optimizers: list[torch.optim.Optimizer] = [Muon(list(matrices.values()), lr=lr), adam]

    def plain_loss(self, rows: Tensor) -> Tensor:
        ids, following, chat = unpacked(rows)
        with torch.autocast(self.device, dtype=self.dtype):
            seen = masks(chat, self.window, self.dtype)
            logits = self.model(input_ids=ids, attention_mask=seen, use_cache=False).logits
        return cross_entropy(logits.float().flatten(0, 1), following.flatten(), ignore_index=IGNORED)

    def warm_up(self, vocabulary: int, say: Callable[[str], None]) -> None:
        """Compiles for both lengths on random tokens, before there is data; without, if that fails."""
        for length in (SHORT, LONG):
            rows = torch.randint(BOS, vocabulary, (self.tokens // length, length), device=self.device)
            rows = (rows | LEARN).to(torch.int32).to(torch.int16)
            try:
                self.loss(rows).backward()
            except Exception as error:
                say(f"no compilation, {type(error).__name__}: {str(error)[:300]}")
                self.loss = self.plain_loss
                self.loss(rows).backward()
            self.model.zero_grad(set_to_none=True)
            say(f"ready for rows of {length}")

    def rate(self, done: float) -> float:
        """Up in the first 2 % of the time, level to 45 %, then down to nothing."""
        return self.peak * min(done / 0.02, 1.0, max(0.0, (1.0 - done) / 0.55))

    def step(self, rows: Tensor, done: float) -> Tensor:
        loss = self.loss(rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.rate(done)
            optimizer.step()
        self.model.zero_grad(set_to_none=True)
        return loss.detach()

    def _copy(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    @torch.no_grad()
    def held_out(self, pool: Pool) -> float:
        """The loss of a token in chats that are never trained on."""
        self.model.eval()
        total = count = 0.0
        for length, rows in pool.held_out.items():
            for part in rows.split(self.tokens // length):
                learned = int((unpacked(part)[1] != IGNORED).sum())
                if learned == 0:
                    continue
                total, count = total + float(self.plain_loss(part)) * learned, count + learned
        self.model.train()
        return total / max(count, 1)

    def run(self, pool: Pool, until: float, curve: Path, say: Callable[[str], None]) -> int:
        """Trains until that time; the number of tokens read."""
        began, step, read, shown, looked = time.time(), 0, 0, 0.0, time.time()
        losses: list[Tensor] = []
        best, kept = math.inf, self._copy()
        with curve.open("w") as file:
            while (now := time.time()) < until:
                if now - looked > 15:
                    pool.refresh()
                    looked = now
                done = (now - began) / (until - began)
                # Long rows come as often as there are tokens in them.
                share = pool.rows[LONG].numel() / max(pool.tokens, 1)
                length = LONG if int((step + 1) * share) > int(step * share) else SHORT
                losses.append(self.step(pool.batch(length, self.tokens // length), done))
                step, read = step + 1, read + self.tokens
                if step % 10 == 0 and self.device == "cuda":
                    torch.cuda.synchronize()  # or the clock is ahead of the work
                if now - shown > 5:
                    loss = float(torch.stack(losses).mean())
                    losses, shown = [], now
                    if loss < 1.3 * best:
                        best, kept = min(best, loss), self._copy()
                    else:  # also where it is not a number
                        say(f"loss {loss}: back to the last good weights, at half the rate")
                        self.model.load_state_dict(kept)
                        self.peak /= 2
                    line = {
                        "seconds": round(now - began, 1),
                        "step": step,
                        "tokens": read,
                        "loss": round(loss, 4),
                        "rate": round(self.rate(done), 6),
                    }
                    file.write(json.dumps(line) + "\n")
                    file.flush()
                    say(f"{line}, {pool.tokens / 1e6:.0f} M in the pool")
        return read
