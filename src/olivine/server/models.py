"""The models that are served: loaded when a request first needs them, unloaded when nobody does.

All of this runs in the event loop, so nothing is locked; opening, loading and closing run in threads, one
model at a time. Where memory is short, the model that was idle for longest makes room. A busy one never
does, but a load waits for it, and requests that come meanwhile wait behind the load: two models that do not
fit together take turns.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from olivine.errors import ClosedError, ModelError, OlivineError
from olivine.loading import DEFAULT_CONTEXT
from olivine.memory import Need
from olivine.server.errors import ApiError
from olivine.server.loader import Loader, Room
from olivine.server.served import ServedModel
from olivine.server.settings import Settings

__all__ = ["Models", "ServedModel"]

logger = logging.getLogger("olivine.server")
EVENTS = 1000  # that wait for one listener; the oldest are dropped
FOREVER = 1e8  # seconds: a model that is kept for longer is kept; event loops take no longer times
LATEST = ":latest"  # a tag that Ollama's clients add to names


class Models:
    """Which models there are. `use` gives one for as long as a request needs it."""

    def __init__(
        self, models: Sequence[ServedModel], settings: Settings | None = None, loader: Loader | None = None
    ) -> None:
        settings = settings or Settings()
        self._models = {model.name: model for model in models}
        assert len(self._models) == len(models), "two models have the same name"
        self._idle_unload = settings.idle_unload
        self._load_wait = settings.load_wait
        self._loader = loader or Loader()
        self._turn = asyncio.Lock()  # one model is loaded or unloaded at a time
        self._draining: asyncio.Future[None] | None = None  # done when a load that waits for room is over
        self._released = asyncio.Event()  # a model became idle
        self._listeners: set[asyncio.Queue[Mapping[str, Any]]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.starting: set[str] = set()  # models that are loaded at the start and are not there yet

    # ---- which there are

    def list(self) -> list[ServedModel]:
        return [*self._models.values()]

    def find(self, name: str | None) -> ServedModel:
        """The model of this name, or the first where there is none."""
        if name in self._models:
            return self._models[name]
        if not self._models:
            raise ApiError(404, "there is no model on this server", code="model_not_found", param="model")
        if not name:
            return next(iter(self._models.values()))
        known = {alias: model for model in self.list() for alias in model.aliases} | self._models
        for spelling in _spellings(name):
            if spelling in known:
                return known[spelling]
        folded = {each.lower(): each for each in known}
        for spelling in _spellings(name.lower()):
            if spelling in folded:
                return known[folded[spelling]]
        name = name[:120]  # a body's length of it would take seconds to compare
        near = difflib.get_close_matches(name.lower(), folded, 3, 0.3) or [*folded][:3]
        raise ApiError(
            404,
            f"there is no model {name!r}; nearest: {', '.join(folded[each] for each in near)}",
            code="model_not_found",
            param="model",
        )

    def knows(self, name: str) -> bool:
        """Whether `find` has a model of this name."""
        try:
            return bool(name) and self.find(name) is not None
        except ApiError:
            return False

    def add(self, model: ServedModel) -> None:
        """Serves another model; one whose name is served already stays as it is."""
        self._models.setdefault(model.name, model)

    @property
    def sequences(self) -> int:
        """Requests that each model runs at the same time."""
        return self._loader.options.sequences

    def context_of(self, trained: int | None) -> int | None:
        """The context that a model made for so many tokens has when it is loaded."""
        asked = self._loader.options.context
        if asked:
            return asked
        return trained if trained is None or asked == 0 else min(DEFAULT_CONTEXT, trained)

    # ---- using one

    @asynccontextmanager
    async def use(self, name: str | None, *, keep_alive: float | None = None) -> AsyncIterator[ServedModel]:
        """The model of this name (by default the first), which is loaded if it must be, and not unloaded
        meanwhile. `keep_alive`: seconds that it stays loaded afterwards, in place of the server's own
        setting, also where requests beside it say nothing; 0: it is unloaded when its last request is done;
        negative: it stays."""
        model = self.find(name)
        try:
            await self._wait_for(model)
        except BaseException:
            if not (model.users or model.waiting):
                model.asked = None  # it was said while this request waited
            raise
        model.users += 1
        try:
            yield model
        finally:
            model.users -= 1
            model.used = time.monotonic()
            if keep_alive is not None:
                model.asked = keep_alive
            self._keep(model, self._idle_unload if model.asked is None else model.asked)
            if not model.users:
                model.asked = None
                self._released.set()

    def ready(self, name: str | None) -> bool:
        """Whether `use` gives this model at once."""
        model = self.find(name)
        return model.loaded is not None and (model.pinned or self._draining is None)

    def keep(self, name: str | None, keep_alive: float) -> ServedModel:
        """Sets how long a model stays loaded after its last request, as `use` does, without loading it."""
        model = self.find(name)
        if model.users or model.waiting:
            model.asked = keep_alive
        self._keep(model, keep_alive)
        return model

    async def load(self, name: str | None) -> ServedModel:
        """Loads a model if it is not."""
        async with self.use(name) as model:
            return model

    async def unload(self, name: str | None) -> ServedModel:
        """Unloads a model, unless it is in use."""
        model = self.find(name)
        if model.state == "unloaded" and model.loading is None:
            return model
        if model.pinned:
            raise ApiError(409, f"{model.name} is pinned: it stays loaded", code="model_pinned")
        done = await asyncio.shield(self._task(self._unload(model, "asked")))
        if not done and model.state != "unloaded":
            what = f"answers {model.users} request{'s' * (model.users != 1)}" if model.users else "is loading"
            told = f"{model.name} {what}: unload it when it is idle"
            raise ApiError(409, told, code="model_busy", param="model")
        return model

    # ---- from the start to the end

    def start(self) -> None:
        """Begins to load the models that are loaded at the start, and the pinned ones."""
        for name, model in self._models.items():
            if (model.preload or model.pinned) and model.state == "unloaded":
                self.starting.add(name)
                self._task(self._start(name))

    async def started(self) -> Sequence[ServedModel]:
        """Waits for the loads of the start; those that failed."""
        while self.starting:
            await asyncio.wait([*self._tasks], return_when=asyncio.FIRST_COMPLETED)
        return [model for model in self.list() if model.failed_start]

    async def _start(self, name: str) -> None:
        try:
            await self.load(name)
        except ApiError:
            self._models[name].failed_start = True
        finally:
            self.starting.discard(name)

    def close(self) -> None:
        """Closes the models that were loaded here. The event loop may be gone."""
        for model in self.list():
            if model.path is not None and model.loaded is not None:
                self._loader.close(model.take())
                model.state = "unloaded"
        self._loader.end()

    @contextmanager
    def events(self) -> Iterator[asyncio.Queue[Mapping[str, Any]]]:
        """A queue of what becomes of models, from now on."""
        queue: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue(EVENTS)
        self._listeners.add(queue)
        try:
            yield queue
        finally:
            self._listeners.discard(queue)

    # ---- loading

    async def _wait_for(self, model: ServedModel) -> None:
        """Waits until a model is loaded, and no other one waits for it to be idle."""
        model.waiting += 1
        try:
            while True:
                if self.ready(model.name):
                    return
                if model.loaded is not None and self._draining is not None:
                    await asyncio.shield(self._draining)
                    continue
                if model.loading is None:
                    model.loading = self._task(self._load(model))
                await asyncio.shield(model.loading)
                if model.loaded is None and model.failure is not None:
                    raise _refused(model)
        finally:
            model.waiting -= 1

    async def _load(self, model: ServedModel) -> None:
        try:
            async with self._turn:
                if not model.waiting:
                    return  # everyone who asked for it is gone
                await self._load_now(model)
        finally:
            model.loading = None

    async def _load_now(self, model: ServedModel) -> None:
        assert model.path is not None
        started = time.perf_counter()
        model.state, model.failure, model.progress = "loading", None, (0, 0)
        self._tell(model)
        try:
            checkpoint, need = await asyncio.to_thread(self._loader.open, model.path, model.mmproj)
            model.progress = (0, need.weights)
            self._tell(model)
            room = await self._make_room(model, need)
            llm = await asyncio.to_thread(
                self._loader.load, checkpoint, need, room, self._reporter(model), model.mmproj
            )
        except BaseException as error:
            model.state = "unloaded"
            model.failure = _words(error, model)
            model.error = error if isinstance(error, OlivineError) else ModelError(model.failure)
            model.past["model_load_failures"] += 1
            logger.warning("%s was not loaded: %s", model.name, model.failure)
            self._tell(model)
            if not isinstance(error, Exception):
                raise
            return
        model.put(llm, need)
        model.progress = (need.weights, need.weights)
        model.used = time.monotonic()
        logger.info("%s is loaded, in %.1f s", model.name, time.perf_counter() - started)
        self._tell(model)

    async def _make_room(self, model: ServedModel, need: Need) -> Room:
        """Unloads idle models until this one fits; waits for busy ones if it must."""
        deadline = time.monotonic() + self._load_wait
        try:
            while True:
                self._released.clear()
                others = [each for each in self.list() if each.loaded and each.device == need.device]
                held = [each.need for each in others if each.need is not None]
                room = await asyncio.to_thread(self._loader.room, need.device, held)
                if need.wanted <= room.wanted:
                    return room
                others = [each for each in others if not each.pinned]
                idle = [each for each in others if not each.users and (self._draining or not each.waiting)]
                if idle:
                    await self._close(min(idle, key=lambda each: each.used), "memory")
                elif need.least <= room.least:
                    return room
                elif others and time.monotonic() < deadline:
                    if self._draining is None:
                        self._draining = asyncio.get_running_loop().create_future()
                    await self._wait_for_release(deadline)
                else:
                    raise _too_large(model, need, room, [each.name for each in others])
        finally:
            if self._draining is not None:
                self._draining.set_result(None)
                self._draining = None

    async def _wait_for_release(self, deadline: float) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._released.wait(), max(0.0, deadline - time.monotonic()))

    def _reporter(self, model: ServedModel) -> Any:
        """What a load calls, from its thread, with the bytes that are done. It ends a load that was given
        up, because the server stops."""
        loop, told = asyncio.get_running_loop(), 0

        def report(done: int, total: int) -> None:
            nonlocal told
            if model.state != "loading":
                raise ClosedError(f"{model.name} is not loaded: the server stops")
            if total == 0:  # it waits for other machines, or for kernels
                return
            if done - told >= total // 100 or done == total:
                told = done
                loop.call_soon_threadsafe(self._progress, model, done, total)

        return report

    def _progress(self, model: ServedModel, done: int, total: int) -> None:
        if model.state == "loading":
            model.progress = (done, total)
            self._tell(model)

    # ---- unloading

    def _keep(self, model: ServedModel, seconds: float | None) -> None:
        """Unloads a model after so many seconds, if nobody uses it; never, if None or less than 0."""
        if model.timer is not None:
            model.timer.cancel()
        model.timer = model.expires = None
        model.keep = None if seconds is None or not 0 <= seconds <= FOREVER else seconds
        if model.keep is not None and not model.pinned and not model.users and model.state == "loaded":
            model.expires = time.time() + model.keep
            model.timer = asyncio.get_running_loop().call_later(model.keep, self._expire, model)

    def _expire(self, model: ServedModel) -> None:
        model.timer = None
        self._task(self._unload(model, "idle"))

    async def _unload(self, model: ServedModel, reason: str) -> bool:
        """Unloads a model that nobody uses; False if somebody does."""
        async with self._turn:
            if model.users or model.waiting or model.state != "loaded":
                return False
            if reason == "idle" and model.timer is not None:
                return False  # it was used meanwhile
            await self._close(model, reason)
            return True

    async def _close(self, model: ServedModel, reason: str) -> None:
        if model.timer is not None:
            model.timer.cancel()
        model.timer = model.expires = None
        llm = model.take()
        device = model.device
        self._tell(model, reason=reason)
        try:
            await asyncio.to_thread(self._loader.close, llm)
            model.past["model_unloads"] += 1
            del llm
            await asyncio.to_thread(self._loader.return_freed, device)
        finally:
            model.state = "unloaded"
            logger.info("%s is unloaded (%s)", model.name, reason)
            self._tell(model, reason=reason)

    # ---- both

    def _task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task that is kept until it is done."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _tell(self, model: ServedModel, **more: Any) -> None:
        self._send({**model.event(), **more})

    def end_events(self) -> None:
        """Tells those who listen to all models that no event follows: the server ends."""
        self._send({})

    def _send(self, event: Mapping[str, Any]) -> None:
        for queue in self._listeners:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(event)


def _spellings(name: str) -> tuple[str, ...]:
    """A name, and what it is without what clients add to names."""
    return name, name.removesuffix(LATEST), name.removesuffix(".gguf")


def _words(error: BaseException, model: ServedModel) -> str:
    """Why a load failed, for clients: without the place of the file."""
    if isinstance(error, ApiError):
        return error.message
    if isinstance(error, OlivineError):
        return model.without_path(str(error))
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    logger.error("loading %s failed", model.name, exc_info=error)
    return "an error inside of the server; its log has the details"


def _refused(model: ServedModel) -> ApiError:
    return ApiError(
        503,
        f"{model.name} could not be loaded: {model.failure}",
        code="model_not_loaded",
        param="model",
        headers={"x-should-retry": "false"},
    )


def _too_large(model: ServedModel, need: Need, room: Room, busy: Sequence[str]) -> ApiError:
    weights = f"{_gb(need.weights)} of weights, " if need.on_gpu else ""
    told = (
        f"it takes {_gb(need.least)} of memory ({weights}{_gb(need.least_cache)} of KV cache and "
        f"{_gb(need.steps + need.towers)} for steps), and {_gb(room.least)} is free"
    )
    if busy:
        told += f" while {', '.join(busy)} {'is' if len(busy) == 1 else 'are'} busy: try again later"
    else:
        told += ": take a smaller model, a shorter context or fewer sequences"
    return ApiError(503, told)


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
