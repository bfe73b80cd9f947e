"""Generation in token ids: the same tokens alone, beside others, after preemption, with drafts or without."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from olivine.backends import Batch, Drawn, Program, Result
from olivine.backends.cpu import CpuProgram
from olivine.engine import Embed, Engine, Generate, Request, Sampling, Score, Ticket, Update
from olivine.engine.jobs import embed as embed_module
from olivine.engine.sampling import adjust
from olivine.errors import BusyError, ModelError, OlivineError, RankError
from oracles import published, running
from oracles.gate import Gate
from oracles.pages import PagesProgram
from oracles.waiting import eventually

PROMPT = [5, 3, 90, 17, 64, 2, 2, 41, 8]
CASE = "gemma3-odd-heads-window-1"
# A window, several groups, and heads that the CPU backend likes.
SLIDING = "gemma3-mqa-small-window"
# Layers that read the keys of others.
SHARING = "gemma4-e2b"

Make = Callable[..., Program]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: published.save(published.case(name).make(), tmp_path_factory.mktemp("model"))
        for name in (CASE, SLIDING, SHARING)
    }


@pytest.fixture(params=["reference", "cpu"])
def make(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Make:
    """Makes programs of a small model on either backend."""

    def program(pages: int, name: str = SLIDING) -> Program:
        if request.param == "reference":
            return running.reference(folders[name], pages)
        model = running.build(folders[name])
        return CpuProgram(model.plan, model.weights, page_counts=[pages] * len(model.plan.groups), threads=2)

    return program


def tokens_of(updates: Iterable[Update]) -> list[int]:
    return [token for update in updates for token in update.tokens]


def generate(
    engine: Engine,
    prompt: Sequence[int],
    sampling: Sampling | None = None,
    max_tokens: int | None = None,
    **rest: object,
) -> list[int]:
    job = Generate(sampling or Sampling(), max_tokens, **rest)  # type: ignore[arg-type]
    return tokens_of(engine.submit(Request(prompt, job)))


@pytest.fixture
def engine(folders: dict[str, Path]) -> Iterable[Engine]:
    engine = Engine(running.reference(folders[CASE], pages=10), context=40)
    yield engine
    engine.close()


def test_greedy_generation_equals_the_published_one(engine: Engine) -> None:
    model = published.case(CASE).make()
    ids = torch.tensor([PROMPT])
    theirs = model.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert generate(engine, PROMPT, max_tokens=20) == theirs[0, len(PROMPT) :].tolist()


def test_prompts_in_chunks_give_the_same_text(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = generate(engine, PROMPT, max_tokens=12)
    monkeypatch.setattr(engine.program, "chunk", 4)
    other = [PROMPT[0] + 1, *PROMPT[1:]]  # not to be found in the cache
    updates = list(engine.submit(Request(other, Generate(max_tokens=3))))
    assert [update.prefilled for update in updates][:3] == [4, 8, 9]
    assert generate(engine, PROMPT, max_tokens=12) == whole


def test_noise_is_a_matter_of_position_not_of_history_length(engine: Engine) -> None:
    """Continuing with what was generated continues the same draw: sampling has no hidden state."""
    warm = Sampling(temperature=1.0, seed=4)
    tokens = generate(engine, PROMPT, warm, 16)
    assert generate(engine, PROMPT + tokens[:7], warm, 9) == tokens[7:]
    assert generate(engine, PROMPT, Sampling(temperature=1.0, seed=5), 16) != tokens


def test_generation_stops_at_a_stop_token_which_is_not_given(engine: Engine) -> None:
    warm = Sampling(temperature=1.0, seed=1)
    tokens = generate(engine, PROMPT, warm, 12)
    at = next(i for i in range(3, 12) if tokens[i] not in tokens[:i])
    updates = list(engine.submit(Request(PROMPT, Generate(warm, 12, stop=[tokens[at]]))))
    assert tokens_of(updates) == tokens[:at]
    assert updates[-1].finish == "stop"
    longer = generate(engine, PROMPT, warm, 12, stop=[tokens[at]], min_tokens=at + 2)
    assert longer[:at] == tokens[:at]
    assert len(longer) >= at + 2 and tokens[at] not in longer[: at + 2]


def test_generation_ends_with_the_context(engine: Engine) -> None:
    updates = list(engine.submit(Request(PROMPT, Generate())))
    assert len(PROMPT) + len(tokens_of(updates)) == 40
    assert updates[-1].finish == "length"


def test_numbers_of_numpy_are_numbers(engine: Engine) -> None:
    plain = generate(engine, PROMPT, Sampling(temperature=1.0, top_k=9, seed=3), 6)
    sampling = Sampling(temperature=np.float32(1), top_k=np.int64(9), seed=np.uint64(3))  # type: ignore[arg-type]
    assert generate(engine, np.array(PROMPT), sampling, np.int16(6)) == plain  # type: ignore[arg-type]


def a_request(rng: random.Random, vocabulary: int, context: int, prefixes: list[list[int]]) -> Request:
    prompt = [rng.randrange(vocabulary) for _ in range(rng.randint(1, context // 2))]
    if rng.random() < 0.5:  # a prefix that others have too, and text that repeats itself
        prompt = (rng.choice(prefixes) + prompt)[: context // 2 + 8]
    if rng.random() < 0.3:
        prompt = (prompt[:5] * context)[: len(prompt)]
    sampling = Sampling(
        temperature=rng.choice((0.0, 0.0, 0.7, 1.3)),
        top_k=rng.choice((0, 5)),
        top_p=rng.choice((1.0, 0.9)),
        repetition_penalty=rng.choice((1.0, 1.2)),
        frequency_penalty=rng.choice((0.0, 0.3)),
        repeat_last_n=rng.choice((None, 8)),
        logit_bias=rng.choice(({}, {3: 1.5})),
        seed=rng.getrandbits(64),
    )
    job = Generate(
        sampling,
        max_tokens=rng.randint(1, context - len(prompt)),
        min_tokens=rng.choice((0, 3)),
        stop=[rng.randrange(vocabulary) for _ in range(3)],
        logprobs=rng.choice((None, None, 2)),
    )
    return Request(prompt, job)


def submitted_in_time(engine: Engine, requests: Sequence[Request], rng: random.Random) -> list[list[int]]:
    """The requests' tokens when they come in at random moments, among others that are cancelled."""
    tickets: list[Ticket] = []
    for request in requests:
        tickets.append(engine.submit(request))
        if rng.random() < 0.3:
            engine.submit(request).cancel()
        if rng.random() < 0.5:
            time.sleep(rng.random() * 0.02)
    return [tokens_of(ticket) for ticket in tickets]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2, 3))]
)
def test_tokens_are_the_same_beside_any_others(make: Make, seed: int) -> None:
    """Alone; batched, with reused prefixes, preemption and drafts; and again with everything cached."""
    rng = random.Random(seed)
    context = 96
    alone = Engine(make(96), context, sequences=1, speculate=False)
    vocabulary = alone.program.plan.logits.width
    prefixes = [[rng.randrange(vocabulary) for _ in range(40)] for _ in range(2)]
    requests = [a_request(rng, vocabulary, context, prefixes) for _ in range(10)]
    expected = []
    for request in requests:
        fresh = Engine(alone.program, context, sequences=1, speculate=False)  # nothing to reuse
        expected.append(tokens_of(fresh.submit(request)))
        fresh.close()
    page = alone.program.page_size
    for pages in (2 * context // page, 8 * context // page):
        crowded = Engine(make(pages), context, sequences=4)
        for _ in range(2):
            assert submitted_in_time(crowded, requests, rng) == expected
        assert crowded.free_pages == crowded.program.page_counts
        crowded.close()


class Watched:
    """A program that notes the batches it is given."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.batches: list[Batch] = []
        self.before: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> object:
        return getattr(self.program, name)

    def _note(self, batch: Batch) -> None:
        self.before()
        self.batches.append(batch)

    def step(self, batch: Batch, *, logits: bool = True) -> Result:
        self._note(batch)
        return self.program.step(batch, logits=logits)


class WatchedDrawing(Watched):
    def generate(self, batch: Batch, draws: object, n: int = 1) -> list[Drawn]:
        self._note(batch)
        return self.program.generate(batch, draws, n)  # type: ignore[attr-defined, no-any-return]


def watched(program: Program) -> Watched:
    return WatchedDrawing(program) if hasattr(program, "generate") else Watched(program)


def test_preemption_happens_and_everybody_finishes(folders: dict[str, Path]) -> None:
    program = watched(running.reference(folders[CASE], pages=10))
    engine = Engine(program, context=40, sequences=4, speculate=False)
    requests = [
        Request([i + 1] * 9, Generate(max_tokens=30)) for i in range(4)
    ]  # 4 × 39 tokens, and room for 40
    tickets = [engine.submit(request) for request in requests]
    outputs = [tokens_of(ticket) for ticket in tickets]
    assert [len(output) for output in outputs] == [30] * 4
    again = [batch for batch in program.batches if batch.generated is not None and batch.generated.sum() > 4]
    assert again  # generated rows that were computed again, as generated rows
    engine.close()


def test_a_prefix_is_computed_once_and_reported(make: Make) -> None:
    program = watched(make(96))
    engine = Engine(program, context=96, sequences=2, speculate=False)  # type: ignore[arg-type]
    page = program.page_size
    prompt = [7 + i % 50 for i in range(70)]
    first = engine.submit(Request(prompt, Generate(max_tokens=4)))
    output = tokens_of(first)
    assert first.usage.cached == 0
    program.batches.clear()
    # The next turn: what was generated is known as such, so that its pages can be reused too.
    turn = prompt + output + [9] * 10
    marks = [False] * 70 + [True] * len(output) + [False] * 10
    second = engine.submit(Request(turn, Generate(max_tokens=2), generated=marks))
    tokens = tokens_of(second)
    assert second.usage.cached == (len(prompt) + len(output) - 1) // page * page
    assert len(program.batches[0].tokens) == len(turn) - second.usage.cached
    fresh = Engine(make(96), context=96, speculate=False)
    request = Request(turn, Generate(max_tokens=2), generated=marks)
    assert tokens_of(fresh.submit(request)) == tokens
    for each in (engine, fresh):
        each.close()


def test_a_prefix_cache_that_is_reset_is_empty_and_disturbs_nobody(make: Make) -> None:
    engine = Engine(make(96), context=96, sequences=2, speculate=False)
    prompt = [7 + i % 50 for i in range(70)]
    wanted = generate(engine, prompt, max_tokens=20)
    running = engine.submit(Request(prompt, Generate(max_tokens=20)))
    updates = iter(running)
    output = [*next(updates).tokens]
    engine.reset_prefix_cache()
    output += [token for update in updates for token in update.tokens]
    assert output == wanted
    engine.reset_prefix_cache()
    for cached in (0, 69 // engine.program.page_size * engine.program.page_size):
        ticket = engine.submit(Request(prompt, Generate(max_tokens=1)))
        tokens_of(ticket)
        assert ticket.usage.cached == cached
    engine.close()


def test_rows_of_another_kind_are_not_reused(make: Make) -> None:
    engine = Engine(make(96), context=96, speculate=False)
    prompt = [7 + i % 50 for i in range(40)]
    output = generate(engine, prompt, max_tokens=40)
    ticket = engine.submit(Request(prompt + output, Generate(max_tokens=1)))
    tokens_of(ticket)
    assert ticket.usage.cached == 40 // engine.program.page_size * engine.program.page_size
    engine.close()


def test_sequences_that_begin_alike_at_the_same_time_share_their_prefill(make: Make) -> None:
    program = watched(make(200))
    engine = Engine(program, context=96, sequences=4, speculate=False)  # type: ignore[arg-type]
    prompt = [7 + i % 50 for i in range(70)]
    gate = threading.Event()
    program.before = gate.wait  # type: ignore[assignment]
    warm = [Sampling(temperature=1.0, seed=seed) for seed in range(3)]
    tickets = [engine.submit(Request(prompt, Generate(sampling, max_tokens=5))) for sampling in warm]
    gate.set()
    outputs = [tokens_of(ticket) for ticket in tickets]
    assert len({tuple(output) for output in outputs}) == 3
    prompt_rows = sum(
        int((~batch.generated).sum()) for batch in program.batches if batch.generated is not None
    )
    assert prompt_rows < 2 * len(prompt)
    engine.close()


@pytest.mark.parametrize("name", [SLIDING, SHARING])
def test_pages_of_a_window_are_given_back(make: Make, name: str) -> None:
    """At 20 times the window a sequence holds no more than the window and a chunk."""
    pages = 96 if isinstance(make(1), CpuProgram) else 200
    engine = Engine(make(pages, name), context=380, speculate=False)
    window = min(group.window for group in engine.program.plan.groups if group.window is not None)
    assert 20 * window < 380
    for _ in engine.submit(Request([1, 2, 3], Generate())):
        by_group = zip(engine.program.plan.groups, engine.free_pages, engine.program.page_counts, strict=True)
        for group, free, count in by_group:
            if group.window is not None:
                # A chain takes the pages of its tokens ahead.
                assert count - free <= -(-(window + 80) // engine.program.page_size) + 1
    engine.close()


def test_a_long_prompt_does_not_stop_others(make: Make) -> None:
    program, gate = watched(make(400)), Gate()
    program.before = gate.wait
    gate.close(after=4)
    engine = Engine(program, context=1200, sequences=2, speculate=False)  # type: ignore[arg-type]
    talking = engine.submit(Request([1, 2, 3], Generate(max_tokens=900)))
    updates = iter(talking)
    for _ in range(3):
        assert next(updates).finish is None
    listening = engine.submit(Request([5] * 1000, Generate(max_tokens=1)))
    gate.open()
    tokens_of(listening)
    mixed = [
        batch
        for batch in program.batches
        if batch.generated is not None and len(batch.tokens) > 1 and batch.generated.any()
    ]
    assert mixed and all(batch.generated.sum() == 1 for batch in mixed if batch.generated is not None)
    talking.cancel()
    engine.close()


def test_drafts_are_made_and_accepted(make: Make) -> None:
    engine = Engine(make(96), context=96)
    plain = Engine(make(96), context=96, speculate=False)
    prompt = [3, 1, 4, 1, 5, 9, 2, 6] * 4
    bias = Sampling(logit_bias=dict.fromkeys([3, 1, 4], 1e4))  # says the same things over and over
    ticket = engine.submit(Request(prompt, Generate(bias, max_tokens=50)))
    tokens = tokens_of(ticket)
    assert tokens == generate(plain, prompt, bias, 50)
    assert ticket.usage.accepted > 0
    assert ticket.usage.completion == 50
    engine.close()
    plain.close()


def test_log_probabilities_are_those_of_the_adjusted_logits(make: Make) -> None:
    engine = Engine(make(96), context=96, speculate=False)
    sampling = Sampling(temperature=0.8, seed=3, logit_bias={4: 2.0}, repetition_penalty=1.3)
    updates = list(engine.submit(Request(PROMPT, Generate(sampling, 6, logprobs=3))))
    tokens = tokens_of(updates)
    reports = [report for update in updates for report in update.logprobs]
    assert len(reports) == len(tokens) == 6
    session = running.Session(make(96), 1, 96)
    rows = [session.step([(0, PROMPT)])[0][-1]]
    rows += [session.step([(0, [token])], generated=True)[0][0] for token in tokens[:-1]]
    for i, (logits, token, report) in enumerate(zip(rows, tokens, reports, strict=True)):
        x = adjust(logits, sampling, PROMPT, tokens[:i]).astype(np.float64)
        exact = x - np.log(np.exp(x - x.max()).sum()) - x.max()
        assert report.logprob == pytest.approx(exact[token], abs=1e-5)
        assert report.top_tokens == sorted(range(len(x)), key=lambda t: (-x[t], t))[:3]
        assert report.top_logprobs == pytest.approx([exact[t] for t in report.top_tokens], abs=1e-5)
    engine.close()


def test_scores_are_the_log_probabilities_of_the_text(make: Make) -> None:
    engine = Engine(make(96), context=96)
    text = [7 + 3 * i % 50 for i in range(80)]
    updates = list(engine.submit(Request(text, Score(5))))
    reports = [report for update in updates for report in update.logprobs]
    assert len(reports) == 75
    logits = running.chunked(make(96), text, [96]).astype(np.float64)
    exact = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
    exact -= logits.max(1, keepdims=True)
    for at, report in enumerate(reports, start=5):
        assert report.logprob == pytest.approx(exact[at - 1, text[at]], abs=1e-5)
    # Again, from a page's first token on: the row before it is needed though its page is there.
    again = engine.submit(Request(text, Score(64)))
    found = [report.logprob for update in again for report in update.logprobs]
    assert found == pytest.approx([report.logprob for report in reports[64 - 5 :]], abs=1e-5)
    assert again.usage.cached == 64 - engine.program.page_size
    engine.close()


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings_are_pooled_hidden_states(make: Make, folders: dict[str, Path], pooling: str) -> None:
    engine = Engine(make(96), context=96)
    text = [7 + 3 * i % 50 for i in range(80)]
    talking = engine.submit(Request(PROMPT, Generate(max_tokens=40)))
    request = Request(text, Embed(pooling))  # type: ignore[arg-type]
    (ours,) = [u.embedding for u in engine.submit(request) if u.embedding is not None]
    reference = running.reference(folders[SLIDING])
    session = running.Session(reference, 1, 80)
    hidden = reference.step(session.batch([(0, text, False)])).hidden
    theirs = hidden.mean(0) if pooling == "mean" else hidden[-1]
    assert np.abs(ours - theirs).max() < 0.05 * np.abs(theirs).max()
    assert len(tokens_of(talking)) == 40
    engine.close()


def test_a_failing_step_ends_its_requests_and_no_others(engine: Engine) -> None:
    program = watched(engine.program)
    fragile = Engine(program, context=40)  # type: ignore[arg-type]

    def fail() -> None:
        raise MemoryError("no room")

    program.before = fail
    with pytest.raises(OlivineError, match="MemoryError: no room"):
        list(fragile.submit(Request(PROMPT, Generate())))
    program.before = lambda: None
    assert len(generate(fragile, PROMPT, max_tokens=5)) == 5
    assert fragile.free_pages == fragile.program.page_counts
    fragile.close()


def test_nan_is_an_error_of_its_request(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    step = engine.program.step

    def broken(batch: Batch, *, logits: bool = True) -> Result:
        result = step(batch)
        result.logits[:] = np.nan
        return result

    monkeypatch.setattr(engine.program, "step", broken)
    with pytest.raises(ModelError, match="NaN") as caught:
        generate(engine, PROMPT)
    assert caught.value.code == "invalid_logits"


class Restarting(PagesProgram):
    """A program whose processes are started again until `there`."""

    def __init__(self) -> None:
        super().__init__(64)
        self.obstacle: str | None = "a rank ended"
        self.given_up = False
        self.there = threading.Event()

    def wait(self, seconds: float) -> bool:
        return self.there.wait(seconds)

    def step(self, batch: Batch, *, logits: bool = True) -> Result:
        assert self.there.is_set()
        return super().step(batch, logits=logits)

    def interrupt(self) -> None: ...

    def loss(self) -> None: ...


def test_while_processes_are_started_again_requests_end_in_time() -> None:
    """By their deadlines and by being cancelled, also those that come meanwhile; the others are answered."""
    program = Restarting()
    engine = Engine(program, 64, sequences=1)
    try:
        due, stays, left = (
            engine.submit(Request([1, 2], Generate(max_tokens=2), timeout=timeout))
            for timeout in (0.05, None, None)
        )
        assert [each.finish for each in due] == ["timeout"]
        later = engine.submit(Request([1, 2], Generate(max_tokens=2), timeout=0.05))
        left.cancel()
        assert [each.finish for each in left] == ["cancelled"]
        assert [each.finish for each in later] == ["timeout"]
        program.obstacle = None
        program.there.set()
        assert len(tokens_of(stays)) == 2
    finally:
        program.there.set()
        engine.close()


def test_requests_wait_so_long_for_processes_that_are_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("olivine.engine.engine.PATIENCE", 0.2)
    program = Restarting()
    engine = Engine(program, 64)
    try:
        for _ in range(2):
            with pytest.raises(RankError, match="a rank ended"):
                list(engine.submit(Request([1, 2], Generate(max_tokens=2))))
        monkeypatch.setattr("olivine.engine.engine.PATIENCE", 1000.0)
        program.given_up = True
        with pytest.raises(RankError, match="a rank ended"):
            list(engine.submit(Request([1, 2], Generate(max_tokens=2))))
    finally:
        program.there.set()
        engine.close()


def test_a_full_queue_says_so(engine: Engine) -> None:
    program = watched(engine.program)
    gate = threading.Event()
    program.before = gate.wait  # type: ignore[assignment]
    small = Engine(program, context=40, sequences=1, queue=2)  # type: ignore[arg-type]
    tickets = [small.submit(Request(PROMPT, Generate(max_tokens=1)))]
    while not small._scheduler.running:
        time.sleep(0.001)
    tickets += [small.submit(Request(PROMPT, Generate(max_tokens=1))) for _ in range(2)]
    with pytest.raises(BusyError, match="2 requests are waiting"):
        small.submit(Request(PROMPT, Generate(max_tokens=1)))
    gate.set()
    assert [len(tokens_of(ticket)) for ticket in tickets] == [1, 1, 1]
    small.close()


def test_closing_ends_what_runs(engine: Engine) -> None:
    program = watched(engine.program)
    program.before = lambda: eventually(lambda: engine._inbox.closed)
    engine.program = program  # type: ignore[assignment]
    ticket, other = (engine.submit(Request(PROMPT, Generate())) for _ in range(2))
    eventually(lambda: bool(engine._scheduler.running))
    engine.close()
    with pytest.raises(OlivineError, match="closed") as first:
        list(ticket)
    with pytest.raises(OlivineError, match="closed") as second:
        list(other)
    assert first.value is not second.value, "its traceback would keep what the other caller had"
    with pytest.raises(OlivineError, match="closed"):
        engine.submit(Request(PROMPT, Generate()))


def test_leaving_the_iteration_cancels(engine: Engine) -> None:
    for _ in engine.submit(Request(PROMPT, Generate())):
        break
    eventually(lambda: engine.free_pages == engine.program.page_counts)
    assert len(generate(engine, PROMPT, max_tokens=4)) == 4


def test_an_embedding_that_is_preempted_begins_anew(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are summed as they come: those before it was sent back must not count twice."""
    monkeypatch.setattr(embed_module, "OUTPUT_ROWS", 2)  # many steps
    program = watched(running.reference(folders[CASE], pages=12))
    engine = Engine(program, context=40, sequences=2, speculate=False)  # type: ignore[arg-type]
    request = Request([7 + 3 * i % 50 for i in range(36)], Embed())
    (alone,) = [update.embedding for update in engine.submit(request) if update.embedding is not None]
    program.batches.clear()
    gate = threading.Event()
    program.before = gate.wait  # type: ignore[assignment]
    talking, reading = engine.submit(Request([1] * 7, Generate(max_tokens=30))), engine.submit(request)
    gate.set()
    (found,) = [update.embedding for update in reading if update.embedding is not None]
    rows = [len(batch.tokens) for batch in program.batches if len(batch.outputs) == len(batch.tokens) > 1]
    assert sum(rows) > 36, "nothing was preempted"
    assert np.abs(found - alone).max() < 1e-5
    assert len(tokens_of(talking)) == 30
    engine.close()
