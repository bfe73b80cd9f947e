"""Who waits for whom: clients take turns, however many requests each of them has."""

from __future__ import annotations

import gc
import random
import threading
from collections import Counter

import pytest

from olivine.engine import Engine, Generate, Request, Update
from olivine.engine.queue import Queue
from olivine.engine.sequence import Sequence
from olivine.errors import BusyError
from oracles.pages import PagesProgram
from oracles.waiting import eventually


def sequence(client: str, priority: int = 0) -> Sequence:
    return Sequence(Request([1], Generate(), priority=priority, client=client), lambda update: None)


def entered(queue: Queue, *clients: str, priority: int = 0) -> list[Sequence]:
    found = [sequence(client, priority) for client in clients]
    for each in found:
        queue.add(each)
    return found


def drained(queue: Queue) -> str:
    """The clients in the order in which their requests run."""
    order = ""
    while len(queue):
        first = next(iter(queue))
        order += first.request.client
        queue.admit(first)
    return order


def test_clients_take_turns_and_a_clients_requests_keep_their_order() -> None:
    queue = Queue()
    many = entered(queue, *"aaaaa")
    entered(queue, *"bbc")
    assert [each for each in queue if each.request.client == "a"] == many
    assert drained(queue) == "abcabaaa"


def test_requests_without_a_client_go_by_arrival() -> None:
    queue = Queue()
    found = entered(queue, "", "", "")
    queue.admit(found[0])
    found += entered(queue, "", "")
    assert [*queue] == found[1:]


def test_a_new_client_does_not_wait_for_what_others_had_before() -> None:
    queue = Queue()
    entered(queue, *"a" * 9)
    for _ in range(4):
        queue.admit(next(iter(queue)))
    entered(queue, "b")
    assert drained(queue) == "abaaaa"


def test_a_client_that_comes_again_and_again_does_not_pass_one_that_waits() -> None:
    queue = Queue()
    entered(queue, *"aaaaa", "b")
    order = ""
    for _ in range(8):
        first = next(iter(queue))
        order += first.request.client
        queue.admit(first)
        if first.request.client == "b":
            entered(queue, "b")
    assert order == "abababab"


def test_each_priority_has_its_own_turns() -> None:
    queue = Queue()
    entered(queue, *"aaa", priority=5)
    entered(queue, *"x" * 50)
    assert drained(queue)[:50] == "x" * 50  # and the virtual time of priority 0 is 50
    entered(queue, *"aaa", priority=5)
    entered(queue, "b", priority=5)
    entered(queue, *"ay", priority=-1)
    assert drained(queue) == "ayabaa"


def test_one_that_is_sent_back_goes_before_all_that_were_not_admitted() -> None:
    queue = Queue()
    first, second, *_ = entered(queue, *"aaaa")
    queue.admit(first)
    queue.admit(second)
    entered(queue, *"bb")
    queue.add(second)
    queue.add(first)
    assert [*queue][:2] == [first, second]
    assert drained(queue) == "aaabab"


@pytest.mark.parametrize("seed", range(8))
def test_clients_with_waiting_requests_are_served_equally(seed: int) -> None:
    """Whatever comes and goes: while two clients wait all the time, neither gets two turns more."""
    random_ = random.Random(seed)
    queue, served = Queue(), Counter[str]()
    entered(queue, *"ab" * 3)
    for _ in range(400):
        for client in "ab":
            if queue.of(client) < 3:
                entered(queue, *client * random_.randint(1, 5))
        if random_.random() < 0.3:
            entered(queue, random_.choice("cdef"))
        if random_.random() < 0.2:  # one that does not want to wait any more
            waiting = [each for each in queue if each.request.client in "cdef"]
            if waiting:
                queue.remove(random_.choice(waiting))
        first = next(iter(queue))
        queue.admit(first)
        served[first.request.client] += 1
        assert abs(served["a"] - served["b"]) <= 1


def test_nothing_is_kept_of_clients_and_priorities_that_are_gone() -> None:
    queue = Queue()
    for i in range(100):
        entered(queue, f"client {i}", priority=i)
    assert queue.of("client 7") == 1
    for i, each in enumerate([*queue]):
        (queue.admit if i % 2 else queue.remove)(each)
    del each
    gc.collect()
    assert not queue._counts and not queue._levels
    entered(queue, *"abc")
    queue.clear()
    assert not len(queue) and not queue._counts


# ---- in an engine


class Held(PagesProgram):
    """A program whose steps wait for `gate`."""

    def __init__(self) -> None:
        super().__init__(64)
        self.gate = threading.Event()

    def step(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        assert self.gate.wait(20)
        return super().step(*args, **kwargs)


def test_a_client_with_a_single_request_waits_for_one_of_each_other_client() -> None:
    program = Held()
    engine = Engine(program, 32, sequences=1, speculate=False)  # type: ignore[arg-type]
    ended: list[str] = []

    def submit(client: str) -> None:
        def tell(update: Update) -> None:
            if update.finish is not None:
                ended.append(client)

        engine.submit(Request([1], Generate(max_tokens=2), client=client), tell)

    with engine._inbox.changed:
        for client in "a" * 30 + "bbb" + "c":
            submit(client)
    program.gate.set()
    eventually(lambda: len(ended) == 34)
    assert "".join(ended) == "abcabab" + "a" * 27
    engine.close()


def test_a_full_queue_says_when_to_try_again() -> None:
    program = Held()
    engine = Engine(program, 32, sequences=2, queue=8, queue_per_client=3)  # type: ignore[arg-type]
    counters = engine._scheduler.counters

    def submit(client: str) -> None:
        engine.submit(Request([1], Generate(max_tokens=1), client=client), lambda update: None)

    with engine._inbox.changed:  # at once: the first step waits
        for _ in range(2):
            submit("first")
    eventually(lambda: len(engine._scheduler.running) == 2)
    for _ in range(3):
        submit("a")
    with pytest.raises(BusyError, match=r"^3 requests of this client are waiting already") as refused:
        submit("a")
    assert refused.value.retry_after == 1.0  # nothing has run yet
    for seconds in (1.0, 4.0, 900.0):
        counters.request(seconds)
    with pytest.raises(BusyError) as refused:
        submit("a")
    assert refused.value.retry_after == 3 * 4.0 / 2
    for client in "bcdef":
        submit(client)
    with pytest.raises(BusyError, match=r"^8 requests are waiting already") as refused:
        submit("g")
    assert refused.value.retry_after == 8 * 4.0 / 2
    for _ in range(100):
        counters.request(900.0)
    with pytest.raises(BusyError) as refused:
        submit("g")
    assert refused.value.retry_after == 60.0
    program.gate.set()
    eventually(lambda: engine._scheduler.idle)
    assert engine.stats().finished["length"] == 10
    assert 0.0 < counters.request_time() == 900.0
    engine.close()
