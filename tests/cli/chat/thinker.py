"""`python thinker.py chat MODEL`: `olivine chat MODEL` whose answers are forced. A thought, then Markdown."""

from __future__ import annotations

from olivine import conversation
from olivine.chat.grammar import Grammar, Grammars, Thought, lark_grammar
from olivine.cli.main import main

THOUGHT = [f"Step {i}: weigh it" for i in range(1, 10)]
ANSWER = ["It is **42**, because", "", "1. six times nine", "2. is not"]
compiled = Grammars.compile


def said(opens: int | None, closes: int | None) -> str:
    """A digit is drawn at the end of each line of the thought, so that it comes little by little."""
    lines = " ".join(rf'"{line} " /[0-9]/ "\n"' for line in THOUGHT)
    answer = r"\n".join(ANSWER)
    return lark_grammar(rf'start: <[{opens}]> "\n" {lines} <[{closes}]> "\n\n{answer}"')


def forced(self: Grammars, source: str, thought: Thought | None = None) -> Grammar:
    return compiled(self, said(self._tokenizer.id_of("<think>"), self._tokenizer.id_of("</think>")))


if __name__ == "__main__":
    conversation.response_grammar = lambda wanted: "anything"
    Grammars.compile = forced  # type: ignore[method-assign]
    main()
