"""Arrays of many strings in a GGUF file: read at once, they are what they are one by one."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from formats.builders import gguf_file, gguf_strings, gguf_text
from olivine.errors import CheckpointError
from olivine.formats import gguf
from olivine.formats.mapping import Source


def strings_of(raw: list[bytes]) -> tuple[list[str], dict]:
    file = gguf_file([gguf_strings("s", raw), gguf_text("after", "here")])
    metadata = gguf.parse(Source(Path("x.gguf"), file)).metadata
    return metadata["s"], metadata


def test_many_strings_at_once_are_the_strings_one_by_one(monkeypatch):
    """All kinds of strings, of which some make reading at once impossible."""
    rng = random.Random(61)
    plain = [b"a", b"word", "Ġthe".encode(), "漢字🚀".encode(), b" ", b"\n", b"\x01", b"\xff", b"\xe2\x96"]
    long = [b"x" * 255, b"x" * 256, b"yz" * 256, b"z" * 65535, b"z" * 65536]
    odd = [b"", b"\0", b"a\0", b"\0a", bytes(8), bytes(9), b"a" + bytes(7), b"\1" + bytes(7) + b"b"]
    at_once = []
    read = gguf._Reader.short_strings

    def spy(self, count):
        result = read(self, count)
        at_once.append(result is not None)
        return result

    monkeypatch.setattr(gguf._Reader, "short_strings", spy)
    for pool in (plain, plain, plain * 40 + long[:3], plain * 40 + long, plain + odd, plain * 99 + odd):
        for _ in range(6):
            count = rng.randint(256, 1200)
            raw = [rng.choice(pool) + rng.choice(plain) * rng.randint(0, 2) for _ in range(count)]
            raw[rng.randrange(count)] = rng.choice(pool)
            found, metadata = strings_of(raw)
            assert found == [item.decode("utf-8", "surrogateescape") for item in raw]
            assert metadata["after"] == "here"
    assert at_once.count(True) > 12
    assert at_once.count(False) > 6


def test_many_strings_that_reach_past_the_end_are_refused_alike():
    raw = [f"token{i}".encode() for i in range(300)]
    file = gguf_file([gguf_strings("s", raw)])
    start = file.index(b"token0") - 8
    for cut in (len(file) - 1, len(file) - 6, len(file) - 9, start + 8 * 300, start + 8 * 300 + 3):
        with pytest.raises(CheckpointError, match=r"s: entry \d+ of 300 reaches past the end of the file"):
            gguf.parse(Source(Path("x.gguf"), file[:cut]))
    for entry in (0, 150, 299):
        at = file.index(f"token{entry}".encode(), start) - 8
        for length in (2**64 - 1, 2**32, 2**16, 5000):
            lie = file[:at] + struct.pack("<Q", length) + file[at + 8 :]
            with pytest.raises(CheckpointError, match=f"s: entry {entry} of 300 reaches past the end"):
                gguf.parse(Source(Path("x.gguf"), lie))
