"""A story as data: whether it is good, what it is about, its mood; and the same story about others."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from strange import coined
from words import (
    AMBIGUOUS,
    BOYS,
    CHARACTERS,
    COLORS,
    COMMON,
    FIXED,
    GENDERED,
    GIRLS,
    KIND,
    MASS,
    MOODS,
    NOUN_OF,
    NOUNS,
    ONLY_ONE,
    TELLING,
    THING_ADJECTIVES,
    article,
    plural,
)  # fmt: skip

_WORD = re.compile(r"[A-Za-z]+(?:[-'][A-Za-z]+)*")
_SENTENCE_END = re.compile(r'(?<=[.!?])["]?\s+')
_PLAIN = re.compile(r"[\x20-\x7e\n]*")
_BEFORE_NOUN = {"a", "an", "the", "his", "her", "their", "my", "your", "this", "that", "some", "two", "big",
                "little", "old", "new", *COLORS}  # fmt: skip
_DESCRIBING = frozenset(THING_ADJECTIVES)
_NAMES = {**dict.fromkeys(GIRLS, "girl"), **dict.fromkeys(BOYS, "boy")}
_WHO = re.compile(r"\b(an? (?:[a-z]+ ){0,2}[a-z]+) (?:named|called) ([A-Z][a-z]+)")
_FIRST_WHO = re.compile(r"\b(?:there was|there lived|was once) (an? (?:[a-z]+ )?)([a-z]+)\b")

_MOOD_OF = {word: mood for mood, words in MOODS.items() for word in words}


def clean(text: str) -> str:
    """Paragraphs apart by one empty line, single spaces."""
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n\n".join(line for line in lines if line)


def is_good(text: str) -> bool:
    """Whole, of a sensible length, in plain letters, and not going in circles."""
    words = text.split()
    if not 55 <= len(words) <= 230 or not _PLAIN.fullmatch(text) or not text[0].isupper():
        return False
    if (
        text[-1] not in '.!?"'
        or text.count('"') % 2
        or any(mark in text for mark in ("(", "*", "http", "  ", "<"))
    ):
        return False
    sentences = Counter(s.strip('" ') for s in _SENTENCE_END.split(text))
    fours = Counter(zip(words, words[1:], words[2:], words[3:], strict=False))
    if sentences.most_common(1)[0][1] > 1 or fours.most_common(1)[0][1] > 2:
        return False
    return len(set(words)) > 0.46 * len(words)


def keeps_to_its_subject(tale: Tale) -> bool:
    """Whoever the first sentence brings in must come back, or be known by a name from then on."""
    opening = Tale(tale.sentences[0])
    heroes = [noun for noun in opening.nouns if KIND.get(noun) in CHARACTERS]
    return all(tale.nouns[noun] >= 3 for noun in heroes) or bool(tale.names) or tale.hero_is_named


@dataclass
class Tale:
    text: str

    @cached_property
    def words(self) -> list[str]:
        return [word.removesuffix("'s") for word in _WORD.findall(self.text.lower())]

    @cached_property
    def nouns(self) -> Counter[str]:
        """What it tells of, by how often; words that may be verbs only where they stand like nouns."""
        found: Counter[str] = Counter()
        before = ""
        for word in self.words:
            noun = NOUN_OF.get(word)
            if noun is not None and (noun not in AMBIGUOUS or before in _BEFORE_NOUN):
                found[noun] += 1
            before = word
        return found

    @cached_property
    def early(self) -> set[str]:
        """The nouns of its first three sentences."""
        return set(Tale(" ".join(self.sentences[:3])).nouns)

    @cached_property
    def sentences(self) -> list[str]:
        return [
            s
            for paragraph in self.text.split("\n\n")
            for s in re.split(r'(?<=[.!?])\s+|(?<=[.!?]")\s+', paragraph)
        ]

    @cached_property
    def names(self) -> list[str]:
        """Known names, the most frequent first."""
        found = Counter(word for word in re.findall(r"\b[A-Z][a-z]+\b", self.text) if word in _NAMES)
        return [name for name, count in found.most_common() if count > 1]

    @cached_property
    def moods(self) -> Counter[str]:
        return Counter(_MOOD_OF[word] for word in self.words if word in _MOOD_OF)

    @property
    def mood(self) -> str | None:
        """The mood that stands out, where one does."""
        for mood, least in (("sad", 4), ("scary", 4), ("funny", 3), ("magic", 4), ("brave", 3)):
            if self.moods[mood] >= least and (mood != "sad" or self.ends_sad):
                return mood
        return None

    @cached_property
    def ends_sad(self) -> bool:
        last = Tale(" ".join(self.sentences[-3:]))
        return last.moods["sad"] > 0 and last.moods["happy"] == 0

    def subjects(self, rng: random.Random, count: int, seen: Counter[str]) -> list[str]:
        """Nouns to ask for: told early or often, and rather those that have not been asked for much."""
        fit = [noun for noun, n in self.nouns.items() if n >= 2 or noun in self.early]
        weights = {noun: min(self.nouns[noun], 4) / (20 + seen[noun]) ** 0.5 for noun in fit}
        for noun in fit:
            weights[noun] *= (2.0 if noun in self.early else 1.0) * (0.15 if noun in COMMON else 1.0)
        chosen: list[str] = []
        while weights and len(chosen) < count:
            noun = rng.choices(list(weights), list(weights.values()))[0]
            chosen.append(noun)
            del weights[noun]
        return chosen

    @cached_property
    def _adjectives(self) -> dict[str, str]:
        pairs = zip(self.words, self.words[1:], strict=False)
        return {noun: word for word, noun in pairs if word in _DESCRIBING}

    def adjective(self, noun: str) -> str | None:
        return self._adjectives.get(noun)

    def hero(self) -> tuple[str, str | None] | None:
        """Whom it is about: ("a little girl", "Lily"), or ("a fox", None)."""
        start = " ".join(self.sentences[:4])
        if match := _WHO.search(start):
            return match.group(1), match.group(2)
        if (match := _FIRST_WHO.search(start)) and KIND.get(match.group(2)) in CHARACTERS:
            return match.group(1) + match.group(2), None
        return None

    @property
    def hero_is_named(self) -> bool:
        hero = self.hero()
        return hero is not None and hero[1] is not None

    def title(self, rng: random.Random, subjects: list[str]) -> str:
        hero = self.hero()
        things = [noun for noun in subjects if KIND.get(noun) not in CHARACTERS and noun not in MASS]
        who = [noun for noun in subjects if KIND.get(noun) in CHARACTERS and noun not in COMMON]
        if hero and hero[1]:
            thing = next(iter(things or [noun for noun in who if noun not in hero[0]]), None)
            return _title(
                f"{hero[1]} and the {self._described(thing)}" if thing else f"The Story of {hero[1]}"
            )
        if len(who) > 1:
            return _title(f"the {who[0]} and the {who[1]}")
        if who and things:
            return _title(f"the {who[0]} and the {self._described(things[0])}")
        if self.names and things:
            return _title(f"{self.names[0]} and the {self._described(things[0])}")
        one = next(iter(who or things), None)
        if one is None:
            return _title(f"{self.names[0]}'s day" if self.names else "a happy day")
        adjective = self.adjective(one) or rng.choice(("little", "brave", "kind"))
        return _title(f"the {adjective} {one}" if one in who else f"the {self._described(one)}")

    def _described(self, noun: str) -> str:
        adjective = self.adjective(noun)
        return f"{adjective} {noun}" if adjective else noun

    @cached_property
    def swaps(self) -> list[str]:
        """Its nouns that another of their kind can stand in for."""
        words = set(self.words)
        return [
            noun
            for noun, count in self.nouns.items()
            if count >= 2
            and noun in KIND
            and noun not in FIXED
            and not words & (TELLING[KIND[noun]] - {noun})
        ]

    def swapped(self, old: str, new: str) -> Tale:
        """The same story with another noun, and "a" or "an" as it wants."""
        text = self.text
        for before, after in ((plural(old), plural(new)), (old, new)):
            text = _replaced(text, before, after)
        return Tale(_pattern(rf"\b([Aa])n? (?={new}\b)").sub(lambda m: m[1] + article(new)[1:] + " ", text))

    def renamed(self, old: str, new: str) -> Tale:
        return Tale(_pattern(rf"\b{old}\b").sub(new, self.text))

    def about(self, rng: random.Random, wanted: list[str]) -> Tale | None:
        """This story told of the wanted nouns, where it can be."""
        tale, free = self, [noun for noun in self.swaps if noun not in wanted]
        for noun in wanted:
            if tale.nouns[noun]:
                continue
            fit = [old for old in free if KIND[old] == KIND.get(noun)]
            if not fit or noun in MASS or noun in ONLY_ONE:
                return None
            old = rng.choice(fit)
            free.remove(old)
            tale = tale.swapped(old, noun)
        return tale

    def varied(self, rng: random.Random, strange: Sequence[str] = ()) -> tuple[Tale, list[str]]:
        """Now and then with another animal, thing or name in it; and the nouns that came in.

        Some of them are strange words or made up, so that there is nothing to guess.
        """
        tale, fresh = self, []
        swaps = self.swaps
        if swaps and rng.random() < 0.55:
            for old in rng.sample(swaps, min(len(swaps), rng.choice((1, 1, 2)))):
                new = rng.choice(NOUNS[KIND[old]])
                if strange and rng.random() < 0.35:
                    new = rng.choice(strange) if rng.random() < 0.7 else coined(rng)
                if new not in MASS | ONLY_ONE | GENDERED and new not in tale.words:
                    tale, fresh = tale.swapped(old, new), [*fresh, new]
        for name in self.names[:2]:
            if rng.random() < 0.4:
                new = rng.choice(GIRLS if _NAMES[name] == "girl" else BOYS)
                if new not in tale.text:
                    tale = tale.renamed(name, new)
        return tale, fresh


def gender(name: str) -> str | None:
    return _NAMES.get(name)


@lru_cache(maxsize=16384)
def _pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    return re.compile(text, flags)  # re's own memory is too small for as many nouns as there are


def _replaced(text: str, before: str, after: str) -> str:
    def same_case(match: re.Match[str]) -> str:
        return after.capitalize() if match[0][0].isupper() else after

    return _pattern(rf"\b{before}\b", re.IGNORECASE).sub(same_case, text)


def _title(text: str) -> str:
    small = {"and", "the", "of", "a", "an", "in"}
    words = [w if w in small and i else w[0].upper() + w[1:] for i, w in enumerate(text.split())]
    return " ".join(words)
