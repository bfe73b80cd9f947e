"""Soft tokens in a prompt: rows with embeddings of an image or a sound in place of tokens.

A media block is one image, one frame of a video or one sound. Where a model's attention is bidirectional
inside of a block, the block is computed in one step and reused as a whole, so no chunk and no reused prefix
ends within it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from olivine import checks
from olivine.backends.base import Float32
from olivine.errors import RequestError

# What stands for a soft token among the tokens of a sequence. It is no token: it is never drafted, penalized
# or scored.
SOFT = -1


@dataclass(frozen=True, eq=False)
class MediaBlock:
    """The soft tokens of one image, frame or sound, and where they are in the prompt."""

    start: int  # the position of the first
    embeddings: Float32  # [n, D]
    digest: bytes  # of the content and of how it was encoded: equal ones have equal embeddings
    bidirectional: bool = False  # each of its rows attends to all of them, where the model's attention does

    @property
    def end(self) -> int:
        """The position after the last."""
        return self.start + len(self.embeddings)

    def checked(self, width: int) -> MediaBlock:
        """The block with plain values and float32 rows, or an error that says what is wrong with it."""
        start = checks.integer("0 or more", 0, checks.INT32)("media.start", self.start)
        rows = np.ascontiguousarray(self.embeddings, np.float32)
        if rows.ndim != 2 or not len(rows) or rows.shape[1] != width:
            raise RequestError(
                f"the embeddings of a media block must be [soft tokens, {width}], and are {list(rows.shape)}",
                param="media",
            )
        # A NaN would stay in the pages of the KV cache.
        if not np.isfinite(rows).all():
            raise RequestError("the embeddings of a media block are not all finite numbers", param="media")
        if not isinstance(self.digest, bytes) or not self.digest:
            raise RequestError("a media block needs a digest of its content, as bytes", param="media")
        return replace(self, start=start, embeddings=rows, bidirectional=bool(self.bidirectional))

    def key(self, position: int) -> bytes:
        """What a page that begins at `position` has of the block, as part of its block hash."""
        place = np.array([position - self.start, len(self.embeddings), self.bidirectional], np.int64)
        return place.tobytes() + self.digest


def checked_media(media: Any, width: int, length: int) -> tuple[MediaBlock, ...]:
    """The blocks of a prompt of `length` tokens, in their order."""
    if not isinstance(media, Sequence) or not all(isinstance(each, MediaBlock) for each in media):
        raise checks.refused("media", "a list of MediaBlock", media)
    blocks = sorted((each.checked(width) for each in media), key=lambda each: each.start)
    end = 0
    for block in blocks:
        if block.start < end or block.end > length:
            raise RequestError(
                f"a media block at {block.start}..{block.end - 1} overlaps another one, or the end of the "
                f"prompt at {length}",
                param="media",
            )
        end = block.end
    return tuple(blocks)


def marked(prompt: Sequence[int], blocks: Sequence[MediaBlock]) -> list[int]:
    """The prompt with `SOFT` at the positions of the blocks, whatever stood there."""
    tokens = list(prompt)
    for block in blocks:
        tokens[block.start : block.end] = [SOFT] * len(block.embeddings)
    return tokens


def text_of(prompt: Sequence[int], blocks: Sequence[MediaBlock]) -> Sequence[int]:
    """The tokens of a prompt that are text."""
    if not blocks:
        return prompt
    starts, ends = [0, *(block.end for block in blocks)], [*(block.start for block in blocks), len(prompt)]
    return [token for start, end in zip(starts, ends, strict=True) for token in prompt[start:end]]


def whole_chunk(blocks: Sequence[MediaBlock], start: int, end: int) -> int:
    """Where a chunk from `start` on ends that should end at `end`: before the bidirectional block that this
    would cut, or after it where the chunk begins with it."""
    for block in blocks:
        if block.bidirectional and block.start < end < block.end:
            return block.end if block.start <= start else block.start
    return end


def splits_block(blocks: Sequence[MediaBlock], position: int) -> bool:
    """Whether what begins at `position` begins within a bidirectional block."""
    return any(block.bidirectional and block.start < position < block.end for block in blocks)


def longest_block(blocks: Sequence[MediaBlock]) -> int:
    """Rows of the longest block that one step has to compute."""
    return max((len(block.embeddings) for block in blocks if block.bidirectional), default=0)
