"""Wires: whoever knows the token is answered, nobody else, and nothing ends the server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kronlearn.engines.host import Host
from kronlearn.engines.wires import Wires, WireServer


@pytest.fixture
def server() -> Iterator[WireServer]:
    running = WireServer("tcp://127.0.0.1:1", lambda request: [bytes(request[::-1])], lambda: None)
    yield running
    running.close()


def connected(server: WireServer, token: bytes | None = None) -> socket.socket:
    host, port, right = server.place
    connection = socket.create_connection((host, port), timeout=10)
    connection.sendall(right if token is None else token)
    return connection


def answer_to(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(struct.pack("<Q", len(request)) + request)
    with connection.makefile("rb") as answers:
        (length,) = struct.unpack("<Q", answers.read(8))
        return answers.read(length)


def test_every_request_is_answered_in_turn(server: WireServer) -> None:
    with connected(server) as connection:
        for request in (b"", b"abc", bytes(range(256)) * 5000):
            assert answer_to(connection, request) == request[::-1]


def test_drivers_do_not_wait_for_each_other(server: WireServer) -> None:
    with connected(server) as first, connected(server) as second:
        first.sendall(struct.pack("<Q", 3) + b"a")
        assert answer_to(second, b"xyz") == b"zyx"
        first.sendall(b"bc")
        with first.makefile("rb") as answers:
            assert answers.read(11)[8:] == b"cba"


@pytest.mark.parametrize("token", [b"x" * 32, bytes(32)])
def test_who_does_not_know_the_token_is_not_answered(server: WireServer, token: bytes) -> None:
    with connected(server, token) as connection:
        connection.sendall(struct.pack("<Q", 3) + b"abc")
        # The server may close before it has read the request, which resets the connection.
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    with connected(server) as connection:
        assert answer_to(connection, b"abc") == b"cba"


@pytest.mark.parametrize("sent", [struct.pack("<Q", 1 << 60), struct.pack("<Q", 9) + b"abc", b"a"])
def test_senseless_and_broken_messages_end_only_their_connection(
    server: WireServer, sent: bytes
) -> None:
    with connected(server) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    with connected(server) as connection:
        assert answer_to(connection, b"abc") == b"cba"


def test_the_threads_of_closed_connections_end(server: WireServer) -> None:
    def wires() -> int:
        return sum(thread.name == "kronlearn-wire" for thread in threading.enumerate())

    before = wires()
    for _ in range(20):
        with connected(server) as connection:
            answer_to(connection, b"abc")
    end = time.monotonic() + 10
    while wires() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert wires() <= before


@pytest.mark.parametrize("address", ["tls://127.0.0.1:1", "inproc://1/2/3", "tcp://203.0.113.7:1"])
def test_there_is_no_wire_where_none_can_or_should_be(address: str) -> None:
    server = WireServer(address, lambda request: [bytes(request)], lambda: None)
    assert server.listener is None
    server.close()


def test_the_end_of_a_connection_is_told() -> None:
    ended = threading.Event()
    server = WireServer("tcp://127.0.0.1:1", lambda request: [bytes(request)], ended.set)
    host, port, token = server.place
    with socket.create_connection((host, port)) as connection:
        connection.sendall(token)
    assert ended.wait(10)
    server.close()


@pytest.mark.parametrize(
    ("is_left", "idle", "kept"), [(True, 70, 0), (False, 70, 1), (False, 700, 0)]
)
def test_runs_of_drivers_that_hung_up_are_forgotten_sooner(
    is_left: bool, idle: float, kept: int
) -> None:
    run = SimpleNamespace(asked=0, is_left=is_left, last_asked=time.monotonic() - idle, data={1: 2})
    host = Host()
    host.runs = {"a": run}
    host._forget_abandoned()
    assert len(host.runs) == kept
    assert run.data == {}


class Workers:
    """Answers of several servers, by name, and a client that knows where they are."""

    def __init__(self, **answers: Any) -> None:
        self.servers = {
            name: WireServer("tcp://127.0.0.1:1", answer, lambda: None)
            for name, answer in answers.items()
        }

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for server in self.servers.values():
            server.close()

    def rpc(self, name: str) -> Any:
        async def kronlearn_wire() -> list[Any]:
            return self.servers[name].place

        return SimpleNamespace(kronlearn_wire=kronlearn_wire)


async def connected_wires(workers: Workers) -> Wires:
    wires = Wires(workers)  # type: ignore[arg-type]
    assert not wires.lead_to(workers.servers)
    for name in workers.servers:
        assert await wires.call(name, b"hello")
    assert wires.lead_to(workers.servers)
    return wires


def slowly(request: bytearray) -> list[bytes]:
    if request != b"hello":
        time.sleep(0.4)
    return [bytes(request)]


def test_workers_are_asked_at_the_same_time_and_late_answers_are_waited_for() -> None:
    long = bytes(range(256)) * 9000

    async def run(wires: Wires) -> None:
        assert await wires.rest("b") == b"1"
        assert await wires.call("b", b"2") == b"2"

    with Workers(a=lambda request: [bytes(request[::-1])], b=slowly) as workers:
        wires = asyncio.run(connected_wires(workers))
        assert wires.call_now({"a": long, "b": b"1"}, 0.1) == {"a": long[::-1], "b": None}
        asyncio.run(run(wires))
        assert wires.call_now({"a": b"x", "b": b"y"}, 10.0) == {"a": b"x", "b": b"y"}
        wires.close()


def test_a_worker_that_is_gone_is_found_out_by_whoever_waits_for_it() -> None:
    def leaving(request: bytearray) -> list[bytes]:
        if request != b"hello":
            raise ConnectionError("the worker is closing")
        return [bytes(request)]

    with Workers(a=leaving, b=slowly) as workers:
        wires = asyncio.run(connected_wires(workers))
        assert wires.call_now({"a": b"1", "b": b"2"}, 10.0) == {"a": None, "b": b"2"}
        with pytest.raises(ConnectionError):
            asyncio.run(wires.rest("a"))
        assert not wires.lead_to(["a"])
        assert wires.lead_to(["b"])
        wires.close()


def test_after_an_interruption_no_wire_is_used_that_an_answer_may_still_come_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with Workers(a=slowly, b=slowly) as workers:
        wires = asyncio.run(connected_wires(workers))
        with monkeypatch.context() as patched:
            patched.setattr("selectors.DefaultSelector.select", interrupted)
            with pytest.raises(KeyboardInterrupt):
                wires.call_now({"a": b"1", "b": b"2"}, 10.0)
        assert wires.wires == {}
        assert asyncio.run(wires.call("a", b"hello")) == b"hello"
        wires.close()


def test_a_wire_may_be_cut_while_its_answer_is_waited_for() -> None:
    async def run(workers: Workers) -> None:
        wires = await connected_wires(workers)
        waiting = asyncio.create_task(wires.call("a", b"1"))
        await asyncio.sleep(0.05)
        waiting.cancel()
        wires.cut("a")
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await wires.call("a", b"hello") == b"hello"
        wires.close()

    with Workers(a=slowly) as workers:
        asyncio.run(run(workers))
