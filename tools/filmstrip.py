"""Frames of a terminal as one animated SVG: a strip of them, which CSS moves from one to the next.

A line that many frames share is there once. Nothing but CSS moves, so that it plays where scripts do not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT, MARGIN, BAR = 8.4, 18, 14, 30  # of a character, and around them
REST = 4.0  # seconds that the last frame stays
LEAST = 0.08  # seconds of a frame: shorter ones are left out
MOST = 1.0


@dataclass(frozen=True)
class Span:
    text: str
    style: tuple[str, bool]  # color, bold
    column: int


Line = tuple[Span, ...]


@dataclass(frozen=True)
class Frame:
    time: float
    lines: tuple[Line, ...]


def filmstrip(frames: Sequence[Frame], columns: int, rows: int, title: str) -> str:
    kept, times = _timed(frames)
    width, height = columns * WIDTH + 2 * MARGIN, rows * HEIGHT + BAR + MARGIN
    total = times[-1] + REST
    symbols: dict[Line, str] = {}
    strip: list[str] = []
    for index, frame in enumerate(kept):
        parts = []
        for row, line in enumerate(frame.lines):
            if line:
                name = symbols.setdefault(line, f"l{len(symbols)}")
                parts.append(f'<use href="#{name}" y="{row * HEIGHT}"/>')
        strip.append(f'<g transform="translate({index * width:.0f})">{"".join(parts)}</g>')
    steps = [
        f"{100 * time / total:.2f}%{{transform:translateX(-{index * width:.0f}px)}}"
        for index, time in enumerate(times)
    ]
    last = f"translateX(-{(len(kept) - 1) * width:.0f}px)"
    steps.append(f"100%{{transform:{last}}}")
    film = "\n".join(strip)
    defined = "\n".join(f'<g id="{name}">{_spans(line)}</g>' for line, name in symbols.items())
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" \
width="{width:.0f}" height="{height}" role="img" aria-label="A session of Olivine in a terminal">
<style>
text {{ font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre }}
.b {{ font-weight: 700 }}
#film {{ animation: film {total:.1f}s steps(1, end) infinite }}
@keyframes film {{ {" ".join(steps)} }}
@media (prefers-reduced-motion: reduce) {{ #film {{ animation: none; transform: {last} }} }}
</style>
<defs>
{defined}
</defs>
<rect width="{width:.0f}" height="{height}" rx="8" fill="#20261c"/>
<text x="{width / 2:.0f}" y="20" text-anchor="middle" fill="#8b9482">{escape(title)}</text>
<svg x="{MARGIN}" y="{BAR}" width="{columns * WIDTH:.0f}" height="{rows * HEIGHT}">
<g id="film">
{film}
</g>
</svg>
</svg>
"""


def _timed(frames: Sequence[Frame]) -> tuple[list[Frame], list[float]]:
    """The frames that last, and when each begins; pauses are shortened."""
    kept: list[Frame] = []
    times: list[float] = []
    for index, frame in enumerate(frames):
        last = index == len(frames) - 1
        lasts = LEAST if last else frames[index + 1].time - frame.time
        if lasts < LEAST and not last:
            continue
        begins = times[-1] + min(frame.time - kept[-1].time, MOST) if kept else 0.0
        kept.append(frame)
        times.append(begins)
    return kept, times


def _spans(line: Line) -> str:
    parts = []
    for span in line:
        color, bold = span.style
        mark = ' class="b"' if bold else ""
        # Each run has its width, so that columns stay where they are in any font.
        long = len(span.text) * WIDTH
        parts.append(
            f'<text x="{span.column * WIDTH:.1f}" y="14" fill="{color}"{mark} textLength="{long:.1f}" '
            f'xml:space="preserve">{escape(span.text)}</text>'
        )
    return "".join(parts)
