"""Which model a request gets: loading, unloading, memory. The models are stand-ins with a size."""

from __future__ import annotations

import asyncio
import difflib
import threading
import weakref
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from olivine import box
from olivine.engine.stats import Stats, StepTimes
from olivine.errors import CheckpointError, ClosedError
from olivine.llm import LLM
from olivine.memory import STEPS_CPU, Need
from olivine.server.errors import ApiError
from olivine.server.loader import Loader, Room
from olivine.server.models import Models, ServedModel
from olivine.server.settings import Settings

WAIT = 120.0  # seconds after which a test gives up


class StandIn:
    """As much of an LLM as `Models` looks at."""

    def __init__(self, need: Need) -> None:
        self.cache_bytes = need.cache
        self.closed = False

    def stats(self) -> Stats:
        return Stats(0, 0, (), 7, 0, 0, 0, {"stop": 2}, 0, 0, StepTimes(0, 0, 0, 0), 0)


class FakeLoader(Loader):
    """Loads stand-ins into `memory` bytes, in which nothing else is. A load of a name in `gates` waits."""

    def __init__(self, memory: int = 1 << 40, **sizes: int) -> None:
        super().__init__()
        self.memory = memory
        self.sizes = sizes
        self.gates: dict[str, threading.Event] = {}
        self.loads: list[str] = []
        self.closed: list[str] = []
        self.names: dict[StandIn, str] = {}
        self.at_once = 0
        self.may_close = threading.Event()
        self.may_close.set()

    def open(self, path: Any, mmproj: Any = None) -> Any:
        name = Path(path).name
        if name == "broken":
            raise CheckpointError(path, "magic", "is not that of a model")
        return name, Need("cpu", 0, self.sizes.get(name, 100), self.sizes.get(name, 100))

    def room(self, device: str, loaded: Sequence[Need]) -> Room:
        free = self.memory - sum(each.cache for each in loaded)
        return Room(free, free)

    def load(self, checkpoint: Any, need: Need, room: Room, progress: Any, mmproj: Any = None) -> Any:
        self.at_once += 1
        assert self.at_once == 1
        if checkpoint in self.gates:
            assert self.gates[checkpoint].wait(WAIT)
        progress(50, 100)
        self.at_once -= 1
        self.loads.append(checkpoint)
        found = StandIn(need)
        self.names[found] = checkpoint
        return found

    def return_freed(self, device: str | None) -> None:
        """Nothing was: to look for it takes long in a process with as many objects as that of the tests."""

    def close(self, llm: Any) -> None:
        assert not llm.closed and self.may_close.wait(WAIT)
        llm.closed = True
        self.closed.append(self.names[llm])


def models_of(*names: str, loader: Loader, pinned: Sequence[str] = (), **settings: Any) -> Models:
    models = [ServedModel(name, path=Path(name), pinned=name in pinned) for name in names]
    return Models(models, Settings(**settings), loader)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, WAIT))


async def until(fact: Any) -> None:
    while not fact():
        await asyncio.sleep(0.001)


def refusal(status: int, words: str) -> Any:
    return pytest.raises(ApiError, match=words, check=lambda error: error.status == status)


# ---- names


def test_the_first_model_answers_where_none_is_named() -> None:
    models = models_of("a", "b", loader=FakeLoader())
    assert models.find(None).name == models.find("").name == "a"


@pytest.mark.parametrize(
    "spelling",
    [
        "org/Qwen3:0.6B",
        "org/Qwen3:0.6B:latest",
        "org/qwen3:0.6b",
        "ORG/qwen3:0.6b:latest",
        "org/Qwen3:0.6B:Latest",
        "org/Qwen3:0.6B.gguf",
        "org/qwen3:0.6B.GGUF",
        "small",
        "SMALL:latest",
    ],
)
def test_names_have_slashes_colons_tags_and_aliases(spelling: str) -> None:
    known = [ServedModel("other", path=Path("b"))]
    known.append(ServedModel("org/Qwen3:0.6B", path=Path("a"), aliases=["small"]))
    assert Models(known).find(spelling).name == "org/Qwen3:0.6B"


def test_an_unknown_name_is_a_404_with_the_nearest_ones() -> None:
    models = models_of("smollm2-135m", "qwen3-0.6b", "gemma3", loader=FakeLoader())
    with refusal(404, "no model 'SmolLM-135M'; nearest: smollm2-135m"):
        models.find("SmolLM-135M")
    with refusal(404, "there is no model on this server"):
        Models([]).find("x")


def test_only_the_beginning_of_a_long_name_is_compared_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    nearest = difflib.get_close_matches

    def noted(word: str, *rest: Any) -> list[str]:
        compared.append(word)
        return nearest(word, *rest)

    monkeypatch.setattr(difflib, "get_close_matches", noted)
    with pytest.raises(ApiError) as refused:
        models_of("gemma3", loader=FakeLoader()).find("gemma3" * 1_000_000)
    assert len(compared[0]) < 200 and len(refused.value.message) < 200


# ---- loading


def test_a_model_is_loaded_at_first_use_and_once_for_all_that_wait() -> None:
    async def work() -> None:
        loader = FakeLoader()
        loader.gates["a"] = threading.Event()
        models = models_of("a", "b", loader=loader)
        assert models.find("a").loaded is None

        async def ask() -> None:
            async with models.use("a") as model:
                assert model.llm is model.loaded

        asked = [asyncio.create_task(ask()) for _ in range(50)]
        await until(lambda: models.find("a").waiting == 50)
        assert models.find("a").state == "loading"
        loader.gates["a"].set()
        await asyncio.gather(*asked)
        assert loader.loads == ["a"] and models.find("a").users == models.find("a").waiting == 0

    run(work())


def test_a_load_that_fails_is_an_error_to_all_who_asked_and_the_next_one_tries_again() -> None:
    async def work() -> None:
        models = models_of("broken", "a", loader=FakeLoader())
        results = await asyncio.gather(*(models.load("broken") for _ in range(3)), return_exceptions=True)
        for error in results:
            assert isinstance(error, ApiError) and error.status == 503
            assert error.message == ("broken could not be loaded: broken: magic: is not that of a model")
        assert models.find("broken").state == "unloaded"
        await models.load("a")
        with refusal(503, "is not that of a model"):
            await models.load("broken")

    run(work())


def test_one_who_no_longer_waits_does_not_end_the_load_of_the_others() -> None:
    async def work() -> None:
        loader = FakeLoader()
        loader.gates["a"] = threading.Event()
        models = models_of("a", loader=loader)
        gone, stays = (asyncio.create_task(models.load("a")) for _ in range(2))
        await until(lambda: models.find("a").state == "loading")
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        loader.gates["a"].set()
        assert (await stays).loaded is not None

    run(work())


def test_a_load_that_nobody_waits_for_any_more_does_not_begin() -> None:
    async def work() -> None:
        loader = FakeLoader()
        loader.gates["a"] = threading.Event()
        models = models_of("a", "b", loader=loader)
        first, second = asyncio.create_task(models.load("a")), asyncio.create_task(models.load("b"))
        await until(lambda: models.find("b").waiting)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        loader.gates["a"].set()
        await first
        await until(lambda: models.find("b").loading is None)
        assert loader.loads == ["a"]

    run(work())


def test_models_that_are_loaded_at_the_start() -> None:
    async def work() -> None:
        loader = FakeLoader()
        loader.gates["a"] = threading.Event()
        models = models_of("a", "b", "c", loader=loader, pinned=["c"])
        models.find("a").preload = True
        models.start()
        assert models.starting == {"a", "c"}
        loader.gates["a"].set()
        await until(lambda: not models.starting)
        assert loader.loads == ["a", "c"]
        models.close()
        assert loader.closed == ["a", "c"]

    run(work())


def test_progress_is_told_to_those_who_listen() -> None:
    async def work() -> None:
        models = models_of("a", loader=FakeLoader())
        with models.events() as events:
            await models.load("a")
            await models.unload("a")
        heard = [events.get_nowait() for _ in range(events.qsize())]
        states = [(each["state"], each["bytes"], each["total"]) for each in heard]
        assert states[:4] == [("loading", 0, 0), ("loading", 0, 0), ("loading", 50, 100), ("loaded", 0, 0)]
        assert [each["state"] for each in heard[4:]] == ["unloading", "unloaded"]

    run(work())


@pytest.mark.parametrize("stops", [False, True])
def test_a_load_that_waits_for_kernels_ends_if_the_server_stops(
    stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []

    def wanted(done: int, total: int) -> None:
        if stops:
            raise ClosedError("the server stops")

    def compiles(checkpoint: Any, *, compile_progress: Any, **options: Any) -> str:
        compile_progress(1, 3)
        return "a model"

    monkeypatch.setattr("olivine.server.loader.LLM", compiles)
    loader = Loader({"compile_progress": lambda *counts: told.append(counts)})
    need = Need("cuda", 0, 100, 100)
    if stops:
        with pytest.raises(ClosedError):
            loader.load(None, need, Room(200, 200), wanted)  # type: ignore[arg-type]
    else:
        assert loader.load(None, need, Room(200, 200), wanted) == "a model"  # type: ignore[arg-type]
    assert told == ([] if stops else [(1, 3)])


# ---- unloading


def test_an_idle_model_is_unloaded_and_a_busy_one_is_not() -> None:
    async def work() -> None:
        loader = FakeLoader()
        models = models_of("a", "b", loader=loader, idle_unload=0.01)
        async with models.use("a"):
            await models.load("b")
            await until(lambda: loader.closed == ["b"])
            assert models.find("a").expires is None
        assert models.find("a").expires is not None
        await until(lambda: loader.closed == ["b", "a"])
        await models.load("a")
        assert loader.loads == ["a", "b", "a"]

    run(work())


def test_models_stay_loaded_unless_told_otherwise() -> None:
    async def work() -> None:
        loader = FakeLoader()
        models = models_of("a", "b", "c", loader=loader, pinned=["c"])
        for name in ("a", "b", "c"):
            await models.load(name)
        assert [model.expires for model in models.list()] == [None] * 3
        for name in ("b", "c"):
            async with models.use(name, keep_alive=0):
                pass
        await until(lambda: loader.closed == ["b"])
        models.keep("a", 1000.0)
        assert models.find("a").expires is not None and models.find("c").state == "loaded"
        for forever in (-1.0, 1e30, float("inf"), float("nan")):
            models.keep("a", forever)
            assert models.find("a").expires is None

    run(work())


def test_keep_alive_0_waits_for_the_last_request_and_a_negative_one_outlasts_the_setting() -> None:
    async def work() -> None:
        loader = FakeLoader()
        models = models_of("a", "b", loader=loader, idle_unload=0.005)
        async with models.use("a", keep_alive=0):
            async with models.use("a", keep_alive=0):
                pass
            await asyncio.sleep(0.02)
            assert models.find("a").state == "loaded"
        await until(lambda: loader.closed == ["a"])
        async with models.use("b", keep_alive=-1):
            pass
        await asyncio.sleep(0.02)
        assert models.find("b").state == "loaded"

    run(work())


@pytest.mark.parametrize("asked", [True, False])
def test_a_keep_alive_outlasts_the_requests_beside_it(asked: bool) -> None:
    async def work() -> None:
        loader = FakeLoader()
        models = models_of("a", loader=loader)
        async with models.use("a"):
            async with models.use("a"):
                if asked:
                    models.keep("a", 0)
                else:
                    async with models.use("a", keep_alive=0):
                        pass
            assert models.find("a").state == "loaded"
        await until(lambda: loader.closed == ["a"])
        async with models.use("a"):
            pass
        await asyncio.sleep(0.02)
        assert models.find("a").state == "loaded"  # it was for those requests

    run(work())


def test_a_keep_alive_is_not_lost_while_the_model_is_loaded() -> None:
    async def work() -> None:
        loader = FakeLoader()
        loader.gates["a"] = threading.Event()
        models = models_of("a", loader=loader)
        loading = asyncio.create_task(models.load("a"))
        await until(lambda: models.find("a").waiting)
        models.keep("a", 0)
        loader.gates["a"].set()
        await loading
        await until(lambda: loader.closed == ["a"])

    run(work())


def test_a_keep_alive_is_forgotten_with_the_request_that_waited() -> None:
    async def work() -> None:
        loader = FakeLoader()
        loader.gates["a"] = threading.Event()
        models = models_of("a", loader=loader)
        loading = asyncio.create_task(models.load("a"))
        await until(lambda: models.find("a").waiting)
        models.keep("a", 0)
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        loader.gates["a"].set()
        await until(lambda: models.find("a").state == "loaded")
        async with models.use("a"):
            pass
        await asyncio.sleep(0.02)
        assert models.find("a").state == "loaded"

    run(work())


def test_unloading_a_busy_or_a_pinned_model_is_refused() -> None:
    async def work() -> None:
        loader = FakeLoader()
        models = models_of("a", "b", loader=loader, pinned=["b"])
        await models.load("b")
        async with models.use("a"):
            with refusal(409, "a answers 1 request: unload it when it is idle"):
                await models.unload("a")
        with refusal(409, "b is pinned"):
            await models.unload("b")
        await models.unload("a")
        await models.unload("a")  # a second time is fine
        assert loader.closed == ["a"]

    run(work())


def test_a_request_during_the_unloading_loads_the_model_again() -> None:
    async def work() -> None:
        loader = FakeLoader()
        models = models_of("a", loader=loader)
        await models.load("a")
        loader.may_close.clear()
        unloading = asyncio.create_task(models.unload("a"))
        await until(lambda: models.find("a").state == "unloading")
        again = asyncio.create_task(models.load("a"))
        await until(lambda: models.find("a").waiting)
        loader.may_close.set()
        await asyncio.gather(again, unloading)
        assert loader.loads == ["a", "a"] and models.find("a").state == "loaded"

    run(work())


# ---- memory


def test_the_one_that_was_idle_for_longest_makes_room() -> None:
    async def work() -> None:
        loader = FakeLoader(memory=STEPS_CPU + 250)
        models = models_of("a", "b", "c", loader=loader)
        for name in ("a", "b", "a", "c"):
            await models.load(name)
        assert loader.closed == ["b"]
        await models.load("b")
        assert loader.closed == ["b", "a"]

    run(work())


def test_a_pinned_model_makes_no_room_and_a_refusal_has_the_numbers() -> None:
    async def work() -> None:
        loader = FakeLoader(memory=STEPS_CPU + 150_000_000, a=100_000_000, b=100_000_000, huge=1 << 40)
        models = models_of("a", "b", "huge", loader=loader, pinned=["a"])
        await models.load("a")
        with refusal(503, r"b could not be loaded: it takes 167\.1 MB of memory.* and 117\.1 MB is free"):
            await models.load("b")
        with refusal(503, r"takes 1099\.6 GB.*smaller model"):
            await models.load("huge")
        assert loader.loads == ["a"] and loader.closed == []

    run(work())


def test_a_load_waits_for_a_busy_model_and_is_refused_where_that_takes_too_long() -> None:
    async def work() -> None:
        loader = FakeLoader(memory=STEPS_CPU + 150)
        models = models_of("a", "b", loader=loader, load_wait=0.02)
        async with models.use("a"):
            with refusal(503, "while a is busy: try again later"):
                await models.load("b")
        models = models_of("a", "b", loader=loader)
        async with models.use("a"):
            waits = asyncio.create_task(models.load("b"))
            await until(lambda: models._draining)
            behind = asyncio.create_task(models.load("a"))  # goes behind b: it would never be idle
            await until(lambda: models.find("a").waiting)
            assert not models.ready("a") and loader.closed == []
        await asyncio.gather(waits, behind)
        assert loader.loads == ["a", "a", "b", "a"] and loader.closed == ["a", "b"]

    run(work())


def test_two_models_under_load_that_do_not_fit_together_take_turns() -> None:
    async def work() -> None:
        loader = FakeLoader(memory=STEPS_CPU + 150)
        models = models_of("a", "b", loader=loader)
        answered = {"a": 0, "b": 0}

        async def ask(name: str) -> None:
            for _ in range(10):
                async with models.use(name) as model:
                    llm = model.llm
                    await asyncio.sleep(0.0005)
                    assert not llm.closed and model.llm is llm  # type: ignore[attr-defined]
                    answered[name] += 1

        await asyncio.gather(*(ask(name) for name in "ab" for _ in range(5)))
        assert answered == {"a": 50, "b": 50}
        assert len(loader.closed) == len(loader.loads) - 1  # at most one is loaded
        assert not any(model.users or model.waiting for model in models.list())

    run(work())


def test_totals_outlast_an_unloading() -> None:
    async def work() -> None:
        models = models_of("a", loader=FakeLoader())
        for _ in range(3):
            await models.load("a")
            await models.unload("a")
        totals = models.find("a").totals()
        assert (totals["model_loads"], totals["model_unloads"]) == (3, 3)
        assert (totals["prompt_tokens"], totals["finished:stop"]) == (21, 6)

    run(work())


def test_nothing_of_an_unloaded_model_stays() -> None:
    async def work() -> None:
        models = models_of("olivine-mini", loader=Loader({"device": "cpu", "threads": 1, "context": 256}))
        models.find(None).path = box.FILE
        left = []
        for _ in range(2):
            async with models.use(None) as model:
                answer = await model.llm.achat("Once upon a time", max_tokens=4)
                assert answer.usage.completion > 0
                left += [weakref.ref(each) for each in (model.llm, model.llm.program, model.llm.tokenizer)]
            await models.unload(None)
            assert [each() for each in left] == [None] * len(left)
        models.close()

    run(work())


def test_totals_stay_while_a_model_is_unloaded(mini: LLM) -> None:
    model = ServedModel("mini", mini)
    mini.generate("Once", max_tokens=3, ignore_eos=True)
    before = model.totals()
    model.take()
    assert model.totals() == before and before["generation_tokens"] >= 3


def test_what_is_told_of_a_model_that_is_not_loaded_is_its_context_when_it_is() -> None:
    def told(context: int | None) -> int | None:
        return models_of("olivine-mini", loader=Loader({"context": context})).context_of(40960)

    assert (told(None), told(0), told(512)) == (4096, 40960, 512)
