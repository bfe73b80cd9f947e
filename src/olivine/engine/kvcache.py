"""Which page of the KV cache holds which tokens of which sequence, and which pages can be used again.

A full page is immutable and has a name: the hash of all tokens up to its end (and of how each of them was
computed). A sequence that begins with the same tokens takes such pages over instead of computing them anew.
Pages that nobody uses keep their names until they are needed for something else, the longest unused first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np

from olivine.backends import CHUNK, Program
from olivine.errors import ModelError
from olivine.plan import CacheGroup


class Pool:
    """The pages of one cache group."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._users = [0] * count
        self._name: list[bytes | None] = [None] * count
        self._named: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # named pages that nobody uses, the oldest first

    @property
    def available(self) -> int:
        return len(self._free) + len(self._idle)

    def take(self) -> int:
        """A page to write to. The caller has looked at `available`."""
        if self._free:
            page = self._free.pop()
        else:
            page, _ = self._idle.popitem(last=False)
            self._forget(page)
        self._users[page] = 1
        return page

    def find(self, name: bytes) -> int | None:
        return self._named.get(name)

    def is_idle(self, page: int) -> bool:
        return page in self._idle

    def share(self, page: int) -> int:
        """One user more for a named page."""
        self._idle.pop(page, None)
        self._users[page] += 1
        return page

    def name(self, page: int, name: bytes) -> None:
        """The page is full. If another page has the name already, this one stays without."""
        if self._name[page] is None and name not in self._named:
            self._name[page] = name
            self._named[name] = page

    def give_back(self, page: int) -> None:
        self._users[page] -= 1
        if self._users[page]:
            return
        if self._name[page] is None:
            self._free.append(page)
        else:
            self._idle[page] = None

    def _forget(self, page: int) -> None:
        name = self._name[page]
        assert name is not None
        del self._named[name]
        self._name[page] = None


class KvCache:
    """Page tables for a fixed number of sequence slots, one table a cache group."""

    def __init__(self, program: Program, slots: int, length: int) -> None:
        self.page_size, self._chunk = program.page_size, program.chunk
        self._groups: tuple[CacheGroup, ...] = program.plan.groups
        self._pools = [Pool(count) for count in program.page_counts]
        self._pages = -(-length // self.page_size)
        for group, count in zip(self._groups, program.page_counts, strict=True):
            if count < (least := self.least(group, length, self.page_size, self._chunk)):
                raise ModelError(
                    f"a KV cache of {count} pages does not hold one sequence of {length} tokens, which takes "
                    f"{least}: lower the context or raise the cache's budget"
                )
        self.tables = tuple(np.full((slots, self._pages), -1, np.int32) for _ in self._groups)

    @staticmethod
    def least(group: CacheGroup, length: int, page_size: int, chunk: int) -> int:
        """Pages of a group that one sequence of `length` tokens can need at the same time, with steps of
        up to `chunk` rows."""
        pages = -(-length // page_size)
        if group.window is None:
            return pages
        return min(pages, -(-(group.window + chunk) // page_size) + 1)

    def names(self, tokens: Sequence[int], kinds: bytes | bytearray, names: list[bytes]) -> None:
        """Adds the names of further full pages of a sequence to those that are known already."""
        size = self.page_size
        for start in range(len(names) * size, len(tokens) - size + 1, size):
            content = np.array(tokens[start : start + size], np.int32).tobytes()
            before = names[-1] if names else b""
            names.append(
                blake2b(before + content + bytes(kinds[start : start + size]), digest_size=16).digest()
            )

    def begin(self, slot: int, names: Sequence[bytes], limit: int) -> int:
        """Takes over what there is of the sequence's first `limit` tokens; gives how many tokens that is.

        A window needs only the pages that the next token looks back to.
        """
        longest = min(len(names), limit // self.page_size)
        found: list[list[int]] = []
        for pool, group in zip(self._pools, self._groups, strict=True):
            there = [pool.find(name) for name in names[:longest]]
            found.append([-1 if page is None else page for page in there])
            if group.window is None:
                longest = next((i for i, page in enumerate(there) if page is None), longest)
        while longest and not all(
            -1 not in pages[self._first_page(group, longest * self.page_size) : longest]
            for pages, group in zip(found, self._groups, strict=True)
        ):
            longest -= 1
        for pool, group, table, pages in zip(self._pools, self._groups, self.tables, found, strict=True):
            for at in range(self._first_page(group, longest * self.page_size), longest):
                table[slot, at] = pool.share(pages[at])
        return longest * self.page_size

    def room_for(self, names: Sequence[bytes], length: int) -> bool:
        """Whether a sequence of that many tokens could begin now: with free pages, and pages that others use
        and it can share."""
        for pool, group in zip(self._pools, self._groups, strict=True):
            needed = self.least(group, length, self.page_size, min(CHUNK, self._chunk))
            if group.window is None:
                for name in names:
                    page = pool.find(name)
                    if page is None or pool.is_idle(page):
                        break
                    needed -= 1
            if pool.available < needed:
                return False
        return True

    def extend(self, slot: int, start: int, end: int) -> bool:
        """Pages for the tokens [start, end), which run next; those that left the window are given back.

        False, and nothing is taken, if there are not enough.
        """
        missing: list[list[int]] = []
        for pool, group, table in zip(self._pools, self._groups, self.tables, strict=True):
            row = table[slot]
            for at in range(self._first_page(group, start) - 1, -1, -1):
                if row[at] < 0:
                    break
                pool.give_back(int(row[at]))
                row[at] = -1
            first, last = start // self.page_size, -(-end // self.page_size)
            missing.append([at for at in range(first, last) if row[at] < 0])
        if any(pool.available < len(want) for pool, want in zip(self._pools, missing, strict=True)):
            return False
        for pool, table, want in zip(self._pools, self.tables, missing, strict=True):
            for at in want:
                table[slot, at] = pool.take()
        return True

    def publish(self, slot: int, names: Sequence[bytes], pages: Iterable[int]) -> None:
        """These pages of the sequence are full now, and can be found under their names."""
        for at in pages:
            for pool, table in zip(self._pools, self.tables, strict=True):
                if table[slot, at] >= 0:
                    pool.name(int(table[slot, at]), names[at])

    def end(self, slot: int) -> None:
        """Takes back all pages of the slot."""
        for pool, group, table in zip(self._pools, self._groups, self.tables, strict=True):
            used = [int(page) for page in table[slot] if page >= 0]
            # What is given back first is forgotten first: the end of a prefix is useless without its
            # beginning, and the beginning of a window without its end.
            for page in used if group.window is not None else reversed(used):
                pool.give_back(page)
            table[slot] = -1

    def free_pages(self) -> tuple[int, ...]:
        """Pages that no sequence uses, a cache group."""
        return tuple(pool.available for pool in self._pools)

    def _first_page(self, group: CacheGroup, position: int) -> int:
        """The first page that a row at `position` attends to."""
        return 0 if group.window is None else max(0, position - group.window + 1) // self.page_size
