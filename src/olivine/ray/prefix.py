"""Prefixes of prompts: their hashes, which replica was sent them, and which of the replicas is preferred.

A replica keeps the keys and values of prompts that it has read, so a prompt that begins as an earlier one is
answered sooner where that one went. A prompt's text is hashed in blocks, each with those before it: two
prompts share as many hashes as blocks at their beginning. Nothing here knows of Ray.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Generic, TypeVar

from olivine.server.errors import ApiError
from olivine.server.reading import json_of

BLOCK = 128  # characters: a page of tokens, about
MOST_BLOCKS = 512  # of a prompt; what differs after that goes where its beginning went
MOST_KNOWN = 1 << 17  # blocks in an index: about 30 MB
BOUND = 1.25  # how much busier than the mean the preferred replica may be
# Where the APIs have what comes first in a prompt, in the order of chat templates.
FIELDS = ("model", "tools", "system", "instructions", "messages", "input", "prompt")
K = TypeVar("K", bound=Hashable)


def prefixes_of(body: bytes) -> tuple[bytes, ...]:
    """The hashes of the blocks of a prompt, from a request's body in any of the APIs; () if it has none."""
    try:
        found = json_of(body)
    except ApiError:  # replicas say so
        return ()
    most, size, parts = BLOCK * MOST_BLOCKS, 0, []
    for part in _texts([found[name] for name in FIELDS if name in found]):
        parts.append(part)
        size += len(part) + 1
        if size >= most:
            break
    return tuple(_hashes("\x1f".join(parts)[:most]))


def _hashes(text: str) -> Iterator[bytes]:
    """A hash for each block that is full: the rest of a conversation follows the last."""
    before = b""
    for start in range(0, len(text) - BLOCK + 1, BLOCK):
        block = text[start : start + BLOCK].encode("utf-8", "surrogatepass")
        before = blake2b(block, digest_size=8, key=before).digest()
        yield before


def _texts(value: Any) -> Iterator[str]:
    """The texts of a JSON value, in order. Media are long: their digest stands for them."""
    if isinstance(value, dict):
        for name in sorted(value):
            yield name
            yield from _texts(value[name])
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    else:
        text = value if isinstance(value, str) else str(value)
        media = len(text) > BLOCK and " " not in text[: 2 * BLOCK] and text[: 2 * BLOCK].isascii()
        yield blake2b(text.encode(), digest_size=16).hexdigest() if media else text


class PrefixIndex(Generic[K]):
    """Which replicas were sent which blocks. The blocks that were not seen for longest are forgotten."""

    def __init__(self, most: int = MOST_KNOWN) -> None:
        self._most = most
        self._replicas: OrderedDict[bytes, set[K]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replicas)

    def learn(self, prefixes: Sequence[bytes], replica: K) -> None:
        """A replica was sent a prompt."""
        for each in reversed(prefixes):  # of one prompt, its end is forgotten first
            self._replicas.setdefault(each, set()).add(replica)
            self._replicas.move_to_end(each)
        while len(self._replicas) > self._most:
            self._replicas.popitem(last=False)

    def depths(self, prefixes: Sequence[bytes]) -> dict[K, int]:
        """How many blocks at the beginning of a prompt each replica has been sent; none are left out."""
        found: dict[K, int] = {}
        for depth, each in enumerate(prefixes, 1):
            replicas = self._replicas.get(each)
            if not replicas:
                break
            found.update(dict.fromkeys(replicas, depth))
        return found

    def keep(self, replicas: set[K]) -> None:
        """Forgets all replicas but these."""
        for each in [*self._replicas]:
            self._replicas[each] &= replicas
            if not self._replicas[each]:
                del self._replicas[each]


def preferred(depths: Mapping[K, int], loads: Mapping[K, float]) -> K | None:
    """The replica with most of a prompt, the idlest of several; None where it is too much busier than the
    others, or none has anything. `loads` has the requests of every replica there is."""
    known = {each: depths[each] for each in loads if depths.get(each)}
    if not known:
        return None
    most = max(known.values())
    best = min((each for each in known if known[each] == most), key=lambda each: loads[each])
    mean = sum(loads.values()) / len(loads)
    # With one request more on all, so that an idle cluster does not refuse the second request of a prefix.
    return best if loads[best] <= BOUND * (mean + 1) else None
