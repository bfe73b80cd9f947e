"""Messages with images, videos and sounds: tokens and logits of the published code, and what is kept."""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import olivine
from olivine import LLM
from olivine.convert import convert
from olivine.errors import ContextError, RequestError
from olivine.perception import MediaOptions
from oracles import multimodal, running, soft

FAMILIES = ("gemma3", "gemma4-e2b", "gemma4-31b", "gemma4-12b")
FORMS = pytest.mark.parametrize("form", ["folder", "gguf"])
# The smallest images that Gemma 4 takes: the reference backend is slow.
SMALL = {family: MediaOptions() if family == "gemma3" else MediaOptions(70) for family in FAMILIES}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The model of a family and its folder; it is loaded from that, or from the GGUF files made of it."""
    found: list[LLM] = []

    @functools.cache
    def folder_of(family: str) -> Path:
        return multimodal.write(family, tmp_path_factory.mktemp(family))

    @functools.cache
    def load(family: str, form: str = "folder", device: str = "reference") -> tuple[LLM, Path]:
        path = folder = folder_of(family)
        if form == "gguf":
            path = convert(folder, tmp_path_factory.mktemp(family) / "made.gguf", "F32").path
        found.append(olivine.load(path, device=device, context=3000, threads=2))
        return found[-1], folder

    yield load
    for llm in found:
        llm.close()


def image(seed: int, width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def sound(seed: int, seconds: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (0.3 * rng.standard_normal(int(16_000 * seconds))).astype(np.float32)


def part(kind: str, source: Any) -> dict[str, Any]:
    return {"type": kind, kind: source}


def logits_of(llm: LLM, messages: Any, **options: Any) -> tuple[list[int], np.ndarray]:
    """Our tokens, with -1 for soft ones, and the logits of all rows in one step."""
    request = llm.conversations.prepare(messages, **options)
    tokens = [max(token, -1) for token in request.tokens]
    given = soft.Prompt([max(token, 0) for token in tokens], list(request.media))
    session = running.Session(llm.program, 1, len(tokens))
    return tokens, llm.program.step(soft.batch_of(session, [(0, given, 0, len(tokens))])).logits


def agrees(llm: LLM, family: str, folder: Path, messages: Any, media: multimodal.Media) -> None:
    text = llm.render(messages)
    theirs, expected = multimodal.published_logits(family, folder, text, media)
    tokens, ours = logits_of(llm, messages, media=SMALL[family])
    names = multimodal.MARKERS[family.partition("-")[0]]
    soft_ids = {
        llm.tokenizer.id_of(names[key]) for key in names if key.split("_")[0] in ("image", "video", "audio")
    }
    assert tokens == [-1 if token in soft_ids else token for token in theirs]
    np.testing.assert_allclose(ours, expected, atol=1e-3)


@FORMS
@pytest.mark.parametrize("family", FAMILIES)
def test_images_are_the_published_models(opened: Any, family: str, form: str) -> None:
    """One, and several of odd sizes over two turns, with line ends around them."""
    llm, folder = opened(family, form)
    a, b, c = image(1, 200, 133), image(2, 31, 97), image(3, 400, 64)
    one = [{"role": "user", "content": [part("image", a), "what is this?"]}]
    agrees(llm, family, folder, one, multimodal.Media((a,)))
    several = [
        {"role": "user", "content": ["compare\n", part("image", a), part("image", b), "\nthese"]},
        {"role": "assistant", "content": "no"},
        {"role": "user", "content": ["and ", part("image", c)]},
    ]
    agrees(llm, family, folder, several, multimodal.Media((a, b, c)))


def mixed(seconds: Sequence[float]) -> tuple[list[dict[str, Any]], multimodal.Media]:
    """Two images of odd sizes, frames with their times and sounds, mixed in one conversation."""
    a, b, frames = image(4, 61, 83), image(7, 205, 39), tuple(image(seed, 96, 64) for seed in range(3))
    sounds = [sound(5 + i, length) for i, length in enumerate(seconds)]
    film = np.stack([np.asarray(frame) for frame in frames]), 0.02  # a frame in 50 s
    first, *others = (part("audio", (samples, 16_000)) for samples in sounds)
    messages = [
        {"role": "user", "content": [first, "and", part("video", film), part("image", a)]},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": [part("image", b), *others, "?"]},
    ]
    return messages, multimodal.Media((a, b), frames, (0.0, 50.0, 100.0), tuple(sounds))


@FORMS
@pytest.mark.parametrize("family", ["gemma4-e2b", "gemma4-12b"])
def test_a_video_and_sounds_among_images(opened: Any, family: str, form: str) -> None:
    llm, folder = opened(family, form)
    messages, media = mixed([0.1, 1.23])
    agrees(llm, family, folder, messages, media)


@pytest.mark.exhaustive
@FORMS
@pytest.mark.parametrize("family", ["gemma4-e2b", "gemma4-12b"])
def test_long_sounds_among_a_video_and_images(opened: Any, family: str, form: str) -> None:
    llm, folder = opened(family, form)
    messages, media = mixed([0.1, 11.0, 29.9])
    agrees(llm, family, folder, messages, media)


def bits(reply: Any) -> Any:
    return reply.tokens, [each.logprob for each in reply.logprobs]


@pytest.mark.parametrize("family", ["gemma3", "gemma4-e2b", "gemma4-12b"])
def test_the_same_bits_from_both_forms_alone_cached_and_among_others(opened: Any, family: str) -> None:
    """Of a prompt that is longer than a chunk; the others are in the same steps, so its chunks differ."""
    llm, _ = opened(family, device="cpu")
    other, _ = opened(family, "gguf", "cpu")
    greedy = {"temperature": 0, "max_tokens": 4, "seed": 1, "logprobs": 1}
    if family == "gemma3":
        words = "and then they went into the forest to look for the old house " * 20
        content = [words, part("image", image(1, 61, 83)), words, part("image", image(2, 205, 39)), "what?"]
        messages = [{"role": "user", "content": content}]
    else:
        greedy["image_tokens"] = 70
        messages = mixed([0.1, 15.0])[0]
    first = llm.chat(messages, **greedy)
    assert first.usage.prompt > 512 and first.usage.cached == 0
    again = llm.chat(messages, **greedy)
    assert again.usage.cached > 0 and bits(again) == bits(first)
    if family != "gemma3":  # whose norms GGUF has otherwise: with the offset in the weight
        assert bits(other.chat(messages, **greedy)) == bits(first)
    else:
        assert other.chat(messages, **greedy).tokens == first.tokens
    crowd = [[{"role": "user", "content": ["so", *message["content"]]}] for message in messages[::2]]
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(other.chat, each, **greedy) for each in (*crowd, messages, messages)]
    alone = [llm.chat(each, **greedy) for each in (*crowd, messages, messages)]
    assert [each.result().tokens for each in found] == [each.tokens for each in alone]


def test_a_second_question_about_an_image_runs_no_tower(opened: Any) -> None:
    """And finds most of its prompt in the prefix cache; another image with the same tokens does not."""
    llm, _ = opened("gemma3")
    perception = llm._perception
    before, greedy = perception.encoded, {"temperature": 0, "max_tokens": 2, "seed": 1}

    def ask(source: Any, text: str) -> Any:
        # More than a page of text first, so that full pages end behind the image.
        content = ["please look at this picture and tell me about it", part("image", source), text]
        return llm.chat([{"role": "user", "content": content}], **greedy)

    first = ask(image(20, 50, 50), "what?")
    assert perception.encoded == before + 1 and first.usage.cached == 0
    again = ask(image(20, 50, 50), "what?")
    assert perception.encoded == before + 1
    assert again.tokens == first.tokens and again.usage.cached > 0
    reused = ask(image(20, 50, 50), "where?").usage.cached
    other = ask(image(21, 50, 50), "what?").usage.cached
    assert other < reused <= again.usage.cached
    assert perception.encoded == before + 2
    twice = [part("image", image(22, 40, 40)), part("image", image(22, 40, 40))]
    llm.chat([{"role": "user", "content": twice}], **greedy)
    assert perception.encoded == before + 3


def test_logprobs_of_an_answer_are_those_of_the_whole_prompt(opened: Any) -> None:
    llm, _ = opened("gemma4-31b")
    messages = [{"role": "user", "content": ["look", part("image", image(9, 90, 70)), "what?"]}]
    reply = llm.chat(messages, temperature=0, max_tokens=1, logprobs=3, image_tokens=70)
    _, logits = logits_of(llm, messages, media=SMALL["gemma4-31b"])
    row = logits[-1].astype(np.float64)
    expected = row - row.max() - np.log(np.exp(row - row.max()).sum())
    (found,) = reply.logprobs
    assert [each.token for each in found.top] == np.argsort(-expected, kind="stable")[:3].tolist()
    np.testing.assert_allclose([each.logprob for each in found.top], np.sort(expected)[::-1][:3], atol=1e-3)


def test_a_placeholder_that_a_user_types_is_text(opened: Any) -> None:
    llm, _ = opened("gemma4-31b")
    text = "say <|image|> and <|image><image|>"
    messages = [{"role": "user", "content": [text, part("image", image(9, 90, 70)), text]}]
    request = llm.conversations.prepare(messages, media=SMALL["gemma4-31b"])
    (block,) = request.media
    assert sum(token < 0 for token in request.tokens) == len(block.embeddings)
    markers = [llm.tokenizer.id_of(name) for name in ("<|image>", "<image|>")]
    assert [request.tokens[block.start - 1], request.tokens[block.end]] == markers
    assert [request.tokens.count(marker) for marker in markers] == [1, 1]
    assert llm.tokenizer.id_of("<|image|>") not in request.tokens


@pytest.mark.parametrize(
    ("family", "kind", "options", "message"),
    [
        ("gemma3", "audio", {}, "does not take sounds, only text and images"),
        ("gemma3", "video", {}, "does not take videos, only text and images"),
        ("gemma4-31b", "audio", {}, "does not take sounds, only text and images and videos"),
        ("gemma3", "image", {"image_tokens": 70}, "an image of this model has 4 tokens, always"),
        ("gemma4-31b", "image", {"image_tokens": 71}, "image_tokens must be one of 70, 140, .* and is 71"),
        ("gemma4-31b", "image", {"pan_and_scan": True}, "pan_and_scan is for Gemma 3"),
        ("gemma4-31b", "image", {"pan_and_scan": 3}, "pan_and_scan must be"),
        ("gemma4-31b", "video", {"video_frames": 0}, "video_frames must be between 1 and 4096"),
        ("gemma3", "image", {"image": "no such file.png"}, "there is no such file"),
    ],
)
def test_what_a_model_does_not_take_is_refused_in_words(
    opened: Any, family: str, kind: str, options: dict[str, Any], message: str
) -> None:
    llm, _ = opened(family)
    source = options.pop("image", None) or {"audio": (sound(1, 0.1), 16_000)}.get(kind, image(1, 20, 20))
    with pytest.raises(RequestError, match=message):
        llm.chat([{"role": "user", "content": [part(kind, source)]}], max_tokens=1, **options)


def test_images_beyond_the_context_are_refused_before_they_are_encoded(opened: Any) -> None:
    llm, _ = opened("gemma4-31b")
    before = llm._perception.encoded
    many = [part("image", image(seed, 50, 50)) for seed in range(100, 145)]
    with pytest.raises(ContextError, match="3000"):
        llm.chat([{"role": "user", "content": many}], image_tokens=70)
    assert llm._perception.encoded == before


def test_no_more_images_are_decoded_than_the_context_could_hold(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting them is another matter; of those, nothing is kept."""
    llm, _ = opened("gemma3")
    decoded = []
    prepared = llm._perception._prepared
    monkeypatch.setattr(
        llm._perception, "_prepared", lambda *given: decoded.append(prepared(*given)) or decoded[-1]
    )
    one = io.BytesIO()
    image(1, 20, 20).save(one, "PNG")
    data = base64.b64encode(one.getvalue()).decode()
    messages = [{"role": "user", "content": [part("image", {"data": data})] * 2000}]
    with pytest.raises(ContextError, match=r"at least 30\d\d tokens"):
        llm.chat(messages)
    each = decoded[0].tokens
    assert len(decoded) == -(-3000 // each)
    messages[0]["content"] = messages[0]["content"][: 2 * len(decoded)]
    assert llm.conversations.count(messages) > 6000


def test_servers_read_no_files_by_name(opened: Any, tmp_path: Path) -> None:
    llm, _ = opened("gemma3")
    image(1, 20, 20).save(tmp_path / "secret.png")
    messages = [{"role": "user", "content": [part("image", str(tmp_path / "secret.png"))]}]
    llm.chat(messages, max_tokens=1)
    with pytest.raises(RequestError, match="neither a data URL nor base64"):
        llm.submit_chat(messages, [lambda update: None])


def test_budgets_crops_and_frames_are_a_choice(opened: Any) -> None:
    llm, _ = opened("gemma4-31b")
    wide = [{"role": "user", "content": [part("image", image(1, 300, 200))]}]
    for budget, tokens in ((70, 60), (140, 126)):
        request = llm.conversations.prepare(wide, media=MediaOptions(image_tokens=budget))
        assert sum(len(block.embeddings) for block in request.media) == tokens
    film = [{"role": "user", "content": [part("video", (np.zeros((9, 40, 40, 3), np.uint8), 3.0))]}]
    assert len(llm.conversations.prepare(film, media=MediaOptions(video_frames=4)).media) == 4
    llm, _ = opened("gemma3")
    long = [{"role": "user", "content": ["see ", part("image", image(1, 900, 300))]}]
    request = llm.conversations.prepare(long, media=MediaOptions(pan_and_scan=True))
    assert len(request.media) == 4
    text = llm.tokenizer.decode([token for token in request.tokens if token >= 0], skip_special=True)
    assert "Here is the original image" in text and "crops to help you see better" in text
