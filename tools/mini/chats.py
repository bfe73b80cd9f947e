"""Conversations made of stories: each is a list of turns that ends with the model's."""

from __future__ import annotations

import random
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence

import asking as ways
import smalltalk
from tales import Tale
from words import CHARACTERS, KIND

Chat = list[tuple[str, str]]  # (role, text), roles as in Gemma's turns: system, user, model

_FOLLOW_UPS = {"another": 25, "sad": 22, "funny": 14, "happy": 8, "scary": 7, "shorter": 11, "longer": 5,
               "title": 16, "new": 45, "who": 10, "thanks": 8, "bye": 4}  # fmt: skip
_RETOLD = {"another": ways.ANOTHER, "sad": ways.SAD, "funny": ways.FUNNY, "happy": ways.HAPPY,
           "scary": ways.SCARY, "shorter": ways.SHORTER, "longer": ways.LONGER}  # fmt: skip


class ChatWriter:
    """Turns stories into chats. Stories seen lately are kept, for those who ask for another one."""

    def __init__(self, seed: int, strange: Sequence[str] = ()) -> None:
        self.rng, self.strange = random.Random(seed), strange
        self.asked: Counter[str] = Counter()
        self.kept: dict[str, deque[Tale]] = {kind: deque(maxlen=600) for kind in _RETOLD}

    def write(self, tale: Tale) -> Iterator[Chat]:
        self._keep(tale)
        yield self._with_system(self._story_chat(tale))
        if self.rng.random() < 0.25:
            yield self._with_system(self.continuation(tale))
        if self.rng.random() < 0.04:
            yield self._with_system(self._titled(tale))
        if self.rng.random() < 0.10:
            yield self._with_system(self._small_talk())

    def continuation(self, tale: Tale) -> Chat:
        """The beginning from the user, the rest from the model."""
        low, high = len(tale.text) * 0.12, len(tale.text) * 0.6
        after = r"\s+" if self.rng.random() < 0.25 else r'[.!?]"?\s+'
        cuts = [m.end() for m in re.finditer(after, tale.text) if low < m.end() < high]
        if not cuts:
            return [("user", self.rng.choice(ways.ANY)), ("model", tale.text)]
        cut = self.rng.choice(cuts)
        asked = self.rng.choice(ways.CONTINUE).format(tale.text[:cut].strip())
        return [("user", asked), ("model", tale.text[cut:].strip())]

    def _story_chat(self, tale: Tale) -> Chat:
        rng = self.rng
        tale, nouns, person = self._subject(tale)
        if not nouns or rng.random() < 0.05:
            chat: Chat = [("user", rng.choice(ways.ANY)), ("model", tale.text)]
        else:
            chat = [*self._before(nouns, tale, person), ("model", tale.text)]
        while rng.random() < (0.3 if len(chat) < 4 else 0.4):
            tale, nouns = self._follow_up(chat, tale, nouns)
            if sum(len(text) for _, text in chat) > 2600:  # about 650 tokens: one more story still fits
                break
        return chat

    def _subject(self, tale: Tale) -> tuple[Tale, list[str], str | None]:
        """The story, at times changed, with the nouns and perhaps the name to ask for it by."""
        rng = self.rng
        tale, fresh = tale.varied(rng, self.strange)
        count = rng.choices((1, 2, 3), (18, 68, 14))[0]
        person = tale.names[0] if tale.names and rng.random() < 0.14 else None
        nouns = [*fresh, *(n for n in tale.subjects(rng, count, self.asked) if n not in fresh)]
        nouns = nouns[: max(1, count - 1 if person else count)]
        if rng.random() < 0.4:
            rng.shuffle(nouns)
        self.asked.update(nouns)
        return tale, nouns, person

    def _before(self, nouns: list[str], tale: Tale, person: str | None) -> Chat:
        """The request, at times after a greeting, or as a yes to an offer."""
        rng, way = self.rng, self.rng.random()
        if way < 0.06 and len(nouns) < 3 and (offered := smalltalk.offer(rng, nouns)):
            return [("user", offered[0]), ("model", offered[1]), ("user", rng.choice(ways.YES))]
        if way < 0.08 and tale.moods["funny"] >= 3:
            asked, offer = smalltalk.joke(rng)
            return [("user", asked), ("model", offer), ("user", rng.choice(ways.YES))]
        request = ("user", ways.ask(rng, tale, nouns, person=person))
        if way < 0.12:
            said, back = smalltalk.greeting(rng) if rng.random() < 0.6 else smalltalk.small_talk(rng)
            return [("user", said), ("model", back), request]
        return [request]

    def _follow_up(self, chat: Chat, tale: Tale, nouns: list[str]) -> tuple[Tale, list[str]]:
        """Adds one more question and its answer; the story that is then the last one, and its nouns."""
        rng = self.rng
        kind = rng.choices(list(_FOLLOW_UPS), list(_FOLLOW_UPS.values()))[0]
        if kind in _RETOLD:
            other = self._retold(kind, tale, nouns)
            if other is None or any(text == other.text for _, text in chat):
                return tale, nouns
            chat += [("user", rng.choice(_RETOLD[kind])), ("model", other.text)]
            return other, nouns
        if kind == "title":
            chat += [("user", rng.choice(ways.TITLE)), ("model", self._title(tale, nouns))]
        elif kind == "who" and (hero := tale.hero()):
            who = hero[0] if hero[1] is None else f"{hero[0]} named {hero[1]}"
            chat += [("user", rng.choice(ways.WHO)), ("model", f"The story is about {who}.")]
        elif kind in ("thanks", "bye"):
            said, back = smalltalk.thanks(rng) if kind == "thanks" else smalltalk.goodbye(rng)
            chat += [("user", said), ("model", back)]
        elif kind == "new" and self.kept["another"]:
            other, wanted, person = self._subject(rng.choice(self.kept["another"]))
            if wanted and other.text != tale.text:
                chat += [("user", ways.ask(rng, other, wanted, person=person)), ("model", other.text)]
                return other, wanted
        return tale, nouns

    def _retold(self, kind: str, tale: Tale, nouns: list[str]) -> Tale | None:
        """A story of that kind about the same things, or at least about the first of them."""
        pool = self.kept[kind]
        words = len(tale.words)
        best = None
        for other in self.rng.sample(pool, min(24, len(pool))):
            length = len(other.words)
            if other.text == tale.text or (kind == "shorter" and length > 0.8 * words):
                continue
            if kind == "longer" and length < 1.2 * words:
                continue
            if (told := other.about(self.rng, nouns[:2])) is not None:
                return told
            if best is None and len(nouns) > 1 and any(KIND.get(n) in CHARACTERS for n in nouns[:1]):
                best = other.about(self.rng, nouns[:1])
        return best if best is not None and self.rng.random() < 0.3 else None

    def _titled(self, tale: Tale) -> Chat:
        nouns = tale.subjects(self.rng, 2, Counter())
        return [
            ("user", self.rng.choice(ways.TITLE_OF).format(tale.text)),
            ("model", self._title(tale, nouns)),
        ]

    def _title(self, tale: Tale, nouns: list[str]) -> str:
        title = tale.title(self.rng, nouns)
        return title if self.rng.random() < 0.75 else f'How about "{title}"?'

    def _small_talk(self) -> Chat:
        chat: Chat = []
        for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
            said, back = smalltalk.small_talk(self.rng)
            chat += [("user", said), ("model", back)]
        return chat

    def _with_system(self, chat: Chat) -> Chat:
        return [("system", self.rng.choice(smalltalk.SYSTEMS)), *chat] if self.rng.random() < 0.07 else chat

    def _keep(self, tale: Tale) -> None:
        words, moods = len(tale.words), tale.moods
        fits = {
            "another": True,
            "sad": tale.ends_sad and moods["sad"] >= 2,
            "funny": moods["funny"] >= 3,
            "happy": moods["happy"] >= 5,
            "scary": moods["scary"] >= 4,
            "shorter": words < 100,
            "longer": words > 150,
        }
        for kind, fit in fits.items():
            if fit and tale.swaps:
                self.kept[kind].append(tale)
