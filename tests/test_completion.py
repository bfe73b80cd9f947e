"""From tokens to text: stop strings wherever tokens begin and end, and nothing lost or said too much."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from olivine.backends import TokenLogprobs
from olivine.completion import Completion, Piece, TextConsumer
from olivine.engine import Ticket, Update, Usage
from olivine.formats import open_checkpoint
from olivine.loading import tokenizer_of
from olivine.token_stream import TokenStream
from olivine.tokenizer import Tokenizer
from oracles import tiny


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer_of(open_checkpoint(tiny.write("tiny-qwen3", "Q4_0", tmp_path_factory.mktemp("model"))))


class Asked(Ticket):
    """A ticket that notes whether it was cancelled."""

    def __init__(self) -> None:
        super().__init__(self._note)
        self.cancelled = False

    def _note(self, reason: str) -> None:
        self.cancelled = True


def single(tokenizer: Tokenizer, text: str) -> list[int]:
    """The text in tokens of one byte each: a character of several bytes comes in several tokens."""
    found = {}
    for token in range(tokenizer.vocab_size):
        data = tokenizer.token_bytes(token)
        if len(data) == 1:
            found.setdefault(data[0], token)
    return [found[byte] for byte in text.encode()]


def told(
    tokenizer: Tokenizer,
    tokens: list[int],
    stop: list[str],
    sizes: list[int] | None = None,
    finish: str = "length",
) -> tuple[list[Piece], Asked]:
    """The pieces made of tokens that come in updates of those sizes, over and over."""
    ticket = Asked()
    text = TokenStream(ticket, tokenizer, TextConsumer(stop))
    pieces, at, turn = [], 0, 0
    while at < len(tokens):
        size = (sizes or [1])[turn % len(sizes or [1])]
        pieces.append(text.feed(Update(tokens=tokens[at : at + size])))
        at, turn = at + size, turn + 1
        if pieces[-1].completion is not None:
            return pieces, ticket
    pieces.append(text.feed(Update(finish=finish)))  # type: ignore[arg-type]
    return pieces, ticket


def completion_of(pieces: list[Piece]) -> Completion:
    assert [piece.completion for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    completion = pieces[-1].completion
    assert completion is not None
    assert "".join(map(str, pieces)) == completion.text == str(completion)
    assert [token for piece in pieces for token in piece.tokens] == completion.tokens
    return completion


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("one two three", ["two"], "one "),
        ("one two three", ["three"], "one two "),
        ("one two three", ["one"], ""),
        ("one two three", ["e t", "two"], "on"),
        ("aaab", ["aab"], "a"),  # begins anew in the middle of itself
        ("ababac", ["abac"], "ab"),
        ("abcd", ["abcd", "bc"], "a"),  # overlapping: the one that is complete first
        ("abc", ["abc", "bc"], ""),  # complete at the same time: the longer one
        ("xabcdefy", ["abcdefz", "cd"], "xab"),
        ("grün und gut", ["ün"], "gr"),
        ("1🙂2🙃3", ["🙃"], "1🙂2"),
        ("1🙂2🙃3", ["2🙃"], "1🙂"),
        ("ein ß", ["ß"], "ein "),
    ],
)
def test_a_stop_string_ends_the_text_and_is_not_part_of_it(
    tokenizer: Tokenizer, text: str, stop: list[str], expected: str
) -> None:
    tokens = single(tokenizer, text + " and more")
    for size in range(1, len(tokens) + 1):
        pieces, ticket = told(tokenizer, tokens, stop, [size])
        completion = completion_of(pieces)
        assert completion.text == expected
        assert completion.finish_reason == "stop"
        assert ticket.cancelled
        # The last token is the one with which the string was complete.
        ends = len(expected.encode()) + len(next(s for s in stop if text.startswith(expected + s)).encode())
        assert len(completion.tokens) == ends
        assert completion.usage.completion == ends


def test_of_two_stop_strings_in_one_token_the_one_that_is_complete_first_counts(tokenizer: Tokenizer) -> None:
    words = (tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size))
    word = next(w.decode() for w in words if len(w) > 2 and w.isalpha() and len(set(w)) == len(w))
    token = tokenizer.encode(word, add_special=False)
    assert len(token) == 1
    assert completion_of(told(tokenizer, token, [word, word[1]])[0]).text == word[0]
    assert completion_of(told(tokenizer, token, [word, word[1:]])[0]).text == ""


@pytest.mark.parametrize("stop", [["twelve"], ["three!"], ["xyz", "ee and"], [""], ["🙂🙃"]])
def test_a_stop_string_that_is_never_complete_changes_nothing(tokenizer: Tokenizer, stop: list[str]) -> None:
    text = "one two 🙂 three"
    tokens = single(tokenizer, text)
    for size in range(1, len(tokens) + 1):
        pieces, ticket = told(tokenizer, tokens, stop, [size])
        assert completion_of(pieces).text == text
        assert completion_of(pieces).finish_reason == "length"
        assert not ticket.cancelled


def test_only_what_may_become_a_stop_string_is_held_back(tokenizer: Tokenizer) -> None:
    pieces, _ = told(tokenizer, single(tokenizer, "ab123x"), ["1234"])
    assert [piece.text for piece in pieces] == ["a", "b", "", "", "", "123x", ""]


def test_a_character_is_held_back_until_it_is_whole(tokenizer: Tokenizer) -> None:
    pieces, _ = told(tokenizer, single(tokenizer, "a🙂b"), [])
    assert [piece.text for piece in pieces] == ["a", "", "", "", "🙂", "b", ""]
    broken, _ = told(tokenizer, single(tokenizer, "a🙂")[:-1], [])
    assert completion_of(broken).text == "a\ufffd"


def test_the_cut_does_not_depend_on_how_tokens_arrive(tokenizer: Tokenizer) -> None:
    """Random texts of few characters and random stop strings, against looking at each character in turn."""
    rng = random.Random(0)
    for _ in range(300):
        text = "".join(rng.choice("abé") for _ in range(rng.randint(1, 24)))
        stop = [
            "".join(rng.choice("abé") for _ in range(rng.randint(1, 5))) for _ in range(rng.randint(1, 3))
        ]
        expected = text
        for end in range(1, len(text) + 1):
            if done := [s for s in stop if text[:end].endswith(s)]:
                expected = text[: end - max(map(len, done))]
                break
        sizes = [rng.randint(1, 4) for _ in range(5)]
        pieces, _ = told(tokenizer, single(tokenizer, text), stop, sizes)
        assert completion_of(pieces).text == expected, (text, stop, sizes)


def test_log_probabilities_end_with_the_text(tokenizer: Tokenizer) -> None:
    tokens = single(tokenizer, "abcd")
    text = TokenStream(Asked(), tokenizer, TextConsumer(["b"]), logprobs=True)
    reports = [TokenLogprobs(-float(i), [tokens[0]], [-0.5]) for i in range(4)]
    piece = text.feed(Update(tokens=tokens, logprobs=reports))
    assert piece.logprobs is not None and piece.completion is not None
    assert [(each.text, each.logprob) for each in piece.logprobs] == [("a", -0.0), ("b", -1.0)]
    assert piece.logprobs[1].top[0].text == "a"
    assert piece.completion.logprobs == piece.logprobs


def test_a_completions_figures_stand_still(tokenizer: Tokenizer) -> None:
    """The engine may be ahead of a stop string, and goes on counting until it hears of it."""
    ticket = Asked()
    ticket.usage = Usage(prompt=3, completion=4)
    text = TokenStream(ticket, tokenizer, TextConsumer(["b"]))
    completion = text.feed(Update(tokens=single(tokenizer, "abcd"))).completion
    assert completion is not None and completion.usage == Usage(prompt=3, completion=2)
    ticket.usage.completion, ticket.timings.decode = 9, 5.0
    assert completion.usage.completion == 2 and completion.timings.decode == 0.0


def test_stop_strings_among_sentence_pieces(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(open_checkpoint(tiny.write("tiny-gemma3", "Q4_0", tmp_path)))
    pieces, _ = told(tokenizer, tokenizer.encode("Grüße 🙂, und mehr", add_special=False), [", und"])
    assert completion_of(pieces).text == "Grüße 🙂"
