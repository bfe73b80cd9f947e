"""The child's side: reads calls and writes answers as lines of JSON.

This file has no imports of ours: the interpreter that has llama.cpp may not have Olivine.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any


def serve(calls: Mapping[str, Callable[..., dict[str, Any] | None]]) -> None:
    """Answers {"call": name, ...arguments} with what calls[name](**arguments) gives, until input ends."""
    # What libraries print to stdout goes to the log; only answers go to the real stdout.
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
    """The peak resident memory of this process, including pages of mapped files."""
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
