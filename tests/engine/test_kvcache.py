"""Pages: who has them, under which block hashes they are found again, and which are evicted first."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from olivine.backends import CHUNK
from olivine.engine.kvcache import KvCache, Pool
from olivine.errors import ModelError
from olivine.plan import CacheGroup

SIZE = 4


def make(
    *counts: int,
    windows: tuple[int | None, ...] = (None,),
    slots: int = 3,
    length: int = 40,
    one_kind: bool = False,
) -> KvCache:
    """A cache with one group a window."""
    groups = tuple(CacheGroup(1, 8, window, ()) for window in windows)
    program: Any = SimpleNamespace(
        page_size=SIZE,
        one_kind=one_kind,
        chunk=CHUNK,
        plan=SimpleNamespace(groups=groups),
        page_counts=counts or (30,) * len(groups),
    )
    return KvCache(program, slots, length)


def hashes_of(cache: KvCache, tokens: list[int], kinds: bytes | None = None) -> list[bytes]:
    hashes: list[bytes] = []
    cache.hash_blocks(tokens, kinds or bytes(len(tokens)), hashes)
    return hashes


def test_kinds_of_rows_are_told_apart_unless_they_have_the_same_bits() -> None:
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    for one_kind in (False, True):
        cache = make(one_kind=one_kind)
        assert (hashes_of(cache, tokens) == hashes_of(cache, tokens, b"\1" * 8)) == one_kind


def run(cache: KvCache, slot: int, tokens: list[int], upto: int | None = None) -> int:
    """Computes a sequence as the scheduler does, in one step; returns how many tokens were reused."""
    hashes = hashes_of(cache, tokens)
    done = cache.begin(slot, hashes, len(tokens) - 1 if upto is None else upto)
    assert cache.extend(slot, done, len(tokens))
    cache.publish(slot, hashes, range(done // SIZE, len(tokens) // SIZE))
    return done


# ---- the pool


def test_pages_are_handed_out_once_and_come_back() -> None:
    pool = Pool(3)
    pages = [pool.take() for _ in range(3)]
    assert sorted(pages) == [0, 1, 2] and pool.available == 0
    for page in pages:
        pool.give_back(page)
    assert pool.available == 3


def test_a_shared_page_is_free_when_its_last_user_leaves() -> None:
    pool = Pool(2)
    page = pool.take()
    pool.register(page, b"a")
    assert pool.share(page) == page and pool.share(page) == page
    for left in (1, 1, 2):  # three users
        pool.give_back(page)
        assert pool.available == left
    assert pool.is_idle(page) and pool.find(b"a") == page
    assert pool.share(page) == page and not pool.is_idle(page) and pool.available == 1


def test_unused_pages_are_evicted_the_least_recently_used_first() -> None:
    pool = Pool(3)
    pages = [pool.take() for _ in range(3)]
    for page, block_hash in zip(pages, (b"a", b"b", b"c"), strict=True):
        pool.register(page, block_hash)
    for page in (pages[1], pages[0], pages[2]):
        pool.give_back(page)
    pool.give_back(pool.share(pages[1]))  # used again: now the newest
    found = []
    for _ in range(3):
        found.append(pool.take())
        assert pool.find((b"a", b"b", b"c")[pages.index(found[-1])]) is None
    assert found == [pages[0], pages[2], pages[1]]


def test_pages_without_a_block_hash_are_taken_before_others_are_evicted() -> None:
    pool = Pool(2)
    hashed, plain = pool.take(), pool.take()
    pool.register(hashed, b"a")
    pool.give_back(hashed)
    pool.give_back(plain)
    assert pool.take() == plain and pool.find(b"a") == hashed


def test_a_block_hash_belongs_to_the_page_that_had_it_first() -> None:
    pool = Pool(2)
    first, second = pool.take(), pool.take()
    pool.register(first, b"a")
    pool.register(second, b"a")
    assert pool.find(b"a") == first
    pool.give_back(second)
    assert not pool.is_idle(second)  # without a block hash it is simply free
    pool.register(first, b"b")  # a full page never changes
    assert pool.find(b"b") is None and pool.find(b"a") == first


# ---- the cache


def test_block_hashes_depend_on_all_tokens_before_and_on_how_they_were_computed() -> None:
    cache = make()
    tokens = list(range(11))
    hashes = hashes_of(cache, tokens)
    assert len(hashes) == 2  # full pages only
    assert hashes_of(cache, [*tokens, 11])[:2] == hashes
    assert hashes_of(cache, [9, *tokens[1:]])[1] != hashes[1]
    assert hashes_of(cache, tokens, bytes([0] * 5 + [1] * 6))[0] == hashes[0]
    assert hashes_of(cache, tokens, bytes([0] * 5 + [1] * 6))[1] != hashes[1]
    growing = hashes_of(cache, tokens[:7])
    cache.hash_blocks(tokens, bytes(11), growing)
    assert growing == hashes


def test_a_prefix_is_reused_as_far_as_it_goes_and_is_allowed() -> None:
    cache = make()
    tokens = list(range(18))
    assert run(cache, 0, tokens) == 0
    pages = cache.tables[0][0, :4].tolist()
    assert run(cache, 1, [*tokens[:10], 99, 99, 99, 99]) == 8
    assert cache.tables[0][1, :2].tolist() == pages[:2]
    assert cache.tables[0][1, 2] not in pages
    cache.end(0)
    assert cache.begin(2, hashes_of(cache, tokens), 7) == 4  # the caller wants row 7 computed
    cache.end(2)
    assert cache.begin(2, hashes_of(cache, tokens), 17) == 16
    cache.end(2)
    cache.end(1)
    assert cache.free_pages() == (30,)


def test_pages_in_use_are_shared_and_outlive_their_first_owner() -> None:
    cache = make(10)
    tokens = list(range(12))
    run(cache, 0, tokens)
    run(cache, 1, tokens)
    assert cache.free_pages() == (6,)  # two shared, and one each for the last
    cache.end(0)
    assert cache.free_pages() == (7,)
    assert cache.extend(1, 12, 40)
    assert cache.free_pages() == (0,)
    assert sorted(cache.tables[0][1].tolist()) == list(range(10))
    cache.end(1)
    assert cache.free_pages() == (10,)


def test_two_that_compute_the_same_page_leave_one_under_its_block_hash() -> None:
    cache = make()
    tokens = list(range(8))
    hashes = hashes_of(cache, tokens)
    for slot in (0, 1):  # both begin before either has published
        assert cache.begin(slot, hashes, 7) == 0
        assert cache.extend(slot, 0, 8)
    for slot in (0, 1):
        cache.publish(slot, hashes, range(2))
    first, second = (cache.tables[0][slot, :2].tolist() for slot in (0, 1))
    assert not set(first) & set(second)
    cache.end(0)
    cache.end(1)
    assert cache.begin(2, hashes, 8) == 8
    assert cache.tables[0][2, :2].tolist() == first


def test_eviction_loses_the_end_of_a_prefix_first() -> None:
    cache = make(10)
    tokens = list(range(40))
    run(cache, 0, tokens)
    cache.end(0)
    assert cache.extend(1, 0, 12)  # three pages for somebody else
    assert cache.begin(0, hashes_of(cache, tokens), 39) == 28


def test_extending_takes_all_or_nothing() -> None:
    cache = make(12, 6, windows=(None, 4), length=16)
    assert cache.extend(0, 0, 16)
    assert cache.free_pages() == (8, 2)
    before = [table.copy() for table in cache.tables]
    assert not cache.extend(1, 0, 12)  # the first group could
    assert cache.free_pages() == (8, 2)
    assert all((table == old).all() for table, old in zip(cache.tables, before, strict=True))
    assert cache.extend(1, 0, 8)
    assert cache.free_pages() == (6, 0)
    assert cache.extend(1, 0, 8)  # they are there already
    assert cache.free_pages() == (6, 0)


def test_pages_that_left_the_window_are_given_back() -> None:
    cache = make(30, 30, windows=(None, 6))
    for start in range(0, 40, 4):
        assert cache.extend(0, start, start + 4)
    # Row 36 sees positions 31 to 36: pages 7, 8 and 9.
    assert (cache.tables[1][0] >= 0).nonzero()[0].tolist() == [7, 8, 9]
    assert (cache.tables[0][0] >= 0).all()
    assert cache.free_pages() == (20, 27)


@pytest.mark.parametrize("ahead", [1, 7])
@pytest.mark.parametrize("window", [1, 4, 6, 9])
def test_a_window_is_exact_at_every_token(window: int, ahead: int) -> None:
    """One token a step, with pages taken ahead for a chain now and then."""
    cache = make(30, 30, windows=(None, window))
    taken = 0
    for row in range(40):
        end = min(40, row + (ahead if row % 5 == 0 else 1))
        assert cache.extend(0, row, end)
        taken = max(taken, -(-end // SIZE))
        first = max(0, row - window + 1) // SIZE
        assert (cache.tables[1][0] >= 0).nonzero()[0].tolist() == list(range(first, taken))
        assert (cache.tables[0][0] >= 0).nonzero()[0].tolist() == list(range(taken))


def test_reuse_ends_where_a_window_page_is_missing() -> None:
    cache = make(30, 12, windows=(None, 6), length=40)
    tokens = list(range(40))
    hashes = hashes_of(cache, tokens)
    for start in range(0, 40, 4):
        assert cache.extend(0, start, start + 4)
        cache.publish(0, hashes, [start // 4])
    cache.end(0)
    assert cache.begin(1, hashes, 40) == 40
    assert (cache.tables[1][1] >= 0).nonzero()[0].tolist() == [8, 9]  # what row 40 looks back to
    assert (cache.tables[0][1] >= 0).sum() == 10
    cache.end(1)
    assert cache.begin(1, hashes, 8) == 8  # somebody begins alike, which makes the beginning new again
    cache.end(1)
    for _ in range(2 + 5):  # two that are free, then the longest unused
        cache._pools[1].take()
    gone = [at for at in range(10) if cache._pools[1].find(hashes[at]) is None]
    assert gone == [2, 3, 4, 5, 6]
    assert cache.begin(1, hashes, 36) == 36  # row 36 needs pages 7 and 8
    cache.end(1)
    assert cache.begin(1, hashes, 32) == 8  # row 32 needs page 6, row 8 pages 0 and 1
    assert (cache.tables[0][1] >= 0).nonzero()[0].tolist() == [0, 1]


def test_a_cache_that_does_not_hold_one_sequence_is_refused_with_numbers() -> None:
    with pytest.raises(ModelError, match="9 pages does not hold one sequence of 40 tokens, which takes 10"):
        make(9)
    window = KvCache.least(CacheGroup(1, 8, 100, ()), 100_000, SIZE, CHUNK)
    assert window == (100 + CHUNK) // SIZE + 1  # whatever the context
    assert KvCache.least(CacheGroup(1, 8, None, ()), 100_001, SIZE, CHUNK) == 25_001
    cache = make(30)
    assert cache.room_for([], 40) and cache.extend(0, 0, 40) and cache.extend(1, 0, 40)
    assert cache.room_for([], 40) and cache.extend(2, 0, 8) and not cache.room_for([], 40)


# ---- against a simple model


class Model:
    """What each page holds, by looking: every slot's tokens, and which of them are in reach."""

    def __init__(self, cache: KvCache, windows: tuple[int | None, ...]) -> None:
        self.cache = cache
        self.windows = windows
        self.holds: list[dict[int, tuple[int, ...]]] = [{} for _ in windows]  # page → all tokens to its end

    def wrote(self, slot: int, tokens: list[int], start: int, end: int) -> None:
        """Rows [start, end) were computed: no page that somebody else can see may have been touched."""
        for group, table in enumerate(self.cache.tables):
            for at in range(start // SIZE, -(-end // SIZE)):
                page = int(table[slot, at])
                others = [s for s in range(table.shape[0]) if s != slot and page in table[s]]
                assert page >= 0 and not others
                self.holds[group][page] = tuple(tokens[: min(end, (at + 1) * SIZE)])

    def check(self, slot: int, tokens: list[int], done: int) -> None:
        """Everything that row `done` looks back to is there and is right."""
        for group, (table, window) in enumerate(zip(self.cache.tables, self.windows, strict=True)):
            first = 0 if window is None else max(0, done - window + 1) // SIZE
            for at in range(first, -(-done // SIZE)):
                known = self.holds[group][int(table[slot, at])]
                assert known == tuple(tokens[: min(done, (at + 1) * SIZE)])


@pytest.mark.parametrize("windows", [(None,), (None, 6), (3, None), (9,), (None, 5, 12)], ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_random_schedules_against_a_simple_model(seed: int, windows: tuple[int | None, ...]) -> None:
    """Few pages, few distinct tokens: prefixes are shared, evicted and computed twice all the time."""
    rng = random.Random(seed)
    counts = tuple(rng.randint(10, 13) for _ in windows)
    slots, length = 4, 40
    cache = make(*counts, windows=windows, slots=slots, length=length)
    model = Model(cache, windows)
    active: dict[int, tuple[list[int], list[bytes], int]] = {}
    reused = refused = 0
    for _ in range(600):
        slot = rng.randrange(slots)
        if slot not in active:
            tokens = [rng.randrange(2) if i % 8 == 0 else 0 for i in range(rng.randint(1, length))]
            hashes = hashes_of(cache, tokens)
            done = cache.begin(slot, hashes, rng.randint(0, len(tokens)))
            reused += done > 0
            assert done % SIZE == 0
        else:
            tokens, hashes, done = active[slot]
            end = min(len(tokens), done + rng.randint(1, 10))
            free = cache.free_pages()
            if end == done or rng.random() < 0.1:
                cache.end(slot)
                del active[slot]
                assert all((table[slot] == -1).all() for table in cache.tables)
                continue
            if not cache.extend(slot, done, end):
                assert all(now >= was for now, was in zip(cache.free_pages(), free, strict=True))
                refused += 1
                cache.end(slot)  # preempted
                del active[slot]
                continue
            model.wrote(slot, tokens, done, end)
            cache.publish(slot, hashes, range(done // SIZE, end // SIZE))
            done = end
        active[slot] = (tokens, hashes, done)
        model.check(slot, tokens, done)
        for table, pool in zip(cache.tables, cache._pools, strict=True):
            assert pool.count - pool.available == len({int(page) for page in table.ravel() if page >= 0})
    assert reused > 20 and refused > 0
    for slot in active:
        cache.end(slot)
    assert cache.free_pages() == counts
