"""How people ask for a story: many wordings of the same few wishes, some of them careless."""

from __future__ import annotations

import random

from phrases import PHRASES
from tales import Tale, gender
from words import MOODS, article, plural, with_article

_ASK = PHRASES["ask"]
_KINDS = PHRASES["kinds"]
_MOOD_KINDS = {mood: PHRASES[f"{mood} kinds"] for mood in MOODS}
_LINKS = PHRASES["links"]
_ENDS = PHRASES["ends"]
_TYPOS = {
    "story": ["stroy", "sotry", "storry"], "about": ["abuot", "abotu", "bout"], "tell": ["tel", "tlel"],
    "write": ["wirte", "rite"], "please": ["plz", "pls", "plese"], "bedtime": ["bed time"],
    "with": ["wiht"], "and": ["adn", "an", "&"], "can": ["cna"], "short": ["shrot"],
}  # fmt: skip

SAD = PHRASES["sad"]
FUNNY = PHRASES["funny"]
HAPPY = PHRASES["happy"]
SCARY = PHRASES["scary"]
SHORTER = PHRASES["shorter"]
LONGER = PHRASES["longer"]
ANOTHER = PHRASES["another"]
TITLE = PHRASES["title"]
TITLE_OF = PHRASES["title of"]
WHO = PHRASES["who"]
CONTINUE = PHRASES["continue"]
ANY = PHRASES["any"]
YES = PHRASES["yes"]


def ask(rng: random.Random, tale: Tale, nouns: list[str], *, person: str | None = None) -> str:
    """A request for this story by some of its nouns, and the name of someone in it."""
    things = _things(rng, tale, nouns)
    if person is not None:
        child = gender(person)
        told = [person, f"{child_of(child)} named {person}", f"{child_of(child)} called {person}"]
        things = _listed([rng.choice(told if child else told[:1]), *things])
    else:
        things = _listed(things)
    if rng.random() < 0.03:
        return _careless(rng, things)  # "a fox and a boat"
    wish = f"{_kind(rng, tale)} {rng.choice(_LINKS)} {things}"
    text = f"{rng.choice(_ASK)} {wish} {rng.choice(_ENDS)}".strip()
    question = text.startswith(("Can", "Could", "Will", "Would", "How"))
    text = text[0].upper() + text[1:] + ("?" if question else ".")
    return _careless(rng, text)


def child_of(kind: str | None) -> str:
    return {"girl": "a girl", "boy": "a boy"}.get(kind or "", "someone")


def _kind(rng: random.Random, tale: Tale) -> str:
    length = len(tale.words)
    if length < 95 and rng.random() < 0.25:
        return rng.choice(["a very short story", "a short story", "a tiny story", "a quick story"])
    if length > 165 and rng.random() < 0.12:
        return rng.choice(["a long story", "a longer story"])
    if tale.mood and rng.random() < 0.35:
        return rng.choice(_MOOD_KINDS[tale.mood])
    return rng.choice(_KINDS)


def _things(rng: random.Random, tale: Tale, nouns: list[str]) -> list[str]:
    style = rng.random()
    if style < 0.10:
        return list(nouns)
    if style < 0.16:
        return [plural(noun) for noun in nouns]
    if style < 0.20:
        return [f"the {noun}" for noun in nouns]
    told = []
    for noun in nouns:
        phrase, adjective = with_article(noun), tale.adjective(noun)
        if adjective and phrase.startswith(("a ", "an ")) and rng.random() < 0.3:
            phrase = f"{article(adjective)} {adjective} {noun}"
        told.append(phrase)
    return told


def _listed(things: list[str]) -> str:
    return things[0] if len(things) == 1 else ", ".join(things[:-1]) + " and " + things[-1]


def _careless(rng: random.Random, text: str) -> str:
    """As people type: some in small letters, some without a period, a few with slips."""
    style = rng.random()
    if style < 0.22:
        text = text.lower()
    if style < 0.15 or 0.22 < style < 0.42:
        text = text.rstrip(".?")
    if style > 0.97:
        text = text.rstrip(".") + "!"
    if rng.random() < 0.05:
        words = text.split(" ")
        slips = [i for i, word in enumerate(words) if word.lower() in _TYPOS]
        if slips:
            at = rng.choice(slips)
            words[at] = rng.choice(_TYPOS[words[at].lower()])
            text = " ".join(words)
    return text
