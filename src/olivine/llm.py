"""The façade users hold: text, chat, embeddings and scores of one model."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from olivine.backends import ClosingProgram, Program
from olivine.batching import gather
from olivine.checks import refuse_unknown, shown
from olivine.completion import Completion, Piece
from olivine.engine import Stats, Usage
from olivine.errors import MissingModelError, RequestError
from olivine.formats import Checkpoint, open_checkpoint
from olivine.generation import Generations
from olivine.hub.local import title
from olivine.loading import LoadOptions, load_engine
from olivine.pages import release
from olivine.prompts import Prompt, PromptEncoder
from olivine.scoring import (
    EmbedKwargs,
    Measured,
    Score,
    ScoreKwargs,
    Work,
    embeddings,
    scores,
    submit_embeddings,
    submit_logprobs,
)
from olivine.streaming import Stream, Tell, aresult_of, follow, in_thread, result_of
from olivine.token_stream import TokenLogprob, TokenStream, spelled

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from olivine.chat.grammar import Grammar
    from olivine.chat.messages import Messages
    from olivine.conversation import ChatKwargs, Conversations, RenderKwargs
    from olivine.loading import LoadKwargs
    from olivine.options import GenerateKwargs
    from olivine.perception import Perception
    from olivine.reply import Delta, Reply
    from olivine.transcript import TranscribeKwargs, Transcript, TranscriptDelta
    from olivine.transcription import Transcription

# Requests that a call with many of them has waiting at the same time, beside those that run: the rest of the
# queue is for other callers.
WAITING = 64


def load(path: str | os.PathLike[str], *, download: bool = False, **options: Unpack[LoadKwargs]) -> LLM:
    """Opens a model: a safetensors folder, a GGUF file, a qwen3.c `.bin`, or by its name: one of `olivine
    list`, such as "gemma3:1b" or "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M", or "olivine-mini" in the box.

    download: a model of that name that is not on this machine is downloaded; else it is an error (False)
    device: "cpu", "cuda", "reference", or "auto" (the default): CUDA if it can be used
    threads: of the CPU; by default as many as this process has physical cores
    context: in tokens; by default 4096, or the model's if that is less; 0 is the model's own. One whose KV
        cache does not fit into the memory that is free is reduced, with a warning, unless `kv_bytes` is given
    sequences: requests that run at the same time (8)
    queue: requests that may wait beside those (1024), and queue_per_client: those of one client (None: no
        limit of its own); more are a `BusyError`
    kv_bytes: the most that the KV cache takes, of a divided model on this machine or on each of its GPUs; by
        default half of the free memory, on the GPU what the weights leave
    kv_type: of the KV cache: "bf16" (the default), "f32" or "q8_0", which takes half of bf16's memory
    speculate: draft tokens from the text so far, and verify them: that changes only the speed (True)
    reproducible: read earlier answers of a conversation again, whichever process made them (False)
    progress: called with the bytes of weights that are on the GPU, and their total
    compile_progress: called with the GPU's kernels that are compiled, and their number (0 until it is known),
        where some are still to be compiled
    mmproj: the file with the towers of a GGUF model (by default one that lies beside it and fits)
    tensor_parallel, pipeline_parallel: divide the model among so many processes (1). See docs/cluster.md
    rank_address, rank_key: host:port where processes of other machines find this one (`olivine rank`), and
        the key that they must have; by default all are on this machine. nodes: the number of machines, with
        as many processes each (by default one each)
    """
    try:
        checkpoint = open_checkpoint(path)
    except MissingModelError as error:
        if not download:
            raise
        from olivine.hub.download import pull_text

        checkpoint = open_checkpoint(pull_text(error.path))
    return LLM(checkpoint, **options)


class LLM:
    """A model ready to run, for any number of threads. Use it as a context manager, or `close` it."""

    def __init__(self, checkpoint: Checkpoint, **options: Unpack[LoadKwargs]) -> None:
        """Takes the options of `load`."""
        chosen = LoadOptions.of(options)
        loaded = load_engine(checkpoint, chosen)
        self.checkpoint = checkpoint
        self.model = loaded.model
        self.tokenizer = loaded.tokenizer
        self.context = loaded.context
        self.sampling = loaded.sampling
        self.warnings = loaded.warnings
        self.hints = loaded.hints
        self.device = loaded.compiled.device
        self.cache_bytes = loaded.compiled.cache_bytes  # at most; taken as it is used
        self.cache_type = loaded.compiled.cache_type.lower()
        self.towers = loaded.towers  # what it sees and hears with
        self._backend, self._threads = loaded.backend, chosen.threads
        self._engine = loaded.engine
        self._opening = threading.RLock()  # cached_property has no lock since Python 3.12
        self._prompts = PromptEncoder(self.tokenizer, self.context, self.vocabulary)
        self._generations = Generations(
            self._engine, self.tokenizer, self._prompts, self.sampling, chosen.reproducible
        )
        # Requests of one call that can wait: more of them would be a BusyError however often they are tried.
        self.most_waiting = min(chosen.queue, chosen.queue_per_client or chosen.queue)
        most = min(chosen.queue // 2, self.most_waiting)
        self._in_flight = max(1, min(chosen.sequences + WAITING, most))

    def __repr__(self) -> str:
        return (
            f"<LLM {title(self.checkpoint.path)}: {self.checkpoint.architecture}, {self.device}, "
            f"context {self.context}>"
        )

    @property
    def program(self) -> Program:
        """The compiled plan, for benchmarks and tests."""
        return self._engine.program

    @property
    def vocabulary(self) -> int:
        """How many token ids the model knows."""
        return self.model.plan.logits.width

    # ---- text

    def generate(self, prompt: Prompt, **options: Unpack[GenerateKwargs]) -> Completion:
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
        client: whose request it is, any string: of equal priority, clients that wait take turns
        """
        return result_of(self.stream(prompt, **options))

    def stream(self, prompt: Prompt, **options: Unpack[GenerateKwargs]) -> Stream[Piece, Completion]:
        """The text that follows the prompt, piece by piece as it is made. Options are those of `generate`.

        Leaving the loop stops the generation; `Stream.cancel` does, from any thread.
        """
        return Stream(self._generations.text(prompt, options))

    def generate_many(
        self, prompts: Sequence[Prompt], *, n: int = 1, **options: Unpack[GenerateKwargs]
    ) -> list[Completion]:
        """`n` completions of each prompt, all running at the same time; those of a prompt stand together.

        With a seed, the i-th completion of a prompt has seed + i.
        """
        return gather(self._generations.texts(prompts, n, options), result_of, self._in_flight)

    def astream(self, prompt: Prompt, **options: Unpack[GenerateKwargs]) -> AsyncGenerator[Piece, None]:
        """`stream` for asyncio."""
        return follow(partial(self._generations.text, prompt, options))

    async def agenerate(self, prompt: Prompt, **options: Unpack[GenerateKwargs]) -> Completion:
        """`generate` for asyncio."""
        return await aresult_of(partial(self._generations.text, prompt, options))

    # ---- chat

    @property
    def conversations(self) -> Conversations:
        """The model's chat template and all that goes with it."""
        with self._opening:  # one for all threads: it remembers the answers
            return self._conversations

    @cached_property
    def _conversations(self) -> Conversations:
        from olivine.conversation import open_conversations  # imports Jinja: not before use

        # Nothing of the LLM's own: it ends with its last reference, and not when cycles are collected.
        return open_conversations(
            self.checkpoint,
            self.tokenizer,
            self.vocabulary,
            self._prompts.refuse_long,
            self.model.template_variables,
            self._perception,
        )

    @cached_property
    def _perception(self) -> Perception | None:
        from olivine.perception import Perception

        if not self.towers:
            return None
        return Perception(self.towers, self.context, self._backend, self._threads)

    def chat(self, messages: Messages, **options: Unpack[ChatKwargs]) -> Reply:
        """The model's answer to a conversation: a text, or messages as OpenAI's API has them. Images, sounds
        and videos are parts of a message's content: {"type": "image", "image": …} with a path, bytes, a data
        URL, a PIL image or an array.

        tools: functions that the model may call, as JSON schemas or Python functions; tool_choice: "auto",
            "none", "required" or {"function": {"name": …}}, which is exactly one call of that function;
            parallel_tool_calls: whether there may be several calls (True)
        response_format: what the answer must be: "json", a JSON schema, or an object with a type, as
            `grammar` takes it
        think: True, False, or an effort ("low", "high", …); refused where the model does not think
        thinking_budget: tokens of a thought, after which it is closed and the answer follows; 0: no thought
        template_options: further variables for the chat template
        image_tokens: the most tokens that an image takes, where the model leaves a choice (Gemma 4: 70, 140,
            280, 560 or 1120); pan_and_scan: crops of long images beside them (Gemma 3); video_frames: taken
            of a video (32)
        continue_final_message: False if an answer to an assistant's message at the end is wanted, and not its
            continuation; True refuses a conversation that ends otherwise

        All options of `generate` are known too; max_tokens is as many as fit, by default. If the last
        message is an assistant's, the answer continues it, and has only what comes after it.
        """
        return result_of(self.stream_chat(messages, **options))

    def stream_chat(self, messages: Messages, **options: Unpack[ChatKwargs]) -> Stream[Delta, Reply]:
        """`chat`, bit by bit as the answer is made. Leaving the loop stops the generation; `Stream.cancel`
        does, from any thread, and `Stream.answer_now` ends a thought."""
        return Stream(self._chat(messages, options))

    def chat_many(
        self, conversations: Sequence[Messages], *, n: int = 1, **options: Unpack[ChatKwargs]
    ) -> list[Reply]:
        """`n` answers to each conversation, all running at the same time; those of one stand together.

        A prompt is computed once for all of its answers. With a seed, the i-th answer has seed + i.
        """
        streams = self._generations.chats(self.conversations, conversations, n, options)
        return gather(streams, result_of, self._in_flight)

    def astream_chat(self, messages: Messages, **options: Unpack[ChatKwargs]) -> AsyncGenerator[Delta, None]:
        """`stream_chat` for asyncio."""
        return follow(partial(self._chat, messages, options))

    async def achat(self, messages: Messages, **options: Unpack[ChatKwargs]) -> Reply:
        """`chat` for asyncio."""
        return await aresult_of(partial(self._chat, messages, options))

    def render(self, messages: Messages, **options: Unpack[RenderKwargs]) -> str:
        """The prompt of a conversation, as text: what the chat template makes of it. Options are `chat`'s
        tools, tool_choice, think, template_options and continue_final_message."""
        return self.conversations.prompt(messages, **options).text

    def grammar(self, response_format: Any) -> Grammar:
        """A grammar for `generate`'s `constraint`, from "json", a JSON schema, or an object with a type:
        json_object, json_schema (`schema`), regex (`regex`), grammar (`grammar`: Lark or GBNF), choice
        (`choices`)."""
        return self.conversations.grammar(response_format)

    def _chat(
        self, messages: Messages, options: ChatKwargs, tell: Tell | None = None
    ) -> TokenStream[Delta, Reply]:
        return self._generations.chat(self.conversations, messages, options, tell)

    # ---- speech

    def transcribe(self, audio: Any, **options: Unpack[TranscribeKwargs]) -> Transcript:
        """What is said in a sound of any length: a path, bytes, a data URL or (samples, rate); also the sound
        of a video. The model needs an audio tower.

        language: the one that is spoken, as a name or a code ("German", "de"); by default the model finds out
        translate: the language of the text, where it shall be another one
        prompt: names and words that may occur, or the text before it
        window: seconds that are transcribed at once, at most; each is a segment (30, the most)

        All options of `generate` are known too, for each window: temperature is 0 by default, and max_tokens
        grows with the window. `timeout` is for the whole.
        """
        return result_of(self.stream_transcription(audio, **options))

    def stream_transcription(
        self, audio: Any, **options: Unpack[TranscribeKwargs]
    ) -> Stream[TranscriptDelta, Transcript]:
        """`transcribe`, bit by bit. `Stream.cancel` ends it with what there is."""
        return Stream(self._transcription(audio, options))

    async def atranscribe(self, audio: Any, **options: Unpack[TranscribeKwargs]) -> Transcript:
        """`transcribe` for asyncio."""
        return await aresult_of(partial(self._transcription, audio, options))

    def astream_transcription(
        self, audio: Any, **options: Unpack[TranscribeKwargs]
    ) -> AsyncGenerator[TranscriptDelta, None]:
        """`stream_transcription` for asyncio."""
        return follow(partial(self._transcription, audio, options))

    def _transcription(
        self, audio: Any, options: TranscribeKwargs, tell: Tell | None = None, *, paths: bool = True
    ) -> Transcription:
        from olivine.transcription import Transcription

        start = partial(self._generations.chat, self.conversations)
        return Transcription(self._perception, start, audio, options, tell, paths=paths)

    # ---- for servers: `listeners` are called with updates by the engine's thread, one for each output

    def submit(
        self, prompt: Prompt, listeners: Sequence[Tell], **options: Unpack[GenerateKwargs]
    ) -> list[TokenStream[Piece, Completion]]:
        """As many texts that follow the prompt as there are listeners. May take a while: it encodes it."""
        return self._generations.texts_of(prompt, options, listeners)

    def submit_chat(
        self, messages: Messages, listeners: Sequence[Tell], **options: Unpack[ChatKwargs]
    ) -> list[TokenStream[Delta, Reply]]:
        """As many answers to the conversation as there are listeners."""
        return self._generations.chats_of(self.conversations, messages, options, listeners)

    def submit_transcription(
        self, audio: bytes, listeners: Sequence[Tell], **options: Unpack[TranscribeKwargs]
    ) -> list[Transcription]:
        """The transcription of a sound file's content, for one listener."""
        return [self._transcription(audio, options, tell, paths=False) for tell in listeners]

    def submit_embeddings(
        self, prompts: Sequence[Prompt], listeners: Sequence[Tell], **options: Unpack[EmbedKwargs]
    ) -> list[Measured[npt.NDArray[np.float32]]]:
        """An embedding of each prompt. They are not normalized."""
        tokens = [self._prompts.encode(prompt) for prompt in prompts]
        return submit_embeddings(self._engine, tokens, listeners, **options)

    def submit_prompt_logprobs(
        self,
        prompts: Sequence[Prompt],
        listeners: Sequence[Tell],
        *,
        alternatives: int = 1,
        parse_special: bool = False,
        **options: Unpack[ScoreKwargs],
    ) -> list[Measured[tuple[int, list[TokenLogprob]]]]:
        """The first token of each prompt, which nothing stands before, and the others' log-probabilities."""
        encode = self._prompts.encode
        tokens = [encode(prompt, parse_special=parse_special) for prompt in prompts]
        return submit_logprobs(
            self._engine, tokens, listeners, alternatives, partial(spelled, self.tokenizer), **options
        )

    # ---- embeddings and scores

    @overload
    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        return_usage: Literal[False] = False,
        **options: Unpack[EmbedKwargs],
    ) -> npt.NDArray[np.float32]: ...

    @overload
    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        return_usage: Literal[True],
        **options: Unpack[EmbedKwargs],
    ) -> tuple[npt.NDArray[np.float32], Usage]: ...

    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        return_usage: bool = False,
        **options: Unpack[EmbedKwargs],
    ) -> npt.NDArray[np.float32] | tuple[npt.NDArray[np.float32], Usage]:
        """Embeddings: the last hidden states, averaged (pooling="mean") or of the last token ("last"), of
        length 1 unless normalize=False.

        [D] for one text, [N, D] for a list of them. `timeout`, `priority` and `client` are those of
        `generate`; texts that are not through in time are a `DeadlineError`. With `return_usage`, also the
        tokens of all texts.
        """
        rows, usage = self._embeddings(texts, options).run(self._engine, self._in_flight)
        found = rows[0] if _single(texts) else rows
        return (found, usage) if return_usage else found

    def _embeddings(
        self, texts: Prompt | Sequence[Prompt], options: EmbedKwargs
    ) -> Work[tuple[npt.NDArray[np.float32], Usage]]:
        self._engine.check_process()
        refuse_unknown(options, EmbedKwargs.__annotations__)
        prompts: Sequence[Any] = [texts] if _single(texts) else texts
        tokens = [self._prompts.encode(prompt) for prompt in prompts]
        return embeddings(self.model.plan.hidden.width, tokens, **options)

    def score(self, prompt: Prompt, continuation: Prompt, **options: Unpack[ScoreKwargs]) -> Score:
        """How likely the continuation is after the prompt. `timeout`, `priority`, `client`: see `embed`."""
        (score,) = self.score_many([(prompt, continuation)], **options)
        return score

    def score_many(
        self, pairs: Sequence[tuple[Prompt, Prompt]], **options: Unpack[ScoreKwargs]
    ) -> list[Score]:
        """`score` for many pairs at the same time."""
        return self._scores(pairs, options).run(self._engine, self._in_flight)

    def _scores(self, pairs: Sequence[tuple[Prompt, Prompt]], options: ScoreKwargs) -> Work[list[Score]]:
        self._engine.check_process()
        refuse_unknown(options, ScoreKwargs.__annotations__)
        if not isinstance(pairs, Iterable):
            raise RequestError("score_many takes a list of pairs: a prompt, and what may follow it")
        tokens = []
        for pair in pairs:
            if isinstance(pair, str) or not isinstance(pair, Collection) or len(pair) != 2:
                raise RequestError("score_many takes pairs: a prompt, and what may follow it")
            prompt, after = pair
            before = self._prompts.encode(prompt)
            tokens.append((before, self._prompts.encode_after(before, after)))
        if not all(after for _, after in tokens):
            raise RequestError("the continuation is empty: there is nothing to score")
        return scores(tokens, **options)

    async def aembed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        return_usage: bool = False,
        **options: Unpack[EmbedKwargs],
    ) -> Any:
        """`embed` for asyncio. Cancelling the task ends its requests."""
        work = await in_thread(lambda: self._embeddings(texts, options))
        rows, usage = await work.arun(self._engine, self._in_flight)
        found = rows[0] if _single(texts) else rows
        return (found, usage) if return_usage else found

    async def ascore(self, prompt: Prompt, continuation: Prompt, **options: Unpack[ScoreKwargs]) -> Score:
        """`score` for asyncio."""
        work = await in_thread(lambda: self._scores([(prompt, continuation)], options))
        (score,) = await work.arun(self._engine, self._in_flight)
        return score

    # ---- statistics and the end

    def stats(self) -> Stats:
        """What the model is doing and has done: requests, pages, tokens, step times, and whether it is stuck.
        Never waits, whatever runs."""
        return self._engine.stats()

    def reset_prefix_cache(self) -> None:
        """Forgets what was computed for earlier prompts: later ones are computed anew."""
        self._engine.reset_prefix_cache()

    def close(self) -> None:
        """Ends what runs, and gives the weights and the cache back. Closing twice is fine."""
        self._engine.close()
        if (conversations := self.__dict__.get("_conversations")) is not None:
            conversations.grammars.close()
        if (perception := self.__dict__.get("_perception")) is not None:
            perception.close()
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


def _single(texts: Prompt | Sequence[Prompt]) -> bool:
    """Whether these are one prompt, and not a list of them."""
    if not isinstance(texts, Sequence | np.ndarray):
        raise RequestError(f"embed takes a text, or a list of them, and not {shown(texts)}")
    return isinstance(texts, str) or (len(texts) > 0 and isinstance(texts[0], int | np.integer))
