"""`litellm` against a server on olivine-mini. Its pins conflict with those of the other clients, so it has an
environment of its own: OLIVINE_LITELLM_PYTHON is that one's interpreter (`make test-clients`)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from olivine.llm import LLM

PYTHON = os.environ.get("OLIVINE_LITELLM_PYTHON")
SCRIPT = Path(__file__).with_name("litellm_script.py")

pytestmark = pytest.mark.skipif(PYTHON is None, reason="OLIVINE_LITELLM_PYTHON is not set: make test-clients")


@pytest.fixture(scope="module")
def seen(url: str) -> dict[str, Any]:
    """What the script saw: litellm takes seconds to import, so all of it runs once."""
    assert PYTHON is not None
    run = subprocess.run([PYTHON, str(SCRIPT), url], capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr
    return dict(json.loads(run.stdout.splitlines()[-1]))


def test_an_answer_and_its_stream(seen: dict[str, Any], mini: LLM) -> None:
    expected = mini.chat("Tell me a story about a fox.", max_tokens=12, seed=7).content
    assert seen["text"] == seen["streamed"] == expected
    assert seen["finish"] == "length"
    assert seen["completion_tokens"] == seen["streamed_tokens"] == 12


def test_a_tool_is_called(seen: dict[str, Any]) -> None:
    assert seen["call"]["name"] == "weather"
    assert set(json.loads(seen["call"]["arguments"])) == {"city"}
    assert seen["after_call"]


def test_a_schema_is_kept(seen: dict[str, Any]) -> None:
    assert json.loads(seen["json"])["weather"] in ("rain", "sun")


def test_embeddings(seen: dict[str, Any], mini: LLM) -> None:
    assert seen["embedding"] == pytest.approx(mini.embed("a fox").tolist(), abs=1e-3)


def test_errors_have_their_classes(seen: dict[str, Any]) -> None:
    assert seen["errors"] == {
        "long": "ContextWindowExceededError",
        "model": "NotFoundError",
        "bad": "BadRequestError",
    }
