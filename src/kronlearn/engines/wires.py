"""Short wires between a driver and its workers.

A call through Dask wakes four threads one after the other. Where passes take milliseconds that is
most of the time, so a worker also listens on a socket of its own, which a single thread serves.
Where the workers' connections are encrypted, or a socket cannot be reached, calls go through Dask.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from distributed import Client
from distributed.comm import get_address_host, parse_address

__all__ = ["WireServer", "Wires"]

logger = logging.getLogger(__name__)

_LENGTH = struct.Struct("<Q")
_TOKEN_BYTES = 32
# Longer messages are not believed.
_MOST_BYTES = 1 << 40
_SECONDS_TO_CONNECT = 2.0


class WireServer:
    """A worker's end: answers each message of whoever knows the token.

    Parameters
    ----------
    address : str
        The worker's address in Dask.
    answer : callable
        From the bytes of a request to those of the answer, in parts.
    ended : callable
        Called when a connection has ended, in the thread that served it.
    """

    def __init__(
        self,
        address: str,
        answer: Callable[[bytearray], Sequence[bytes | memoryview]],
        ended: Callable[[], None],
    ) -> None:
        self.answer, self.ended = answer, ended
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        self.listener: socket.socket | None = None
        if parse_address(address)[0] != "tcp":
            return
        host = get_address_host(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self.listener = socket.create_server((host, 0), family=family)
        except OSError as problem:
            # The address may be that of a gateway, which is not ours to listen at.
            logger.info("No wires to %s (%r); its calls go by Dask.", address, problem)
            return
        self.place = [host, self.listener.getsockname()[1], self.token]
        threading.Thread(target=self._accept, name="kronlearn-listener", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        if self.listener is not None:
            self.listener.close()

    def _accept(self) -> None:
        assert self.listener is not None
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._serve, args=(connection,), name="kronlearn-wire", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                connection.settimeout(_SECONDS_TO_CONNECT)
                if not hmac.compare_digest(_receive(connection, _TOKEN_BYTES), self.token):
                    return
                connection.settimeout(None)
                while True:
                    (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size))
                    if length > _MOST_BYTES:
                        return
                    _send(connection, self.answer(_receive(connection, length)))
            except OSError:
                return
            finally:
                self.ended()


def _send(connection: socket.socket, parts: Sequence[bytes | memoryview]) -> None:
    """Send a message; its first part is short."""
    length = sum(memoryview(part).nbytes for part in parts)
    connection.sendall(_LENGTH.pack(length) + parts[0])
    for part in parts[1:]:
        connection.sendall(part)


def _receive(connection: socket.socket, length: int) -> bytearray:
    """Exactly so many bytes; OSError where the connection ends before."""
    received = bytearray(length)
    view = memoryview(received)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise ConnectionError("the connection was closed")
        view = view[count:]
    return received


class Wires:
    """The driver's ends of the wires to all workers.

    They are used in the client's event loop, or, while nothing is done there, in another thread,
    which saves waking that one twice.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.wires: dict[str, _Wire | None] = {}

    async def call(self, worker: str, request: bytes) -> bytes | bytearray:
        """A worker's answer to a request."""
        if worker not in self.wires:
            self.wires[worker] = await self._connected(worker)
        wire = self.wires[worker]
        if wire is None:
            answer: bytes = await self.client.rpc(worker).kronlearn(request=request)
            return answer
        with self._cut_on_error(worker):
            return await wire.call(request)

    def lead_to(self, workers: Iterable[str]) -> bool:
        """Whether there are wires to all of these workers."""
        return all(self.wires.get(worker) is not None for worker in workers)

    def call_now(
        self, requests: Mapping[str, bytes], seconds: float
    ) -> dict[str, bytearray | None]:
        """Ask several workers at the same time, from this thread.

        Answers that do not come within some seconds, or not at all, are None: :meth:`rest` waits
        for them, or says what is wrong.
        """
        answers: dict[str, bytearray | None] = dict.fromkeys(requests)
        with contextlib.ExitStack() as wires, selectors.DefaultSelector() as arriving:
            for worker, request in requests.items():
                wire = self.wires[worker]
                assert wire is not None
                wires.enter_context(self._cut_on_error(worker))
                with self._left_to_rest(worker):
                    wire.send_now(request)
                    arriving.register(wire.connection, selectors.EVENT_READ, worker)
            end = time.monotonic() + seconds
            while arriving.get_map() and (left := end - time.monotonic()) > 0:
                for key, _ in arriving.select(left):
                    wire = self.wires[key.data]
                    assert wire is not None
                    with self._left_to_rest(key.data):
                        answers[key.data] = wire.take()
                    if answers[key.data] is not None or key.data not in self.wires:
                        arriving.unregister(key.fileobj)
        return answers

    async def rest(self, worker: str) -> bytearray:
        """The answer to a request of :meth:`call_now` that was not there in time."""
        wire = self.wires.get(worker)
        if wire is None:
            raise ConnectionError("the connection to the worker broke")
        with self._cut_on_error(worker):
            return await wire.answer()

    def cut(self, worker: str) -> None:
        """Close the wire to a worker; the next call makes a new one."""
        wire = self.wires.pop(worker, None)
        if wire is not None:
            wire.connection.close()

    def close(self) -> None:
        """Close all wires."""
        for worker in list(self.wires):
            self.cut(worker)

    @contextlib.contextmanager
    def _cut_on_error(self, worker: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            # Whatever is still to come over this wire answers nothing that is asked later.
            self.cut(worker)
            raise

    @contextlib.contextmanager
    def _left_to_rest(self, worker: str) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            logger.info("The connection to %s broke: %r", worker, problem)
            self.cut(worker)

    async def _connected(self, worker: str) -> _Wire | None:
        place = await self.client.rpc(worker).kronlearn_wire()
        if place is None:
            return None
        host, port, token = place
        try:
            connection = await asyncio.to_thread(
                socket.create_connection, (host, port), _SECONDS_TO_CONNECT
            )
        except OSError as problem:
            logger.info("No direct connection to %s (%r); its calls go by Dask.", worker, problem)
            return None
        connection.sendall(bytes(token))
        return _Wire(connection)


class _Wire:
    """A connection over which requests and answers alternate."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        self.connection = connection
        self.lock = asyncio.Lock()
        self.received, self.room, self.is_length = bytearray(), memoryview(b""), True
        self._expect(_LENGTH.size, is_length=True)

    async def call(self, request: bytes) -> bytearray:
        """The answer to a request."""
        async with self.lock:
            message = _LENGTH.pack(len(request)) + request
            await asyncio.get_running_loop().sock_sendall(self.connection, message)
            return await self._whole_answer()

    def send_now(self, request: bytes) -> None:
        """Send a request, from any thread; its answer has to be taken before anything else."""
        self.connection.settimeout(_SECONDS_TO_CONNECT)
        self.connection.sendall(_LENGTH.pack(len(request)) + request)
        self.connection.setblocking(False)

    async def answer(self) -> bytearray:
        """The answer to the request that was sent."""
        async with self.lock:
            return await self._whole_answer()

    def take(self) -> bytearray | None:
        """Take what has come of an answer; returns the answer once all of it is there."""
        while True:
            while self.room:
                try:
                    count = self.connection.recv_into(self.room)
                except BlockingIOError:
                    return None
                if count == 0:
                    raise ConnectionError("the worker closed the connection")
                self.room = self.room[count:]
            received, was_length = self.received, self.is_length
            self._expect(_LENGTH.size, is_length=True)
            if not was_length:
                return received
            self._expect(*_LENGTH.unpack(received), is_length=False)

    def _expect(self, length: int, *, is_length: bool) -> None:
        self.received, self.is_length = bytearray(length), is_length
        self.room = memoryview(self.received)

    async def _whole_answer(self) -> bytearray:
        loop = asyncio.get_running_loop()
        while (answer := self.take()) is None:
            arrived = asyncio.Event()
            loop.add_reader(self.connection, arrived.set)
            try:
                await arrived.wait()
            finally:
                loop.remove_reader(self.connection)
        return answer
