"""The words that requests are made of, from words.txt: nouns by kind, names, adjectives; plurals, articles.

A noun is always replaced by one of its own kind, so a kind holds what can do the same things in a story.
"""

from __future__ import annotations

from phrases import sections

_LISTS = {name: " ".join(lines).split() for name, lines in sections("words.txt").items()}

CHARACTERS = ("animal", "fantasy", "person")
OBJECTS = ("vehicle", "toy", "thing", "food")
PLACES = ("nature", "place")
NOUNS = {kind: _LISTS[kind] for kind in (*CHARACTERS, *OBJECTS, *PLACES)}
KIND = {noun: kind for kind, nouns in NOUNS.items() for noun in nouns}
LOOSE = _LISTS["loose"]  # fit for a request, but replaced by nothing: too much of a sentence hangs on them
GIRLS, BOYS = _LISTS["girls"], _LISTS["boys"]
ADJECTIVES, COLORS = _LISTS["adjectives"], _LISTS["colors"]
THING_ADJECTIVES = [*COLORS, *_LISTS["qualities"]]
# These are verbs or adjectives as well: nouns only where they stand like one, and never what is replaced.
AMBIGUOUS = frozenset(_LISTS["ambiguous"])
MASS = frozenset(_LISTS["mass"])  # said without "a", and without a plural
ONLY_ONE = frozenset(_LISTS["only one"])  # said with "the"
GENDERED = frozenset(_LISTS["gendered"])  # much of a sentence hangs on whether these are men or women
COMMON = frozenset(_LISTS["common"])  # in so many stories that they say little about one
FIXED = AMBIGUOUS | MASS | ONLY_ONE | GENDERED | COMMON  # what no other noun stands in for
MOODS = {name[5:]: words for name, words in _LISTS.items() if name.startswith("mood ")}
# What only some can do. A story that says so of one animal or thing would be wrong of another.
TELLING = {name[8:]: frozenset(words) for name, words in _LISTS.items() if name.startswith("telling ")}
UNSEEN = _LISTS["unseen"]  # never asked for in training: what is told of them was learned as copying
_PLURALS = dict(pair.split(":") for pair in _LISTS["irregular"])


def plural(noun: str) -> str:
    if noun in _PLURALS:
        return _PLURALS[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    if noun.endswith(("s", "x", "z", "ch", "sh")) or (noun.endswith("o") and noun[-2] not in "aeiou"):
        return noun + "es"
    return noun + "s"


def article(word: str) -> str:
    """The "a" or "an" that goes before a word."""
    silent, consonant = ("hour", "honest"), ("uni", "use", "eu", "one", "ukulele", "yo-")
    return (
        "an"
        if word.startswith(silent) or (word[0] in "aeiouAEIOU" and not word.startswith(consonant))
        else "a"
    )


def with_article(noun: str) -> str:
    """As a request says it: a fox, an owl, the moon, bread."""
    if noun in ONLY_ONE:
        return f"the {noun}"
    return noun if noun in MASS else f"{article(noun)} {noun}"


NOUN_OF = {form: noun for noun in [*KIND, *LOOSE] for form in (noun, plural(noun))}
