"""Makes olivine-mini: stories are told, made into chats and trained on, all within a given time.

1. One process has stories15M tell stories on the GPU. From the first thousands the tokenizer is learned.
2. Other processes turn stories into rows of chats, while this one compiles the training step.
3. Training, on what rows there are; those that come later are taken in.
4. The checkpoint is written, and then looked at: held-out loss, stories about X and Y, conversations.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

BEGAN = time.time()


def say(text: str) -> None:
    print(f"[{time.time() - BEGAN:6.1f} s] {text}", flush=True)


def tell(source: Path, folder: Path, batch: int, until: float, device: str, seed: int) -> None:
    """One process: stories in files of 4,096, until that time."""
    try:
        _tell(source, folder, batch, until, device, seed)
    finally:
        (folder / "told").touch()


def _tell(source: Path, folder: Path, batch: int, until: float, device: str, seed: int) -> None:
    import torch
    from openings import opening
    from stories15m import Storyteller, load

    torch.manual_seed(seed)
    rng, began, count = random.Random(seed), time.time(), 0
    tensors, pieces = load(source)
    teller = Storyteller(tensors, batch, device)
    say(f"the storyteller is ready, {batch} at a time")
    numbers = itertools.count()
    openings = [pieces.encode(opening(rng)) for _ in range(batch)]
    while time.time() < until:
        teller.write(openings)
        openings = [pieces.encode(opening(rng)) for _ in range(batch)]  # while the GPU is busy
        for part in np.array_split(teller.stories(), max(1, batch // 4096)):
            unfinished = folder / "stories.tmp"
            with unfinished.open("wb") as file:
                np.save(file, part)
            unfinished.rename(folder / f"stories-{next(numbers):05d}.npy")
        count += batch
        if count // batch % 10 == 1:
            say(f"{count} stories, {count * 256 / (time.time() - began) / 1e3:.0f} k positions a second")
    say(f"{count} stories told")


def learn_tokenizer(source: Path, folder: Path, size: int, wanted: int) -> None:
    """From the first stories, some chats and the books; and what is a word at all."""
    from chats import ChatWriter
    from data import stories_of
    from pieces import Pieces
    from strange import found
    from tales import Tale
    from words import BOYS, GIRLS, NOUN_OF

    from tokenizer import train

    pieces = Pieces.read(source)
    stories: list[str] = []
    for number in itertools.count():
        path = folder / f"stories-{number:05d}.npy"
        while not path.exists() and not (folder / "told").exists():
            time.sleep(0.1)
        if path.exists():
            stories += stories_of(np.load(path), pieces)
        if len(stories) >= wanted or not path.exists():
            break
    if not stories:
        raise SystemExit("no stories were told")
    say(f"{len(stories)} good stories to learn the tokenizer from")
    tales = [Tale(text) for text in stories]
    known = Counter(word for tale in tales for word in set(tale.words))
    names = {name.lower() for name in (*GIRLS, *BOYS)}
    words = {word for word, count in known.items() if count > len(tales) // 6000} | set(NOUN_OF) | names
    (folder / "known.json").write_text(json.dumps(sorted(words)))
    books = json.loads((source / "books.json").read_text())
    texts = [*books["stories"], *books["passages"]]
    (folder / "strange.json").write_text(json.dumps(found(texts, words)))
    writer = ChatWriter(seed=0)
    chats = [text for tale in tales[: wanted // 8] for chat in writer.write(tale) for _, text in chat]
    learned = train([*stories, *chats, *NOUN_OF, *texts], size)
    (folder / "tokenizer.tmp").write_text(learned)
    (folder / "tokenizer.tmp").rename(folder / "tokenizer.json")
    say(f"the tokenizer is there; {len(words)} words are known")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--in", dest="source", type=Path, required=True, help="the folder that prepare.py made"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=840, help="all of it takes that long")
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 4))
    parser.add_argument(
        "--toy", action="store_true", help="everything small, on the CPU: to see that it runs"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    memory = Path("/dev/shm")  # in containers often too small
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 8 << 30
    folder = Path(tempfile.mkdtemp(prefix="mini-", dir=memory if roomy else None))
    try:
        make(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make(options: argparse.Namespace, folder: Path) -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    toy, source, whole = options.toy, options.source, options.seconds
    device = "cpu" if toy else "cuda"
    told, trained = BEGAN + 0.31 * whole, BEGAN + 0.88 * whole
    processes = multiprocessing.get_context("spawn")
    teller = processes.Process(
        target=tell, args=(source, folder, 16 if toy else 8192, told, device, options.seed)
    )
    teller.start()

    vocabulary = 1024 if toy else 6144
    learner = processes.Process(
        target=learn_tokenizer,
        args=(
            source,
            folder,
            vocabulary,
            10 if toy else 20_000,
        ),
    )
    learner.start()

    import torch
    from data import work, write_books
    from model import build, config, save
    from pieces import Pieces
    from train import Pool, Trainer

    from tokenizer import write_settings

    torch.set_float32_matmul_precision("high")
    workers = [
        processes.Process(
            target=work, args=(folder, Pieces.read(source), i, options.workers, trained), daemon=True
        )
        for i in range(options.workers)
    ]
    for worker in workers:
        worker.start()
    settings = config(vocabulary, width=64, hidden=64) if toy else config(vocabulary)
    model = build(settings, options.seed)
    say(f"{sum(weight.numel() for weight in model.parameters()) / 1e6:.2f} M parameters")
    trainer = Trainer(
        model,
        device,
        lr=4e-3,
        tokens=4096 if toy else 96 * 1024,
        compiled=not toy,
    )
    trainer.warm_up(vocabulary, say)
    learner.join()
    if learner.exitcode:
        raise SystemExit("there is no tokenizer")
    write_books(folder, source / "books.json", copies=4)
    pool = Pool(folder, device)
    teller.join()
    pool.refresh()
    while pool.tokens < (1 << 14 if toy else 1 << 24) and time.time() < trained:
        time.sleep(0.5)
        pool.refresh()
    say(f"training begins on {pool.tokens / 1e6:.1f} M tokens")
    read = trainer.run(pool, trained, options.out / "loss.jsonl", say)
    for worker in workers:
        worker.terminate()

    finished = options.out / "olivine-mini"
    save(model, finished)
    shutil.copy(folder / "tokenizer.json", finished)
    write_settings(finished)
    say("the checkpoint is written")
    report = {"tokens read": read, "tokens in the pool": pool.tokens, "seconds": round(time.time() - BEGAN)}
    (options.out / "report.json").write_text(json.dumps(report, indent=2))
    look(options, model, trainer, pool, finished, report, device)


def look(options, model, trainer, pool, finished: Path, report: dict[str, object], device: str) -> None:  # type: ignore[no-untyped-def]
    """Figures and samples. What goes wrong here costs no more than them."""
    from evaluate import Speaker, conversations, gates

    until, lines = BEGAN + 0.985 * options.seconds, []
    try:
        report["held-out loss"] = round(trainer.held_out(pool), 4)
        say(f"held-out loss {report['held-out loss']}")
        speaker = Speaker(model, finished / "tokenizer.json", device)
        count = 8 if options.toy else 200
        report["gates"], lines = gates(speaker, count, 0.6 * (until - time.time()))
        say(f"{report['gates']}")
        lines = [*conversations(speaker, until), *lines]
    except Exception as error:
        say(f"the evaluation failed, {type(error).__name__}: {error}")
    (options.out / "samples.md").write_text("\n".join(lines))
    (options.out / "report.json").write_text(json.dumps(report, indent=2))
    say("done")


if __name__ == "__main__":
    main()
