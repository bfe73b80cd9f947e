"""The façade users hold, and the one place where a checkpoint, a model, a backend and an engine meet."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from olivine import models, tokenizer
from olivine.backends import CACHE_TYPES, CHUNK, ClosingProgram, Program, refuse_cache_type
from olivine.checks import INT32, integer, integers
from olivine.completion import Completion, Options, Piece, Score, Text
from olivine.engine import Embed, Engine, Generate, Request, Sampling, Stats, Ticket, Update, Usage
from olivine.engine import Score as ScoreJob
from olivine.engine.budget import page_counts
from olivine.engine.engine import QUEUE
from olivine.errors import ContextError, DeadlineError, ModelError, OlivineError, RequestError
from olivine.formats import Checkpoint, open_checkpoint
from olivine.formats.gguf import SAMPLING
from olivine.formats.mapping import MappedFile, release
from olivine.streaming import Source, Stream, follow, result_of
from olivine.tokenizer import Tokenizer
from olivine.tokenizer.gguf import KEY

if TYPE_CHECKING:
    from olivine.chat.grammar import Grammar
    from olivine.chat.messages import Messages, Tools
    from olivine.conversation import Conversations, Delta, Reply, Turn

# Nobody asked for a cache of 128K tokens by opening a file that allows it.
DEFAULT_CONTEXT = 4096
DEFAULT_SEQUENCES = 8
PAGE_SIZE = 16
DEVICES = ("auto", "cpu", "cuda", "reference")
Progress = Callable[[int, int], None]  # bytes done, bytes in all
# Requests that one call with many of them has waiting at the same time: the queue is there for others too.
WAITING = 64


Prompt = str | Sequence[int]
T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C", Ticket, Stream[Any, Any])


def load(
    path: str | os.PathLike[str],
    *,
    device: str = "auto",
    threads: int | None = None,
    context: int | None = None,
    sequences: int = DEFAULT_SEQUENCES,
    kv_bytes: int | None = None,
    kv_type: str = "auto",
    speculate: bool = True,
    reproducible: bool = False,
    progress: Progress | None = None,
) -> LLM:
    """Opens a model: a safetensors folder, a GGUF file, a qwen3.c `.bin`, or "olivine-mini" in the box.

    `device` is "cpu", "cuda", "reference" or "auto": CUDA if it can be used. `threads` are the CPU's, by
    default as many as this process has physical cores; `context` is in tokens. Up to `sequences` requests run
    at the same time, with a KV cache of at most `kv_bytes`, by default half of the free memory (on the GPU,
    what the weights leave), of type `kv_type`: "bf16" (the default), "f32" or "q8_0", which takes half of
    bf16's memory. `speculate` lets the engine guess tokens from the text so far: that changes only the speed.
    `reproducible` reads earlier answers of a conversation again, whichever process made them. `progress` is
    called with the bytes of weights that are on the GPU, and their total.
    """
    return LLM(
        open_checkpoint(path),
        device=device,
        threads=threads,
        context=context,
        sequences=sequences,
        kv_bytes=kv_bytes,
        kv_type=kv_type,
        speculate=speculate,
        reproducible=reproducible,
        progress=progress,
    )


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer that a checkpoint brings along."""
    match checkpoint.format:
        case "gguf":
            return tokenizer.from_gguf(checkpoint.metadata)
        case "safetensors":
            folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
            return tokenizer.from_folder(folder)
        case "qwen3.c":
            rows = checkpoint.tensors["token_embd.weight"].shape[0]
            return tokenizer.from_qwen3c(checkpoint.path.with_name(checkpoint.path.name + ".tokenizer"), rows)


def model_of(checkpoint: Checkpoint) -> models.Model:
    """The plan and the weights of a checkpoint."""
    return models.build(checkpoint.architecture, checkpoint.naming, checkpoint.metadata, checkpoint.tensors)


# Where the publisher says nothing: llama.cpp's defaults. Greedy decoding leads small models into loops.
UNPUBLISHED = Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)


def published_sampling(checkpoint: Checkpoint) -> Sampling:
    """How the model's publisher samples from it; `UNPUBLISHED` where the files do not say."""
    if checkpoint.naming == "gguf":
        keys = {**SAMPLING, "repeat_last_n": "penalty_last_n"}
        told = {
            name: checkpoint.metadata[f"general.sampling.{key}"]
            for name, key in keys.items()
            if f"general.sampling.{key}" in checkpoint.metadata
        }
        if "repetition_penalty" in told and told.setdefault("repeat_last_n", 64) == -1:  # as llama.cpp does
            told["repeat_last_n"] = None
        return _sampling(told)
    if checkpoint.generation.get("do_sample") is False:
        return Sampling()  # which takes the likeliest token
    told = {
        name: checkpoint.generation[name] for name in SAMPLING if checkpoint.generation.get(name) is not None
    }
    if checkpoint.generation.get("do_sample") is True:
        told.setdefault("temperature", 1.0)  # as transformers has it
    return _sampling(told)


def suppressed(checkpoint: Checkpoint, vocabulary: int) -> list[int]:
    """The tokens that the model's publisher never lets it write; entries that are none are passed over."""
    if checkpoint.naming == "gguf":
        listed = checkpoint.metadata.get(f"{KEY}suppress_tokens")
    else:
        listed = checkpoint.generation.get("suppress_tokens")
    if not isinstance(listed, list | tuple | np.ndarray):
        return []
    return [
        int(token)
        for token in listed
        if isinstance(token, int | np.integer) and not isinstance(token, bool) and 0 <= token < vocabulary
    ]


def _sampling(told: dict[str, Any]) -> Sampling:
    """What a file recommends. Nonsense is passed over: a hint is no reason to refuse a model."""
    if not told:
        return UNPUBLISHED
    try:
        return Sampling(**{"temperature": 1.0, **told})
    except (OlivineError, TypeError):
        return UNPUBLISHED


def cache_size(model: models.Model, context: int) -> int:
    """Bytes of KV cache that one sequence of `context` tokens takes at most on the CPU."""
    from olivine.backends import cpu

    return page_counts(model.plan, cpu.PAGE_SIZE, 2, context, 1, 1 << 62, CHUNK)[1]


@dataclass(frozen=True)
class Compiled:
    """A program, what it runs on, and what its KV cache can take."""

    program: Program
    device: str
    cache_bytes: int
    cache_type: str
    warnings: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


def kernel_hints(device: str) -> tuple[str, ...]:
    """What a user should know about the speed of a chosen device."""
    if device != "cpu":
        return ()
    from olivine.backends import cpu

    slow = cpu.slow_kernels()
    return () if slow is None else (slow,)


def choose_device(device: str) -> tuple[str, tuple[str, ...]]:
    """ "cuda", "cpu" or "reference"; and what is to be said about that."""
    if device not in DEVICES:
        raise RequestError(f"there is no device {device!r}; known: {', '.join(DEVICES)}")
    if device not in ("auto", "cuda"):
        return device, ()
    from olivine.backends.devices import cuda_obstacle

    obstacle = cuda_obstacle()
    if obstacle is None:
        return "cuda", ()
    if device == "cuda":
        raise RequestError(f"CUDA cannot be used: {obstacle.reason}")
    return "cpu", (f"running on the CPU: {obstacle.reason}",) if obstacle.gpu else ()


def compile_plan(
    model: models.Model,
    device: str,
    threads: int | None,
    context: int,
    sequences: int = 1,
    kv_bytes: int | None = None,
    kv_type: str = "auto",
    progress: Progress | None = None,
    files: Sequence[MappedFile] = (),
) -> Compiled:
    """The plan on a backend, with a KV cache for that many sequences of `context` tokens, or for fewer.

    `files` are those that the weights are in: one that is truncated is named before the process ends."""
    device, notes = choose_device(device)
    if threads is not None and not 1 <= threads <= 1024:
        raise RequestError(f"threads must lie in 1..1024, and is {threads}")
    if not 1 <= sequences <= 4096:
        raise RequestError(f"sequences must lie in 1..4096, and is {sequences}")

    cache_type = kv_type.upper() if kv_type != "auto" else "F32" if device == "reference" else "BF16"
    refuse_cache_type(model.plan, cache_type)

    budget = kv_bytes

    def pages(page_size: int, chunk: int) -> tuple[list[int], int]:
        each = CACHE_TYPES[cache_type]
        return page_counts(model.plan, page_size, each, context, sequences, budget, chunk)

    if device == "reference":
        from olivine.backends.reference import ReferenceProgram

        counts, size = pages(PAGE_SIZE, CHUNK)
        program = ReferenceProgram(
            model.plan, model.weights, page_counts=counts, page_size=PAGE_SIZE, cache_type=cache_type
        )
        return Compiled(program, device, size, cache_type.lower())
    if device == "cuda":
        from olivine.backends import cuda

        if budget is None:
            budget = cuda.spare_bytes(model.plan, model.weights)
        counts, size = pages(cuda.PAGE_SIZE, cuda.CHUNK)
        on_gpu = cuda.CudaProgram(
            model.plan, model.weights, page_counts=counts, cache_type=cache_type, progress=progress
        )
        return Compiled(on_gpu, f"cuda {cuda.device_name()}", size, cache_type.lower())
    from olivine.backends import cpu

    count = threads or cpu.default_threads()
    counts, size = pages(cpu.PAGE_SIZE, CHUNK)
    native = cpu.CpuProgram(
        model.plan, model.weights, page_counts=counts, threads=count, cache_type=cache_type
    )
    for file in files:
        cpu.guard(native, file.data, str(file.path))
    name = f"cpu×{count} {cpu.isa()}"
    return Compiled(native, name, size, cache_type.lower(), notes, kernel_hints(device))


class LLM:
    """A model ready to run, for any number of threads. Use it as a context manager, or `close` it."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        device: str = "auto",
        threads: int | None = None,
        context: int | None = None,
        sequences: int = DEFAULT_SEQUENCES,
        kv_bytes: int | None = None,
        kv_type: str = "auto",
        speculate: bool = True,
        reproducible: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.reproducible = reproducible
        self.model = model_of(checkpoint)
        self.warnings = self.model.warnings
        if context is not None and context < 1:
            raise ModelError(f"a context of {context} tokens holds nothing; give at least 1")
        if context is not None and context > self.model.config.context:
            self.warnings += (
                f"a context of {context} tokens is longer than the {self.model.config.context} "
                "that the model was made for",
            )
        self.context = min(DEFAULT_CONTEXT, self.model.config.context) if context is None else context
        never = suppressed(checkpoint, self.model.plan.logits.width)
        self.sampling = replace(published_sampling(checkpoint), logit_bias=dict.fromkeys(never, -math.inf))
        compiled = compile_plan(
            self.model, device, threads, self.context, sequences, kv_bytes, kv_type, progress, checkpoint.maps
        )
        self.warnings += compiled.warnings
        self.hints = compiled.hints  # not about this model, but about the machine: for people, not for logs
        self.device = compiled.device
        self.cache_bytes = compiled.cache_bytes  # at most; taken as it is used
        self.cache_type = compiled.cache_type
        self.tokenizer = tokenizer_of(checkpoint)  # after compiling: the CPU's memory is made ready meanwhile
        self.tokenizer.fit(self.model.plan.logits.width)
        self.warnings += tuple(self.tokenizer.warnings)
        self._in_flight = min(sequences + WAITING, QUEUE // 2)
        self._engine = Engine(
            compiled.program,
            self.context,
            sequences=sequences,
            speculate=speculate,
            # A GPU has its copy of the weights; everything else reads them where they are mapped.
            check=None if self.device.startswith("cuda") else checkpoint.check_files,
        )

    def __repr__(self) -> str:
        return (
            f"<LLM {self.checkpoint.path.name}: {self.checkpoint.architecture}, {self.device}, "
            f"context {self.context}>"
        )

    @property
    def program(self) -> Program:
        """The compiled plan, for benchmarks and tests."""
        return self._engine.program

    # ---- text

    def stream(self, prompt: Prompt, **options: Any) -> Stream[Piece, Completion]:
        """The text that follows the prompt, piece by piece as it is made. Options are those of `generate`.

        Leaving the loop stops the generation; `Stream.cancel` does, from any thread.
        """
        return Stream(self._start(prompt, Options.of(options), 0))

    def generate(self, prompt: Prompt, **options: Any) -> Completion:
        """The text that follows the prompt, with what it took. The options, all by name:

        sampling: a `Sampling`; by default the publisher's own, or llama.cpp's where the files name none
        temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias:
            what differs from `sampling`
        seed: the same seed gives the same text; by default that of a `sampling` that was given, and else a
            fresh one. The completion reports it
        max_tokens (256; None: as many as fit), min_tokens
        stop: a string or several, which end the text and are not part of it
        stop_tokens: token ids beside the model's own stop tokens; ignore_eos: go on beyond those
        stop_on_repetition: end a text that says the same over and over again (finish_reason "repetition")
        logprobs: report each token's log-probability and that of so many alternatives
        parse_special: special tokens spelled in the prompt count as such
        generated: which tokens of a prompt of ids this LLM generated itself, as `Request.generated` says
        constraint: what the text may be: a grammar made by `grammar`
        timeout: seconds from now, in the queue and running, after which the text ends where it is
            (finish_reason "timeout")
        priority: who goes first where requests wait, and keeps its pages where they run out: the lowest
            number (0)
        """
        return result_of(self.stream(prompt, **options))

    def generate_many(self, prompts: Sequence[Prompt], *, n: int = 1, **options: Any) -> list[Completion]:
        """`n` completions of each prompt, all running at the same time; those of a prompt stand together.

        With a seed, the i-th completion of a prompt has seed + i.
        """
        n = integer("at least 1", 1, INT32)("n", n)
        if isinstance(prompts, str):
            raise RequestError("generate_many takes a list of prompts: put the one that you have in a list")
        chosen = Options.of(options)
        started = ((Stream(self._start(prompt, chosen, i)), None) for prompt in prompts for i in range(n))
        return self._all(started, lambda stream, _: result_of(stream))

    def astream(self, prompt: Prompt, **options: Any) -> AsyncGenerator[Piece, None]:
        """`stream` for asyncio."""
        return follow(lambda tell: self._start(prompt, Options.of(options), 0, tell))

    async def agenerate(self, prompt: Prompt, **options: Any) -> Completion:
        """`generate` for asyncio."""
        async for piece in self.astream(prompt, **options):
            if piece.completion is not None:
                return piece.completion
        raise OlivineError("the generation ended without an end")

    def _start(
        self, prompt: Prompt, options: Options, index: int, tell: Any = None
    ) -> Source[Piece, Completion]:
        ticket, text = self._submit(prompt, options, index, tell)
        return Source(ticket, text.feed, attrgetter("completion"))

    def _submit(self, prompt: Prompt, options: Options, index: int, tell: Any) -> tuple[Ticket, Text]:
        self._engine.check_process()  # before any lock that a thread of the parent's may have held
        sampling = options.adjusted(self.sampling)
        if options.seed is None and options.sampling is None:
            sampling = replace(sampling, seed=random_seed())
        seed = (sampling.seed + index) % (1 << 64)
        tokens = self._tokens(prompt, options.parse_special)
        own = () if options.ignore_eos else self.tokenizer.stop_ids
        job = Generate(
            replace(sampling, seed=seed),
            options.max_tokens,
            options.min_tokens,
            (*own, *options.stop_tokens),
            options.logprobs,
            None if options.constraint is None else options.constraint(),
        )
        generated = None if self.reproducible else options.generated
        ticket = self._engine.submit(Request(tokens, job, generated, options.timeout, options.priority), tell)
        return ticket, Text(
            self.tokenizer,
            ticket,
            options.stop or (),
            seed,
            options.logprobs is not None,
            options.stop_on_repetition,
        )

    def _tokens(self, prompt: Prompt, parse_special: bool = False) -> list[int]:
        if isinstance(prompt, str):
            refuse_long(prompt, self.tokenizer, self.context)
            return self.tokenizer.encode(prompt, parse_special=parse_special)
        return integers("prompt", prompt)

    def _all(self, started: Iterable[tuple[C, T]], result: Callable[[C, T], R]) -> list[R]:
        """The results of many requests, in their order; each is handed in when `started` comes to it.

        If one of them fails, the others are cancelled.
        """
        waiting: deque[tuple[C, T]] = deque()
        results: list[R] = []
        try:
            for each in started:
                waiting.append(each)
                if len(waiting) == self._in_flight:
                    results.append(result(*waiting.popleft()))
            while waiting:
                results.append(result(*waiting.popleft()))
        finally:
            for request, _ in waiting:
                request.cancel()
        return results

    @property
    def vocabulary(self) -> int:
        """How many token ids the model knows."""
        return self.model.plan.logits.width

    # ---- chat

    @cached_property
    def conversations(self) -> Conversations:
        """The model's chat template and all that goes with it."""
        from olivine.conversation import open_conversations  # imports Jinja: not before use

        # Nothing of the LLM's own: it ends with its last reference, and not when cycles are collected.
        fitting = partial(refuse_long, tokenizer=self.tokenizer, context=self.context)
        variables = self.model.template_variables
        return open_conversations(self.checkpoint, self.tokenizer, self.vocabulary, fitting, variables)

    def chat(self, messages: Messages, **options: Any) -> Reply:
        """The model's answer to a conversation: a text, or messages as OpenAI's API has them.

        tools: functions that the model may call, as JSON schemas or Python functions; tool_choice: "auto",
            "none", "required" or {"function": {"name": …}}, which is exactly one call of that function;
            parallel_tool_calls: whether a required call may be several
        response_format: what the answer must be: "json", a JSON schema, or an object with a type, as
            `grammar` takes it
        think: True, False, or an effort ("low", "high", …); refused where the model does not think
        template_options: further variables for the chat template

        All options of `generate` are known too; max_tokens is as many as fit, by default. If the last
        message is an assistant's, the answer continues it, and has only what comes after it.
        """
        return result_of(self.stream_chat(messages, **options))

    def chat_many(self, conversations: Sequence[Messages], *, n: int = 1, **options: Any) -> list[Reply]:
        """`n` answers to each conversation, all running at the same time; those of one stand together.

        A prompt is computed once for all of its answers. With a seed, the i-th answer has seed + i.
        """
        n = integer("at least 1", 1, INT32)("n", n)
        if isinstance(conversations, str):
            raise RequestError("chat_many takes a list of conversations: put the one that you have in a list")

        def started() -> Iterator[tuple[Stream[Delta, Reply], None]]:
            for messages in conversations:
                turn, chosen, stop = self._turn(messages, options)
                for i in range(n):
                    yield Stream(self._answer(turn, chosen, stop, i)), None

        return self._all(started(), lambda stream, _: result_of(stream))

    def render(
        self,
        messages: Messages,
        *,
        tools: Tools | None = None,
        tool_choice: Any = "auto",
        think: Any = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of a conversation, as text: what the chat template makes of it. Options are `chat`'s."""
        prompt = self.conversations.prompt(
            messages, tools=tools, tool_choice=tool_choice, think=think, template_options=template_options
        )
        return prompt.text

    def stream_chat(self, messages: Messages, **options: Any) -> Stream[Delta, Reply]:
        """`chat`, bit by bit as the answer is made. Leaving the loop stops the generation; `Stream.cancel`
        does, from any thread."""
        return Stream(self._ask(messages, options))

    async def achat(self, messages: Messages, **options: Any) -> Reply:
        """`chat` for asyncio."""
        async for delta in self.astream_chat(messages, **options):
            if delta.reply is not None:
                return delta.reply
        raise OlivineError("the generation ended without an end")

    def astream_chat(self, messages: Messages, **options: Any) -> AsyncGenerator[Delta, None]:
        """`stream_chat` for asyncio."""
        return follow(lambda tell: self._ask(messages, options, tell))

    def grammar(self, response_format: Any) -> Grammar:
        """A grammar for `generate`'s `constraint`, from "json", a JSON schema, or an object with a type:
        json_object, json_schema (`schema`), regex (`regex`), grammar (`grammar`: Lark or GBNF), choice
        (`choices`)."""
        return self.conversations.grammar(response_format)

    def _ask(self, messages: Messages, options: Mapping[str, Any], tell: Any = None) -> Source[Delta, Reply]:
        return self._answer(*self._turn(messages, options), 0, tell)

    def _turn(self, messages: Messages, options: Mapping[str, Any]) -> tuple[Turn, Options, Any]:
        """A question ready to be asked, its options, and the stop strings of its answer."""
        from olivine.conversation import OPTIONS

        self._engine.check_process()
        asked = {name: value for name, value in options.items() if name in OPTIONS}
        rest = {name: value for name, value in options.items() if name not in OPTIONS}
        chosen = Options.of({"max_tokens": None, **rest})
        if chosen.constraint is not None or chosen.generated is not None:
            raise RequestError("a chat has its own constraint and its own marks: give response_format")
        turn = self.conversations.ask(messages, **asked)
        stop = chosen.stop or ()
        return turn, replace(chosen, stop=(), generated=turn.generated, constraint=turn.grammar), stop

    def _answer(
        self, turn: Turn, options: Options, stop: Any, index: int, tell: Any = None
    ) -> Source[Delta, Reply]:
        from olivine.conversation import Answer

        ticket, text = self._submit(turn.tokens, options, index, tell)
        answer = Answer(self.conversations, turn, ticket, self.tokenizer, stop, text.seed)
        return Source(
            ticket, lambda update: answer.feed(text.feed(update)), attrgetter("reply"), answer.leave
        )

    # ---- numbers

    @overload
    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        pooling: Literal["mean", "last"] = "mean",
        normalize: bool = True,
        timeout: float | None = None,
        priority: int = 0,
        return_usage: Literal[False] = False,
    ) -> npt.NDArray[np.float32]: ...

    @overload
    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        pooling: Literal["mean", "last"] = "mean",
        normalize: bool = True,
        timeout: float | None = None,
        priority: int = 0,
        return_usage: Literal[True],
    ) -> tuple[npt.NDArray[np.float32], Usage]: ...

    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        pooling: Literal["mean", "last"] = "mean",
        normalize: bool = True,
        timeout: float | None = None,
        priority: int = 0,
        return_usage: bool = False,
    ) -> npt.NDArray[np.float32] | tuple[npt.NDArray[np.float32], Usage]:
        """Embeddings: the last hidden states, averaged or of the last token, of length 1 if `normalize`.

        [D] for one text, [N, D] for a list of them. `timeout` and `priority` are those of `generate`; texts
        that are not through in time are a `DeadlineError`. With `return_usage`, also the tokens of all texts.
        """
        self._engine.check_process()
        single = isinstance(texts, str) or (len(texts) > 0 and isinstance(texts[0], int | np.integer))
        prompts: Sequence[Any] = [texts] if single else texts
        requests = [
            Request(self._tokens(prompt), Embed(pooling), timeout=timeout, priority=priority)
            for prompt in prompts
        ]
        started = ((self._engine.submit(request), None) for request in requests)
        rows = self._all(started, lambda ticket, _: (_embedding(ticket), ticket.usage))
        found = np.zeros((0, self.model.plan.hidden.width), np.float32)
        if rows:
            found = np.stack([row for row, _ in rows])
        if normalize:
            found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
        found = found[0] if single else found
        if not return_usage:
            return found
        return found, Usage(sum(usage.prompt for _, usage in rows), sum(usage.cached for _, usage in rows))

    def score(
        self, prompt: Prompt, continuation: Prompt, *, timeout: float | None = None, priority: int = 0
    ) -> Score:
        """How likely the continuation is after the prompt. `timeout`, `priority`: as `embed` has them."""
        (score,) = self.score_many([(prompt, continuation)], timeout=timeout, priority=priority)
        return score

    def score_many(
        self, pairs: Sequence[tuple[Prompt, Prompt]], *, timeout: float | None = None, priority: int = 0
    ) -> list[Score]:
        """`score` for many pairs at the same time."""
        self._engine.check_process()
        requests: list[tuple[Request, list[int]]] = []
        for prompt, continuation in pairs:
            before = self._tokens(prompt)
            if isinstance(continuation, str):
                refuse_long(continuation, self.tokenizer, self.context)
                after = self.tokenizer.encode(continuation, add_special=False)
            else:
                after = self._tokens(continuation)
            if not after:
                raise RequestError("the continuation is empty: there is nothing to score")
            request = Request([*before, *after], ScoreJob(len(before)), timeout=timeout, priority=priority)
            requests.append((request, after))
        started = ((self._engine.submit(request), after) for request, after in requests)
        return self._all(started, _score)

    async def aembed(self, texts: Prompt | Sequence[Prompt], **options: Any) -> Any:
        """`embed` for asyncio."""
        import asyncio

        return await asyncio.to_thread(lambda: self.embed(texts, **options))

    async def ascore(self, prompt: Prompt, continuation: Prompt, **options: Any) -> Score:
        """`score` for asyncio."""
        import asyncio

        return await asyncio.to_thread(lambda: self.score(prompt, continuation, **options))

    # ---- all of them

    def stats(self) -> Stats:
        """What the model is doing and has done: requests, pages, tokens, step times, and whether it is stuck.
        Never waits, whatever runs."""
        return self._engine.stats()

    def close(self) -> None:
        """Ends what runs, and gives the weights and the cache back. Closing twice is fine."""
        self._engine.close()
        if "conversations" in self.__dict__:
            self.conversations.grammars.close()
        if isinstance(self.program, ClosingProgram):
            self.program.close()
        for file in self.checkpoint.maps:
            release(file.data)

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def refuse_long(text: str, tokenizer: Tokenizer, context: int) -> None:
    """Raises where a text cannot fit by its size alone: to encode it could take seconds."""
    fewest = tokenizer.fewest(text)
    if fewest > context:
        raise ContextError(fewest, context, least=True)


def random_seed() -> int:
    """A fresh seed from the operating system, to be reported so that any output can be had again."""
    return int.from_bytes(os.urandom(8), "little")


def _in_time(ticket: Ticket) -> Iterator[Update]:
    """The updates of a request of which a part is of no use."""
    for update in ticket:
        if update.finish == "timeout":
            raise DeadlineError("the request was not through when its timeout was over")
        yield update


def _embedding(ticket: Ticket) -> npt.NDArray[np.float32]:
    (found,) = [update.embedding for update in _in_time(ticket) if update.embedding is not None]
    return found


def _score(ticket: Ticket, tokens: list[int]) -> Score:
    reports = [report for update in _in_time(ticket) for report in update.logprobs]
    each = [report.logprob for report in reports]
    greedy = all(report.top[0][0] == token for report, token in zip(reports, tokens, strict=True))
    return Score(sum(each), tokens, each, greedy, replace(ticket.usage))
