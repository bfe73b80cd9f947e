"""Functions of a Python file that a model may call in a chat, each call only if the user agrees."""

from __future__ import annotations

import inspect
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from olivine.chat.arguments import arguments_for
from olivine.chat.messages import ToolCall, parsed_arguments, tools_of
from olivine.cli.signals import interrupts
from olivine.errors import RequestError

ROUNDS = 8  # of calls after one question
LONGEST = 20_000  # characters of a result
DECLINED = "The user declined this call."
_MODULE = "olivine_tools"


class Tools:
    """Functions by name."""

    def __init__(self, functions: dict[str, Callable[..., Any]]) -> None:
        self.functions = functions

    @classmethod
    def load(cls, path: Path) -> Tools:
        """Runs a Python file and takes the functions that it defines, but for names that begin with _."""
        if not path.is_file():
            raise RequestError(f"{path}: there is no such file")
        try:
            with interrupts():
                found = runpy.run_path(str(path), run_name=_MODULE)
        except (Exception, SystemExit) as error:
            raise RequestError(f"{path}: {type(error).__name__}: {error}") from None
        # If a class's hints are texts (`from __future__ import annotations`), typing looks here for names.
        module = sys.modules[_MODULE] = ModuleType(_MODULE)
        vars(module).update(found)
        functions: dict[str, Callable[..., Any]] = {
            name: value
            for name, value in found.items()
            if inspect.isfunction(value) and value.__module__ == _MODULE and not name.startswith("_")
        }
        if not functions:
            raise RequestError(f"{path}: defines no function that a model could call")
        try:
            tools_of(list(functions.values()))
        except RequestError as error:
            raise RequestError(f"{path}: {error}") from None
        return cls(functions)

    def __str__(self) -> str:
        rows = []
        for name, function in self.functions.items():
            told = (inspect.getdoc(function) or "").partition("\n")[0]
            rows.append(f"{name}{inspect.signature(function)}" + (f"  {told}" if told else ""))
        return "\n".join(rows)

    def run(self, call: ToolCall) -> str:
        """The result of a call as text, or its error, for the model to read."""
        arguments = parsed_arguments(call.arguments)
        if not isinstance(arguments, dict):
            return f"error: the arguments are not a JSON object: {call.arguments[:200]}"
        try:
            with interrupts():
                function = self.functions[call.name]
                positional, named = arguments_for(function, arguments)
                result = function(*positional, **named)
                if inspect.iscoroutine(result):
                    import asyncio

                    result = asyncio.run(result)
            text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
        except KeyboardInterrupt:
            return "error: the user interrupted this call"
        except RequestError as error:  # arguments that do not fit
            return f"error: {error}"
        except (Exception, SystemExit) as error:
            return f"error: {type(error).__name__}: {error}"
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text) - LONGEST} characters more)"


def shown(call: ToolCall) -> str:
    """A call as Python would write it."""
    arguments = parsed_arguments(call.arguments)
    if not isinstance(arguments, dict):
        return f"{call.name}({call.arguments})"
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
