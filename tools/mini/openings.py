"""How stories begin: some freely, most with words that we choose.

Left alone, stories15M writes about Lily and her ball. An opening that names two things gives stories about
any two things.
"""

from __future__ import annotations

import random

from words import (
    ADJECTIVES,
    BOYS,
    CHARACTERS,
    GIRLS,
    NOUNS,
    OBJECTS,
    PLACES,
    THING_ADJECTIVES,
    with_article,
)

_FREE = ["", "Once upon a time,", "Once upon a time, there was", "One day,", "One sunny day,",
         "There was once", "One night,", "One cold morning,", "In a small village,", "Long ago,"]  # fmt: skip
_ONE = [
    "Once upon a time, there was {a}.",
    "Once upon a time, there was {a} named {name}.",
    "Once upon a time, there was {a} who",
    "Once upon a time, in a far away land, there was {a}",
    "One day, {a}",
    "There was once {a} who lived",
    "Once there was {a} that",
    "A long time ago, {a}",
]
_PAIR = [
    "Once upon a time, there was {a} who had {b}.",
    "Once upon a time, there was {a} who loved {b}.",
    "Once upon a time, there was {a} who found {b}.",
    "Once upon a time, there was {a} named {name}. {name} had {b}.",
    "Once upon a time, there was {a} named {name}. One day, {name} saw {b}.",
    "One day, {a} found {b}.",
    "One day, {a} saw {b}",
    "Once there was {a} who wanted {b}.",
    "Once upon a time, {a} was looking for {b}.",
]
_FRIENDS = [
    "Once upon a time, there was {a} and {b}.",
    "Once upon a time, {a} met {b}.",
    "One day, {a} and {b}",
    "Once upon a time, there lived {a} and {b}. They were best friends.",
    "Once upon a time, there was {a} who was afraid of {b}.",
    "One day, {a} went to visit {b}.",
]
_WHERE = [
    "Once upon a time, there was {a} who lived near {b}.",
    "Once upon a time, {a} went to {b}.",
    "One day, {a} was walking and saw {b}.",
]
_CHILD = [
    "Once upon a time, there was a little {child} named {name}. {name} had {b}.",
    "Once upon a time, there was a {child} named {name} who loved {b}.",
    "One day, a {child} named {name} found {b}.",
    "{name} was a little {child} who wanted {b}.",
    "{name} and {other} were friends. One day, they found {b}.",
    "{name} was very sad because {b}",
    "{name} was a brave {child}. One day, {b}",
]


def opening(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.12:
        return rng.choice(_FREE)
    if kind < 0.30:
        form, first, second = rng.choice(_ONE), rng.choice(CHARACTERS), None
    elif kind < 0.52:
        form, first, second = rng.choice(_PAIR), rng.choice(CHARACTERS), rng.choice(OBJECTS)
    elif kind < 0.68:
        form, first, second = rng.choice(_FRIENDS), rng.choice(CHARACTERS), rng.choice(CHARACTERS)
    elif kind < 0.80:
        form, first, second = rng.choice(_WHERE), rng.choice(CHARACTERS), rng.choice(PLACES)
    else:
        form, first, second = (
            rng.choice(_CHILD),
            "person",
            rng.choice((*OBJECTS, "animal", "animal", "fantasy")),
        )
    girl = rng.random() < 0.5
    name, other = rng.sample(GIRLS if girl else BOYS, 2)
    return form.format(
        a=_told(rng, first),
        b=_told(rng, second or first),
        name=name,
        other=other,
        child="girl" if girl else "boy",
    )


def _told(rng: random.Random, kind: str) -> str:
    """A fox, a brave fox; a boat, a red boat."""
    noun = rng.choice(NOUNS[kind])
    told = with_article(noun)
    if told.startswith(("a ", "an ")) and rng.random() < 0.4:
        return with_article(f"{rng.choice(ADJECTIVES if kind in CHARACTERS else THING_ADJECTIVES)} {noun}")
    return told
