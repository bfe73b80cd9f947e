"""What is on the screen while an answer comes: each thing once, and in the end what it is all at once."""

from __future__ import annotations

import io
import random
import re
import shutil
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest
from rich.console import Console

from olivine.cli.chat import markdown
from olivine.cli.chat.screen import Screen
from olivine.cli.chat.view import PlainView, TerminalView
from olivine.reply import Delta
from oracles.terminal import Terminal
from oracles.waiting import eventually

DOCUMENT = """# A title

Some *words* in a paragraph, **bold** and `code`,
on two lines.

1. one
2. two
   - inner

   more of two

10. ten

```python
def f(x: int) -> str:
    \"\"\"A text.

    On lines.\"\"\"
    return f"{x}"
```

| a | b |
| --- | ---: |
| 1 | 2 |
| three | four |

> quoted
> twice

---
<div>not HTML</div> and a [link](http://example.org) and ![a picture](http://example.org/p.png)

[1]: http://example.org "kept"

Ende gut, alles gut: 日本語 🙂 é. Setext?
===
  * last
"""


def shown(
    terminal: Terminal, text: str, sizes: random.Random | int, thought: str = "", literal: bool = False
) -> TerminalView:
    """Feeds a text in pieces, each of which is drawn."""
    view = TerminalView(terminal, console=console(terminal), clock=iter(range(10**9)).__next__)  # type: ignore[arg-type]
    view.literal = literal
    for kind, whole in (("reasoning", thought), ("content", text)):
        while whole:
            size = sizes if isinstance(sizes, int) else sizes.randint(1, 12)
            piece, whole = whole[:size], whole[size:]
            view.feed(Delta(**{kind: piece}, tokens=[1]))
    view.end()
    return view


def console(terminal: Terminal) -> Console:
    return Console(
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        width=terminal.columns,
        height=terminal.height,
        highlight=False,
    )


def at_once(text: str, columns: int) -> list[str]:
    lines = markdown.render(text, console(Terminal(columns, 50)))
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in lines]
    while plain and not plain[-1]:
        plain.pop()
    return plain


def pieces_of(seed: int) -> str:
    """A document of lines that are cut, mixed and indented at random: much that nobody would write."""
    choice = random.Random(seed)
    odd = ["", "", "- ", "1.", "2. x", "> ", "```", "    four", "***", "| a |", "\\"]
    lines = [*DOCUMENT.split("\n"), *odd]
    chosen = [choice.choice(lines) for _ in range(choice.randint(1, 30))]
    return "\n".join(choice.choice(["", "", "  ", "    "]) + line for line in chosen)


@pytest.mark.parametrize("columns", [80, 33])
@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
def test_a_growing_answer_ends_as_the_whole_one(columns: int, size: int) -> None:
    terminal = Terminal(columns, 1000)
    shown(terminal, DOCUMENT, size)
    assert terminal.text == at_once(DOCUMENT, columns)
    assert "# A title" not in "\n".join(terminal.text) and "A title" in terminal.text[0]


@pytest.mark.parametrize("seed", range(60))
def test_any_text_in_any_pieces_ends_as_the_whole_one(seed: int) -> None:
    text = pieces_of(seed).lstrip("\n")
    terminal = Terminal(60, 1000)
    shown(terminal, text, random.Random(seed))
    assert terminal.text == at_once(text, 60)


def test_nothing_of_an_answer_disappears() -> None:
    text = "".join(at_once(DOCUMENT, 80))
    for word in ("<div>not HTML</div>", "http://example.org/p.png", '[1]: http://example.org "kept"', "==="):
        assert word in text
    assert at_once("roses are red\nviolets are blue", 80) == ["roses are red", "violets are blue"]
    deep = "> " * 60 + "far inside"
    assert "far inside" in "".join(at_once(deep, 40)).replace("\n", "")


@pytest.mark.parametrize("seed", range(8))
def test_what_scrolls_away_is_there_once(seed: int) -> None:
    """On a small screen nothing is repeated, and nothing is lost."""
    choice = random.Random(seed)
    count = 0

    def words(n: int) -> str:
        nonlocal count
        count += n
        return " ".join(f"w{i:04}" for i in range(count - n, count))

    blocks = []
    for _ in range(6):
        lines = [words(choice.randint(1, 20)) for _ in range(choice.randint(1, 12))]
        kind = choice.choice(["paragraph", "list", "fence"])
        if kind == "list":
            lines = [f"- {line}" for line in lines]
        elif kind == "fence":
            lines = ["```", *lines, "```"]
        blocks.append("\n".join(lines))
    terminal = Terminal(50, 8)
    shown(terminal, "\n\n".join(blocks), choice)
    found = re.findall(r"w\d{4}", "\n".join(terminal.text))
    assert found == [f"w{i:04}" for i in range(count)]


def test_finished_blocks_are_drawn_once() -> None:
    """What was finished is not written again, however long the answer goes on."""

    class Counting(Terminal):
        written = ""

        def write(self, text: str) -> None:
            self.written += text
            super().write(text)

    terminal = Counting(80, 100)
    shown(terminal, "The first.\n\nThe second.\n\n" + "And much more. " * 50, 5)
    assert terminal.written.count("The second.") <= 4  # while it grew, and when the next block began


def test_model_output_cannot_talk_to_the_terminal() -> None:
    """The terminal of this test refuses every sequence but those for lines and colors."""
    attack = (
        "\x1b]0;title\x07 \x1b[2J\x1b[31mred \x9b31m \x1bc bell\x07 back\x08 \rover \x7f\x85 &#27;[2J &#13;"
        "\u202egnp.exe\u2066 `\x1b[8m` [a](http://x/\x1b[2J) [b](http://x/&#27;)\x0b\x0c &#x1b;"
        "\n\n```\x1b[5m\n\x1b[1A\n```\n"
    )
    for text in (attack, *(attack[i:] for i in range(1, len(attack), 7))):
        terminal = Terminal(40, 20)
        shown(terminal, text, 3, thought=text)
        assert not re.search("[\x00-\x1f\x7f-\x9f\u202e\u2066]", "".join(terminal.text))
    terminal = Terminal(200, 20)
    shown(terminal, attack, 3)
    assert "[31mred" in terminal.text[0] and "&#27;[2J &#13;" in terminal.text[0]


def test_a_thought_folds_when_the_answer_begins() -> None:
    thought = "\n".join(f"thought {i}" for i in range(30))
    terminal = Terminal(60, 12)
    view = shown(terminal, "", 9, thought)
    assert view.thought == thought
    assert terminal.text[0].startswith("▸ thought, ") and len(terminal.text) == 1
    terminal = Terminal(60, 12)
    shown(terminal, "The answer.", 9, thought)
    assert len(terminal.text) == 3 and terminal.text[1:] == ["", "The answer."]


def test_a_thought_is_a_window_of_its_last_lines_while_it_lasts() -> None:
    terminal = Terminal(60, 12)
    view = TerminalView(terminal, console=console(terminal), clock=iter(range(100)).__next__)  # type: ignore[arg-type]
    view.feed(
        Delta(reasoning="\n".join(f"thought {i}" for i in range(30)), tokens=[1, 2], reasoning_tokens=2)
    )
    assert terminal.text == ["▾ thinking, 2 tokens", *(f"thought {i}" for i in range(24, 30))]


def test_every_answer_has_its_own_thought() -> None:
    terminal = Terminal(60, 100)
    view = TerminalView(terminal, console=console(terminal), open_thoughts=True)  # type: ignore[arg-type]
    for name in ("first", "second"):
        view.feed(Delta(reasoning=f"{name} thought", tokens=[1]))
        view.feed(Delta(content=f"{name} answer", tokens=[1]))
        view.end()
        assert view.thought == f"{name} thought"
    assert terminal.text == ["first thought", "", "first answer", "second thought", "", "second answer"]


def test_an_open_thought_stays() -> None:
    terminal = Terminal(60, 100)
    view = TerminalView(terminal, console=console(terminal), open_thoughts=True)  # type: ignore[arg-type]
    view.feed(Delta(reasoning="one\ntwo", tokens=[1]))
    view.feed(Delta(content="three", tokens=[1]))
    view.end()
    assert terminal.text == ["one", "two", "", "three"]


def test_reading_the_prompt_is_shown_and_gone() -> None:
    terminal = Terminal(60, 12)
    view = TerminalView(terminal, console=console(terminal), clock=iter(range(100)).__next__)  # type: ignore[arg-type]
    view.begin()
    assert terminal.text == ["reading the prompt …"]  # at once: the first tokens may take seconds
    view.feed(Delta(prefilled=512, prompt=4096))
    assert terminal.text == ["reading the prompt: 512/4,096 tokens"]
    view.feed(Delta(content="Yes.", tokens=[1]))
    view.end()
    view.summary("1 tok")
    assert terminal.text == ["Yes.", "1 tok"]


def test_drawing_takes_a_share_of_the_time_and_the_end_is_always_drawn() -> None:
    terminal = Terminal(60, 12)
    now = 0.0

    def clock() -> float:
        return now

    view = TerminalView(terminal, console=console(terminal), clock=clock)  # type: ignore[arg-type]
    view.feed(Delta(content="one ", tokens=[1]))
    view.feed(Delta(content="two ", tokens=[1]))
    assert terminal.text == ["one"]
    now = 1.0
    view.feed(Delta(content="three ", tokens=[1]))
    view.feed(Delta(content="four", tokens=[1]))
    assert terminal.text == ["one two three"]
    view.end()
    assert terminal.text == ["one two three four"]


def test_plain_text_is_what_the_model_said() -> None:
    out = io.StringIO()
    view = PlainView(out)
    for piece in ("# Not a *title*\n", "", "\x1b[31m"):
        view.feed(Delta(content=piece, reasoning="hm"))
    view.end()
    assert out.getvalue() == "# Not a *title*\n\x1b[31m\n"
    dumb = Terminal(80, 10)
    view = PlainView(dumb)  # type: ignore[arg-type]
    view.feed(Delta(content="a\x1b[2Jb"))
    assert dumb.text == ["a[2Jb"]


SCRIPT = """
import random, sys
from olivine.cli.chat.view import TerminalView
from olivine.reply import Delta
text = open(sys.argv[1], encoding="utf-8").read()
clock = iter(range(10**9)).__next__
view = TerminalView(clock=clock)
for i in range(0, len(text), 3):
    view.feed(Delta(content=text[i : i + 3], tokens=[1]))
view.end()
open(sys.argv[2], "w").close()
sys.stdin.read()
"""


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_real_terminal_shows_the_same(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(DOCUMENT, encoding="utf-8")
    (tmp_path / "script.py").write_text(SCRIPT)
    socket = str(tmp_path / "tmux")
    tmux = ["tmux", "-u", "-S", socket, "-f", "/dev/null"]
    command = [sys.executable, *(str(tmp_path / name) for name in ("script.py", "text", "done"))]
    subprocess.run([*tmux, "new-session", "-d", "-x", "50", "-y", "12", *command], check=True, timeout=60)
    capture = [*tmux, "capture-pane", "-p", "-S", "-1000"]

    def shown() -> list[str]:
        rows = subprocess.run(capture, check=True, capture_output=True, timeout=120).stdout.decode()
        return [row.rstrip() for row in rows.rstrip("\n").split("\n")]

    expected = at_once(DOCUMENT, 50)
    try:
        eventually((tmp_path / "done").exists)
        eventually(lambda: shown() == expected)  # tmux takes the last of it in
    finally:
        subprocess.run([*tmux, "kill-server"], timeout=120)


def test_what_left_the_screen_stays_as_it_was() -> None:
    terminal = Terminal(20, 4)
    screen = Screen(terminal.write, lambda: (20, 4))
    screen.draw([f"line {i}" for i in range(9)])
    screen.draw([f"LINE {i}" for i in range(10)])
    assert terminal.text == [*(f"line {i}" for i in range(5)), *(f"LINE {i}" for i in range(5, 10))]


def test_only_what_is_new_is_written() -> None:
    written: list[str] = []
    screen = Screen(written.append, lambda: (20, 10))
    screen.draw(["first", "sec   "])
    screen.draw(["first", "second \x1b[1mwo\x1b[0m"])
    screen.draw(["first", "second", "\x1b[1mwords\x1b[0m"])
    screen.draw(["first", "second", "\x1b[1mwords\x1b[0m", "third"], finished=3)
    screen.finish()
    assert written == [
        "first\nsec",
        "ond \x1b[1mwo\x1b[0m",
        "\x1b[3D\x1b[K\n\x1b[1mwords\x1b[0m",
        "\nthird",
        "\n",
    ]


def test_fewer_lines_than_before() -> None:
    terminal = Terminal(20, 10)
    screen = Screen(terminal.write, lambda: (20, 10))
    steps = (["a", "b", "c"], ["a"], ["a", "d"], [], ["e", "f"], ["E"], ["Ee", "g"])
    for lines in steps:
        screen.draw(lines, growing=False)
        assert terminal.text == lines
    screen.finish()
    terminal.write("below")
    assert terminal.text == ["Ee", "g", "below"]


@pytest.mark.parametrize("columns", [5, 12])
def test_a_window_of_lines_is_replaced_in_another_width(columns: int) -> None:
    """Lines of before take more rows now; the new ones go where the old ones began."""
    terminal = Terminal(20, 20)
    screen = Screen(terminal.write, lambda: (terminal.columns, 20))
    terminal.write("above\n")
    screen.draw(["first", "日本語" * 3, "x" * 18], growing=False)
    terminal.resize(columns)
    screen.draw(["1st", "y", "z"], growing=False)
    assert terminal.text == ["above", "1st", "y", "z"]


@pytest.mark.parametrize("late", [0, 3])
@pytest.mark.parametrize("kind", ["paragraph", "list", "fence", "thought"])
@pytest.mark.parametrize("seed", range(4))
def test_an_answer_in_a_window_that_changes_its_width(seed: int, kind: str, late: int) -> None:
    """Nothing is repeated and nothing is lost, also where the terminal tells its new width drawings late."""
    choice = random.Random(f"{seed} {kind}")
    words = [f"**w{i:03}**" if i % 10 == 3 and kind == "paragraph" else f"w{i:03}" for i in range(150)]
    lines = [" ".join(words[i : i + 30]) for i in range(0, 150, 30)]
    text = {"list": "\n".join(f"- {line}" for line in lines), "fence": "```\n" + "\n".join(lines)}.get(
        kind, "\n\n".join(lines) if seed % 2 else " ".join(lines)
    )
    terminal = Terminal(100, 12)
    width = console(terminal)
    view = TerminalView(  # type: ignore[arg-type]
        terminal, console=width, clock=iter(range(10**9)).__next__, open_thoughts=True
    )
    wait = 0
    while text:
        size = choice.randint(1, 12)
        piece, text = text[:size], text[size:]
        view.feed(Delta(**{"reasoning" if kind == "thought" else "content": piece}, tokens=[1]))
        if choice.random() < 0.05:
            terminal.resize(choice.randint(40, 100))
            wait = late
        if wait == 0:
            width.width = terminal.columns
        wait = max(0, wait - 1)
    width.width = terminal.columns
    view.end()
    view.summary("1 tok")
    terminal.resize(10_000)  # rows that it broke in a word are whole again
    found = re.findall(r"w\d{3}", " ".join(terminal.text))
    assert [word for word, _ in groupby(found)] == [f"w{i:03}" for i in range(150)]
    # Only a word whose marks are not complete yet may be shown again without them.
    assert len(found) < 150 + (3 if kind == "paragraph" else 1)
    assert terminal.text[-1] == "1 tok"


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("thought", ["", "Let me see."])
def test_answers_with_a_format_are_shown_as_they_are_written(size: int, thought: str) -> None:
    text = '{"a": "*x* and __y__",\n\n  "b": "# <b>"}\n1. one\n1. two'
    terminal = Terminal(80, 40)
    shown(terminal, text, size, thought, literal=True)
    above = ["▸ thought, ", ""] if thought else []
    rows = terminal.text
    assert rows[len(above) :] == text.split("\n")
    assert all(row.startswith(start) for row, start in zip(rows, above, strict=False))
