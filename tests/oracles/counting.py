"""A text that counts how often it is compared, to see that nothing is looked up in a list again and again."""

from __future__ import annotations


class CountedText(str):
    """Equal to the same text."""

    compared = 0  # of all such texts
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedText.compared += 1
        return str(self) == other
