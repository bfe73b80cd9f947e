"""Worker processes: what they give, when they start and end, and that they hold up nobody."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from media.clips import clip
from olivine.errors import ClosedError, MediaError, OlivineError
from olivine.media import (
    BudgetImage,
    Limits,
    MediaProcessor,
    MelAudio,
    Prepared,
    RawAudio,
    SquareImage,
    VideoFrames,
    process,
)
from olivine.media.image import from_array
from olivine.media.patches import image_features
from olivine.media.process import WorkerProcess
from olivine.media.sources import source_of
from oracles.waiting import eventually

SMALL = SquareImage(size=56)


@pytest.fixture(scope="module")
def processor() -> Iterator[MediaProcessor]:
    with MediaProcessor(workers=1) as shared:
        yield shared


def pixels(size: tuple[int, int] = (60, 40)) -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).integers(0, 256, (*size, 3), np.uint8)


def png(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


def wav(seconds: float) -> bytes:
    file = io.BytesIO()
    samples = 0.1 * np.sin(np.arange(int(seconds * 16_000)) / 7)
    soundfile.write(file, samples, 16_000, format="WAV", subtype="FLOAT")
    return file.getvalue()


def pids(processor: MediaProcessor) -> set[int]:
    return {worker.pid for worker in processor._all}


def same(first: Prepared, second: Prepared) -> bool:
    return first.times == second.times and all(
        np.array_equal(a.rows, b.rows)
        and np.array_equal(a.coordinates, b.coordinates)
        and a.digest == b.digest
        for a, b in zip(first.parts, second.parts, strict=True)
    )


@pytest.mark.parametrize("options", [SMALL, BudgetImage(70), BudgetImage(140, merged=True)], ids=repr)
def test_an_image_comes_back_as_it_was_made(processor: MediaProcessor, options: Any) -> None:
    (expected,) = image_features(from_array(pixels(), "image"), options)
    (found,) = processor.prepare("image", png(pixels()), options).parts
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_array_equal(found.coordinates, expected.coordinates)
    assert (found.tokens, found.digest) == (expected.tokens, expected.digest)
    assert found.rows.dtype == np.float32 and found.coordinates.dtype == np.int32


def test_every_source_gives_the_same(processor: MediaProcessor, tmp_path: Path) -> None:
    content = png(pixels())
    path = tmp_path / "picture.png"
    path.write_bytes(content)
    text = base64.b64encode(content).decode()
    sources: list[Any] = [
        content,
        path,
        str(path),
        text,
        text.rstrip("="),
        base64.urlsafe_b64encode(content).decode(),
        "\n".join(text[i : i + 76] for i in range(0, len(text), 76)),
        f"data:image/png;base64,{text}",
        {"url": f"data:image/jpeg;base64,{text}"},
        Image.open(path),
        pixels(),
    ]
    found = [processor.prepare("image", source, SMALL) for source in sources]
    assert all(same(found[0], each) for each in found)


def test_pan_and_scan_gives_the_crops_too(processor: MediaProcessor) -> None:
    found = processor.prepare("image", pixels((300, 900)), SquareImage(size=56, pan_and_scan=True))
    assert len(found.parts) == 4 and found.tokens == 4 and found.times == (0.0,) * 4


def test_sounds_and_videos_come_in_parts(processor: MediaProcessor) -> None:
    sound = processor.prepare("audio", wav(65.0), MelAudio())
    assert (sound.times, [part.tokens for part in sound.parts]) == ((0.0, 30.0, 60.0), [750, 750, 125])
    raw = processor.prepare("audio", (np.zeros(16_000, np.int16), 16_000), RawAudio())
    assert raw.tokens == 25
    video = processor.prepare("video", clip(10), VideoFrames(5, SMALL))
    assert video.times == pytest.approx((0.0, 0.08, 0.16, 0.24, 0.32)) and len(video.parts) == 5
    frames = processor.prepare("video", (np.zeros((4, 20, 20, 3), np.uint8), 2.0), VideoFrames(2, SMALL))
    assert frames.times == (0.0, 1.0)


def test_the_sound_of_a_video_is_read_as_a_sound(processor: MediaProcessor) -> None:
    content = clip(10, sound=True)
    assert processor.prepare("audio", content, MelAudio()).tokens > 20
    assert len(processor.prepare("video", content, VideoFrames(3, SMALL)).parts) == 3


def test_a_process_serves_many_requests_and_survives_bad_files(processor: MediaProcessor) -> None:
    processor.prepare("image", pixels(), SMALL)
    before = pids(processor)
    for bad in (b"nothing", png(pixels())[:-100], "A" * 77, "data:image/png;base64,####"):
        with pytest.raises(MediaError) as caught:
            processor.prepare("image", bad, SMALL)
        assert caught.value.code == "invalid_image"
    processor.prepare("image", pixels(), SMALL)
    assert pids(processor) == before and len(before) == 1


def test_options_are_those_of_the_kind(processor: MediaProcessor) -> None:
    with pytest.raises(TypeError, match="MelAudio is not for image"):
        processor.prepare("image", pixels(), MelAudio())


def test_a_process_ends_without_work_and_another_starts() -> None:
    with MediaProcessor(Limits(idle=0.2), workers=1) as processor:
        first = processor.prepare("image", pixels(), SMALL)
        (before,) = processor._all
        eventually(lambda: before._process.poll() is not None)
        assert before._process.returncode == 0
        assert same(processor.prepare("image", pixels(), SMALL), first)
        assert pids(processor) != {before.pid}


def test_a_request_that_meets_a_process_about_to_end_is_asked_again() -> None:
    with MediaProcessor(Limits(idle=0.0), workers=1) as processor:
        # With no patience at all, most processes end before they are asked.
        worker = WorkerProcess(Limits(idle=0.0))
        worker._await_start()
        eventually(lambda: worker._process.poll() is not None)
        worker._process.poll = lambda: None  # type: ignore[method-assign] # not noticed yet
        processor._all.add(worker)
        processor._idle.append(worker)
        processor.limits = Limits()
        assert processor.prepare("image", pixels(), SMALL).tokens == 1


def test_a_process_that_was_killed_while_idle_is_replaced(processor: MediaProcessor) -> None:
    processor.prepare("image", pixels(), SMALL)
    (worker,) = processor._all
    os.kill(worker.pid, signal.SIGKILL)
    worker._process.wait()
    assert processor.prepare("image", pixels(), SMALL).tokens == 1


def test_a_process_that_dies_at_work_fails_one_request(processor: MediaProcessor) -> None:
    parts = processor.stream("audio", wav(95.0), MelAudio())
    next(parts)
    (worker,) = processor._all
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(MediaError, match="given up"):
        list(parts)
    assert processor.prepare("image", pixels(), SMALL).tokens == 1


def test_a_reader_that_leaves_early_ends_the_process(processor: MediaProcessor) -> None:
    parts = processor.stream("audio", wav(65.0), MelAudio())
    next(parts)
    (worker,) = processor._all
    parts.close()  # type: ignore[attr-defined]
    assert worker._process.poll() is not None and not processor._all
    assert processor.prepare("image", pixels(), SMALL).tokens == 1


def test_time_is_limited() -> None:
    with MediaProcessor(workers=1) as processor:
        processor.prepare("image", pixels(), SMALL)
        (worker,) = processor._all
        worker._limits = Limits(time=0.2)
        os.kill(worker.pid, signal.SIGSTOP)  # it decodes for ever
        with pytest.raises(MediaError, match=r"more than 0\.2 s"):
            processor.prepare("image", pixels(), SMALL)
        assert worker._process.poll() is not None
        assert processor.prepare("image", pixels(), SMALL).tokens == 1


def test_importing_libraries_is_no_time_of_decoding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A disk that is slow to give them is not the fault of a file: here it takes longer than the limit."""
    slow = """
import time

time.sleep(1.5)

def __getattr__(name):
    raise ModuleNotFoundError("not here", name="av")
"""
    (tmp_path / "av.py").write_text(slow)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with (
        MediaProcessor(Limits(time=1.0), workers=1) as processor,
        pytest.raises(OlivineError, match=r"the package av: pip install"),
    ):
        processor.prepare("video", b"x" * 100, VideoFrames())


@pytest.mark.parametrize(("kind", "allowed"), [("video", [60, 40, 10]), ("audio", [60, 60, 60])])
def test_time_counts_while_a_worker_decodes_and_not_while_its_reader_does_something_else(
    kind: Any, allowed: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of our own: the parts take 20, 30 and 5 s, and the reader a quarter of an hour for each."""
    worker, now, found = WorkerProcess(Limits(time=60)), 0.0, list[float]()
    takes = iter([20.0, 30.0, 5.0])

    def receive(source: int, deadline: float) -> dict[str, Any]:
        nonlocal now
        took = next(takes, None)
        if took is None:
            return {"type": "end"}
        found.append(deadline - now)
        now += took
        return {"type": "part"}

    try:
        worker._await_start()
        worker._await_libraries(kind)
        monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: now))
        monkeypatch.setattr(process.messages, "receive", receive)
        monkeypatch.setattr(process.messages, "send", lambda *_, **__: None)
        monkeypatch.setattr(worker, "_part", lambda answer: (0.0, None))
        options = MelAudio() if kind == "audio" else VideoFrames()
        for _ in worker.ask(source_of(kind, b"x"), options):
            now += 900.0
    finally:
        worker.end()
    assert found == allowed


def test_memory_is_limited() -> None:
    with MediaProcessor(Limits(memory=400 << 20), workers=1) as processor:
        assert processor.prepare("image", pixels(), SMALL).tokens == 1
        file = io.BytesIO()
        Image.new("1", (9000, 9000)).save(file, "PNG")
        with pytest.raises(MediaError, match="memory"):
            processor.prepare("image", file.getvalue(), SMALL)
        assert processor.prepare("image", pixels(), SMALL).tokens == 1


def test_a_process_whose_owner_is_gone_ends_itself() -> None:
    """At work, by an alarm; without work, because its input ends."""
    script = """
        import os
        from olivine.media.limits import Limits
        from olivine.media.process import WorkerProcess
        worker = WorkerProcess(Limits())
        worker._await_start()
        print(worker.pid, flush=True)
        os._exit(0)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    eventually(lambda: not Path(f"/proc/{int(run.stdout)}").exists() or _zombie(int(run.stdout)))


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_two_requests_run_at_once_and_a_third_waits() -> None:
    with MediaProcessor(workers=2) as processor:
        streams = [processor.stream("audio", wav(65.0), MelAudio()) for _ in range(2)]
        for each in streams:
            next(each)
        assert len(pids(processor)) == 2
        done = threading.Event()

        def third() -> None:
            processor.prepare("image", pixels(), SMALL)
            done.set()

        thread = threading.Thread(target=third)
        thread.start()
        assert not done.wait(0.3)
        assert len(list(streams[0])) == 2
        assert done.wait(60)
        thread.join()
        assert len(list(streams[1])) == 2 and len(pids(processor)) == 2


def test_a_loop_runs_on_while_media_are_decoded(processor: MediaProcessor) -> None:
    async def main() -> tuple[Prepared, int]:
        task = asyncio.create_task(processor.aprepare("audio", wav(65.0), MelAudio()))
        turns = 0
        while not task.done():
            await asyncio.sleep(0.001)
            turns += 1
        return await task, turns

    prepared, turns = asyncio.run(main())
    assert len(prepared.parts) == 3 and turns > 3


def test_a_task_that_is_cancelled_ends_the_process() -> None:
    async def main(processor: MediaProcessor) -> int:
        await processor.aprepare("image", pixels(), SMALL)
        (worker,) = processor._all
        os.kill(worker.pid, signal.SIGSTOP)
        task = asyncio.create_task(processor.aprepare("image", pixels(), SMALL))
        while processor._idle:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return worker.pid

    with MediaProcessor(workers=1) as processor:
        pid = asyncio.run(main(processor))
        eventually(lambda: pid not in pids(processor))
        assert processor.prepare("image", pixels(), SMALL).tokens == 1


def test_closing_ends_everything() -> None:
    processor = MediaProcessor(workers=2)
    parts = processor.stream("audio", wav(95.0), MelAudio())
    next(parts)
    processor.prepare("image", pixels(), SMALL)
    workers = list(processor._all)
    processor.close()
    with pytest.raises(ClosedError):
        list(parts)
    with pytest.raises(ClosedError):
        processor.prepare("image", pixels(), SMALL)
    with pytest.raises(ClosedError):
        asyncio.run(processor.aprepare("image", pixels(), SMALL))
    assert len(workers) == 2 and all(worker._process.poll() is not None for worker in workers)
    processor.close()


def test_a_processor_that_is_forgotten_ends_its_processes() -> None:
    processor = MediaProcessor(workers=1)
    processor.prepare("image", pixels(), SMALL)
    (worker,) = processor._all
    del processor
    eventually(lambda: worker._process.poll() is not None)


def test_a_forked_child_says_that_it_cannot(processor: MediaProcessor) -> None:
    processor.prepare("image", pixels(), SMALL)
    child = os.fork()
    if child == 0:
        try:
            processor.prepare("image", pixels(), SMALL)
        except OlivineError as error:
            os._exit(7 if error.code == "forked" else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert processor.prepare("image", pixels(), SMALL).tokens == 1


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = list(sys.path)
    for kind, options, module, package in [
        ("image", SMALL, "PIL", "Pillow"),
        ("audio", MelAudio(), "soundfile", "soundfile"),
        ("video", VideoFrames(), "av", "av"),
    ]:
        (folder := tmp_path / module).mkdir()
        (folder / f"{module}.py").write_text(f"raise ModuleNotFoundError('no {module}', name={module!r})")
        monkeypatch.setattr(sys, "path", [str(folder), *before])
        with (
            MediaProcessor(workers=1) as processor,
            pytest.raises(OlivineError, match=rf"{package}: pip install 'olivine\[media\]'") as caught,
        ):
            processor.prepare(kind, b"x" * 100, options)  # type: ignore[arg-type]
        assert caught.value.code == "media_not_installed" and not isinstance(caught.value, MediaError)


def test_a_worker_imports_media_and_no_more() -> None:
    script = "import sys, olivine.media.worker; print(*(n for n in sys.modules if n.startswith('olivine')))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {name.split(".")[1] for name in run.stdout.split() if "." in name} == {"media", "errors"}


def test_a_worker_is_not_told_where_to_import_from_by_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit('a stranger')")
    monkeypatch.chdir(tmp_path)
    with MediaProcessor(workers=1) as processor:
        assert processor.prepare("image", pixels(), SMALL).tokens == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff\xff\xff\xff",
        b"\x02\0\0\0[]",
        b"\x05\0\0\0{nope",
        b'\x10\0\0\0{"type": "part"}',
        b"\x0f\0\0\0" + b'{"type": "odd"}',
    ],
)
def test_what_a_worker_says_is_not_believed(answer: bytes) -> None:
    worker = WorkerProcess(Limits())
    try:
        worker._await_start()
        reader, writer = os.pipe()
        os.write(writer, answer)
        os.close(writer)
        worker._from = reader
        with pytest.raises(OlivineError, match="answered"):
            list(worker.ask(source_of("image", pixels()), SMALL))
        assert not worker.ready
    finally:
        worker.end()


def test_a_part_larger_than_any_is_refused() -> None:
    worker = WorkerProcess(Limits())
    try:
        for shape, tokens in [
            ([1 << 40, 1], 1),
            ([1 << 20, 1 << 15], 1),
            ([2, -1], 1),
            ([2, 2], 3),
            ([2.5, 2], 1),
        ]:
            header = {"shape": shape, "tokens": tokens, "seconds": 0.0, "digest": "00" * 32}
            with pytest.raises(ValueError):
                worker._part(header)
    finally:
        worker.end()


def test_a_path_among_the_places_of_imports_that_is_no_text_hinders_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Python passes over such an entry; its name in the worker's command would be no Python."""
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    with MediaProcessor(workers=1) as processor:
        assert processor.prepare("image", pixels(), SMALL).tokens > 0
