"""How the trained model does before it is converted: by the prompts and measures of gates.py."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from checks import LIMIT, TRIED, judged, prompts
from model import generation
from tokenizers import Tokenizer
from transformers import Gemma4ForCausalLM

from tokenizer import BOS, PAD, STOPS

Conversation = list[tuple[str, str]]


class Speaker:
    def __init__(self, model: Gemma4ForCausalLM, tokenizer: Path, device: str) -> None:
        self.model, self.device = model.eval(), device
        self.tokenizer = Tokenizer.from_file(str(tokenizer))

    def answer(self, chats: list[Conversation], tokens: int, seconds: float) -> list[tuple[str, bool]]:
        """To each conversation its next turn, and whether that ended by itself."""
        ids = [self._prompt(chat) for chat in chats]
        width = max(map(len, ids))
        rows = torch.tensor([[PAD] * (width - len(row)) + row for row in ids], device=self.device)
        seen = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids], device=self.device)
        settings = generation()
        settings.max_new_tokens, settings.max_time = tokens, max(seconds, 1.0)
        out = self.model.generate(input_ids=rows, attention_mask=seen, generation_config=settings)
        return [self._text(row) for row in out[:, width:].tolist()]

    def _prompt(self, chat: Conversation) -> list[int]:
        turns = "".join(f"<|turn>{role}\n{text}<turn|>\n" for role, text in chat)
        return [BOS, *self.tokenizer.encode(turns + "<|turn>model\n", add_special_tokens=False).ids]

    def _text(self, row: list[int]) -> tuple[str, bool]:
        end = next((i for i, token in enumerate(row) if token in STOPS), None)
        return self.tokenizer.decode(row[:end]).strip(), end is not None


def gates(speaker: Speaker, count: int, seconds: float) -> tuple[dict[str, float], list[str]]:
    """The measures over stories about X and Y, and the stories."""
    asked = prompts(count)
    told = speaker.answer([[("user", request)] for request, _, _ in asked], LIMIT, seconds)
    lines = [f"**{request}**\n\n{story}\n" for (request, _, _), (story, _) in zip(asked, told, strict=True)]
    return judged([(prompt, *answer) for prompt, answer in zip(asked, told, strict=True)]), lines


def conversations(speaker: Speaker, until: float) -> list[str]:
    """What people try first, turn by turn, all conversations at once."""
    chats: list[Conversation] = [[] for _ in TRIED]
    for turn in range(max(map(len, TRIED))):
        going = [i for i, said in enumerate(TRIED) if turn < len(said)]
        if time.time() > until - 3:
            break
        for i in going:
            chats[i].append(("user", TRIED[i][turn]))
        for i, (text, _) in zip(
            going, speaker.answer([chats[i] for i in going], 320, until - time.time()), strict=True
        ):
            chats[i].append(("model", text))
    return ["\n\n".join(f"**{role}:** {text}" for role, text in chat) + "\n\n---\n" for chat in chats]
