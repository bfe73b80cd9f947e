"""What is said beside stories: greetings, thanks, who the model is, and what it cannot do."""

from __future__ import annotations

import random

from phrases import PHRASES
from words import KIND, with_article

_HELLO = PHRASES["talk: hello"]
_HELLO_BACK = PHRASES["talk: hello back"]
_FINE = PHRASES["talk: fine"]
_THANKS = PHRASES["talk: thanks"]
_WELCOME = PHRASES["talk: welcome"]
_BYE = PHRASES["talk: bye"]
_BYE_BACK = PHRASES["talk: bye back"]

_WHO = PHRASES["talk: who"]
_I_AM = PHRASES["talk: i am"]
_CAN = PHRASES["talk: can"]
_I_CAN = PHRASES["talk: i can"]
_MADE = PHRASES["talk: made"]
_MADE_BY = PHRASES["talk: made by"]
_LOST = PHRASES["talk: lost"]
_FOUND = PHRASES["talk: found"]

_PLACES = PHRASES["talk: places"]
_PEOPLE = PHRASES["talk: people"]
_TONGUES = PHRASES["talk: tongues"]
_JOBS = PHRASES["talk: jobs"]
_CODES = PHRASES["talk: codes"]
_PAINS = PHRASES["talk: pains"]
_FACTS = PHRASES["talk: facts"]
_CANNOT = PHRASES["talk: cannot"]

_TOPICS = [noun for noun, kind in KIND.items() if kind in ("animal", "fantasy", "vehicle", "toy")]

PAIRS = [
    (_HELLO, _HELLO_BACK),
    (_THANKS, _WELCOME),
    (_BYE, _BYE_BACK),
    (_WHO, _I_AM),
    (_CAN, _I_CAN),
    (_MADE, _MADE_BY),
    (_LOST, _FOUND),
]
SYSTEMS = PHRASES["talk: systems"]


def greeting(rng: random.Random) -> tuple[str, str]:
    said = rng.choice(_HELLO)
    return said, _filled(rng, rng.choice(_FINE if "how are" in said.lower() else _HELLO_BACK))


def thanks(rng: random.Random) -> tuple[str, str]:
    return rng.choice(_THANKS), rng.choice(_WELCOME)


def goodbye(rng: random.Random) -> tuple[str, str]:
    return rng.choice(_BYE), rng.choice(_BYE_BACK)


def small_talk(rng: random.Random) -> tuple[str, str]:
    """A question or greeting, and what to say to it."""
    kind = rng.random()
    if kind < 0.45:
        return cannot(rng)
    if kind < 0.6:
        return greeting(rng)
    said, back = rng.choice(PAIRS[1:])
    return rng.choice(said), _filled(rng, rng.choice(back))


def cannot(rng: random.Random) -> tuple[str, str]:
    """Something that it cannot do."""
    return _asked(rng), _filled(rng, rng.choice(_CANNOT))


def offer(rng: random.Random, nouns: list[str]) -> tuple[str, str] | None:
    """Something said, and an answer that offers a story about these nouns, one or two."""
    said, backs = rng.choice(((_HELLO, _HELLO_BACK), (_LOST, _FOUND), (None, _CANNOT), (None, _CANNOT)))
    named = dict(zip("ab", map(with_article, nouns), strict=False))
    fit = [back for back in backs if {hole for hole in "ab" if f"{{{hole}}}" in back} == named.keys()]
    if not fit:
        return None
    return _asked(rng) if said is None else rng.choice(said), rng.choice(fit).format(**named)


def _asked(rng: random.Random) -> str:
    asked = _filled(rng, rng.choice(_FACTS))
    return asked.lower().rstrip(".?") if rng.random() < 0.25 else asked


def joke(rng: random.Random) -> tuple[str, str]:
    asked = rng.choice(
        [
            "Tell me a joke.",
            "tell me a joke",
            "Do you know a joke?",
            "Make me laugh.",
            "Say something funny.",
        ]
    )
    return asked, "I only know stories, but I can tell you a funny one. Shall I?"


def _filled(rng: random.Random, text: str) -> str:
    a, b = rng.sample(_TOPICS, 2)
    return text.format(
        a=with_article(a),
        b=with_article(b),
        n=rng.randint(2, 99),
        m=rng.randint(2, 99),
        place=rng.choice(_PLACES),
        person=rng.choice(_PEOPLE),
        tongue=rng.choice(_TONGUES),
        job=rng.choice(_JOBS),
        code=rng.choice(_CODES),
        pain=rng.choice(_PAINS),
    )
