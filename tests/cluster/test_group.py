"""Groups of ranks in processes of their own: their results, and what happens when one dies."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import httpx
import pytest

import olivine
from olivine import cluster
from olivine.backends import CompileOptions
from olivine.box import find
from olivine.cluster import Address, Group, Meeting, Parallel, compile_group
from olivine.cluster.rank import Command
from olivine.cluster.ranks import Ranks
from olivine.convert import convert
from olivine.engine.speculative import Speculation
from olivine.errors import ClosedError, OlivineError, RankError
from olivine.server.served import ServedModel
from oracles import published, random_plans, running
from oracles.serving import serving
from oracles.waiting import alive

PROMPT = "Once upon a time"
LONG = "The fox and the boat went down to the river, and the river was wide and cold. " * 16  # > the window
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"name": {"enum": ["Lily", "Tom"]}},
    "required": ["name"],
}


def load(path: str | Path = "olivine-mini", **options: Any) -> olivine.LLM:
    return olivine.load(path, device="cpu", threads=1, context=512, **options)


class Divided(NamedTuple):
    """A model in two processes, and in one."""

    group: olivine.LLM
    alone: olivine.LLM
    exact: bool  # stages have the bits of the whole; sums of two ranks have another order


# How the ranks meet, how the model is divided, the type of its weights.
@pytest.fixture(
    scope="module",
    params=[("shm", 2, "Q8_0"), ("shm", 1, "BF16"), ("gloo", 2, "BF16"), ("gloo", 1, "Q8_0")],
    ids=lambda param: f"{param[0]}-{'tensor' if param[1] == 2 else 'pipeline'}-{param[2]}",
)
def divided(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Divided]:
    way, tensor, dtype = request.param
    path: str | Path = "olivine-mini"
    if dtype != "Q8_0":
        path = tmp_path_factory.mktemp("converted") / "mini.gguf"
        convert(find("olivine-mini"), path, dtype)
    with pytest.MonkeyPatch.context() as patch:
        if way == "gloo":
            pytest.importorskip("torch", reason="gloo is torch's")
            patch.setattr(cluster, "compile_group", partial(compile_group, gloo=True))
        patch.setattr(Speculation, "_pays", lambda *_: True)  # whatever the time of a step
        group = load(path, tensor_parallel=tensor, pipeline_parallel=3 - tensor)
        with group, load(path) as alone:
            yield Divided(group, alone, exact=tensor == 1)


def test_log_probabilities_are_the_whole_models(divided: Divided) -> None:
    """Within what a sum in another order makes of eight-bit activations."""
    for prompt in (PROMPT, LONG):
        text = divided.alone.generate(prompt, max_tokens=40, temperature=0, ignore_eos=True).text
        ours, theirs = (llm.score(prompt, text).logprobs for llm in (divided.group, divided.alone))
        assert len(ours) == len(theirs) > 8
        apart = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
        assert sum(apart) / len(apart) < (1e-9 if divided.exact else 0.05)
    assert repr(divided.group).count("2 ranks") == 1


def test_requests_together_have_the_texts_of_requests_alone(divided: Divided) -> None:
    prompts = [PROMPT, LONG, "A", "Tom said that he"]
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 0.9, "seed": 4}
    group = divided.group
    one_by_one = [group.generate(prompt, **options).text for prompt in prompts]
    assert [each.text for each in group.generate_many(prompts, **options)] == one_by_one
    assert len(set(one_by_one)) == 4
    if divided.exact:
        assert [divided.alone.generate(prompt, **options).text for prompt in prompts] == one_by_one


def test_drafts_change_no_token(divided: Divided) -> None:
    """What the prompt says again and again is drafted, and verified by both ranks."""
    options: dict[str, Any] = {"max_tokens": 40, "temperature": 0.5, "seed": 1, "ignore_eos": True}
    found = divided.group.generate(LONG, **options)
    assert found.usage.drafted > 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Speculation, "propose", lambda *_: [])
        plain = divided.group.generate(LONG, **options)
    assert plain.usage.drafted == 0
    assert found.tokens == plain.tokens


def test_a_prompt_goes_to_the_ranks_once(divided: Divided, monkeypatch: pytest.MonkeyPatch) -> None:
    """And with every token only where a penalty reads it."""
    sent: list[int] = []
    run = Ranks.run

    def counting(self: Ranks, command: Command) -> Any:
        sent.extend(len(draw.prompt) + len(draw.output) for draw in command.draws or [])
        return run(self, command)

    monkeypatch.setattr(Ranks, "run", counting)
    options: dict[str, Any] = {"max_tokens": 3, "temperature": 0, "ignore_eos": True}
    divided.group.generate(LONG, **options)
    assert sent and not any(sent)
    divided.group.generate(LONG, repetition_penalty=1.1, **options)
    assert max(sent) > 100


def test_a_grammar_holds(divided: Divided) -> None:
    found = [
        llm.generate("A name: ", constraint=llm.grammar(SCHEMA), max_tokens=30, temperature=1.0, seed=2).text
        for llm in (divided.group, divided.alone)
    ]
    assert found[0].replace(" ", "").replace("\n", "") in ('{"name":"Lily"}', '{"name":"Tom"}')
    assert found[0] == found[1] or not divided.exact


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_what_asks_to_end_is_the_drivers(name: str, divided: Divided) -> None:
    """A terminal and a service manager send it to every process; the ranks go on."""
    if not hasattr(signal, name):
        pytest.skip("this system has no such signal")
    program = divided.group.program
    assert isinstance(program, Group)
    for pid in program.pids:
        os.kill(pid, getattr(signal, name))
    assert len(divided.group.generate(PROMPT, max_tokens=3, temperature=0, ignore_eos=True).tokens) == 3


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


def test_a_rank_that_dies_ends_requests_and_the_group_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests in flight end with a clear error, none hangs, and the next ones are answered, with nothing
    that the dead ranks had computed. Meanwhile /health says so."""
    monkeypatch.setattr("olivine.engine.engine.PATIENCE", 300.0)  # imports take long on a busy machine
    with load(tensor_parallel=2) as llm, serving([ServedModel("mini", llm)]) as url:
        options: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
        expected = llm.generate(LONG, **options).text
        program = llm.program
        assert isinstance(program, Group)
        before, start, may_start = program.pids, program._start, threading.Event()

        def start_later() -> Ranks:
            assert may_start.wait(120)
            return start()

        program._start = start_later  # type: ignore[method-assign]
        streams = [iter(llm.stream(LONG, **{**options, "max_tokens": 100})) for _ in range(2)]
        for stream in streams:
            next(stream)
        os.kill(before[0], signal.SIGKILL)
        began = time.monotonic()
        for stream in streams:
            with pytest.raises(RankError, match=r"the group of ranks failed \(olivine rank 1 ended\)"):
                for _ in stream:
                    pass
        assert time.monotonic() - began < 120  # it hangs, or it does not
        health = httpx.get(f"{url}/health")
        assert health.status_code == 503 and health.json()["status"] == "restarting"
        assert "rank 1 ended) and is being started again" in health.json()["error"]["message"]
        may_start.set()
        found = llm.generate(LONG, **options)
        assert found.text == expected and found.usage.cached == 0
        assert program.obstacle is None and program.pids != before
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}


def test_a_rank_that_dies_while_nothing_runs_costs_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group is started again at once, and nothing that was computed before counts as cached."""
    monkeypatch.setattr("olivine.engine.engine.PATIENCE", 300.0)  # imports take long on a busy machine
    options: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
    with load(tensor_parallel=2) as llm:
        expected = llm.generate(LONG, **options).text
        program = llm.program
        assert isinstance(program, Group)
        before = program.pids
        os.kill(before[0], signal.SIGKILL)
        until = time.monotonic() + 120
        while program.pids in (before, []):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert program.obstacle is None
        found = llm.generate(LONG, **options)
        assert found.text == expected and found.usage.cached == 0


def test_a_rank_that_hangs_does_not_stop_the_model_from_being_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("olivine.engine.engine.HANGING", 0.5)
    llm = load(tensor_parallel=2)
    program = llm.program
    assert isinstance(program, Group)
    (rank,) = program.pids
    stream = iter(llm.stream(PROMPT, max_tokens=400, temperature=0, ignore_eos=True))
    next(stream)
    os.kill(rank, signal.SIGSTOP)
    closing = threading.Thread(target=llm.close, daemon=True)
    closing.start()
    closing.join(60)
    try:
        assert not closing.is_alive()
        assert not alive(rank)
    finally:
        with suppress(ProcessLookupError):
            os.kill(rank, signal.SIGKILL)
    with pytest.raises(ClosedError, match="the model was closed"):
        for _ in stream:
            pass


def test_a_step_that_counts_on_what_was_lost_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank may die between two steps, and the group be back before the second."""
    monkeypatch.setattr("olivine.cluster.group.DELAYS", (0.0,) * 9)
    case = random_plans.make(Random(1).randint, random_plans.SMALL)
    group = Group(case.plan, lambda: Failing(), case.pages, 32, 512)  # type: ignore[arg-type, return-value]
    batch = case.batches(group)[0]  # type: ignore[arg-type]
    first = group._ranks
    assert first is not None
    first.ended.set_result(None)
    with pytest.raises(RankError, match=r"failed \(a rank ended\): try again"):
        group.step(batch)
    assert group.wait(60)
    second = group._ranks
    assert second is not None and second is not first
    second.ended.set_result(None)
    assert isinstance(group.loss(), RankError) and group.loss() is None
    assert group.wait(60)
    with pytest.raises(RankError, match=r"failed \(reset by peer\): try again"):  # the step's own failure
        group.step(batch)
    group.close()


class Failing:
    """Ranks that fail at every step."""

    pids: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.ended: Future[None] = Future()

    def run(self, command: object) -> Any:
        raise ConnectionError("reset by peer")

    def reason(self, error: Exception) -> str:
        return str(error)

    def end(self) -> None:
        pass

    stop = end


def test_a_group_that_fails_again_and_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("olivine.cluster.group.DELAYS", (0.0, 0.0, 0.0))
    case = random_plans.make(Random(1).randint, random_plans.SMALL)
    starts: list[None] = []

    def start() -> Any:
        starts.append(None)
        if len(starts) == 3:
            raise OSError("no such file")
        return Failing()

    group = Group(case.plan, start, case.pages, 32, 512)
    batch = case.batches(group)[0]  # type: ignore[arg-type]
    for _ in range(2):
        assert group.wait(60)
        with pytest.raises(RankError, match=r"failed \(reset by peer\): try again"):
            group.step(batch)
    assert group.wait(60)
    for _ in range(2):
        with pytest.raises(RankError, match="is not started again: load the model again"):
            group.step(batch)
        assert not group.wait(60)
    assert len(starts) == 4 and group.given_up
    assert group.obstacle == (
        "the group of ranks failed (reset by peer) and is not started again: load the model again"
    )
    group.close()
    with pytest.raises(OlivineError, match="the model was closed"):
        group.step(batch)


def test_a_closed_group_waits_for_no_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its address is free for another one."""
    pytest.importorskip("torch", reason="gloo is torch's")
    monkeypatch.setattr("olivine.cluster.group.DELAYS", (0.0,))
    waiting, over, meetings = threading.Event(), threading.Event(), []

    def gather(meeting: Meeting, count: int, model: bytes, check: Callable[[], None]) -> list[Any]:
        meetings.append(meeting)
        if len(meetings) > 1:  # it is started again
            waiting.set()
            try:
                while True:
                    check()
                    time.sleep(0.01)
            finally:
                over.set()
        return [None] * count

    monkeypatch.setattr("olivine.cluster.group.gather", gather)
    monkeypatch.setattr("olivine.cluster.group.Ranks", lambda *_: Failing())
    folder = published.save(published.case("qwen3-tied").make(), tmp_path)
    model = running.build(folder)
    options = CompileOptions(lambda *_, **__: ([8] * len(model.plan.groups), 0))
    meeting = Meeting(Address("127.0.0.1", 1), "key", 2)
    group = compile_group(
        model.plan, model.weights, options, folder, 64, "reference", Parallel(2), meeting=meeting
    ).program
    assert isinstance(group, Group)
    assert group._ranks is not None
    group._ranks.ended.set_result(None)
    assert waiting.wait(120)
    group.close()
    assert over.wait(20)


def test_ranks_end_with_the_driver() -> None:
    """Even if it is killed."""
    code = (
        "import olivine, sys\n"
        "if __name__ == '__main__':\n"
        "    llm = olivine.load('olivine-mini', device='reference', context=64, pipeline_parallel=2)\n"
        "    print(*llm.program.pids, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert driver.stdout is not None
    (child,) = map(int, driver.stdout.readline().split())
    driver.kill()
    driver.wait()
    for _ in range(200):
        if not alive(child):
            return
        time.sleep(0.1)
    pytest.fail("the rank is still there")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
@pytest.mark.parametrize("closes", [False, True])
def test_a_fork_that_exits_leaves_the_ranks_alone(closes: bool) -> None:
    """Also one that closes the model, which is not its own. The parent's exit ends them."""
    code = (
        "import olivine, os, sys\n"
        "if __name__ == '__main__':\n"
        "    llm = olivine.load('olivine-mini', device='reference', context=64, pipeline_parallel=2)\n"
        "    print(*llm.program.pids, flush=True)\n"
        "    if not os.fork():\n"
        "        if sys.argv[1:]:\n"
        "            llm.close()\n"
        "        sys.exit(0)\n"
        "    print(os.wait()[1])\n"
        "    print(len(llm.generate('Once', max_tokens=2, ignore_eos=True).tokens))\n"
        "    print(*llm.program.pids)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, *["close"] * closes], capture_output=True, text=True, timeout=300
    )
    assert found.returncode == 0, found.stderr
    child, status, tokens, after = found.stdout.split()
    assert (status, tokens, after) == ("0", "2", child)
    assert not found.stderr and not alive(int(child))


def test_a_group_that_is_garbage_leaves_no_process() -> None:
    llm = load(pipeline_parallel=2)
    program = llm.program
    assert isinstance(program, Group)
    (child,) = program.pids
    del llm, program
    for _ in range(600):
        gc.collect()
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("the rank is still there, or a zombie")


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
