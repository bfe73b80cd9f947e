"""Prometheus' text format: the metrics of all replicas as one page."""

from __future__ import annotations

from collections.abc import Mapping


def merged(pages: Mapping[str, str]) -> str:
    """The pages of replicas as one, where each sample has the label `replica`. A family's samples stay
    together, as the format wants it."""
    families: dict[str, list[str]] = {}  # by the lines that describe them
    for replica, page in pages.items():
        head: list[str] = []
        samples: list[str] = []
        for line in page.splitlines():
            if line.startswith("#"):
                if samples:
                    head, samples = [], []
                head.append(line)
            elif line:
                samples = families.setdefault("\n".join(head), [])
                samples.append(_labelled(line, replica))
    return "".join(f"{head}\n" + "".join(f"{line}\n" for line in lines) for head, lines in families.items())


def _labelled(line: str, replica: str) -> str:
    name, brace, rest = line.partition("{")
    label = f'replica="{replica}"'
    if brace:
        return f"{name}{{{label},{rest}"
    name, _, rest = line.partition(" ")
    return f"{name}{{{label}}} {rest}"
