"""From stories to rows of tokens, in many processes beside the one that trains.

A row holds whole chats, one after another, each beginning with <bos>. A token is 16 bits: its id, and in
the highest bit whether it is to be learned, which only what the model says is.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from chats import Chat, ChatWriter
from pieces import BEGIN, Pieces
from tales import Tale, clean, is_good, keeps_to_its_subject

from tokenizer import PAD, load_fast

LEARN = 1 << 15
SHORT, LONG = 512, 1024  # the lengths of rows


def stories_of(told: np.ndarray, pieces: Pieces) -> list[str]:
    """The stories of a batch that came to an end."""
    found = []
    for row in told:
        ends = np.flatnonzero(row[1:] == BEGIN)
        if len(ends):
            found.append(clean(pieces.decode(row[1 : 1 + ends[0]].tolist())))
    return [text for text in found if is_good(text)]


class Encoder:
    def __init__(self, path: Path) -> None:
        self.tokenizer = load_fast(path)

    def encode(self, chat: Chat) -> np.ndarray:
        """As the chat template writes it. Tokens never reach across a line end, nor do these parts."""
        parts, learned = ["<bos>"], [0]
        for role, text in chat:
            if role == "model":
                parts += ["<|turn>model\n", f"{text}<turn|>", "\n"]
                learned += [0, LEARN, 0]
            else:
                parts.append(f"<|turn>{role}\n{text}<turn|>\n")
                learned.append(0)
        encoded = self.tokenizer.encode_batch(parts, add_special_tokens=False)
        return np.concatenate(
            [
                np.array(part.ids, np.uint16) | np.uint16(bit)
                for part, bit in zip(encoded, learned, strict=True)
            ]
        )


def pack(chats: Iterable[np.ndarray], length: int) -> np.ndarray:
    """Rows of whole chats: the longest first, each into the fullest row that still has room for it."""
    room: dict[int, list[list[np.ndarray]]] = {}
    for chat in sorted(chats, key=len, reverse=True):
        left = next((left for left in range(len(chat), length) if room.get(left)), length)
        row = room[left].pop() if left < length else []
        row.append(chat)
        room.setdefault(left - len(chat), []).append(row)
    rows = [row for same in room.values() for row in same]
    packed = np.full((len(rows), length), PAD, np.uint16)
    for line, row in zip(packed, rows, strict=True):
        joined = np.concatenate(row)
        line[: len(joined)] = joined
    return packed


def write_rows(folder: Path, name: str, chats: list[np.ndarray]) -> None:
    """Chats by their length in rows of either kind. A file appears when it is whole."""
    short = [chat for chat in chats if len(chat) <= SHORT]
    long = [chat for chat in chats if SHORT < len(chat) <= LONG]
    beside = len(long)  # beside a long chat there is room for a short one
    for length, some in ((SHORT, short[beside:]), (LONG, long + short[:beside])):
        if some:
            unfinished = folder / f"{name}.{length}.tmp"
            with unfinished.open("wb") as file:
                np.save(file, pack(some, length))
            unfinished.rename(folder / f"{name}.{length}.npy")


def work(folder: Path, pieces: Pieces, worker: int, workers: int, until: float) -> None:
    """One process: every so-manieth batch of stories, as it appears, until there are no more."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    while not (folder / "tokenizer.json").exists():
        time.sleep(0.2)
    encoder, known = Encoder(folder / "tokenizer.json"), json.loads((folder / "known.json").read_text())
    writer = ChatWriter(seed=1000 + worker, strange=json.loads((folder / "strange.json").read_text()))
    known = frozenset(known)
    for number in itertools.count(worker, workers):
        path = folder / f"stories-{number:05d}.npy"
        while not path.exists():
            if time.time() > until or (folder / "told").exists():
                return
            time.sleep(0.2)
        tales = [Tale(text) for text in stories_of(np.load(path), pieces)]
        tales = [tale for tale in tales if known.issuperset(tale.words) and keeps_to_its_subject(tale)]
        write_rows(
            folder,
            f"rows-{number:05d}",
            [encoder.encode(chat) for tale in tales for chat in writer.write(tale)],
        )
        path.unlink()


def write_books(folder: Path, books: Path, copies: int) -> None:
    """The real books' passages, a few times over, each time begun by the user at another place."""
    encoder, writer = Encoder(folder / "tokenizer.json"), ChatWriter(seed=7)
    passages = json.loads(books.read_text())
    chats = [
        encoder.encode(writer.continuation(Tale(text)))
        for _ in range(copies)
        for text in passages["passages"]
    ]
    told = [Tale(text) for text in passages["stories"]]
    chats += [encoder.encode(chat) for _ in range(copies) for tale in told for chat in writer.write(tale)]
    random.Random(7).shuffle(chats)
    write_rows(folder, "rows-books", chats)
