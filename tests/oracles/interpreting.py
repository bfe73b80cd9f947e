"""Triton's interpreter, without work that it repeats."""

from __future__ import annotations

from typing import Any


def patch_language_once() -> None:
    """Triton's interpreter patches `triton.language` for each device function that a kernel calls, a quarter
    of a test's time. Once a launch is enough for all functions that see the same modules of it."""
    from triton.runtime import interpreter

    function = interpreter.InterpretedFunction
    run = function.run
    patched: set[frozenset[int]] = set()

    def run_patched(self: Any, *values: Any, **named: Any) -> Any:
        patched.clear()  # the launch before restored the language
        return run(self, *values, **named)

    def call(self: Any, *values: Any, **named: Any) -> Any:
        seen = self.__dict__.get("language_seen")
        if seen is None:
            languages = (interpreter.tl, interpreter.tl.core)
            seen = frozenset(id(each) for each in self.fn.__globals__.values() if each in languages)
            self.language_seen = seen
        if seen not in patched:
            interpreter._patch_lang(self.fn)
            patched.add(seen)
        return self.rewrite()(*values, **named)

    function.run, function.__call__ = run_patched, call
