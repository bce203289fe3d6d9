"""Makes small range GETs in the trio thread, over connections that do not block.

A GET of 115 kB costs 150 µs of CPU here, and 400-550 µs where a thread does it: handing over to a thread and back, and
threads that wait for the interpreter's lock, cost more than the request (loopback, 2 cores, Python 3.11). Large ranges
belong to threads all the same, since several cores can then receive at a time.
"""

import contextlib
import http.client
import socket
import ssl
from typing import TypeVar

import trio

from s3mount.errors import StoreUnavailableError
from s3mount.store.answer import BUFFER_BYTES, Reads
from s3mount.store.connection import Route, is_usable
from s3mount.store.exchange import RangeGet, Report, fault_of_exception, receive

T = TypeVar("T")

MAX_CONNECTING = 16
"""Threads that open connections at a time."""


class Lanes:
    """Connections that carry one request at a time each. Used on the trio thread only.

    **Invariant:** a connection is idle, or belongs to one running `fetch`, or is closed.
    """

    def __init__(self, route: Route) -> None:
        self._route = route
        self._idle: list[_Lane] = []
        """Last in, first out."""
        self._connect_limit = trio.CapacityLimiter(MAX_CONNECTING)
        self._is_closed = False

    async def fetch(self, get: RangeGet) -> Report:
        """Make one attempt. Nobody touches ``get.into`` once this has returned, or was cancelled."""
        report = Report()
        try:
            await self._attempt(get, report)
        except Exception as error:  # noqa: BLE001 - whatever happens is the outcome of this attempt
            report.fault = fault_of_exception(error)
        return report

    def close(self) -> None:
        """Close all idle connections; those in use are closed when their request is over."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    async def _attempt(self, get: RangeGet, report: Report) -> None:
        lane = self._take_idle()
        if lane is not None:
            try:
                await self._exchange(lane, get, report)
            except ConnectionError:
                if report.received:
                    raise
                # The server closed an idle connection just now, which is its right: not a failure (RFC 9112, 9.6).
            else:
                return
        lane = await self._connect()
        report.connections_opened += 1
        await self._exchange(lane, get, report)

    async def _exchange(self, lane: "_Lane", get: RangeGet, report: Report) -> None:
        is_reusable = False
        try:
            request = get.request(self._route)
            report.requests_sent += 1
            await lane.send(request)
            is_reusable = await lane.drive(receive(get, lane.buffer, report, _nothing))
        finally:
            if is_reusable and not self._is_closed:
                self._idle.append(lane)
            else:
                lane.close()

    def _take_idle(self) -> "_Lane | None":
        while self._idle:
            lane = self._idle.pop()
            if lane.is_usable():
                return lane
            lane.close()
        return None

    async def _connect(self) -> "_Lane":
        """A new connection. A thread opens it, since resolving names and TLS block; one nobody waits for is dropped."""
        if self._is_closed:
            raise StoreUnavailableError("the store is closed")
        connection = await trio.to_thread.run_sync(
            self._route.connect, abandon_on_cancel=True, limiter=self._connect_limit
        )
        return _Lane(connection, self._route.stall_timeout_seconds)


class _Lane:
    """One connection."""

    def __init__(self, connection: http.client.HTTPConnection, stall_timeout_seconds: float) -> None:
        self.buffer = bytearray(BUFFER_BYTES)
        self._connection = connection
        self._sock: socket.socket = connection.sock
        self._sock.setblocking(False)
        self._stall_timeout_seconds = stall_timeout_seconds

    def is_usable(self) -> bool:
        return is_usable(self._connection)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.close()

    async def send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._sock.send(left) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                with trio.fail_after(self._stall_timeout_seconds):
                    await trio.lowlevel.wait_writable(self._sock)

    async def drive(self, reads: Reads[T]) -> T:
        """Receive what *reads* asks for.

        Raises:
            TimeoutError: Nothing came for too long.
        """
        with trio.move_on_after(self._stall_timeout_seconds) as scope:
            try:
                into = next(reads)
                await trio.lowlevel.wait_readable(self._sock)  # an answer takes its time
                while True:
                    try:
                        count = self._sock.recv_into(into)
                    except (BlockingIOError, ssl.SSLWantReadError):
                        scope.deadline = trio.current_time() + self._stall_timeout_seconds
                        await trio.lowlevel.wait_readable(self._sock)
                    else:
                        into = reads.send(count)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
        raise TimeoutError("timed out")


def _nothing() -> None:
    """Nobody else has the buffer."""
