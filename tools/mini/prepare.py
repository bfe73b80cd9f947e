"""Gathers what make.py reads into one small folder: stories15M, and passages of real books.

stories15M.bin and tokenizer.bin are llama2.c's; the others are git directories (a clone's .git) of
uci-soe/FairytaleQAData, mlschmitt/classic-books-markdown, global-asp/pb-source and global-asp/asp-source.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import books
import stories15m


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--stories15m", type=Path, required=True, metavar="BIN")
    parser.add_argument(
        "--vocabulary", type=Path, required=True, metavar="BIN", help="llama2.c's tokenizer.bin"
    )
    parser.add_argument("--fairytales", type=Path, metavar="GIT")
    parser.add_argument("--classics", type=Path, metavar="GIT")
    parser.add_argument("--storybooks", type=Path, metavar="GIT", nargs="*", default=[])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tensors = stories15m.read_llama2c(options.stories15m)
    stories15m.save(options.out, tensors, stories15m.Pieces.read_llama2c(options.vocabulary))
    passages = books.fairy_tales(options.fairytales) if options.fairytales else []
    passages += books.classics(options.classics) if options.classics else []
    stories, credits = [], []
    for repository in options.storybooks:
        more, by = books.storybooks(repository)
        stories, credits = stories + more, credits + by
    (options.out / "books.json").write_text(
        json.dumps({"passages": passages, "stories": list(dict.fromkeys(stories))})
    )
    (options.out / "credits.txt").write_text("\n".join(sorted(set(credits))) + "\n")
    words = sum(len(text.split()) for text in (*passages, *stories))
    print(f"{len(passages)} passages and {len(stories)} stories, {words} words")


if __name__ == "__main__":
    main()
