"""A bar chart as SVG: groups of horizontal bars, in colors that are readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

LABEL, WIDTH, BAR, GAP = 190, 460, 15, 12
COLORS = ("#6f9a2c", "#8a94a6", "#c58a3a")
LIGHT = "#dfe9cc"
INK = "#24301f"
FONT = 'font-family="ui-sans-serif, Helvetica, Arial, sans-serif"'


@dataclass(frozen=True)
class Bar:
    name: str
    value: float
    limit: float | None = None  # a lighter bar behind it


@dataclass(frozen=True)
class Group:
    name: str
    bars: Sequence[Bar]


def chart(title: str, groups: Sequence[Group]) -> str:
    largest = max(bar.limit or bar.value for group in groups for bar in group.bars)
    names = list(dict.fromkeys(bar.name for group in groups for bar in group.bars))
    parts: list[str] = []
    y = 64
    for group in groups:
        middle = y + len(group.bars) * BAR / 2 + 4
        parts.append(_text(LABEL - 10, middle, group.name, anchor="end"))
        for bar in group.bars:
            color = COLORS[names.index(bar.name) % len(COLORS)]
            if bar.limit:
                parts.append(_bar(y, bar.limit / largest, LIGHT))
            parts.append(_bar(y, bar.value / largest, color))
            end = LABEL + max(bar.value, bar.limit or 0) / largest * WIDTH
            parts.append(_text(end + 6, y + BAR - 4, _value(bar.value), size=11))
            y += BAR
        y += GAP
    width = LABEL + WIDTH + 70
    key = []
    for index, name in enumerate(names):
        x = LABEL + 110 * index
        key.append(f'<rect x="{x}" y="38" width="11" height="11" fill="{COLORS[index % len(COLORS)]}"/>')
        key.append(_text(x + 16, 48, name, size=12))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}" '
        f'role="img" aria-label="{escape(title)}">\n<rect width="{width}" height="{y}" fill="#ffffff"/>'
    )
    return "\n".join([head, _text(16, 24, title, size=14), *key, *parts, "</svg>", ""])


def _bar(y: float, share: float, color: str) -> str:
    return f'<rect x="{LABEL}" y="{y}" width="{share * WIDTH:.1f}" height="{BAR - 3}" fill="{color}"/>'


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text {where} {FONT} fill="{INK}">{escape(text)}</text>'


def _value(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
