"""Short wires between a driver and its workers.

A call through Dask wakes four threads one after the other. Where passes take milliseconds that is
most of the time, so a worker also listens on a socket of its own, which a single thread serves.
Where the workers' connections are encrypted, or a socket cannot be reached, calls go through Dask.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
import struct
import threading
from collections.abc import Callable

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
        From the bytes of a request to those of the answer.
    ended : callable
        Called when a connection has ended, in the thread that served it.
    """

    def __init__(
        self, address: str, answer: Callable[[bytes], bytes], ended: Callable[[], None]
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
                    reply = self.answer(bytes(_receive(connection, length)))
                    connection.sendall(_LENGTH.pack(len(reply)) + reply)
            except OSError:
                return
            finally:
                self.ended()


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
    """The driver's ends of the wires to all workers; used in the client's event loop."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.wires: dict[str, _Wire | None] = {}

    async def call(self, worker: str, request: bytes) -> bytes:
        """A worker's answer to a request."""
        if worker not in self.wires:
            self.wires[worker] = await self._connected(worker)
        wire = self.wires[worker]
        if wire is None:
            return await self.client.rpc(worker).kronlearn(request=request)
        try:
            return await wire.call(request)
        except BaseException:
            # Whatever is still to come over this wire answers nothing that is asked later.
            self.cut(worker)
            raise

    def cut(self, worker: str) -> None:
        """Close the wire to a worker; the next call makes a new one."""
        wire = self.wires.pop(worker, None)
        if wire is not None:
            wire.close()

    def close(self) -> None:
        """Close all wires."""
        for worker in list(self.wires):
            self.cut(worker)

    async def _connected(self, worker: str) -> _Wire | None:
        place = await self.client.rpc(worker).kronlearn_wire()
        if place is None:
            return None
        host, port, token = place
        try:
            reader, writer = await asyncio.wait_for(
                asyncio.open_connection(host, port, limit=1 << 22), _SECONDS_TO_CONNECT
            )
        except (OSError, TimeoutError) as problem:
            logger.info("No direct connection to %s (%r); its calls go by Dask.", worker, problem)
            return None
        writer.write(bytes(token))
        return _Wire(reader, writer)


class _Wire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.lock = asyncio.Lock()

    async def call(self, request: bytes) -> bytes:
        async with self.lock:
            self.writer.write(_LENGTH.pack(len(request)))
            self.writer.write(request)
            await self.writer.drain()
            try:
                (length,) = _LENGTH.unpack(await self.reader.readexactly(_LENGTH.size))
                return await self.reader.readexactly(length)
            except asyncio.IncompleteReadError as problem:
                raise ConnectionError("the worker closed the connection") from problem

    def close(self) -> None:
        self.writer.transport.abort()
