"""Words that no story is told of: nouns of old books, and made-up ones. Whoever tells of them must copy."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Collection, Iterable

from words import NOUN_OF, UNSEEN, plural

_NOUN = re.compile(r"\b(?:an?|the) ([a-z]{3,11})[.,;!?]")  # what an article and a mark stand around
_STARTS = (
    "b bl br c ch cl d dr f fl fr g gl gr h j k l m n p pl pr qu r s sc sh sk sl sn sp st sw t th tr v w z"
)
_VOWELS = "a a a e e i i o o u ai ea ee oa oo ou"
_ENDS = "b ck d g ll m mp n n nd ng nt p r r rd rk rt s st t x"
_HELD_OUT = {form for noun in UNSEEN for form in (noun, plural(noun))}


def found(texts: Iterable[str], known: Collection[str]) -> list[str]:
    """Nouns of the texts that are none of the known words."""
    counts = Counter(word for text in texts for word in _NOUN.findall(text))
    never = _HELD_OUT | NOUN_OF.keys() | set(known)
    return sorted(word for word in counts if word not in never and not word.endswith(("s", "ly", "est")))


def coined(rng: random.Random) -> str:
    """One that is in no dictionary."""
    word = "".join(
        rng.choice(_STARTS.split()) + rng.choice(_VOWELS.split()) for _ in range(rng.choice((1, 1, 2)))
    )
    word += rng.choice(_ENDS.split()) + rng.choice(("", "", "", "o", "a", "y", "er", "et", "le"))
    return word if word not in _HELD_OUT | NOUN_OF.keys() else coined(rng)
