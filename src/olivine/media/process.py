"""The owner's side of one worker process: starts it, asks it, ends it when it takes too long."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from olivine.errors import MediaError, OlivineError
from olivine.media import messages
from olivine.media.features import Features, Kind, Span
from olivine.media.limits import Limits
from olivine.media.options import Options, to_json
from olivine.media.sources import Source

# The worker imports what its owner would, from the same places; -c alone would put the working folder first.
_START = "import sys; sys.path[:] = {path!r}; from olivine.media.worker import main; main()"
_LARGEST_PART = 1 << 28  # elements; an image of 1120 soft tokens has 7.7 million
_WIDEST = 1 << 16
_LONGEST = 3600.0  # seconds of one part of a sound
_START_SECONDS = 60.0
_PIPE = 1 << 20  # bytes that a pipe holds, where it can be chosen
_PACKAGES = {"PIL": "Pillow", "av": "av", "soundfile": "soundfile", "soxr": "soxr"}


class Idle(Exception):
    """The process had ended for want of work before it was asked."""


class WorkerProcess:
    """A process that decodes one medium at a time."""

    def __init__(self, limits: Limits) -> None:
        if not hasattr(select, "poll"):
            raise OlivineError(
                "images, sounds and videos are not decoded on Windows yet: its pipes have no poll"
            )
        self._limits = limits
        self._started = False
        self._loaded = set[Kind]()  # whose libraries it has imported
        self.ready = True  # for the next request
        path = [each for each in sys.path if isinstance(each, str)]  # imports pass over what is no text
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START.format(path=path), json.dumps(asdict(limits))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        for fd in (self._to, self._from):
            os.set_blocking(fd, False)
            with contextlib.suppress(ImportError, AttributeError, OSError):
                import fcntl

                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, source: Source, options: Options) -> Iterator[tuple[float, Features]]:
        """The parts of a medium, with their seconds. The time limit counts anew for each part of a sound, and
        not while the reader does something else. Unless the process is `ready` afterwards, it is to be ended:
        it is late or gone, or the reader left early."""
        self.ready = False
        self._await_start()
        header = {
            "kind": source.kind,
            "form": source.form,
            "path": source.path,
            "size": len(source.payload),
            "dtype": source.dtype,
            "shape": source.shape,
            "rate": source.rate,
            "options": to_json(options),
        }
        try:
            self._await_libraries(source.kind)
            with contextlib.suppress(messages.Gone):  # it may have said why
                messages.send(self._to, header, source.payload, deadline=self._deadline())
            left = self._limits.time
            while True:
                began = time.monotonic()
                answer = messages.receive(self._from, began + left)
                if answer.get("type") != "part":
                    break
                part = self._part(answer)
                left = self._limits.time if source.kind == "audio" else left - (time.monotonic() - began)
                yield part
        except messages.TooLate:
            raise MediaError(source.kind, f"took more than {self._limits.time:g} s to be decoded") from None
        except messages.Gone:
            raise MediaError(source.kind, self._why_gone()) from None
        except (ValueError, KeyError, TypeError) as error:
            raise OlivineError(f"a worker process for media answered nonsense: {error}") from error
        self.ready = answer.get("type") in ("end", "error")
        self._finish(answer, source.kind)

    def end(self) -> None:
        """Ends the process at once, and waits for it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def kill(self) -> None:
        """Makes a reader in another thread fail: it then ends the process."""
        self._process.kill()

    def _await_start(self) -> None:
        if self._started:
            if self._process.poll() is not None:
                raise Idle
            return
        try:
            messages.receive(self._from, time.monotonic() + _START_SECONDS)  # "ready"
        except (messages.Gone, messages.TooLate):
            status = self._process.poll()
            raise OlivineError(f"a worker process for media does not start (status {status})") from None
        self._started = True

    def _await_libraries(self, kind: Kind) -> None:
        """A disk that is slow to give them is not the fault of a file."""
        if kind in self._loaded:
            return
        deadline = time.monotonic() + _START_SECONDS
        with contextlib.suppress(messages.Gone, messages.TooLate):  # the request will say why
            messages.send(self._to, {"load": kind}, deadline=deadline)
            answer = messages.receive(self._from, deadline)
            if answer != {"type": "loaded"}:
                raise ValueError(f"{answer!r}")
        self._loaded.add(kind)

    def _deadline(self) -> float:
        return time.monotonic() + self._limits.time

    def _part(self, answer: dict[str, Any]) -> tuple[float, Features]:
        count, width = answer["shape"]
        tokens, seconds, digest = answer["tokens"], answer["seconds"], bytes.fromhex(answer["digest"])
        for number, most in ((count, _LARGEST_PART), (width, _WIDEST), (tokens, count)):
            if not isinstance(number, int) or not 1 <= number <= most:
                raise ValueError(f"a size of {number!r}")
        if count * width > _LARGEST_PART or len(digest) != 32 or not isinstance(seconds, int | float):
            raise ValueError("a part that is too large")
        span = _span(answer.get("span"))
        rows, coordinates = np.empty((count, width), np.float32), np.empty((count, 2), np.int32)
        for array in (rows, coordinates):
            messages.receive_into(self._from, array.reshape(-1).view(np.uint8).data, self._deadline())
        return float(seconds), Features(rows, coordinates, tokens, digest, span)

    def _finish(self, answer: dict[str, Any], kind: Kind) -> None:
        match answer.get("type"):
            case "end":
                return
            case "idle":
                raise Idle
            case "error" if "missing" in answer:
                name = _PACKAGES.get(str(answer["missing"]), str(answer["missing"]))
                raise OlivineError(
                    f"reading {kind} needs the package {name}: pip install 'olivine[media]'",
                    code="media_not_installed",
                )
            case "error":
                raise MediaError(kind, str(answer.get("problem", "cannot be read")))
            case other:
                raise OlivineError(f"a worker process for media answered {other!r}")

    def _why_gone(self) -> str:
        try:
            status = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            status = 0
        if status == -9:
            return "was given up, or took more memory than there is"
        return f"ended the process that decoded it (status {status}): the file is broken"


def _span(told: Any) -> Span | None:
    if told is None:
        return None
    seconds, total, silent = told
    if not 0 <= float(seconds) < _LONGEST or not float(total) >= 0 or not isinstance(silent, bool):
        raise ValueError(f"a span of {told!r}")
    return Span(float(seconds), float(total), silent)
