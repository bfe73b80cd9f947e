"""The parent's side: one engine in a child process, called with lines of JSON."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
import time
from types import TracebackType
from typing import Any

from olivine.errors import OlivineError

_ILLEGAL_INSTRUCTION = (
    "\nA llama.cpp with AMX that gcc 12 compiled does that: it loses the tile configuration. "
    "Build it with clang (CC=clang CXX=clang++) or a newer gcc."
)


class Child:
    """A child process that sleeps until it is called."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self.started = time.perf_counter()
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                encoding="utf-8",
            )
        except OSError as error:
            raise OlivineError(f"{name}: cannot start {command[0]}: {error.strerror}") from error

    def ask(self, call: str, **arguments: Any) -> dict[str, Any]:
        """Calls the child and returns its answer; its errors are raised here."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"call": call, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise OlivineError(f"{self.name}: {self._exit_message()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise OlivineError(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Ends the child and waits for it. Closing twice is fine."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            try:
                self._process.stdin.close()  # at the end of its input it exits
                self._process.wait(timeout=5)
            except (subprocess.TimeoutExpired, BrokenPipeError):
                self._process.kill()
                self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._log.close()

    def _exit_message(self) -> str:
        status = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        if status >= 0:
            return f"ended with status {status}: {lines[-1] if lines else 'no message'}"
        hint = _ILLEGAL_INSTRUCTION if status == -signal.SIGILL else ""
        return f"was ended by {signal.Signals(-status).name}{hint}"

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
