"""What a good answer is, said once for the training run and for the finished file."""

from __future__ import annotations

import random
import re
from collections import Counter

from words import NOUNS, UNSEEN, plural, with_article

_FORMS = [
    "Tell me a story about {} and {}.",
    "Tell me a story about {} and {}",
    "Write a story about {} and {}.",
    "story about {} and {}",
    "Can you tell me a short story about {} and {}?",
]
LIMIT = 600  # tokens: a story that has not ended by then never will


def prompts(count: int = 200, seed: int = 8) -> list[tuple[str, str, str]]:
    """(request, X, Y): a character with anything else; every fifth with a word that was never asked for."""
    rng = random.Random(seed)
    found = []
    for i in range(count):
        first = rng.choice(NOUNS[rng.choice(("animal", "animal", "fantasy", "person"))])
        second = rng.choice(
            NOUNS[rng.choice(("animal", "vehicle", "toy", "thing", "food", "nature", "place"))]
        )
        if i % 5 == 4:
            second = rng.choice(UNSEEN)
        while second == first:
            second = rng.choice(NOUNS["thing"])
        found.append((rng.choice(_FORMS).format(with_article(first), with_article(second)), first, second))
    return found


def mentions(story: str, noun: str) -> bool:
    return re.search(rf"\b({noun}|{plural(noun)})\b", story, re.IGNORECASE) is not None


def loops(story: str) -> bool:
    """Whether it goes in circles: four words more than four times, or a sentence three times."""
    words = story.lower().split()
    fours = Counter(zip(words, words[1:], words[2:], words[3:], strict=False))
    sentences = Counter(s.strip() for s in re.split(r"[.!?\n]+", story.lower()) if len(s.split()) > 2)
    return max(fours.values(), default=0) > 4 or max(sentences.values(), default=0) >= 3


def judged(answers: list[tuple[tuple[str, str, str], str, bool]]) -> dict[str, float]:
    """Shares over (prompt, story, whether it ended)."""
    both = [mentions(story, x) and mentions(story, y) for (_, x, y), story, _ in answers]
    unseen = [ok for ok, ((_, _, y), _, _) in zip(both, answers, strict=True) if y in UNSEEN]
    return {
        "stories": len(answers),
        "mention both": round(sum(both) / len(both), 3),
        "mention both, one unseen": round(sum(unseen) / max(len(unseen), 1), 3),
        "loops": sum(loops(story) for _, story, _ in answers),
        "without an end": sum(not ended for _, _, ended in answers),
        "words": round(sum(len(story.split()) for _, story, _ in answers) / len(answers), 1),
    }


# Read by eye: what people try first.
TRIED = [
    ["Tell me a story about a dragon"],
    ["Tell me a story about a fox and a boat", "Make it sad", "Give it a title"],
    ["hi", "what can you do?", "story about a robot and a teapot please"],
    ["Continue: The little hedgehog woke up and saw that all the snow was gone."],
    ["What is the capital of France?", "yes please"],
    ["Who are you?", "Tell me a funny story about a penguin", "another one", "thanks, bye"],
    [
        "write a bedtime story about a girl named Freya and a lighthouse",
        "Who is the story about?",
        "Make it shorter",
    ],
    ["Write a Python program to sort a list."],
    ["a hyena and a cello"],
]
