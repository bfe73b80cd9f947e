"""Requests that wait: by priority, fairly between clients, and then by arrival.

Start-time fair queueing. Each priority has a virtual time: the tag of the request that was admitted last. The
tag of a client's next request is one more than the virtual time, or than the client's last tag if that is
later: a client with many requests waits for itself, and one with a single request goes before the second of
everybody else.
"""

from __future__ import annotations

import weakref
from bisect import insort
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from olivine.engine.sequence import Sequence

_RANK = attrgetter("rank")


@dataclass(slots=True)
class Client:
    """A client while requests of it wait at one priority."""

    tag: int  # of its last request
    waiting: int = 0


@dataclass(eq=False)
class Level:
    """The requests of one priority."""

    time: int = 0
    clients: dict[str, Client] = field(default_factory=dict)


class Queue:
    """The sequences that wait. Only the engine's thread changes it; any thread may ask for its size."""

    def __init__(self) -> None:
        self._waiting: list[Sequence] = []  # by rank
        # A priority is forgotten with its last sequence: which priorities there are is up to the callers.
        self._levels: weakref.WeakValueDictionary[int, Level] = weakref.WeakValueDictionary()
        self._counts: defaultdict[str, int] = defaultdict(int)  # by client

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)

    def of(self, client: str) -> int:
        """How many requests of a client wait."""
        return self._counts.get(client, 0)

    def add(self, sequence: Sequence) -> None:
        """A sequence enters. One that was here before keeps its rank, and so goes before all that were not
        admitted yet."""
        level, name = sequence.level, sequence.request.client
        if level is None:
            level = self._levels.setdefault(sequence.request.priority, Level())
        # A client of which no request waits has no tag after the virtual time: it can be forgotten.
        client = level.clients.get(name) or Client(level.time)
        tag = client.tag
        if sequence.level is None:
            tag = max(level.time, tag) + 1
            sequence.rank = (sequence.request.priority, tag, sequence.number)
        insort(self._waiting, sequence, key=_RANK)
        sequence.level = level
        level.clients[name] = client
        client.tag = tag
        client.waiting += 1
        self._counts[name] += 1

    def admit(self, sequence: Sequence) -> None:
        """A sequence leaves because it will run."""
        if sequence.level is not None:
            sequence.level.time = max(sequence.level.time, sequence.rank[1])
        self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        """A sequence leaves."""
        self._waiting.remove(sequence)
        level, name = sequence.level, sequence.request.client
        assert level is not None
        client = level.clients[name]
        client.waiting -= 1
        if not client.waiting:
            del level.clients[name]
        self._counts[name] -= 1
        if not self._counts[name]:
            del self._counts[name]

    def clear(self) -> None:
        """All leave."""
        for sequence in [*self._waiting]:
            self.remove(sequence)
