"""Kernels compiled for a GPU where there is none: those that are launched in Triton's interpreter.

It takes Python that the compiler does not. As a program, this compiles the launches that it reads from
standard input, all the way with the argument "every": a process has either the interpreter or the compiler.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import olivine

HOPPER = 90
_DISASSEMBLER = "backends/nvidia/bin/nvdisasm"  # in Triton


@contextmanager
def recorded() -> Iterator[list[str]]:
    """The different launches within, as JSON. None of them runs."""
    import pytest
    import torch
    from triton.runtime.interpreter import InterpretedFunction

    found: dict[str, None] = {}

    def record(self: Any, *values: Any, grid: Any = None, warmup: bool = False, **named: Any) -> None:
        found[json.dumps(_launch(self, values, named))] = None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpretedFunction, "run", record)
        patch.setattr(torch, "empty", torch.zeros)  # what no kernel fills may be an index
        launches: list[str] = []
        yield launches
        launches += found


def _launch(function: Any, values: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """What the compiler needs to know: each argument as `_described`, and the options of the launch."""
    parameters = inspect.signature(function.fn).parameters
    given = {
        **dict(zip(parameters, values, strict=False)),
        **{k: v for k, v in named.items() if k in parameters},
    }
    return {
        "module": function.fn.__module__,
        "name": function.fn.__name__,
        "arguments": {
            name: {"constant": given[name], "fields": getattr(given[name], "_fields", None)}
            if "constexpr" in str(parameter.annotation)
            else _described(given[name])
            for name, parameter in parameters.items()
        },
        "options": {name: value for name, value in named.items() if name not in parameters},
    }


def _described(value: Any) -> dict[str, Any]:
    """The type of an argument and whether it is 1 or 16 divides it, or its value, or its parts."""
    import torch
    from triton._utils import canonicalize_dtype

    if value is None:
        return {"constant": None}
    if isinstance(value, tuple):
        return {"parts": [_described(part) for part in value], "fields": getattr(value, "_fields", None)}
    if isinstance(value, torch.Tensor):
        kind = "*" + canonicalize_dtype(str(value.dtype).removeprefix("torch."))
        return {"type": kind, "divisible": value.data_ptr() % 16 == 0, "one": False}
    if isinstance(value, float):
        return {"type": "fp32", "divisible": False, "one": False}
    kind = "i32" if -(2**31) <= value < 2**31 else "i64"
    return {"type": kind, "divisible": value % 16 == 0, "one": value == 1}


def compiled(launches: list[str], every: bool) -> dict[str, int]:
    """How many kernels of each name were compiled; fails with what the compiler says.

    The first launch of each kernel becomes machine code. The others do so where `every` one is wanted; else
    they stop after the compiler's first stage, a tenth of its time, which is where it reads Python.
    """
    return dict(json.loads(_run(launches, *(["every"] if every else []))))


def _run(launches: list[str], *asked: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = [str(Path(__file__).parents[1]), str(Path(olivine.__file__).parents[1])]  # the kernels recorded
    run = subprocess.run(
        [sys.executable, __file__, *asked],
        input="\n".join(launches),
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": os.pathsep.join(paths)},
        timeout=500,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return run.stdout


def columns_of_products(launches: list[str]) -> list[set[str]]:
    """For each launch, how many neighboring columns a lane has of the operands of its products: an order of
    summation that the compiler chooses."""
    found = _run(launches, "columns")
    return [set(each) for each in json.loads(found)]


def after_the_wait(launch: str) -> list[str] | None:
    """The instructions of a kernel that come after it waited for the previous one; None without a
    disassembler, which Triton's wheels have."""
    import triton

    if not (Path(triton.__file__).parent / _DISASSEMBLER).exists():
        return None
    return list(json.loads(_run([launch], "code")))


class _Stopped(Exception):
    """The stages of the compiler that were wanted passed."""


def _stop(*_: Any) -> None:
    raise _Stopped


def _compile(launch: dict[str, Any], wholly: bool) -> None:
    """All the way, or only the first stage."""
    _compile_to(launch, None if wholly else 1)


def _compile_to(launch: dict[str, Any], count: int | None) -> str:
    """As many stages as are wanted, or all; what the second one gives, if it is among them."""
    return _compiled(launch, count)[0]


def _machine_code(launch: dict[str, Any]) -> list[str]:
    """Its instructions after the last wait."""
    import triton

    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder, "kernel.cubin")
        binary.write_bytes(_compiled(launch, None)[1])
        tool = Path(triton.__file__).parent / _DISASSEMBLER
        text = subprocess.run([tool, "-c", binary], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@\S+ )?([A-Z][A-Z0-9_.]+)", text)
    return found[len(found) - found[::-1].index("ACQBULK") :]


def _compiled(launch: dict[str, Any], count: int | None) -> tuple[str, bytes]:
    """The same, and the machine code."""
    import pytest
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.compiler import ASTSource

    function = getattr(importlib.import_module(launch["module"]), launch["name"])
    constants: dict[tuple[int, ...], Any] = {}
    divisible: dict[tuple[int, ...], Any] = {}

    def signature(told: dict[str, Any], path: tuple[int, ...], specialize: bool) -> Any:
        if "parts" in told:
            parts = [signature(part, (*path, i), specialize) for i, part in enumerate(told["parts"])]
            return namedtuple("Parts", told["fields"])(*parts) if told["fields"] else tuple(parts)
        if "constant" in told or (told["one"] and specialize):
            value = told.get("constant", 1)
            constants[path] = namedtuple("Constants", told["fields"])(*value) if told.get("fields") else value
            return "constexpr"
        if told["divisible"] and specialize:
            divisible[path] = [["tt.divisibility", 16]]
        return told["type"]

    types = {
        each.name: signature(launch["arguments"][each.name], (each.num,), not each.do_not_specialize)
        for each in function.params
    }
    source = ASTSource(function, types, constants, divisible)
    add_stages, found = CUDABackend.add_stages, []

    def add_some(self: Any, stages: dict[str, Any], *others: Any) -> None:
        add_stages(self, stages, *others)
        second = stages["ttgir"]
        stages["ttgir"] = lambda *given: found.append(second(*given)) or found[-1]
        if count is not None:
            stages[list(stages)[count]] = _stop

    options, binary = {"launch_pdl": True, **launch["options"]}, b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CUDABackend, "add_stages", add_some)
        with suppress(_Stopped):
            binary = triton.compile(source, GPUTarget("cuda", HOPPER, 32), options).asm["cubin"]
    return str(found[0]) if found else "", binary


if __name__ == "__main__":
    gc.disable()  # it ends soon
    if "code" in sys.argv:
        print(json.dumps(_machine_code(json.loads(sys.stdin.read()))))
        sys.exit()
    if "columns" in sys.argv:
        code = [_compile_to(json.loads(line), 2) for line in sys.stdin]
        print(json.dumps([re.findall(r"tt\.dot .*?kWidth = (\d+)", each) for each in code]))
        sys.exit()
    counts: dict[str, int] = {}
    for line in sys.stdin:
        told = json.loads(line)
        try:
            _compile(told, wholly="every" in sys.argv or told["name"] not in counts)
        except Exception as error:
            sys.exit(f"{told['name']} {told['arguments']}: {error}")
        counts[told["name"]] = counts.get(told["name"], 0) + 1
    print(json.dumps(counts))
