"""Markdown, block by block: what is finished is rendered once, and only the last block again and again.

Blocks of complete lines that another block follows never change: CommonMark is read line by line. That holds
because what looks ahead further (link definitions) is switched off. So is all that would make text disappear
(HTML, the addresses of pictures), and entities, which could bring back control characters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, RenderableType
from rich.markdown import CodeBlock, Heading, Markdown
from rich.syntax import Syntax
from rich.text import Text

_OFF = ["html_block", "html_inline", "reference", "image", "entity", "lheading"]
_PARSER = MarkdownIt("commonmark", {"maxNesting": 100}).enable(["strikethrough", "table"]).disable(_OFF)
_INDENT = 4  # columns that a level of nesting takes at most
_NARROWEST = 16  # columns that nested text must have left


def finished(text: str) -> int:
    """How much of a text's beginning will not change whatever follows it."""
    whole = text[: text.rfind("\n") + 1]
    starts = [token.map[0] for token in _PARSER.parse(whole) if token.level == 0 and token.map]
    if len(starts) < 2:
        return 0
    return sum(len(line) + 1 for line in whole.split("\n")[: starts[-1]])


def render(text: str, console: Console) -> list[str]:
    """The lines of a text, blocks apart by an empty one. Each line is complete in itself, colors and all."""
    lines: list[str] = []
    for block in _blocks(_PARSER.parse(text)):
        if lines:
            lines.append("")
        lines += _lines(_shown(block, text, console.width), console)
    return lines


def plain(text: str, style: str, console: Console) -> list[str]:
    """The lines of a text as it is, in a style."""
    return _lines(Text(text, style), console) if text else []


def _blocks(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    block: list[Token] = []
    for token in tokens:
        block.append(token)
        if token.level == 0 and token.nesting <= 0:
            yield block
            block = []


def _shown(block: list[Token], text: str, width: int) -> RenderableType:
    """A block as Markdown; as it was written where it is nested so deeply that no room is left."""
    place = block[0].map
    depth = max(token.level for token in block)
    if place and depth * _INDENT > width - _NARROWEST:
        return Text("\n".join(text.split("\n")[place[0] : place[1]]))
    return _Block(block)


def _lines(renderable: RenderableType, console: Console) -> list[str]:
    with console.capture() as capture:
        console.print(renderable, end="")
    lines = capture.get().split("\n")
    inked = [i for i, line in enumerate(lines) if line.strip()]
    return lines[inked[0] : inked[-1] + 1] if inked else []


class _Code(CodeBlock):
    """Code in the terminal's own colors, without a frame, so that it can be copied."""

    def __rich_console__(self, console: Console, options: object) -> Iterator[RenderableType]:
        code = str(self.text).rstrip("\n")
        yield Syntax(code, self.lexer_name, theme="ansi_dark", background_color="default", word_wrap=True)


class _Heading(Heading):
    def __rich_console__(self, console: Console, options: object) -> Iterator[RenderableType]:
        yield self.text


class _Block(Markdown):
    elements: ClassVar = {**Markdown.elements, "fence": _Code, "code_block": _Code, "heading_open": _Heading}

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__("", hyperlinks=False)
        for token in tokens:
            for child in token.children or ():
                if child.type == "softbreak":
                    child.type = "hardbreak"  # models break lines where they mean it: in verses, say
        self.parsed = tokens
