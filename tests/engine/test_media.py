"""Soft tokens in the engine: the same results alone, beside others, in chunks, reused, after preemption."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from olivine.backends import Program
from olivine.backends.cpu import CpuProgram
from olivine.engine import Embed, Engine, Generate, MediaBlock, Request, Sampling, Score, Update
from olivine.engine.kvcache import KvCache
from olivine.engine.media import SOFT, whole_chunk
from olivine.engine.speculative import History
from olivine.errors import RequestError
from oracles import published, running, soft

CASE = "gemma3-mqa-small-window"
WIDTH = 36
CONTEXT = 96
Make = Callable[..., Program]
Found = tuple[list[int], list[float]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published.save(published.case(CASE).make(), tmp_path_factory.mktemp("model"))


@pytest.fixture(params=["reference", "cpu"])
def make(request: pytest.FixtureRequest, folder: Path) -> Make:
    """Makes programs of a small model on either backend."""

    def program(pages: int = 96) -> Program:
        if request.param == "reference":
            return running.reference(folder, pages)
        model = running.build(folder)
        return CpuProgram(model.plan, model.weights, page_counts=[pages] * len(model.plan.groups), threads=2)

    return program


@pytest.fixture
def engine(folder: Path) -> Any:
    engine = Engine(running.reference(folder), CONTEXT)
    yield engine
    engine.close()


def request_of(given: soft.Prompt, max_tokens: int = 6, **options: Any) -> Request:
    job = Generate(Sampling(temperature=1.0, seed=5), max_tokens, logprobs=0, **options)
    return Request(given.tokens, job, media=given.blocks)


def found_of(updates: Sequence[Update]) -> Found:
    """The tokens and their log-probabilities, to the last bit."""
    tokens = [token for update in updates for token in update.tokens]
    return tokens, [report.logprob for update in updates for report in update.logprobs]


def alone(program: Program, request: Request) -> Found:
    fresh = Engine(program, CONTEXT, sequences=1, speculate=False)  # nothing to reuse
    try:
        return found_of(list(fresh.submit(request)))
    finally:
        fresh.close()


def same(ours: Found, theirs: Found, program: Program) -> None:
    """The CPU's bits depend on no batch; the last ones of NumPy's sums do."""
    assert ours[0] == theirs[0]
    if isinstance(program, CpuProgram):
        assert ours[1] == theirs[1]
    else:
        np.testing.assert_allclose(ours[1], theirs[1], atol=1e-4)


def test_soft_tokens_are_generated_after_as_in_the_published_model(make: Make, tmp_path: Path) -> None:
    """Log-probabilities of given tokens after an image are those of the published logits."""
    model = soft.multimodal(published.case(CASE))
    program = running.reference(published.save(model, tmp_path))
    given = soft.prompt(40, [(4, 20), (26, 7)], WIDTH)
    logits = soft.published_logits(model, given).astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    engine = Engine(program, CONTEXT)
    updates = list(engine.submit(Request(given.tokens, Score(first=34), media=given.blocks)))
    engine.close()
    _, ours = found_of(updates)
    np.testing.assert_allclose(ours, [expected[p - 1, given.tokens[p]] for p in range(34, 40)], atol=1e-3)


@pytest.mark.parametrize("chunk", [1, 5, 16, 512])
def test_chunks_never_cut_an_image_and_give_the_same_bits(
    make: Make, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that ended within an image would be refused: what its rows see would not be there."""
    given = soft.prompt(70, [(0, 9), (10, 33), (50, 12)], WIDTH)
    program = make()
    expected = alone(program, request_of(given))
    monkeypatch.setattr(program, "chunk", chunk)
    same(alone(program, request_of(given)), expected, program)


def test_text_and_media_side_by_side_have_the_bits_that_they_have_alone(make: Make) -> None:
    """Twice, the second time from the prefix cache; with room for all, and with preemption."""
    prompts = [
        soft.prompt(60, [(3, 30)], WIDTH),
        soft.prompt(45, [], WIDTH, seed=1),
        soft.prompt(70, [(0, 40), (41, 20)], WIDTH, seed=2),
        soft.prompt(50, [(10, 35)], WIDTH, seed=3, bidirectional=False),
        soft.prompt(9, [], WIDTH, seed=4),
    ]
    requests = [request_of(given, max_tokens=12) for given in prompts]
    program = make()
    expected = [alone(program, each) for each in requests]
    size = program.page_size
    for pages in (8 * CONTEXT // size, 2 * CONTEXT // size):
        crowded = make(pages)
        engine = Engine(crowded, CONTEXT, sequences=4)
        for _ in range(2):
            tickets = [engine.submit(each) for each in requests]
            for ticket, theirs in zip(tickets, expected, strict=True):
                same(found_of(list(ticket)), theirs, crowded)
        assert engine.free_pages == crowded.page_counts
        assert (engine.stats().preempted > 0) == (pages == 2 * CONTEXT // size)
        engine.close()


@pytest.mark.parametrize("seed", range(3))
def test_random_prompts_of_text_and_media_in_a_crowd(make: Make, seed: int) -> None:
    rng = random.Random(seed)
    images = [soft.prompt(20, [(0, rng.randrange(1, 20))], WIDTH, seed=n).blocks[0] for n in range(3)]

    def a_request() -> Request:
        tokens: list[int] = []
        blocks: list[MediaBlock] = []
        for _ in range(rng.randrange(1, 5)):
            tokens += [7] * rng.randrange(1, 9)
            image = rng.choice(images)
            blocks.append(replace(image, start=len(tokens), bidirectional=rng.random() < 0.8))
            tokens += [SOFT] * len(image.embeddings)
        tokens = [*tokens, 9][: CONTEXT - 8]
        blocks = [block for block in blocks if block.end <= len(tokens)]
        tokens = [11 if token == SOFT else token for token in tokens]
        return request_of(soft.Prompt(tokens, blocks), rng.randrange(1, 8))

    requests = [a_request() for _ in range(8)]
    program = make()
    expected = [alone(program, each) for each in requests]
    crowded = make(3 * CONTEXT // program.page_size)
    engine = Engine(crowded, CONTEXT, sequences=3)
    order = [*range(8), *range(8)]
    rng.shuffle(order)
    tickets = [(n, engine.submit(requests[n])) for n in order]
    for n, ticket in tickets:
        same(found_of(list(ticket)), expected[n], crowded)
    engine.close()


def test_an_image_is_reused_by_its_digest_and_no_other_one_is(make: Make) -> None:
    program = make()
    size, start = program.page_size, 3
    given = soft.prompt(90, [(start, 60)], WIDTH)
    block = given.blocks[0]
    engine = Engine(program, CONTEXT, sequences=1)

    def cached(*blocks: MediaBlock) -> int:
        ticket = engine.submit(request_of(soft.Prompt(given.tokens, list(blocks))))
        list(ticket)
        return ticket.usage.cached

    assert cached(block) == 0
    assert cached(block) == 89 // size * size  # the same image
    # Its last page has text only, but follows what differs.
    other = replace(block, digest=b"another", embeddings=-block.embeddings)
    assert cached(other) == cached(replace(block, digest=b"a third")) == start // size * size
    assert cached(other) == 89 // size * size
    assert cached(replace(block, bidirectional=False, digest=b"another")) == start // size * size
    # The same image one token further on.
    moved = soft.Prompt(given.tokens, [replace(block, start=start + 1)])
    ticket = engine.submit(request_of(moved))
    list(ticket)
    assert ticket.usage.cached == start // size * size
    engine.close()


def test_what_is_reused_ends_before_an_image_and_not_within_it(folder: Path) -> None:
    """The first question ends with the image; what it leaves of it in full pages is of no use alone."""
    program = running.reference(folder)
    given = soft.prompt(40, [(6, 21)], WIDTH)  # pages of 4: the image ends within one
    engine = Engine(program, CONTEXT, sequences=1)
    first = soft.Prompt(given.tokens[:27], given.blocks)
    expected = alone(running.reference(folder), request_of(given))
    for asked, cached in ((first, 0), (given, 4), (first, 4), (given, 36)):
        ticket = engine.submit(request_of(asked))
        found = found_of(list(ticket))
        assert ticket.usage.cached == cached
        if asked is given:
            same(found, expected, program)
    engine.close()
    causal = soft.prompt(40, [(6, 21)], WIDTH, bidirectional=False)
    engine = Engine(program, CONTEXT, sequences=1)
    for asked, cached in ((soft.Prompt(causal.tokens[:27], causal.blocks), 0), (causal, 24)):
        ticket = engine.submit(request_of(asked))
        list(ticket)
        assert ticket.usage.cached == cached
    engine.close()


def test_where_a_chunk_ends() -> None:
    blocks = soft.prompt(40, [(4, 6), (20, 10)], WIDTH).blocks
    ends = [whole_chunk(blocks, 0, end) for end in (4, 5, 9, 10, 12, 21, 29, 30)]
    assert ends == [4, 4, 4, 10, 12, 20, 20, 30]
    assert whole_chunk(blocks, 4, 5) == 10 and whole_chunk(blocks, 20, 29) == 30


def test_an_image_that_the_windows_pages_do_not_hold_is_refused_with_numbers(folder: Path) -> None:
    class Small:
        """A program whose windows have pages for chunks of four rows and for no more."""

        one_kind = False

        def __init__(self, program: Program) -> None:
            self.plan, self.page_size, self.chunk = program.plan, program.page_size, 4
            self.page_counts = tuple(24 if group.window is None else 4 for group in program.plan.groups)

    cache = KvCache(Small(running.reference(folder)), 1, CONTEXT)  # type: ignore[arg-type]
    cache.refuse_long_block(6, 90)
    with pytest.raises(RequestError, match=r"image of 40 soft tokens needs 13 pages .* window of 5 .* are 4"):
        cache.refuse_long_block(40, 90)


@pytest.mark.parametrize("filler", [0, 7, 96, 10**6, -5])
def test_soft_tokens_are_not_penalized(make: Make, filler: int) -> None:
    """Whatever tokens the caller has put where an image is, and whatever stands for them in the engine."""
    program = make()
    block = soft.prompt(30, [(2, 20)], WIDTH).blocks[0]
    tokens = [*[5] * 2, *[filler] * 20, *[5] * 8]
    for wanted in (filler % 97, 96, 0):
        sampling = Sampling(repetition_penalty=100.0, logit_bias={wanted: 50.0})
        request = Request(tokens, Generate(sampling, 1, logprobs=0), media=[block])
        assert alone(program, request)[0] == [wanted]
    # Nor do they count among the last tokens of which the penalty knows.
    sampling = Sampling(repetition_penalty=100.0, repeat_last_n=3, logit_bias={5: 50.0})
    request = Request([5, 5, *[filler] * 20, 6, 6], Generate(sampling, 1, logprobs=0), media=[block])
    assert alone(program, request)[0] != [5]


def test_soft_tokens_are_not_drafted() -> None:
    history = History()
    tokens = [1, 2, 3, 4, SOFT, SOFT, 5, 1, 2, 3]
    history.read(tokens)
    assert history.find(tokens) == [4]
    after = [SOFT, SOFT, SOFT, 8, 9, SOFT, SOFT, SOFT]
    history = History()
    history.read(after)
    assert history.find(after) == [8, 9]


def test_drafts_beside_an_image_change_nothing(folder: Path) -> None:
    given = soft.prompt(30, [(9, 6), (19, 6)], WIDTH)
    tokens = [*[5, 6, 7] * 3, *[0] * 6, *[5, 6, 7, 5], *[0] * 6, *[5, 6, 7, 5, 6]]
    request = Request(tokens, Generate(max_tokens=40, logprobs=0), media=given.blocks)
    found = []
    for speculate in (False, True):
        engine = Engine(running.reference(folder), CONTEXT, speculate=speculate)
        ticket = engine.submit(request)
        found.append(found_of(list(ticket))[0])
        engine.close()
    assert ticket.usage.drafted > 0
    assert found[0] == found[1]


def test_scores_are_of_text_only(engine: Engine) -> None:
    given = soft.prompt(30, [(2, 10)], WIDTH)
    with pytest.raises(RequestError, match=r"soft tokens .* have no log-probabilities"):
        engine.submit(Request(given.tokens, Score(first=11), media=given.blocks))
    updates = list(engine.submit(Request(given.tokens, Score(first=12), media=given.blocks)))
    assert len(updates[-1].logprobs or updates[-2].logprobs) == 18


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings_of_prompts_with_media_take_the_whole_image_in_one_step(
    engine: Engine, pooling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from olivine.engine.jobs import embed

    given = soft.prompt(60, [(5, 40)], WIDTH)
    found = []
    for rows in (64, 4):
        monkeypatch.setattr(embed, "OUTPUT_ROWS", rows)
        updates = list(engine.submit(Request(given.tokens, Embed(pooling), media=given.blocks)))
        found += [update.embedding for update in updates if update.embedding is not None]
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


@pytest.mark.parametrize(
    ("media", "message"),
    [
        (5, "media must be a list of MediaBlock"),
        ([5], "media must be a list of MediaBlock"),
        ([MediaBlock(-1, np.zeros((2, WIDTH), np.float32), b"x")], "media.start must be 0 or more"),
        (
            [MediaBlock(0, np.zeros((2, 5), np.float32), b"x")],
            r"must be \[soft tokens, 36\], and are \[2, 5\]",
        ),
        ([MediaBlock(0, np.zeros((0, WIDTH), np.float32), b"x")], r"must be \[soft tokens, 36\]"),
        ([MediaBlock(0, np.full((2, WIDTH), np.nan, np.float32), b"x")], "not all finite"),
        ([MediaBlock(0, np.zeros((2, WIDTH), np.float32), b"")], "needs a digest"),
        ([MediaBlock(8, np.zeros((3, WIDTH), np.float32), b"x")], "at 8..10 overlaps .* prompt at 10"),
        ([MediaBlock(n, np.zeros((3, WIDTH), np.float32), b"x") for n in (4, 2)], "at 4..6 overlaps"),
    ],
)
def test_media_that_cannot_be_is_refused(engine: Engine, media: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        engine.submit(Request([3] * 10, Generate(), media=media))


def test_only_the_positions_of_media_may_have_other_ids(engine: Engine) -> None:
    block = MediaBlock(2, np.zeros((3, WIDTH), np.float32), b"x")
    with pytest.raises(RequestError, match=r"token ids must lie in 0\.\.96, and one is -1"):
        engine.submit(Request([3, -1, 0, 0, 0, 3], Generate(), media=[block]))
    marks = [False, False, True, False, False, False]
    with pytest.raises(RequestError, match="soft tokens of media are not generated"):
        engine.submit(Request([3] * 6, Generate(), generated=marks, media=[block]))
