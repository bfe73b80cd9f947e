"""What a backend is, seen from outside: a plan and its weights go in, a `Program` comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from olivine.backends.tower_batch import check_tower
from olivine.checks import SAMPLING_CHECKS
from olivine.errors import OlivineError, RankError, RequestError
from olivine.plan import Plan
from olivine.tensor import Bytes, Tensor

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]


# Why a row has no next token.
BROKEN = "the model produced NaN or infinite logits: its weights or its input are broken"
NOTHING_LEGAL = "no token is allowed here: the grammar and the biases exclude them all"

# A weight is one tensor, or several whose rows follow each other (experts that a file stores one by one).
Weights = Mapping[str, Sequence[Tensor]]


Progress = Callable[[int, int], None]  # bytes done, bytes in all
CHUNK = 512  # prompt rows of a step, except on a GPU

# How keys and values can be stored, and the bytes that one of them takes.
CACHE_TYPES = {"BF16": 2.0, "F32": 4.0, "Q8_0": 1.125}


def refuse_cache_type(plan: Plan, cache_type: str) -> None:
    """Raises where a plan's KV cache cannot be of the type."""
    if cache_type not in CACHE_TYPES:
        raise RequestError(f"there is no cache type {cache_type!r}; known: {', '.join(CACHE_TYPES)}")
    if cache_type == "Q8_0" and any(group.head_dim % 32 for group in plan.groups):
        raise RequestError("a Q8_0 cache needs heads of a multiple of 32, and this model has others")


@dataclass(frozen=True)
class Batch:
    """T token rows of any number of sequences: prefill, decode and any mixture are all just batches.

    Rows of one sequence may come in several batches but must come in order: when a row runs, the keys of all
    earlier positions are in the cache or in the same batch. `sequences[t]` is a row of the page tables, and
    position p of that sequence lives in page `tables[group][sequence, p // page_size]`, slot `p % page_size`.
    """

    tokens: Int32  # [T]
    sequences: Int32  # [T]
    positions: Int32  # [T]
    outputs: Int32  # [R] the rows whose logits or hidden states are needed
    tables: tuple[Int32, ...]  # one [S, pages] a cache group; -1 where there is no page
    generated: npt.NDArray[np.bool_] | None = None  # [T] prompt row or generated row; None: all prompt rows
    # Embeddings that stand in for tokens (image and audio features): rows `embedding_rows` of the batch.
    # A tower reads one for each of its rows, and has no `embedding_rows`.
    embedding_rows: Int32 | None = None  # [M]
    embeddings: Float32 | None = None  # [M, D]
    # The last position that a row of an image sees in bidirectional attention: its block's. None: its own.
    last: Int32 | None = None  # [T]
    coordinates: Int32 | None = None  # [T, 2] where a row of a tower lies: see plan/tower_ops.py

    def check(self, plan: Plan, vocabulary: int, page_counts: Sequence[int], page_size: int) -> None:
        """Refuses what would read or write outside of the caches or the embedding table."""
        rows = len(self.tokens)
        if not (rows == len(self.sequences) == len(self.positions)):
            raise RequestError("a batch needs one token, sequence and position a row")
        if self.generated is not None and len(self.generated) != rows:
            raise RequestError("a batch needs one kind a row")
        if plan.input is not None:
            check_tower(self, plan, plan.input)
        elif self.coordinates is not None:
            raise RequestError("a batch with coordinates is for a tower, and this plan is none")
        elif (self.embeddings is None) != (self.embedding_rows is None):
            raise RequestError("injected embeddings need the rows they stand for")
        if self.embedding_rows is not None and self.embeddings is not None:
            _within("embedding rows", self.embedding_rows, rows)
            if self.embeddings.shape != (len(self.embedding_rows), plan.width):
                raise RequestError(f"injected embeddings must be [rows, {plan.width}]")
        _within("token ids", self.tokens, vocabulary)
        _within("output rows", self.outputs, rows)
        if self.last is not None:
            self._check_last(self.last)
        if len(self.tables) != len(plan.groups):
            raise RequestError(f"{len(self.tables)} page tables for {len(plan.groups)} cache groups")
        for table, pages, group in zip(self.tables, page_counts, plan.groups, strict=True):
            _within("sequences", self.sequences, table.shape[0])
            _within("positions", self.positions, table.shape[1] * page_size)
            if table.size and (table.min() < -1 or table.max() >= pages):
                raise RequestError(f"a page table names a page outside 0..{pages - 1}")
            # Attention reads every page between the first key that a row sees and the row itself.
            for sequence in _distinct(self.sequences):
                at = self.positions[self.sequences == sequence]
                first = 0 if group.window is None else max(0, int(at.min()) - group.window + 1)
                used = table[sequence, first // page_size : int(at.max()) // page_size + 1]
                if used.size and used.min() < 0:
                    raise RequestError(f"sequence {sequence} lacks a page for tokens that it attends to")

    def _check_last(self, last: Int32) -> None:
        """What a row sees must be in the cache or in this batch: a block of an image is never divided."""
        if len(last) != len(self.tokens):
            raise RequestError("a batch needs one last position a row")
        if (last < self.positions).any():
            raise RequestError("the last position that a row sees lies before its own")
        for sequence in _distinct(self.sequences):
            rows = self.sequences == sequence
            if last[rows].max() > self.positions[rows].max():
                raise RequestError(f"sequence {sequence} attends to positions that come after this batch")

    def check_chain(
        self, n: int, plan: Plan, vocabulary: int, page_counts: Sequence[int], page_size: int
    ) -> None:
        """Refuses output rows that n tokens cannot follow, and further positions without pages."""
        sequences, positions = self.sequences[self.outputs], self.positions[self.outputs].astype(np.int64)
        if len(set(sequences.tolist())) != len(sequences):
            raise RequestError("rows that go on must be of a sequence of their own each")
        for sequence, position in zip(sequences, positions, strict=True):
            if self.positions[self.sequences == sequence].max() > position:
                raise RequestError(f"sequence {sequence} must go on from its last row")
        # With the chain's last positions in the batch, all before them are checked too.
        ends = replace(
            self,
            tokens=np.append(self.tokens, self.tokens[self.outputs]),
            sequences=np.append(self.sequences, sequences),
            positions=np.append(self.positions.astype(np.int64), positions + min(n, 1 << 31) - 1),
            generated=None,
            last=None,
        )
        ends.check(plan, vocabulary, page_counts, page_size)


@dataclass(frozen=True)
class Result:
    """What a step gives for the R output rows."""

    hidden: Float32  # [R, D] after the final norm; of a tower, the soft tokens
    logits: Float32  # [R, V]


@dataclass(frozen=True)
class Sampling:
    """How to choose the next token: see engine/sampling.py. The defaults choose the likeliest."""

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int | None = None  # how much history the repetition penalty sees; None: all
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        for name, check in SAMPLING_CHECKS.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))
        if self.temperature < COLDEST:
            object.__setattr__(self, "temperature", 0.0)

    @property
    def penalizes(self) -> bool:
        """Whether a draw depends on the tokens before it."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


# A lower temperature counts as 0: a float32 hardly tells them apart, and a division by less may overflow.
COLDEST = 1e-6


@dataclass(frozen=True)
class Draw:
    """What to do with an output row's logits: choose the token at the position after the row's."""

    sampling: Sampling
    prompt: Sequence[int] = ()
    # With `prompt`, all tokens up to and including the row's; may be left out if `sampling` has no penalties.
    output: Sequence[int] = ()
    # Called once, when the logits are there: a bit a token, those legal for the first draw; None: all are.
    mask: Callable[[], Int32 | None] | None = None
    stop: Sequence[int] = ()
    at_least: int = 0  # tokens that must be drawn before a stop token is legal
    logprobs: int | None = None  # how many alternatives to report for each token; None: report nothing
    forced: int | None = None  # take this as the first token: to learn its log-probability

    def refusal(self, vocabulary: int) -> str | None:
        """Why a model of so many tokens cannot draw it, if it cannot: an error of its row alone."""
        for token in self.sampling.logit_bias:
            if not 0 <= token < vocabulary:
                return f"logit_bias names token {token}, and there are {vocabulary}"
        if self.forced is not None and not 0 <= self.forced < vocabulary:
            return f"token {self.forced} cannot be forced: there are {vocabulary}"
        if self.logprobs is not None and self.logprobs < 0:
            return f"logprobs must be 0 or more, and is {self.logprobs}"
        return None

    def legal(self, vocabulary: int) -> Int32 | None:
        """The bits that `mask` gives, for which this may wait. A mask that fails is an error of its row."""
        try:
            words = None if self.mask is None else self.mask()
        except OlivineError as error:
            raise RequestError(str(error)) from error
        except BaseException as error:  # a panic in a grammar's library is no Exception
            raise RequestError(f"the mask failed: {type(error).__name__}: {error}") from error
        if words is not None and words.size * 32 < vocabulary:
            raise RequestError(f"a mask of {words.size} words does not reach over {vocabulary} tokens")
        return words


class TokenLogprobs(NamedTuple):
    """Natural log-probabilities of a drawn token and of the likeliest, after bias, penalties and mask."""

    logprob: float
    top_tokens: list[int]  # the likeliest first
    top_logprobs: list[float]


@dataclass
class Drawn:
    """The result of a draw: its tokens, and whether a stop token (not among them) ended it."""

    tokens: list[int] = field(default_factory=list)
    stopped: bool = False
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # one a token, where they were asked for
    error: str | None = None  # why there is no next token: of this row alone


class Share(NamedTuple):
    """What one device has of a model: all of it, or the parts of some ranks."""

    plans: tuple[Plan, ...]
    weights: int  # bytes
    copied: int = 0  # … of those, in the memory of the CPU, that no file is behind


class Pages(Protocol):
    """Sizes a KV cache."""

    def __call__(
        self,
        page_size: int,
        chunk: int,
        cache_type: str,
        spare: Callable[[], int] | None = None,
        share: Share | None = None,
    ) -> tuple[list[int], int]:
        """The pages of each cache group, and the bytes that they take. `chunk` is the most prompt rows of a
        step. `spare` gives the bytes that the cache may take where the user did not say; None: a share of
        the machine's memory. `share`: of a divided model, what is on the device whose bytes are counted."""
        ...


class Collectives(Protocol):
    """A rank's way to the others. Each call waits for them."""

    def all_reduce(self, x: Float32) -> Float32:
        """The sum over the ranks of this stage, added in their order."""
        ...

    def all_gather(self, x: Float32, widths: Sequence[int]) -> Float32:
        """The columns of all ranks of this stage, side by side."""
        ...

    def send(self, x: Float32) -> None:
        """Hands rows to the same rank of the next stage."""
        ...

    def receive(self, shape: tuple[int, int]) -> Float32:
        """What the same rank of the stage before sent."""
        ...


class CompileOptions(NamedTuple):
    """What a backend is asked for, beside the plan and its weights."""

    pages: Pages
    cache_type: str | None = None  # a key of CACHE_TYPES; None: the backend's own
    threads: int | None = None  # None: as many as the backend finds best
    progress: Progress | None = None  # called while weights are copied to a device
    # The mapped files that the weights are in, with their paths: named where one is truncated during a step.
    files: Sequence[tuple[Bytes, str]] = ()
    collectives: Collectives | None = None  # a way to the other ranks, where the plan is one rank's part


class Compiled(NamedTuple):
    """A program, what it runs on, and the most that its KV cache takes."""

    program: Program
    device: str  # for people, with its name: "cpu×8 avx2"
    cache_bytes: int
    cache_type: str
    reads_files: bool = True  # weights are read where the files are mapped: the files must not change
    notes: tuple[str, ...] = ()  # what a user should know: what could not be divided


class Compile(Protocol):
    """The entry of a backend's package, by the name `compile`."""

    def __call__(self, plan: Plan, weights: Weights, options: CompileOptions) -> Compiled: ...


class Program(Protocol):
    """A plan compiled by a backend, with its KV cache."""

    @property
    def plan(self) -> Plan: ...
    @property
    def page_size(self) -> int: ...
    @property
    def page_counts(self) -> tuple[int, ...]: ...
    @property
    def chunk(self) -> int:
        """Prompt rows for a step: more would not be faster, and would keep other sequences waiting."""
        ...

    @property
    def one_kind(self) -> bool:
        """Whether a row has the same keys and values, to the last bit, as a prompt row and as a generated
        row: then each can be reused as the other."""
        ...

    def step(self, batch: Batch, *, logits: bool = True) -> Result:
        """Runs the batch; without `logits`, only the hidden states of its output rows are computed."""
        ...


@runtime_checkable
class DrawingProgram(Program, Protocol):
    """A program that chooses tokens by itself."""

    def generate(self, batch: Batch, draws: Sequence[Draw], n: int = 1) -> list[Drawn]:
        """Runs the batch and draws a token for each of its output rows; with n > 1, a chain of n steps.

        One draw an output row. In a chain, each output row must be the last of a sequence of its own: its
        token becomes the sequence's next row, and so on until n tokens are drawn or a stop token is. The page
        tables must hold the n - 1 positions that follow. Noise goes by position, so a chain gives the tokens
        that n single steps would give.
        """
        ...


@runtime_checkable
class InterruptedProgram(Protocol):
    """A program whose steps wait for other processes, which may hang, or end and be started again."""

    obstacle: str | None  # why no step can run now
    given_up: bool  # … nor later

    def wait(self, seconds: float) -> bool:
        """Whether a step can run, for which this waits so long at most."""
        ...

    def interrupt(self) -> None:
        """Ends the program while a step runs: that fails."""
        ...

    def loss(self) -> RankError | None:
        """Why the KV cache was lost since this was asked last, other than by a step that failed. A step
        before it is asked fails."""
        ...


@runtime_checkable
class ClosingProgram(Program, Protocol):
    """A program that can free its memory before it is dropped."""

    def close(self) -> None:
        """Frees the KV cache and ends the threads; a later step is an error."""
        ...


def _distinct(values: npt.NDArray[np.integer[Any]]) -> list[int]:
    """In order. Neighbors are mostly equal, which leaves few; np.unique imports much when first used."""
    starts = np.append(0, np.flatnonzero(values[1:] != values[:-1]) + 1)
    return sorted(set(values[starts].tolist())) if len(values) else []


def _within(what: str, values: npt.NDArray[np.integer[Any]], limit: int) -> None:
    if values.size and (int(values.min()) < 0 or int(values.max()) >= limit):
        raise RequestError(f"{what} must lie in 0..{limit - 1}, and one is {_worst(values, limit)}")


def _worst(values: npt.NDArray[np.integer[Any]], limit: int) -> int:
    return int(values[(values < 0) | (values >= limit)][0])
