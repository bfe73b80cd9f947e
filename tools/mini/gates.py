"""The gates of a finished file, by Olivine: python tools/mini/gates.py olivine-mini.gguf"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from checks import LIMIT, TRIED, judged, prompts

import olivine

_HEADING = """# What olivine-mini said

Conversations that people try first, and the first 40 stories of `gates.py`, unchosen.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--samples", type=Path, help="write stories and conversations to this file")
    options = parser.parse_args()
    stories, conversations, answers = [], [], []
    with olivine.load(options.model) as llm:
        for i, prompt in enumerate(prompts(options.count)):
            reply = llm.chat([{"role": "user", "content": prompt[0]}], max_tokens=LIMIT, seed=i)
            answers.append((prompt, reply.content, reply.finish_reason == "stop"))
            stories.append(f"**{prompt[0]}**\n\n{reply.content}\n")
        for said in TRIED:
            chat: list[dict[str, str]] = []
            for text in said:
                chat.append({"role": "user", "content": text})
                chat.append(
                    {"role": "assistant", "content": llm.chat(chat, max_tokens=LIMIT, seed=1).content}
                )
            conversations.append("\n\n".join(f"**{m['role']}:** {m['content']}" for m in chat) + "\n\n---\n")
    result = judged(answers)
    print(json.dumps(result, indent=2))
    if options.samples:
        options.samples.write_text("\n".join([_HEADING, *conversations, *stories[:40]]), encoding="utf-8")
    if result["mention both"] < 0.8 or result["loops"] or result["without an end"]:
        raise SystemExit("the gates are not passed")


if __name__ == "__main__":
    main()
