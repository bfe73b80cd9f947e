"""What an LLM does to the process that it lives in: locks, threads, memory, forks and files."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import olivine
from olivine import LLM, CheckpointError, RequestError
from olivine.backends.cpu import CpuProgram
from olivine.errors import ClosedError
from oracles import tiny
from oracles.gate import gate_of
from oracles.waiting import eventually

CONTEXT = 256


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write("tiny-qwen3", "Q8_0", tmp_path_factory.mktemp("models"))


@pytest.fixture
def llm(file: Path) -> Iterator[LLM]:
    with olivine.load(file, device="cpu", context=CONTEXT, threads=2) as llm:
        yield llm


# ---- long prompts

LONG = "A prompt without end. " * 20_000
ASKS: dict[str, Callable[[LLM], Any]] = {
    "generate": lambda llm: llm.generate(LONG),
    "generate_many": lambda llm: llm.generate_many(["short", LONG]),
    "stream": lambda llm: llm.stream(LONG),
    "chat": lambda llm: llm.chat(LONG),
    "chat with special tokens": lambda llm: llm.chat(LONG + "<|im_end|>"),
    "stream_chat": lambda llm: llm.stream_chat([{"role": "user", "content": LONG}]),
    "embed": lambda llm: llm.embed(LONG),
    "score": lambda llm: llm.score(LONG, "x"),
    "score's continuation": lambda llm: llm.score("x", LONG),
    "agenerate": lambda llm: asyncio.run(llm.agenerate(LONG)),
    "achat": lambda llm: asyncio.run(llm.achat(LONG)),
    "aembed": lambda llm: asyncio.run(llm.aembed(LONG)),
    "ascore": lambda llm: asyncio.run(llm.ascore("x", LONG)),
}


@pytest.mark.parametrize("ask", ASKS)
def test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded(
    llm: LLM, ask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = llm.tokenizer._plain

    def watched(text: str) -> list[int]:
        assert len(text) < 1000
        return encoder(text)

    monkeypatch.setattr(llm.tokenizer, "_plain", watched)
    monkeypatch.setattr(llm.tokenizer, "_parsed", watched)
    with pytest.raises(RequestError, match="context holds 256"):
        ASKS[ask](llm)


def test_a_tokenizer_itself_has_no_limit(llm: LLM) -> None:
    assert len(llm.tokenizer.encode(LONG)) > 20_000


@pytest.mark.parametrize("kind", ["astream", "astream_chat"])
def test_prompts_are_encoded_off_the_event_loop_and_cancelled_there(
    llm: LLM, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is cancelled while its prompt is encoded leaves no request behind."""
    inside, go_on = threading.Event(), threading.Event()
    encode = llm.tokenizer._run
    llm.chat("x", max_tokens=1)

    def slow(text: str, parse: bool) -> list[int]:
        inside.set()
        assert go_on.wait(20)
        return encode(text, parse)

    async def read() -> None:
        async for _ in getattr(llm, kind)("a prompt", ignore_eos=True, max_tokens=200):
            raise AssertionError("nobody wanted this")

    async def main() -> None:
        task = asyncio.create_task(read())
        while not inside.is_set():  # the loop runs while the prompt is encoded
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()

    monkeypatch.setattr(llm.tokenizer, "_run", slow)
    cancelled = []
    cancel = llm._engine._cancel
    monkeypatch.setattr(llm._engine, "_cancel", lambda *told: (cancelled.append(told), cancel(*told)))
    asyncio.run(main())
    assert len(cancelled) == 1


# ---- forks


def in_child(work: Callable[[], Any]) -> str:
    """What the work gives, or raises, in a forked child; a child that hangs is ended by its alarm."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            said = f"{work()}"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said[:4000].encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        said = file.read().decode()
    os.waitpid(child, 0)
    return said


USES: dict[str, Callable[[LLM], Any]] = {
    "generate": lambda llm: llm.generate("x", max_tokens=2),
    "generate_many": lambda llm: llm.generate_many(["x", "y"], max_tokens=2),
    "stream": lambda llm: next(llm.stream("x", max_tokens=2)),
    "chat": lambda llm: llm.chat("x", max_tokens=2),
    "embed": lambda llm: llm.embed("x"),
    "score": lambda llm: llm.score("x", "y"),
    "agenerate": lambda llm: asyncio.run(llm.agenerate("x", max_tokens=2)),
    "achat": lambda llm: asyncio.run(llm.achat("x", max_tokens=2)),
    "step": lambda llm: llm.program.step(None),  # type: ignore[arg-type]
}
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
threaded = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python's own word about such forks


@forks
@threaded
@pytest.mark.parametrize("used", [False, True], ids=["before the first request", "after it"])
def test_a_forked_child_is_told_to_load_the_model_again(llm: LLM, used: bool) -> None:
    if used:
        llm.generate("x", max_tokens=2)
    for name, use in USES.items():
        said = in_child(lambda use=use: use(llm))  # type: ignore[misc]
        assert said.startswith("OlivineError: this model was loaded in process"), (name, said)
        assert "load the model again here" in said
    assert in_child(llm.close) == "None"
    assert llm.generate("x", max_tokens=2).tokens  # the parent goes on


@forks
@threaded
def test_a_forked_child_leaves_the_processes_of_its_parents_grammars_alone(llm: LLM) -> None:
    llm.grammar({"type": "regex", "regex": "[ab]"})
    checker = llm.conversations.grammars._checker
    theirs = list(checker._idle)

    def use() -> bool:
        checker.check('{"grammars": [{"lark_grammar": "start: \\"x\\""}]}')
        mixed = any(process in theirs for process in checker._idle)
        llm.close()
        return mixed

    assert in_child(use) == "False"
    assert theirs and all(process.poll() is None for process in theirs)


@forks
@threaded
def test_a_fork_in_the_middle_of_a_stream_harms_neither_process(file: Path) -> None:
    llm = olivine.load(file, device="cpu", context=CONTEXT, threads=2)
    expected = llm.generate("x", max_tokens=60, ignore_eos=True, seed=1).tokens
    stream = llm.stream("x", max_tokens=60, ignore_eos=True, seed=1)
    first = next(stream)
    said = in_child(lambda: list(stream))
    assert said.startswith("OlivineError: this model was loaded"), said

    def drop() -> str:
        """All that ends an LLM, where its threads are not."""
        nonlocal llm, stream
        stream.close()
        llm._engine._inbox.changed.acquire()  # the lock as a thread that is not here may have left it
        del stream, llm
        gc.collect()
        return "dropped"

    assert in_child(drop) == "dropped"
    assert first.tokens + [token for piece in stream for token in piece.tokens] == expected
    llm.close()


def answer(file: Path) -> tuple[list[int], list[int], bool]:
    """What a model says that is loaded here, with masks of a grammar and a prompt that takes the library's
    threads."""
    with olivine.load(file, device="cpu", context=CONTEXT, threads=2) as llm:
        text = llm.generate("x", max_tokens=5, seed=1, temperature=1.0).tokens
        grammar = llm.grammar({"type": "regex", "regex": "[0-9]{4}"})
        digits = llm.generate("x", max_tokens=5, seed=1, constraint=grammar).tokens
        return text, digits, len(llm.tokenizer.encode("word " * 5000)) > 5000


@forks
@threaded
def test_multiprocessing_with_fork_works_if_the_model_is_loaded_in_the_child(
    llm: LLM, file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = answer(file)
    llm.generate("x", max_tokens=2)
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        found = pool.map_async(answer, [file] * 3).get(60)
    assert found == [expected] * 3
    assert answer(file) == expected
    assert capfd.readouterr().err == ""  # the tokenizers' library says nothing of its threads
    assert "TOKENIZERS_PARALLELISM" not in os.environ


# ---- an LLM that is dropped


def threads() -> int:
    """Threads of this process, of Python and of others."""
    return (
        len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else threading.active_count()
    )


def test_an_llm_ends_with_its_last_reference(file: Path) -> None:
    """Without waiting for the collector of cycles, whatever it was used for."""
    answer(file)  # what is loaded once for all
    gc.collect()
    gc.disable()
    try:
        before, ends = threads(), []
        for _ in range(3):
            llm = olivine.load(file, device="cpu", context=CONTEXT, threads=2)
            llm.generate("x", max_tokens=2)
            llm.chat("x", max_tokens=2, response_format={"type": "regex", "regex": "[0-9]{4}"})
            llm.embed("x")
            asyncio.run(llm.agenerate("x", max_tokens=2))
            with pytest.raises(RequestError):
                llm.generate([])
            stream = llm.stream("x", max_tokens=60, ignore_eos=True)
            next(stream)
            ends += [weakref.ref(each) for each in (llm, llm._engine, llm.program, llm.checkpoint)]
            del llm
            assert ends[-3]() is not None  # whoever still reads from it holds it
            assert list(stream)[-1].completion is not None
            del stream
        eventually(lambda: not any(end() for end in ends) and threads() <= before)
    finally:
        gc.enable()


def test_a_closed_llm_gives_its_cache_and_threads_back_though_somebody_holds_it(llm: LLM) -> None:
    llm.generate("x", max_tokens=2)
    program = llm.program
    assert isinstance(program, CpuProgram)
    llm.close()
    assert program._handle is None and program._pool.handle is None
    llm.close()
    with pytest.raises(ClosedError):
        llm.generate("x")
    with pytest.raises(ClosedError, match="the model was closed"):
        program.profile()
    assert llm.checkpoint.tensors and llm.tokenizer.encode("x")


def test_an_abandoned_stream_does_not_keep_its_llm(file: Path) -> None:
    llm = olivine.load(file, device="cpu", context=CONTEXT, threads=2)
    end = weakref.ref(llm.program)
    stream = llm.stream("x", max_tokens=200, ignore_eos=True)
    next(stream)
    del stream, llm
    eventually(lambda: end() is None)


@pytest.mark.parametrize("how", ["idle", "in the middle of a stream", "with a grammar"])
def test_an_interpreter_ends_though_an_llm_is_open(file: Path, how: str) -> None:
    script = """
import sys, olivine
llm = olivine.load(sys.argv[1], device="cpu", context=4096, threads=2)
llm.generate("x", max_tokens=2)
options = {"max_tokens": None, "ignore_eos": True}
if sys.argv[2] == "with a grammar":
    options = {"constraint": llm.grammar({"type": "regex", "regex": "[a-z]*"}), "max_tokens": None}
if sys.argv[2] != "idle":
    stream = llm.stream("x", **options)
    next(stream)
print("done")
"""
    run = subprocess.run(
        [sys.executable, "-c", script, str(file), how], capture_output=True, text=True, timeout=240
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")


# ---- model files that change


@pytest.fixture(params=["cpu", "reference"])
def own(request: pytest.FixtureRequest, file: Path, tmp_path: Path) -> Iterator[tuple[LLM, Path]]:
    """A model with a file of its own."""
    path = Path(shutil.copy(file, tmp_path / "own.gguf"))
    with olivine.load(path, device=request.param, context=CONTEXT) as llm:
        yield llm, path


def test_a_truncated_file_ends_requests_and_not_the_process(
    own: tuple[LLM, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, path = own
    gate = gate_of(llm.program, monkeypatch)
    gate.close(after=5)
    stream = llm.stream("x", max_tokens=200, ignore_eos=True)
    next(stream)
    size = path.stat().st_size
    os.truncate(path, size - 1)  # the last page stays readable, whatever a step that runs now reads
    gate.open()
    message = f"own.gguf: was truncated from {size} to {size - 1} bytes while it was in use"
    with pytest.raises(CheckpointError, match=message):
        list(stream)
    for ask in (lambda: llm.generate("x"), lambda: llm.embed("x"), lambda: llm.chat("x")):
        with pytest.raises(CheckpointError, match=message):
            ask()


def test_a_file_that_is_written_to_ends_requests(own: tuple[LLM, Path]) -> None:
    llm, path = own
    llm.generate("x", max_tokens=2)
    status = path.stat()
    with path.open("r+b") as file:
        file.write(b"GGUF")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))  # a clock may be too coarse for a test
    with pytest.raises(CheckpointError, match="was written to while it was in use: load the model again"):
        llm.generate("x", max_tokens=2)


def test_a_file_that_is_replaced_or_removed_does_no_harm(own: tuple[LLM, Path], tmp_path: Path) -> None:
    llm, path = own
    expected = llm.generate("x", max_tokens=5).tokens
    other = tmp_path / "other"
    other.write_bytes(b"shorter")
    os.replace(other, path)
    assert llm.generate("x", max_tokens=5).tokens == expected
    path.unlink()
    assert llm.generate("x", max_tokens=5).tokens == expected


SCRIPT = """
import faulthandler, os, sys
import numpy as np
if sys.argv[2] == "faulthandler":
    faulthandler.enable()
import olivine
llm = olivine.load(sys.argv[1], device="cpu", threads=1)
before = olivine.load(sys.argv[1], device="cpu", threads=1)
del before  # forgets its own map, and no other
print("ready", flush=True)
if sys.argv[2] == "elsewhere":
    import mmap
    with open(sys.argv[1] + ".other", "w+b") as file:
        file.truncate(mmap.PAGESIZE)
        other = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        other[0]
if sys.argv[2] == "sent":
    os.kill(os.getpid(), 7 if sys.platform == "linux" else 10)
os.truncate(sys.argv[1], 0)
llm._engine._check_step = None  # as if it were truncated in the middle of a step
llm.generate("x", max_tokens=2)
"""


@forks
@pytest.mark.parametrize("how", ["plain", "faulthandler", "elsewhere", "sent"])
def test_a_file_that_is_truncated_during_a_step_is_named_before_the_process_ends(
    file: Path, tmp_path: Path, how: str
) -> None:
    path = Path(shutil.copy(file, tmp_path / "own.gguf"))
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), how], capture_output=True, text=True, timeout=240
    )
    assert run.returncode == -signal.SIGBUS, run
    assert run.stdout == "ready\n"
    said = f"olivine: {path}: the file was truncated while it was in use"
    assert (said in run.stderr) == (how in ("plain", "faulthandler")), run.stderr
    assert ("Fatal Python error: Bus error" in run.stderr) == (how == "faulthandler")
