"""Groups of ranks in processes of their own, by gloo: their results, and what happens when one dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import olivine
from olivine.backends import CompileOptions
from olivine.cluster import Group, Parallel, compile_group
from olivine.errors import OlivineError
from oracles import published, running

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


def test_ctrl_c_is_the_drivers(group: olivine.LLM) -> None:
    """A terminal sends it to every process; the ranks go on."""
    program = group.program
    assert isinstance(program, Group)
    for process in program._processes:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
    assert len(group.generate(PROMPT, max_tokens=3, temperature=0, ignore_eos=True).tokens) == 3


def test_what_could_not_be_divided_is_told(tmp_path: Path) -> None:
    folder = published.save(published.case("qwen3-mqa-odd").make(), tmp_path)
    model = running.build(folder)
    options = CompileOptions(lambda *_, **__: ([8] * len(model.plan.groups), 0))
    compiled = compile_group(
        model.plan, model.weights, options, folder, model.context, "reference", Parallel(2)
    )
    assert isinstance(compiled.program, Group)
    compiled.program.close()
    assert any("5 query heads on 1 KV heads" in note and "2 ranks" in note for note in compiled.notes)


def test_without_torch_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from olivine.__main__ import main\n"
        "sys.argv = 'olivine run olivine-mini Hi --device cpu --tensor-parallel 2 -q'.split()\n"
        "main()\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 1
    assert found.stderr == "Error: ranks in several processes need torch: pip install 'olivine[cluster]'\n"


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


def test_a_rank_that_cannot_start_is_told_at_once(tmp_path: Path) -> None:
    """Its file is gone: nobody waits for it."""
    folder = published.save(published.case("qwen3-tied").make(), tmp_path)
    model = running.build(folder)
    options = CompileOptions(lambda *_, **__: ([8] * len(model.plan.groups), 0))
    nowhere = tmp_path / "nowhere"
    with pytest.raises(OlivineError, match=r"a rank could not start: .*nowhere"):
        compile_group(model.plan, model.weights, options, nowhere, model.context, "reference", Parallel(2))
