"""How much memory the cache may take: what the system says, and what that makes in pages."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest

from olivine.backends import CHUNK, Share
from olivine.engine import budget
from olivine.engine.budget import MODEST, page_counts, spare_bytes
from olivine.engine.kvcache import KvCache
from olivine.errors import ModelError
from olivine.plan import Plan
from olivine.plan.stages import stages
from oracles import published, running

MEMINFO = "MemTotal:       32000000 kB\nMemFree:          100000 kB\nMemAvailable:    8000000 kB\n"


def system(folder: Path, meminfo: str | None, limit: str | None = None, current: str | None = None) -> int:
    for name, text in (("meminfo", meminfo), ("memory.max", limit), ("memory.current", current)):
        if text is not None:
            (folder / name).write_text(text)
    return spare_bytes(folder, folder)


def test_available_memory_counts_not_free_memory(tmp_path: Path) -> None:
    assert system(tmp_path, MEMINFO) == 8_000_000 * 1024


@pytest.mark.parametrize(
    ("limit", "current", "expected"),
    [
        ("max\n", "123\n", 8_000_000 * 1024),
        ("3000000\n", "1000000\n", 2_000_000),
        ("3000000\n", "4000000\n", 0),  # over its limit already
        ("900000000000\n", "0\n", 8_000_000 * 1024),  # more than the machine has
        ("nonsense", "5", 8_000_000 * 1024),
        ("3000000\n", None, 8_000_000 * 1024),
    ],
)
def test_a_control_groups_limit_counts(
    tmp_path: Path, limit: str, current: str | None, expected: int
) -> None:
    assert system(tmp_path, MEMINFO, limit, current) == expected


def test_files_in_memory_leave_a_control_group_its_room(tmp_path: Path) -> None:
    """The page cache of a model's file is part of memory.current."""
    (tmp_path / "memory.stat").write_text(
        "anon 500000\nfile 2100000\ninactive_file 1500000\nactive_file 500000\n"
    )
    assert system(tmp_path, MEMINFO, "3000000\n", "2600000\n") == 2_400_000
    (tmp_path / "memory.stat").write_text("inactive_file many\n")
    assert system(tmp_path, MEMINFO, "3000000\n", "2600000\n") == 400_000


@pytest.mark.parametrize("meminfo", [None, "", "MemAvailable:\n", "MemAvailable: many kB\n"])
def test_a_system_that_does_not_tell_gets_a_modest_cache(tmp_path: Path, meminfo: str | None) -> None:
    assert system(tmp_path, meminfo) == MODEST
    assert system(tmp_path, meminfo, "5000\n", "2000\n") == 3000


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """6 layers with a window of 5 tokens and one that keeps all; one KV head of 12."""
    folder = tmp_path_factory.mktemp("model")
    published.save(published.case("gemma3-mqa-small-window").make(), folder)
    return running.build(folder).plan


WINDOW, ALL = 6 * 2 * 12, 2 * 12  # numbers a token


def test_of_a_divided_plan_the_budget_is_for_what_a_device_has(plan: Plan) -> None:
    """A stage has some layers of each group, and all stages have the same pages."""
    parts = stages(plan, 2, lambda weight: prod(weight.shape))
    whole, size = page_counts(plan, 16, 2, 2048, 8, 10**9, CHUNK)
    shares = [Share((part,), 0) for part in parts]
    found = [page_counts(plan, 16, 2, 2048, 8, 10**9, CHUNK, share) for share in shares]
    assert [counts for counts, _ in found] == [whole, whole]
    assert sum(taken for _, taken in found) == size and 0 < found[0][1] < size
    assert page_counts(plan, 16, 2, 2048, 8, found[0][1], CHUNK, shares[0]) == found[0]
    assert page_counts(plan, 16, 2, 2048, 8, 10**9, CHUNK, Share(parts, 0)) == (whole, size)


def test_pages_for_all_sequences_where_there_is_room(plan: Plan) -> None:
    counts, size = page_counts(plan, 16, 2, context=2048, sequences=3, budget=10**9, chunk=CHUNK)
    windows = [group.window for group in plan.groups]
    assert sorted(windows, key=str) == [5, None]
    expected = {None: 3 * 128, 5: 3 * KvCache.least(plan.groups[windows.index(5)], 2048, 16, CHUNK)}
    assert counts == [expected[window] for window in windows]
    assert expected[5] == 3 * 34  # (5 + 512) / 16, and one more
    assert size == 2 * 16 * (expected[None] * ALL + expected[5] * WINDOW)


def test_a_budget_shrinks_all_groups_alike_and_is_kept(plan: Plan) -> None:
    full, whole = page_counts(plan, 16, 2, 2048, 8, 10**9, CHUNK)
    half, size = page_counts(plan, 16, 2, 2048, 8, whole // 2, CHUNK)
    assert half == [count // 2 for count in full] and size <= whole // 2
    one, least = page_counts(plan, 16, 2, 2048, 1, 10**9, CHUNK)
    assert page_counts(plan, 16, 2, 2048, 8, least, CHUNK) == (one, least)


def test_a_long_chunk_is_paid_for_once(plan: Plan) -> None:
    at = [group.window for group in plan.groups].index(5)
    short, _ = page_counts(plan, 16, 2, 8192, 4, 10**9, CHUNK)
    long, _ = page_counts(plan, 16, 2, 8192, 4, 10**9, chunk=CHUNK + 1600)
    assert long[at] == short[at] + 100 and long[1 - at] == short[1 - at]


def test_the_element_size_counts(plan: Plan) -> None:
    assert (
        page_counts(plan, 16, 4, 2048, 2, 10**9, CHUNK)[1]
        == 2 * page_counts(plan, 16, 2, 2048, 2, 10**9, CHUNK)[1]
    )
    # A block of 32 numbers in 34 bytes.
    eight = page_counts(plan, 16, 34 / 32, 2048, 2, 10**9, CHUNK)[1]
    assert eight == page_counts(plan, 16, 2, 2048, 2, 10**9, CHUNK)[1] * 34 // 64


def test_a_budget_too_small_for_one_sequence_is_refused_with_numbers(plan: Plan) -> None:
    with pytest.raises(ModelError, match=r"a context of 200000 tokens takes 10 MB of KV cache .* is 5 MB"):
        page_counts(plan, 16, 2, 200_000, 4, 5_000_000, CHUNK)


def test_without_a_budget_half_of_what_is_spare_is_taken(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = page_counts(plan, 16, 2, 2048, 8, 10**9, CHUNK)[1]
    monkeypatch.setattr(budget, "spare_bytes", lambda: whole)
    assert page_counts(plan, 16, 2, 2048, 8, None, CHUNK) == page_counts(
        plan, 16, 2, 2048, 8, whole // 2, CHUNK
    )
    # One sequence always, whatever the system says: pages cost nothing before they are used.
    monkeypatch.setattr(budget, "spare_bytes", lambda: 0)
    assert page_counts(plan, 16, 2, 2048, 8, None, CHUNK) == page_counts(plan, 16, 2, 2048, 1, 10**9, CHUNK)


def test_no_sequence_is_longer_than_the_machine_has_memory_for(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert budget.whole_bytes(tmp_path) == 1 << 62
    (tmp_path / "meminfo").write_text("MemFree: 1 kB\nMemTotal: 5000 kB\n")
    assert budget.whole_bytes(tmp_path) == 5_120_000
    monkeypatch.setattr(budget, "whole_bytes", lambda: 5_120_000)
    monkeypatch.setattr(budget, "spare_bytes", lambda: 1 << 40)
    page_counts(plan, 16, 2, 50_000, 4, None, CHUNK)
    with pytest.raises(ModelError, match=r"a context of 200000 tokens takes 10 MB of KV cache .* is 5 MB"):
        page_counts(plan, 16, 2, 200_000, 4, None, CHUNK)
