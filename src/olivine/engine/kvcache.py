"""Which page of the KV cache holds which tokens of which sequence, and which pages can be used again.

A full page is immutable and has a block hash: that of all tokens up to its end (and of the kind of row that
each of them was computed as, if the program has two; of soft tokens, the digest of their media). A sequence
that begins with the same tokens reuses such pages instead of computing them again. Pages that no sequence
uses stay in this prefix cache until they are evicted, the least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np

from olivine.backends import CHUNK, Program
from olivine.engine.media import MediaBlock, splits_block
from olivine.errors import ModelError, RequestError
from olivine.plan import CacheGroup


class Pool:
    """The pages of one cache group."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._users = [0] * count
        self._hash: list[bytes | None] = [None] * count
        self._by_hash: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # hashed pages without users, the oldest first

    @property
    def available(self) -> int:
        return len(self._free) + len(self._idle)

    def take(self) -> int:
        """A page to write to. The caller has looked at `available`."""
        if self._free:
            page = self._free.pop()
        else:
            page, _ = self._idle.popitem(last=False)
            self._evict(page)
        self._users[page] = 1
        return page

    def find(self, block_hash: bytes) -> int | None:
        return self._by_hash.get(block_hash)

    def is_idle(self, page: int) -> bool:
        return page in self._idle

    def share(self, page: int) -> int:
        """One user more for a page with a block hash."""
        self._idle.pop(page, None)
        self._users[page] += 1
        return page

    def register(self, page: int, block_hash: bytes) -> None:
        """The page is full. If another page has the block hash already, this one stays without."""
        if self._hash[page] is None and block_hash not in self._by_hash:
            self._hash[page] = block_hash
            self._by_hash[block_hash] = page

    def give_back(self, page: int) -> None:
        self._users[page] -= 1
        if self._users[page]:
            return
        if self._hash[page] is None:
            self._free.append(page)
        else:
            self._idle[page] = None

    def forget(self) -> None:
        """No page is reused any more."""
        self._by_hash.clear()
        self._hash = [None] * self.count
        self._free += self._idle
        self._idle.clear()

    def _evict(self, page: int) -> None:
        block_hash = self._hash[page]
        assert block_hash is not None
        del self._by_hash[block_hash]
        self._hash[page] = None


class KvCache:
    """Page tables for a fixed number of sequence slots, one table a cache group."""

    def __init__(self, program: Program, slots: int, length: int) -> None:
        self.page_size, self._chunk = program.page_size, program.chunk
        self._one_kind = program.one_kind
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
        # By slot: positions below `_held` have their pages, and rows before `_kept` attend to all of them.
        # Within both, `extend` has nothing to do: that is most decode steps.
        self._held, self._kept = [0] * slots, [0] * slots

    @staticmethod
    def least(group: CacheGroup, length: int, page_size: int, chunk: int) -> int:
        """Pages of a group that one sequence of `length` tokens can need at the same time, with steps of
        up to `chunk` rows."""
        pages = -(-length // page_size)
        if group.window is None:
            return pages
        return min(pages, -(-(group.window + chunk) // page_size) + 1)

    def refuse_long_block(self, rows: int, length: int) -> None:
        """Raises where the pages do not hold a sequence of `length` tokens of which one step has so many
        rows: a media block that is computed as a whole."""
        for pool, group in zip(self._pools, self._groups, strict=True):
            if pool.count < (least := self.least(group, length, self.page_size, rows)):
                raise RequestError(
                    f"an image of {rows} soft tokens needs {least} pages of KV cache at once, with a window "
                    f"of {group.window} tokens, and there are {pool.count}: give it fewer tokens, or load "
                    "the model with more kv_bytes",
                    param="media",
                )

    def forget(self) -> None:
        """No page is reused any more. Those of running sequences stay theirs, until they give them back."""
        for pool in self._pools:
            pool.forget()

    def hash_blocks(
        self,
        tokens: Sequence[int],
        kinds: bytes | bytearray,
        block_hashes: list[bytes],
        media: Sequence[MediaBlock] = (),
    ) -> None:
        """Adds the block hashes of further full pages of a sequence to those that are known already."""
        size = self.page_size
        for start in range(len(block_hashes) * size, len(tokens) - size + 1, size):
            content = np.array(tokens[start : start + size], np.int32).tobytes()
            before = block_hashes[-1] if block_hashes else b""
            content = before + content + (b"" if self._one_kind else bytes(kinds[start : start + size]))
            for block in media:
                if block.start < start + size and start < block.end:
                    content += block.key(start)
            block_hashes.append(blake2b(content, digest_size=16).digest())

    def begin(
        self, slot: int, block_hashes: Sequence[bytes], limit: int, media: Sequence[MediaBlock] = ()
    ) -> int:
        """Reuses what the prefix cache has of the sequence's first `limit` tokens; returns how many.

        A window needs only the pages that the next token attends to. A bidirectional block is reused as a
        whole, or not from where it begins on: what a step computes of it, it computes of all of it.
        """
        longest = min(len(block_hashes), limit // self.page_size)
        found: list[list[int]] = []
        for pool, group in zip(self._pools, self._groups, strict=True):
            there = [pool.find(block_hash) for block_hash in block_hashes[:longest]]
            found.append([-1 if page is None else page for page in there])
            if group.window is None:
                longest = next((i for i, page in enumerate(there) if page is None), longest)
        while longest and (
            splits_block(media, longest * self.page_size)
            or not all(
                -1 not in pages[self._first_page(group, longest * self.page_size) : longest]
                for pages, group in zip(found, self._groups, strict=True)
            )
        ):
            longest -= 1
        for pool, group, table, pages in zip(self._pools, self._groups, self.tables, found, strict=True):
            for at in range(self._first_page(group, longest * self.page_size), longest):
                table[slot, at] = pool.share(pages[at])
        return longest * self.page_size

    def room_for(self, block_hashes: Sequence[bytes], length: int) -> bool:
        """Whether a sequence of that many tokens could begin now: with free pages, and pages that others use
        and it can share."""
        for pool, group in zip(self._pools, self._groups, strict=True):
            needed = self.least(group, length, self.page_size, min(CHUNK, self._chunk))
            if group.window is None:
                for block_hash in block_hashes:
                    page = pool.find(block_hash)
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
        if end <= self._held[slot] and start < self._kept[slot]:
            return True
        missing: list[list[int]] = []
        first, last = start // self.page_size, -(-end // self.page_size)
        for pool, group, table in zip(self._pools, self._groups, self.tables, strict=True):
            row = table[slot]
            for at in range(self._first_page(group, start) - 1, -1, -1):
                if row[at] < 0:
                    break
                pool.give_back(int(row[at]))
                row[at] = -1
            missing.append([at for at in range(first, last) if row[at] < 0])
        if any(pool.available < len(want) for pool, want in zip(self._pools, missing, strict=True)):
            return False
        for pool, table, want in zip(self._pools, self.tables, missing, strict=True):
            for at in want:
                table[slot, at] = pool.take()
        self._held[slot] = max(self._held[slot], last * self.page_size)
        self._kept[slot] = min((self._next_release(group, start) for group in self._groups), default=start)
        return True

    def publish(self, slot: int, block_hashes: Sequence[bytes], pages: Iterable[int]) -> None:
        """These pages of the sequence are full now: the prefix cache has them under their block hashes."""
        for at in pages:
            for pool, table in zip(self._pools, self.tables, strict=True):
                if table[slot, at] >= 0:
                    pool.register(int(table[slot, at]), block_hashes[at])

    def end(self, slot: int) -> None:
        """Takes back all pages of the slot."""
        for pool, group, table in zip(self._pools, self._groups, self.tables, strict=True):
            used = [int(page) for page in table[slot] if page >= 0]
            # What is given back first is evicted first: the end of a prefix is useless without its
            # beginning, and the beginning of a window without its end.
            for page in used if group.window is not None else reversed(used):
                pool.give_back(page)
            table[slot] = -1
        self._held[slot] = 0

    def free_pages(self) -> tuple[int, ...]:
        """Pages that no sequence uses, a cache group."""
        return tuple(pool.available for pool in self._pools)

    def _first_page(self, group: CacheGroup, position: int) -> int:
        """The first page that a row at `position` attends to."""
        return 0 if group.window is None else max(0, position - group.window + 1) // self.page_size

    def _next_release(self, group: CacheGroup, position: int) -> int:
        """The first position after `position` whose row no longer attends to all pages that it does."""
        if group.window is None:
            return self._pages * self.page_size
        return (self._first_page(group, position) + 1) * self.page_size + group.window - 1


def common_prefix(a: Sequence[bytes], b: Sequence[bytes]) -> int:
    """How many block hashes two sequences have in common from their beginning on."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
