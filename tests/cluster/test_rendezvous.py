"""Ranks of other machines: who is let in, which ranks they are, and what happens when one is lost.

A machine is a process here: nothing is shared but the loopback network and the files.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any, TypeVar

import pytest

import olivine
from olivine import cluster
from olivine.cli.loading import tell_of_ranks
from olivine.cluster import Parallel, compile_group, rendezvous
from olivine.cluster.ending import SIGNALS
from olivine.cluster.keepalive import keep_alive, kept_alive
from olivine.cluster.rank import Job, gpus_of, local_ranks
from olivine.cluster.ranks import Ranks, _child
from olivine.cluster.rendezvous import Address, Hello, Meeting, digest_of, gather, listening
from olivine.cluster.torch_collectives import GlooCollectives
from olivine.errors import OlivineError, RankError, RequestError
from olivine.formats import open_checkpoint
from olivine.tensor import Tensor
from oracles.ports import free_port
from oracles.waiting import alive, eventually

KEY, MODEL = "a secret", b"digest"
PROMPT = "Once upon a time there was a fox"
T = TypeVar("T")


@pytest.mark.parametrize(
    ("text", "wanted"), [("10.0.0.1:29500", ("10.0.0.1", 29500)), ("[fe80::1]:80", ("fe80::1", 80))]
)
def test_addresses_are_read_and_written(text: str, wanted: tuple[str, int]) -> None:
    assert Address.of(text) == wanted and str(Address.of(text)) == text


@pytest.mark.parametrize("text", ["", "here", ":1", "here:", "here:0", "here:65536", "here:x", "here:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="a rank address is host:port"):
        Address.of(text)


@pytest.mark.parametrize("text", ["0.0.0.0:29500", "[::]:29500"])
def test_an_address_that_is_none_of_a_machine_is_refused(text: str) -> None:
    """A driver can listen there, and ranks would look for it on their own machines."""
    with pytest.raises(RequestError, match="give the address of the machine that serves"):
        Address.of(text)


@pytest.mark.parametrize(
    ("parallel", "nodes", "wanted"),
    [
        ((2, 1), 1, [0, 1]),
        ((2, 1), 2, [0]),
        ((1, 2), 2, [1]),
        ((4, 1), 2, [0, 1]),
        ((2, 2), 2, [2, 3]),  # stages are machines
        ((8, 4), 4, [*range(24, 32)]),
        ((3, 2), 3, [2, 3]),
    ],
)
def test_a_machine_has_ranks_in_a_row_and_the_driver_is_among_its_own(
    parallel: tuple[int, int], nodes: int, wanted: list[int]
) -> None:
    found = local_ranks(Parallel(*parallel), nodes)
    assert [*found] == wanted and Parallel(*parallel).driver in found


def test_ranks_that_machines_cannot_share_evenly_are_refused() -> None:
    with pytest.raises(RequestError, match="6 ranks cannot be shared evenly by 4 machines"):
        local_ranks(Parallel(3, 2), 4)


def test_each_rank_of_a_machine_has_a_gpu_of_its_own_and_the_driver_the_first() -> None:
    parallel = Parallel(2, 2)
    assert gpus_of(parallel, 2, 8) == (0, 1, 0, 1)
    assert gpus_of(parallel, 4, 4) == (2, 3, 0, 1) and gpus_of(parallel, 4, 4)[parallel.driver] == 0
    assert gpus_of(parallel, 4, 1) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"rank_address": "127.0.0.1:1"}, "rank_key"),
        ({"nodes": 2}, "2 nodes need a rank_address"),
        ({"rank_address": "nowhere", "rank_key": "k"}, "host:port"),
        ({"rank_address": "127.0.0.1:1", "rank_key": "k", "nodes": 3}, "2 ranks .* 3 machines"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(RequestError, match=told):
        olivine.load("olivine-mini", device="reference", tensor_parallel=2, **options)


@pytest.mark.parametrize(
    ("tensor", "nodes", "far", "typed"), [(2, None, 1, ""), (4, 2, 2, " --ranks 2"), (8, 2, 4, " --ranks 4")]
)
def test_the_command_for_other_machines_has_their_ranks(
    tensor: int, nodes: int | None, far: int, typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"rank_address": "a:1", "tensor_parallel": tensor, "pipeline_parallel": 1, "nodes": nodes}
    tell_of_ranks(Path("/a model"), options)
    told = capsys.readouterr().err
    assert told.startswith(f"waiting for {far} of {tensor} ranks")
    assert told.endswith(f" rank '/a model' --rank-address a:1{typed}\n")


# ---- who is let in


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> Meeting:
    monkeypatch.setattr(rendezvous, "JOIN", 300.0)  # where a test fails
    monkeypatch.setattr(rendezvous, "HANDSHAKE", 300.0)
    return Meeting(Address("127.0.0.1", free_port()), KEY, 2)


def when_it_listens(connect: Callable[[], T]) -> T:
    """What `connect` gives, once the driver listens."""
    until = time.monotonic() + 120
    while True:
        try:
            return connect()
        except ConnectionRefusedError:
            assert time.monotonic() < until
            time.sleep(0.005)


def come(meeting: Meeting, key: str = KEY, **hello: Any) -> Any:
    """A rank that comes to the driver, and what it is told."""
    connection = when_it_listens(lambda: Client((*meeting.address,), authkey=key.encode()))
    said = Hello(olivine.__version__, MODEL.hex(), "a")._asdict()
    connection.send_bytes(json.dumps({**said, **hello}).encode())
    return connection, connection.recv()


def test_ranks_of_one_machine_have_numbers_in_a_row(meeting: Meeting) -> None:
    """One that left again has none."""
    with ThreadPoolExecutor() as pool:
        gathered = pool.submit(gather, meeting, 4, MODEL)
        come(meeting, node="gone")[0].close()
        came = [come(meeting, node=node)[0] for node in "abab"]
        for number, connection in enumerate(gathered.result(120)):
            connection.send(number)
    assert [each.recv() for each in came] == [0, 2, 1, 3]


def test_strangers_are_refused_and_stop_nobody(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the key, with other files or another version, with other words, or without a word."""
    with ThreadPoolExecutor() as pool:
        gathered = pool.submit(gather, meeting, 1, MODEL)
        with monkeypatch.context() as patch:
            patch.setattr(rendezvous, "HANDSHAKE", 0.5)
            silent = when_it_listens(lambda: socket.create_connection(meeting.address, 120))
            assert silent.recv(1)  # its time runs; the others have as long as they need
        with socket.create_connection(meeting.address) as other:
            other.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(AuthenticationError):
            come(meeting, key="another")
        assert "another model" in come(meeting, model="other")[1]
        ours = f"the driver is Olivine {olivine.__version__}, and this is"
        for version, fields in (("0.0", {}), ("9.1", {"model": {"digest": 1}, "node": None, "gpus": [1, 2]})):
            assert come(meeting, version=version, **fields)[1].startswith(
                f"{ours} {version}: install the same"
            )
        other = when_it_listens(lambda: Client((*meeting.address,), authkey=KEY.encode()))
        other.send(("words", "of another", "time"))
        assert other.recv().startswith(f"{ours} another version")
        while silent.recv(4096):
            pass  # the challenge, and then the end
        assert not gathered.done()
        friend, _ = come(meeting)
        assert len(gathered.result(120)) == 1
        friend.close()


def test_a_driver_does_not_wait_for_ever(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "JOIN", 0.0)
    with pytest.raises(OlivineError, match=f"2 of 2 ranks did not come to {meeting.address}"):
        gather(meeting, 2, MODEL)
    with (
        listening(*meeting.address),
        pytest.raises(OlivineError, match=r"cannot listen for ranks .*in use"),
    ):
        gather(meeting, 2, MODEL)


def test_other_files_have_another_digest() -> None:
    checkpoint = open_checkpoint("olivine-mini")
    assert digest_of(checkpoint) == digest_of(open_checkpoint("olivine-mini"))
    name, tensor = next(iter(checkpoint.tensors.items()))
    data = tensor.data.copy()
    data[5] ^= 1
    changed = type(checkpoint)(
        **{
            **vars(checkpoint),
            "tensors": {**checkpoint.tensors, name: type(tensor)(**{**vars(tensor), "data": data})},
        }
    )
    assert digest_of(changed) != digest_of(checkpoint)


def test_another_configuration_has_another_digest() -> None:
    """The tensors may be the same. The tokenizer is not the ranks'."""
    checkpoint = open_checkpoint("olivine-mini")

    def with_value(key: str, value: object) -> bytes:
        return digest_of(replace(checkpoint, metadata={**checkpoint.metadata, key: value}))

    same = digest_of(checkpoint)
    for key in ("gemma4.attention.layer_norm_rms_epsilon", "gemma4.rope.freq_base"):
        assert with_value(key, 0.5) != same
    layers = checkpoint.metadata["gemma4.feed_forward_length"]
    assert with_value("gemma4.feed_forward_length", layers + 1) != same
    assert with_value("gemma4.feed_forward_length", layers.copy()) == same
    assert with_value("tokenizer.chat_template", "") == same


def test_the_end_of_a_small_tensor_counts() -> None:
    checkpoint = open_checkpoint("olivine-mini")
    name, tensor = next(each for each in checkpoint.tensors.items() if len(each[1].shape) == 1)
    data = tensor.data.copy()
    data[-1] ^= 1
    tensors = {**checkpoint.tensors, name: Tensor(tensor.name, tensor.dtype, tensor.shape, data)}
    assert digest_of(replace(checkpoint, tensors=tensors)) != digest_of(checkpoint)


def test_connections_that_are_made_inside_are_kept_alive() -> None:
    def kept(connection: socket.socket) -> bool:
        return bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))

    with listening("127.0.0.1") as server, socket.create_connection(server.getsockname()) as before:
        with kept_alive():
            inside = socket.create_connection(server.getsockname())
        assert kept(inside) and not kept(before)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert inside.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 25_000
        keep_alive(before)
        assert kept(before)
        inside.close()


# ---- a model on two machines


@contextmanager
def machine(address: Address, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Another machine, with a rank."""
    command = [
        sys.executable,
        "-m",
        "olivine",
        "rank",
        "olivine-mini",
        "--rank-address",
        str(address),
        "-t",
        "1",
    ]
    found = subprocess.Popen(
        [*command, *options], env={**os.environ, "OLIVINE_RANK_KEY": KEY}, stderr=subprocess.PIPE, text=True
    )
    try:
        yield found
    finally:
        found.terminate()
        found.communicate(timeout=120)


def load(**options: Any) -> olivine.LLM:
    return olivine.load("olivine-mini", device="cpu", threads=1, context=512, **options)


def children(pid: int) -> list[int]:
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((each / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == pid and "spawn_main" in (each / "cmdline").read_text():
                found.append(int(each.name))
        except OSError:
            pass
    return found


@pytest.mark.parametrize("ways", [[(2, 1)], pytest.param([(1, 2), (2, 1)], marks=pytest.mark.exhaustive)])
def test_two_machines_have_the_bits_of_two_processes(
    meeting: Meeting, ways: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensor and pipeline parallel; the same rank machine serves one driver after the other. A rank that is
    killed ends the request, and the next one is answered by a new rank of that machine."""
    pytest.importorskip("torch", reason="gloo is torch's: pip install 'olivine[cluster]'")
    monkeypatch.setattr("olivine.engine.engine.PATIENCE", 300.0)  # imports take long on a busy machine
    options: dict[str, Any] = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
    there: dict[str, Any] = {"rank_address": str(meeting.address), "rank_key": KEY}
    with machine(meeting.address) as other:
        for tensor, pipeline in ways:
            parallel: dict[str, Any] = {"tensor_parallel": tensor, "pipeline_parallel": pipeline}
            with load(**parallel) as llm:
                wanted = llm.generate(PROMPT, **options).tokens
                scores = llm.score(PROMPT, " and a boat").logprobs
            with load(**parallel, **there) as llm:
                assert llm.generate(PROMPT, **options).tokens == wanted
                assert llm.score(PROMPT, " and a boat").logprobs == scores
                assert llm.program.pids == []  # type: ignore[attr-defined]
                if tensor == 1 or not Path("/proc/self/stat").exists():
                    continue
                stream = iter(llm.stream(PROMPT, **{**options, "max_tokens": 300}))
                next(stream)
                (rank,) = children(other.pid)
                os.kill(rank, signal.SIGKILL)
                with pytest.raises(RankError, match="olivine rank 1, on another machine, ended"):
                    for _ in stream:
                        pass
                assert llm.generate(PROMPT, **options).tokens == wanted


def holds_signals(pid: int) -> bool:
    """Whether what asks a program to end is blocked or ignored."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    blocked, ignored = (int(line.split()[1], 16) for line in lines if line.startswith(("SigBlk:", "SigIgn:")))
    return all((blocked | ignored) >> number - 1 & 1 for number in SIGNALS)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux says which children there are")
def test_ranks_end_with_the_command_that_keeps_them(meeting: Meeting) -> None:
    """Even if it is killed while they wait for the driver."""
    pytest.importorskip("torch", reason="gloo is torch's: pip install 'olivine[cluster]'")
    with machine(meeting.address) as other:
        eventually(lambda: bool(children(other.pid)))
        ranks = children(other.pid)
        assert all(map(holds_signals, ranks))
        other.kill()
        eventually(lambda: not any(map(alive, ranks)))


def test_a_rank_says_once_that_a_name_is_not_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waits on: the name may be known later."""
    answers = iter([socket.gaierror(-2, "not known"), socket.gaierror(-2, "not known"), KeyboardInterrupt()])

    def connect(*_: object, **__: object) -> None:
        raise next(answers)

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(rendezvous, "AGAIN", 0.0)
    with pytest.raises(KeyboardInterrupt):
        rendezvous._reach(Address("nowhere", 1), KEY)
    assert capsys.readouterr().err == "nowhere:1 cannot be found (not known): is it right?\n"


def test_ranks_that_do_not_meet_say_where_and_what_to_do() -> None:
    """Where nobody listens, and where others do not come."""
    pytest.importorskip("torch", reason="gloo is torch's: pip install 'olivine[cluster]'")
    with listening("127.0.0.1") as driver:
        place, nowhere = str(Address(*driver.getsockname()[:2])), f"127.0.0.1:{free_port()}"
        for address, listener in ((nowhere, None), (place, driver)):
            with pytest.raises(RankError) as found:
                GlooCollectives(address, 2, 1, 0, 0, 0.5, listener)
            told = str(found.value)
            assert told.startswith(f"rank 0 of 2 did not meet the others at {address} (")
            assert told.endswith("whether their machines reach each other on all ports") and "\n" not in told


def test_a_rank_that_ends_while_they_meet_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it for as long as torch would."""
    pytest.importorskip("torch", reason="gloo is torch's: pip install 'olivine[cluster]'")
    monkeypatch.setattr("olivine.cluster.group.Ranks", Bereft)
    monkeypatch.setattr(cluster, "compile_group", partial(compile_group, gloo=True))
    with pytest.raises(OlivineError, match="a rank could not start: olivine rank 1 ended"):
        load(tensor_parallel=2)


class Bereft(Ranks):
    """Ranks of which one is lost before they meet."""

    def _meet(self, *options: Any) -> Any:
        for process in self._children:
            process.kill()
            process.join()
        return super()._meet(*options)


def test_a_rank_ends_with_the_driver_that_it_cannot_meet_yet() -> None:
    """Also where it waits for others, and no message would reach it."""
    pytest.importorskip("torch", reason="gloo is torch's: pip install 'olivine[cluster]'")
    with listening("127.0.0.1") as nobody:  # accepts no connection
        place = str(Address(*nobody.getsockname()[:2]))
        path = open_checkpoint("olivine-mini").path
        job = Job(path, 64, "reference", Parallel(2), (8, 8), "F32", 1, "gloo", place)
        commands, process = _child(job, 1)
        try:
            for number in SIGNALS:  # Ctrl-C, while it is still imported: the driver's affair
                os.kill(process.pid or 0, number)
            assert commands.recv() is None
            commands.close()
            process.join(120)
            assert process.exitcode == 1
        finally:
            process.kill()


def test_a_rank_that_is_not_taken_says_why(meeting: Meeting) -> None:
    pytest.importorskip("torch", reason="gloo is torch's: pip install 'olivine[cluster]'")
    with ThreadPoolExecutor() as pool, machine(meeting.address) as other:
        gathered = pool.submit(gather, meeting, 1, b"another")
        _, told = other.communicate(timeout=120)
        friend, _ = come(meeting, model=b"another".hex())
        assert len(gathered.result(120)) == 1
        friend.close()
    assert "refused: the driver has another model" in told
    assert other.returncode == 1
