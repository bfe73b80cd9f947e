"""Completions of texts, in OpenAI's older shape."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import httpx
import jsonschema
import pytest

from olivine.completion import Completion, Piece
from olivine.engine import Timings, Usage
from olivine.llm import LLM, load
from olivine.server.models import ServedModel
from olivine.server.openai.completion_encoder import CompletionEncoder
from olivine.token_stream import Alternative, TokenLogprob
from olivine.tokenizer import Infill
from oracles import real_models
from oracles.asking import Asking
from oracles.serving import serving
from oracles.waiting import eventually

PROMPT = "Once upon a time"
BODY = {"prompt": PROMPT, "max_tokens": 8, "seed": 7}


COMPLETIONS = Asking("/v1/completions", BODY)
post, completed, refused = COMPLETIONS.post, COMPLETIONS.answered, COMPLETIONS.refused
chunks_of = COMPLETIONS.chunks


def texts_of(chunks: list[dict[str, Any]], outputs: int) -> list[str]:
    texts = [""] * outputs
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    return texts


def test_a_completion_is_that_of_the_library(url: str, mini: LLM) -> None:
    got = completed(url)
    expected = mini.generate(PROMPT, max_tokens=8, seed=7)
    assert got["object"] == "text_completion"
    assert got["choices"] == [
        {"index": 0, "text": expected.text, "logprobs": None, "finish_reason": "length"}
    ]
    assert got["usage"]["prompt_tokens"] == expected.usage.prompt
    *content, end, usage = chunks_of(url, stream_options={"include_usage": True})
    assert texts_of(content, 1) == [expected.text]
    assert end["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}]
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 8


def test_a_prompt_may_be_texts_ids_and_lists_of_ids(url: str, mini: LLM) -> None:
    ids = mini.tokenizer.encode(PROMPT)
    one = completed(url)["choices"][0]["text"]
    assert completed(url, prompt=ids)["choices"][0]["text"] == one
    for several in ([PROMPT, "A fox"], [ids, mini.tokenizer.encode("A fox")]):
        got = completed(url, prompt=several, n=2)
        texts = [choice["text"] for choice in got["choices"]]
        expected = mini.generate_many([PROMPT, "A fox"], n=2, max_tokens=8, seed=7)
        assert texts == [each.text for each in expected]
        assert [choice["index"] for choice in got["choices"]] == [0, 1, 2, 3]
        assert got["usage"]["prompt_tokens"] == len(ids) + len(mini.tokenizer.encode("A fox"))
        assert texts_of(chunks_of(url, prompt=several, n=2), 4) == texts


def test_special_tokens_in_a_prompt_count(url: str, mini: LLM) -> None:
    name = next(iter(mini.tokenizer.special_tokens))
    got = completed(url, prompt=f"{name}Hi")["usage"]["prompt_tokens"]
    assert got == len(mini.tokenizer.encode(f"{name}Hi", parse_special=True))
    assert got < len(mini.tokenizer.encode(f"{name}Hi"))


def test_an_echo_repeats_the_prompt(url: str, mini: LLM) -> None:
    text = completed(url)["choices"][0]["text"]
    assert completed(url, echo=True)["choices"][0]["text"] == PROMPT + text
    assert texts_of(chunks_of(url, echo=True, n=2), 2)[0] == PROMPT + text
    half = b'{"prompt": "half \\ud83d", "echo": true}'  # of a character, which UTF-8 has not
    assert httpx.post(f"{url}/v1/completions", content=half).status_code == 400
    error = refused(url, echo=True, prompt=[5, 10**8])
    assert "token ids must lie in" in error["message"]


def test_ids_are_decoded_for_an_echo_if_they_fit_and_outside_of_the_event_loop(
    url: str, mini: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, decoded, loops = mini.tokenizer.decode, [], []

    def watched(ids: Sequence[int], **options: Any) -> str:
        decoded.append(ids)
        with suppress(RuntimeError):
            loops.append(asyncio.get_running_loop())
        return decode(ids, **options)

    monkeypatch.setattr(mini.tokenizer, "decode", watched)
    ids = mini.tokenizer.encode(PROMPT)
    assert PROMPT in completed(url, echo=True, prompt=ids)["choices"][0]["text"]
    assert decoded == [ids] and not loops
    error = refused(url, echo=True, max_tokens=0, prompt=[ids, [9] * (mini.context + 1)])
    assert error["code"] == "context_length_exceeded"
    assert max(map(len, decoded)) == len(ids)


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_prompt_and_output(url: str, mini: LLM, stream: bool) -> None:
    asked: dict[str, Any] = {"echo": True, "logprobs": 2, "max_tokens": 3}
    tokens = mini.tokenizer.encode(PROMPT)
    if stream:
        found: dict[str, list[Any]] = {}
        chunks = chunks_of(url, **asked)
        for chunk in chunks:
            for key, values in (chunk["choices"][0]["logprobs"] or {}).items():
                found.setdefault(key, []).extend(values)
        (text,) = texts_of(chunks, 1)
    else:
        (choice,) = completed(url, **asked)["choices"]
        found, text = choice["logprobs"], choice["text"]
    assert {len(values) for values in found.values()} == {len(tokens) + 3}
    assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
    score = mini.score(tokens[:1], tokens[1:])
    assert found["token_logprobs"][1 : len(tokens)] == pytest.approx(score.logprobs, abs=1e-3)
    columns = [found[key][1:] for key in ("tokens", "token_logprobs", "top_logprobs")]
    for token, logprob, top in zip(*columns, strict=True):
        assert len(top) in (2, 3) and top[token] == logprob <= max(top.values())
    assert found["text_offset"][:2] == [0, 0], "a BOS token has a name, which is not in the text"
    for token, at in zip(found["tokens"][1:], found["text_offset"][1:], strict=True):
        assert text[at:].startswith(token)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Once upon a", [0, 0, 4, 9]),
        ([2, 100, 200], [0, 5, 6]),  # <bos>, L, and a byte that is no text
        ("é🙂 ok", [0, 0, 1, 2, 2, 2, 2]),  # four tokens are one character
    ],
)
def test_offsets_are_those_of_the_text_that_is_echoed(url: str, prompt: Any, expected: list[int]) -> None:
    (choice,) = completed(url, prompt=prompt, echo=True, logprobs=0, max_tokens=0)["choices"]
    assert choice["logprobs"]["text_offset"] == expected
    (choice,) = completed(url, prompt=prompt, echo=True, logprobs=0, max_tokens=1)["choices"]
    assert choice["logprobs"]["text_offset"] == [
        *expected,
        len(choice["text"]) - len(choice["logprobs"]["tokens"][-1]),
    ]


def test_a_prompt_alone_is_scored(url: str, mini: LLM) -> None:
    got = completed(url, echo=True, logprobs=1, max_tokens=0)
    (choice,) = got["choices"]
    assert choice["text"] == PROMPT
    assert len(choice["logprobs"]["tokens"]) == len(mini.tokenizer.encode(PROMPT))
    assert got["usage"]["completion_tokens"] == 0
    asked = {"echo": True, "max_tokens": 0, "logprobs": 1, "n": 2, "stream_options": {"include_usage": True}}
    *chunks, usage = chunks_of(url, **asked)
    assert texts_of(chunks, 2) == [PROMPT] * 2
    assert chunks[0]["choices"][0]["logprobs"] == choice["logprobs"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert usage["usage"]["completion_tokens"] == 0


def test_a_format_is_kept(url: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    (choice,) = completed(url, response_format=form, max_tokens=60)["choices"]
    jsonschema.validate(json.loads(choice["text"]), schema)


def test_null_means_the_default_of_every_field(url: str, mini: LLM) -> None:
    from olivine.server.openai.completions import CompletionBody

    nulls = {name: None for name in CompletionBody.model_fields if name not in BODY}
    assert completed(url, **nulls)["choices"] == completed(url)["choices"]
    assert completed(url, max_tokens=None)["usage"]["completion_tokens"] <= 16


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"best_of": 3}, "best_of", "best_of is not done here"),
        ({"suffix": "the end"}, "suffix", "no tokens for filling in the middle"),
        ({"suffix": "the end", "prompt": [1, 2]}, "suffix", "not with token ids"),
        ({"suffix": "the end", "echo": True}, "echo", "exclude each other"),
        ({"logprobs": 21}, "logprobs", "between 0 and 20"),
        ({"prompt": []}, "prompt", "empty list"),
        ({"prompt": [[1, 2], []], "echo": True, "logprobs": 1}, "prompt", "empty list"),
        ({"prompt": ["x"] * 100, "n": 2}, "prompt", "200 outputs (prompts times n), and 128 is the most"),
        ({"prompt": [10**8]}, "prompt", "token ids must lie in"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ],
)
def test_what_is_not_done_is_refused_in_words(
    url: str, fields: dict[str, Any], param: str, said: str
) -> None:
    error = refused(url, **fields)
    assert said in error["message"]
    assert error["param"] == param


def test_one_bad_prompt_of_many_leaves_nothing_running(url: str, mini: LLM) -> None:
    error = refused(url, prompt=[PROMPT, "fox " * 20_000])
    assert error["code"] == "context_length_exceeded"
    eventually(lambda: mini.stats().waiting == mini.stats().running == 0)


def test_bytes_that_are_no_text_are_spelled_and_offsets_count_characters() -> None:
    spelling = {1: "é".encode(), 2: b"\xf0\x9f", 3: b"\x99\x82", 4: b"a"}
    made = CompletionEncoder("m", spelling.__getitem__, 1, include_usage=False)
    reports = [TokenLogprob(i, "", -1.0, (Alternative(4, "a", -0.5),)) for i in (1, 2, 3, 4)]
    (first,) = [json.loads(made.piece(0, Piece("é", [1], reports[:1])).decode()[6:])["choices"]]
    assert first[0]["logprobs"] == {
        "tokens": ["é"],
        "token_logprobs": [-1.0],
        "top_logprobs": [{"a": -0.5, "é": -1.0}],
        "text_offset": [0],
    }
    held = json.loads(made.piece(0, Piece("", [2, 3, 4], reports[1:])).decode()[6:])["choices"][0]
    assert held["text"] == ""
    assert held["logprobs"]["tokens"] == ["bytes:\\xf0\\x9f", "bytes:\\x99\\x82", "a"]
    assert held["logprobs"]["text_offset"] == [1, 2, 2]
    done = Completion("éa", [1], "stop", Usage(1, 0, 1), Timings(), 0)
    last = json.loads(made.piece(0, Piece(completion=done)).decode()[6:])
    assert last["choices"][0]["finish_reason"] == "stop" and "timings" in last


def test_a_suffix_makes_another_prompt_which_more_tokens_end(
    url: str, mini: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Olivine-mini has no tokens for that, so a notation is invented."""
    expected = mini.generate("A fox", max_tokens=8, temperature=0)
    tokens, stop = mini.tokenizer.encode("A fox"), expected.tokens[5]
    asked = []

    def invented(tokenizer: object, prefix: str, suffix: str) -> Infill:
        asked.append((prefix, suffix))
        return Infill(tokens, [stop])

    monkeypatch.setattr("olivine.server.openai.completions.infill", invented)
    (choice,) = completed(url, suffix="the end", temperature=0)["choices"]
    assert asked == [(PROMPT, "the end")]
    assert choice["finish_reason"] == "stop"
    assert choice["text"] == mini.generate("A fox", max_tokens=8, temperature=0, stop_tokens=[stop]).text


@pytest.mark.exhaustive
def test_a_real_model_fills_in_the_middle() -> None:
    path = real_models.QWEN_CODER.path()
    with load(path, device="cpu", context=256) as llm, serving([ServedModel("coder", llm)]) as url:
        prompt, suffix = "def add(a, b):\n    return ", "\n\nassert add(2, 3) == 5\n"
        got = completed(url, prompt=prompt, suffix=suffix, temperature=0, max_tokens=16)
        assert got["choices"][0]["text"].startswith("a + b")
