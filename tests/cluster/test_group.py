"""Groups of ranks in processes of their own, by gloo: their results, and what happens when one dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

import olivine
from olivine.cluster import Group
from olivine.errors import OlivineError

pytest.importorskip("torch", reason="ranks in several processes need torch")
PROMPT = "Once upon a time"
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"name": {"enum": ["Lily", "Tom"]}},
    "required": ["name"],
}


def load(**options: Any) -> olivine.LLM:
    return olivine.load("olivine-mini", device="cpu", threads=1, context=256, **options)


@pytest.fixture(scope="module")
def alone() -> Iterator[olivine.LLM]:
    with load() as llm:
        yield llm


@pytest.fixture(scope="module", params=[(2, 1), (1, 2)], ids=["tensor", "pipeline"])
def group(request: pytest.FixtureRequest) -> Iterator[olivine.LLM]:
    tensor, pipeline = request.param
    with load(tensor_parallel=tensor, pipeline_parallel=pipeline) as llm:
        yield llm


def test_log_probabilities_are_the_whole_models(alone: olivine.LLM, group: olivine.LLM) -> None:
    """Within what a sum in another order makes of eight-bit activations."""
    text = alone.generate(PROMPT, max_tokens=40, temperature=0).text
    ours, theirs = (llm.score(PROMPT, text) for llm in (group, alone))
    assert len(ours.logprobs) == len(theirs.logprobs) > 30
    assert max(abs(a - b) for a, b in zip(ours.logprobs, theirs.logprobs, strict=True)) < 0.1
    assert repr(group).count("2 ranks") == 1


def test_requests_together_have_the_texts_of_requests_alone(group: olivine.LLM) -> None:
    prompts = [PROMPT, "The fox and the boat", "A", "Tom said that he"]
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 0.9, "seed": 4}
    one_by_one = [group.generate(prompt, **options).text for prompt in prompts]
    assert [each.text for each in group.generate_many(prompts, **options)] == one_by_one
    assert len(set(one_by_one)) == 4


def test_a_grammar_holds(group: olivine.LLM) -> None:
    grammar = group.grammar(SCHEMA)
    found = group.generate("A name: ", constraint=grammar, max_tokens=30, temperature=1.0, seed=2).text
    assert found.replace(" ", "").replace("\n", "") in ('{"name":"Lily"}', '{"name":"Tom"}')


def test_a_rank_that_dies_ends_requests_with_a_clear_error() -> None:
    llm = load(tensor_parallel=2)
    try:
        program = llm._engine.program
        assert isinstance(program, Group)
        (process,) = program._processes
        stream = iter(llm.stream(PROMPT, max_tokens=200, temperature=0, ignore_eos=True))
        next(stream)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(
            OlivineError, match=r"the group of 2 ranks failed \(.*ended\): load the model again"
        ):
            for _ in stream:
                pass
        with pytest.raises(OlivineError, match="load the model again"):
            llm.generate(PROMPT, max_tokens=2)
        assert time.monotonic() - began < 30  # it hangs, or it does not
    finally:
        llm.close()


def test_ranks_end_with_the_driver() -> None:
    """Even if it is killed."""
    code = (
        "import olivine, sys\n"
        "if __name__ == '__main__':\n"
        "    llm = olivine.load('olivine-mini', device='reference', context=64, pipeline_parallel=2)\n"
        "    print(*[p.pid for p in llm._engine.program._processes], flush=True)\n"
        "    sys.stdin.read()\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert driver.stdout is not None
    (child,) = map(int, driver.stdout.readline().split())
    driver.kill()
    driver.wait()
    for _ in range(200):
        if not _alive(child):
            return
        time.sleep(0.1)
    pytest.fail("the rank is still there")


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(OlivineError, match="200 stages are too many"):
        load(pipeline_parallel=200)
