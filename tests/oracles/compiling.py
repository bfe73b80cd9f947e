"""Kernels compiled for a GPU where there is none: those that are launched in Triton's interpreter.

It takes Python that the compiler does not. As a program, this compiles the launches that it reads from
standard input: a process has either the interpreter or the compiler.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HOPPER = 90


@contextmanager
def recorded() -> Iterator[list[str]]:
    """The different launches within, as JSON. None of them runs."""
    import pytest
    from triton.runtime.interpreter import InterpretedFunction

    found: dict[str, None] = {}

    def record(self: Any, *values: Any, grid: Any = None, warmup: bool = False, **named: Any) -> None:
        found[json.dumps(_launch(self, values, named))] = None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpretedFunction, "run", record)
        launches: list[str] = []
        yield launches
        launches += found


def _launch(function: Any, values: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """What the compiler needs to know, by argument: its type and whether it is 1 or 16 divides it, or its
    value."""
    import torch
    from triton._utils import canonicalize_dtype

    parameters = inspect.signature(function.fn).parameters
    given = {
        **dict(zip(parameters, values, strict=False)),
        **{k: v for k, v in named.items() if k in parameters},
    }
    types: dict[str, str] = {}
    constants, divisible, ones = {}, [], []
    for name, parameter in parameters.items():
        value = given[name]
        if "constexpr" in str(parameter.annotation) or value is None:
            constants[name] = value
        elif isinstance(value, torch.Tensor):
            types[name] = "*" + canonicalize_dtype(str(value.dtype).removeprefix("torch."))
            divisible += [name] if value.data_ptr() % 16 == 0 else []
        elif isinstance(value, float):
            types[name] = "fp32"
        else:
            types[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            divisible += [name] if value % 16 == 0 else []
            ones += [name] if value == 1 else []
    options = {name: value for name, value in named.items() if name not in parameters}
    return {
        "module": function.fn.__module__,
        "name": function.fn.__name__,
        "types": types,
        "constants": constants,
        "divisible": divisible,
        "ones": ones,
        "options": options,
    }


def compiled(launches: list[str]) -> dict[str, int]:
    """How many kernels of each name were compiled; fails with what the compiler says."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, __file__],
        input="\n".join(launches),
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": str(Path(__file__).parents[1])},
        timeout=500,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return dict(json.loads(run.stdout))


def _compile(launch: dict[str, Any]) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(importlib.import_module(launch["module"]), launch["name"])
    plain = {each.name for each in function.params if each.do_not_specialize}
    constants = {**launch["constants"], **dict.fromkeys(set(launch["ones"]) - plain, 1)}
    types = {name: kind for name, kind in launch["types"].items() if name not in constants}
    signature = {name: types.get(name, "constexpr") for name in function.arg_names}
    divisible = {
        (each.num,): [["tt.divisibility", 16]]
        for each in function.params
        if each.name in launch["divisible"] and each.name not in plain
    }
    source = ASTSource(function, signature, constants, divisible)
    triton.compile(source, GPUTarget("cuda", HOPPER, 32), {"launch_pdl": True, **launch["options"]})


if __name__ == "__main__":
    counts: dict[str, int] = {}
    for line in sys.stdin:
        told = json.loads(line)
        try:
            _compile(told)
        except Exception as error:
            sys.exit(f"{told['name']} {told['constants']}: {error}")
        counts[told["name"]] = counts.get(told["name"], 0) + 1
    print(json.dumps(counts))
