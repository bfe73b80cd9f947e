"""Generation in token ids over the reference backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from olivine.engine import Engine, Sampling
from olivine.engine import engine as engine_module
from olivine.engine.pages import PageTables
from olivine.errors import RequestError
from oracles import published, running

PROMPT = [5, 3, 90, 17, 64, 2, 2, 41, 8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published.save(
        published.case("gemma3-odd-heads-window-1").make(), tmp_path_factory.mktemp("gemma")
    )


@pytest.fixture
def engine(folder: Path) -> Engine:
    return Engine(running.reference(folder, pages=10), context=40)


def test_greedy_generation_equals_the_published_one(engine: Engine) -> None:
    model = published.case("gemma3-odd-heads-window-1").make()
    ids = torch.tensor([PROMPT])
    theirs = model.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert list(engine.generate(PROMPT, Sampling(), 20)) == theirs[0, len(PROMPT) :].tolist()


def test_prompts_in_chunks_give_the_same_text(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(engine.generate(PROMPT, Sampling(), 12))
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(engine_module, "PREFILL_CHUNK", 4)
    assert list(engine.generate(PROMPT, Sampling(), 12, on_prefill=lambda *at: seen.append(at))) == whole
    assert seen == [(4, 9), (8, 9), (9, 9)]


def test_a_seed_gives_the_same_tokens_again(engine: Engine) -> None:
    warm = Sampling(temperature=1.0, top_k=30, seed=11)
    first = list(engine.generate(PROMPT, warm, 25))
    assert list(engine.generate(PROMPT, warm, 25)) == first
    assert list(engine.generate(PROMPT, Sampling(temperature=1.0, top_k=30, seed=12), 25)) != first


def test_noise_is_a_matter_of_position_not_of_history_length(engine: Engine) -> None:
    """Continuing with what was generated continues the same draw: sampling has no hidden state."""
    warm = Sampling(temperature=1.0, seed=4)
    tokens = list(engine.generate(PROMPT, warm, 16))
    assert list(engine.generate(PROMPT + tokens[:7], warm, 9)) == tokens[7:]


def test_generation_stops_at_a_stop_token_which_is_not_given(engine: Engine) -> None:
    warm = Sampling(temperature=1.0, seed=1)
    tokens = list(engine.generate(PROMPT, warm, 12))
    at = next(i for i in range(3, 12) if tokens[i] not in tokens[:i])
    assert list(engine.generate(PROMPT, warm, 12, stop={tokens[at]})) == tokens[:at]


def test_generation_ends_with_the_context(engine: Engine) -> None:
    assert len(PROMPT) + len(list(engine.generate(PROMPT, Sampling(), 1000))) == 40


@pytest.mark.parametrize(
    ("prompt", "message"), [([], "empty"), ([1] * 40, "40 tokens and the context holds 40")]
)
def test_prompts_that_cannot_be_run_are_refused(engine: Engine, prompt: list[int], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        list(engine.generate(prompt, Sampling(), 5))


def test_pages_come_back_however_generation_ends(engine: Engine) -> None:
    free = engine._pages.free_pages()
    stream = engine.generate(PROMPT, Sampling(), 12)
    next(stream)
    assert engine._pages.free_pages() != free
    stream.close()
    assert engine._pages.free_pages() == free
    with pytest.raises(RequestError):
        list(engine.generate([96, 97], Sampling(), 5))
    assert engine._pages.free_pages() == free


def test_page_tables_hand_out_each_page_once() -> None:
    pages = PageTables((6, 5), page_size=4, slots=2, length=20)
    pages.extend(0, 9)
    pages.extend(1, 5)
    pages.extend(0, 10)  # no new page needed
    for table in pages.tables:
        used = table[table >= 0]
        assert len(used) == 5 == len(np.unique(used))
    with pytest.raises(RequestError, match="full"):
        pages.extend(1, 9)
    with pytest.raises(RequestError, match="context of 20"):
        pages.extend(0, 21)
    pages.release(0)
    pages.release(1)
    assert pages.free_pages() == (6, 5)
