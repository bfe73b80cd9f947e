"""Ranks on other machines: they come to the driver's address, are told their numbers, and follow it.

`olivine rank` keeps a process for each of its ranks. The process connects to the driver, as soon as there is
one, and ends with it; then the next one waits for the driver to come back. Both sides prove that they know
the same key (`multiprocessing.connection`'s challenge). Commands are pickles and nothing is encrypted:
whoever has the key can run code on both machines, so the network between them has to be a trusted one.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from ipaddress import ip_address
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from olivine import __version__
from olivine.cluster.ending import begin, start
from olivine.cluster.keepalive import keep_alive, shut
from olivine.errors import OlivineError, RequestError, printable
from olivine.formats import Checkpoint, open_checkpoint

JOIN = 1800.0  # seconds that a driver waits for its ranks: people start them by hand
HANDSHAKE = 10.0  # seconds that a connection may take to prove that it knows the key
AGAIN = 1.0  # seconds between two tries to find the driver
LONGEST = 1 << 16  # bytes of what a rank says of itself
REFUSED = 3  # the exit status of a rank that no driver would take


class Address(NamedTuple):
    """Where a driver listens for its ranks."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Address:
        """host:port, or [host]:port."""
        host, colon, port = text.rpartition(":")
        if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
            raise RequestError(f"a rank address is host:port, such as 10.0.0.1:29500, and not {text!r}")
        found = cls(host.strip("[]"), int(port))
        with suppress(ValueError):  # a name
            if ip_address(found.host).is_unspecified:
                raise RequestError(f"ranks cannot find {text}: give the address of the machine that serves")
        return found

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Meeting(NamedTuple):
    """Where ranks of other machines find the driver."""

    address: Address
    key: str
    nodes: int  # machines, each with as many ranks


class Hello(NamedTuple):
    """What a rank says of itself, in JSON: every version can read which version another one is, whatever
    else that says."""

    version: str
    model: str  # the digest of its files
    node: str  # the same for all ranks of a machine

    def encoded(self) -> bytes:
        return json.dumps(self._asdict()).encode()


def _refusal(said: Any, model: bytes) -> str | None:
    """Why the driver does not take a rank that said this, if it does not."""
    version = str(said.get("version")) if isinstance(said, dict) else "another version"
    if version != __version__:
        told = f"the driver is Olivine {__version__}, and this is {printable(version)}"
        return f"{told}: install the same on all machines"
    if said.get("model") != model.hex():
        return "the driver has another model: all machines need the same files"
    return None


def digest_of(checkpoint: Checkpoint) -> bytes:
    """Equal for equal models: their configuration, names, types and shapes of all tensors, and how each
    begins. The tokenizer is the driver's alone."""
    config = {key: value for key, value in checkpoint.metadata.items() if not key.startswith("tokenizer.")}
    text = json.dumps(config, sort_keys=True, default=np.ndarray.tolist)
    found = blake2b(f"{checkpoint.naming} {text}".encode(), digest_size=16)
    for name in sorted(checkpoint.tensors):
        tensor = checkpoint.tensors[name]
        found.update(f"{name} {tensor.dtype.name} {tensor.shape} ".encode())
        # Matrices are too large to be read. Norms and the frequencies of a rotary embedding are not.
        found.update((tensor.data if len(tensor.shape) == 1 else tensor.data[:64]).tobytes())
    return found.digest()


# ---- the driver


def gather(
    meeting: Meeting, count: int, model: bytes, waiting: Callable[[], None] = lambda: None
) -> list[Connection]:
    """The connections of `count` ranks with this model, those of a machine one after the other. `waiting` is
    called every second meanwhile, and may raise to end it."""
    arrived: list[tuple[str, Connection]] = []
    changed, done = threading.Condition(), threading.Event()

    def receive(accepted: socket.socket) -> None:
        found = _admit(accepted, meeting.key, model)
        if found is not None:
            with changed:
                arrived.append(found)
                changed.notify_all()

    def listen() -> None:
        while not done.is_set():
            if select.select([server], [], [], 0.2)[0]:
                with suppress(OSError):
                    accepted, _ = server.accept()
                    threading.Thread(target=receive, args=(accepted,), daemon=True).start()

    try:
        server = listening(meeting.address.host, meeting.address.port)
    except OSError as error:
        told = (
            f"cannot listen for ranks at {meeting.address} ({error.strerror or error}): give an address of "
            "this machine and a port that is free"
        )
        raise OlivineError(told, code="rank_failed") from None
    listener = threading.Thread(target=listen, name="olivine-rendezvous", daemon=True)
    listener.start()
    end = time.monotonic() + JOIN
    try:
        with changed:
            while True:
                # Until it is told its number, a rank says no more than hello: what can be read is its end.
                arrived[:] = [each for each in arrived if not each[1].poll(0)]
                if len(arrived) >= count:
                    break
                if time.monotonic() > end:
                    told = f"{count - len(arrived)} of {count} ranks did not come to {meeting.address}"
                    raise OlivineError(told, code="rank_failed")
                changed.wait(1.0)
                waiting()
            nodes = list(dict.fromkeys(node for node, _ in arrived))
            arrived.sort(key=lambda each: nodes.index(each[0]))  # stable: in the order in which they came
            found, arrived[:] = [each for _, each in arrived[:count]], arrived[count:]
            return found
    finally:
        done.set()
        listener.join()
        server.close()
        for _, each in arrived:
            each.close()


def listening(host: str, port: int = 0) -> socket.socket:
    """A socket that listens on one address of this machine; port 0: on a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=256)


def _admit(accepted: socket.socket, key: str, model: bytes) -> tuple[str, Connection] | None:
    """A rank that knows the key and has the same model, and its machine; others are told why not."""
    keep_alive(accepted)
    connection = Connection(accepted.detach())
    silent = threading.Timer(HANDSHAKE, shut, (connection,))
    silent.daemon = True
    silent.start()
    try:
        deliver_challenge(connection, key.encode())
        answer_challenge(connection, key.encode())
        words = connection.recv_bytes(LONGEST)
        said: Any = None
        with suppress(ValueError):
            said = json.loads(words)
        refusal = _refusal(said, model)
        connection.send(refusal)
        if refusal is None:
            return str(said.get("node")), connection
    except (OSError, EOFError, AuthenticationError, AssertionError):
        pass
    finally:
        silent.cancel()
    connection.close()
    return None


# ---- a rank


def join(path: Path, address: Address, key: str, node: str, threads: int | None) -> None:
    """The main function of a rank's process: waits for the driver, and follows it to its end."""
    begin()
    from olivine.cluster.rank import Job, follow

    model = digest_of(open_checkpoint(path))
    commands = _reach(address, key)
    try:
        commands.send_bytes(Hello(__version__, model.hex(), node).encoded())
        if (refusal := commands.recv()) is not None:
            print(f"refused: {refusal}", file=sys.stderr, flush=True)
            os._exit(REFUSED)
        job, number = commands.recv()
    except (OSError, EOFError):  # the driver ended, or has ranks enough
        time.sleep(AGAIN)
        os._exit(0)
    assert isinstance(job, Job)
    print(f"rank {number} of {job.parallel.size} for {address}", file=sys.stderr, flush=True)
    follow(replace(job, path=path, threads=threads), number, commands)


def _reach(address: Address, key: str) -> Connection:
    """The driver's connection; waits until there is a driver."""
    told = False
    while True:
        try:
            found = socket.create_connection(address, timeout=HANDSHAKE)
        except OSError as error:
            if isinstance(error, socket.gaierror) and not told:  # not only that nobody listens yet
                told = True
                reason = error.strerror or error
                print(f"{address} cannot be found ({reason}): is it right?", file=sys.stderr, flush=True)
            time.sleep(AGAIN)
            continue
        found.settimeout(None)
        keep_alive(found)
        connection = Connection(found.detach())
        try:
            answer_challenge(connection, key.encode())
            deliver_challenge(connection, key.encode())
            return connection
        except AuthenticationError:
            print(f"refused: {address} has another key", file=sys.stderr, flush=True)
            os._exit(REFUSED)
        except (OSError, EOFError, AssertionError):  # it ends, or is no driver
            connection.close()
            time.sleep(AGAIN)


def keep_ranks(path: Path, address: Address, key: str, count: int, threads: int | None) -> bool:
    """Keeps `count` ranks waiting for the driver or following it, until an exception; False where one was
    refused."""
    from uuid import uuid4

    node = uuid4().hex
    processes: list[BaseProcess] = []
    try:
        while True:
            for each in [each for each in processes if not each.is_alive()]:
                processes.remove(each)
                if each.exitcode == REFUSED:
                    return False
                if each.exitcode:
                    time.sleep(AGAIN)
            while len(processes) < count:
                processes.append(start(join, path, address, key, node, threads))
            time.sleep(0.1)
    finally:
        for each in processes:
            each.kill()
            each.join()
