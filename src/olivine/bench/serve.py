"""The child's side of a conversation: a line of JSON in, a line of JSON out.

This file stands alone. The interpreter that has llama.cpp may have no Olivine and may be another Python.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any


def serve(calls: Mapping[str, Callable[..., dict[str, Any] | None]]) -> None:
    """Answers {"call": name, ...arguments} with what calls[name](**arguments) gives, until input ends."""
    # Whatever a library prints goes to the log; the answers have the real output to themselves.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = calls[request.pop("call")](**request) or {}
        except Exception as error:
            answer = {"error": str(error) or type(error).__name__}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def peak_memory() -> dict[str, Any]:
    """The most memory that this process has had resident, pages of mapped files included."""
    try:
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return {"bytes": 1024 * int(line.split()[1])}
    except OSError:
        pass
    import resource  # not on Windows, so not at the top

    unit = 1 if sys.platform == "darwin" else 1024
    return {"bytes": unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
