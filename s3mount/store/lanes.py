"""Makes small range GETs in the trio thread, over connections that do not block.

A GET of 115 kB costs 150 µs of CPU here, and 400-550 µs where a thread does it: handing over to a thread and back, and
threads that wait for the interpreter's lock, cost more than the request (loopback, 2 cores, Python 3.11). Large ranges
belong to threads all the same, since several cores can then receive at a time.
"""

import contextlib
import socket
import ssl
import time
from typing import TypeVar

import trio

from s3mount.errors import StoreUnavailableError
from s3mount.store.answer import BUFFER_BYTES, Reads
from s3mount.store.connection import Route, is_usable
from s3mount.store.exchange import Report, receive
from s3mount.store.flight import Flight, UnwantedError

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
        """Last in, first out: the first ones are those not used for longest."""
        self._connect_limit = trio.CapacityLimiter(MAX_CONNECTING)
        self._is_closed = False

    async def fetch(self, flight: Flight) -> Report:
        """Make one attempt. Nobody touches the buffer once this has returned, or was cancelled."""
        try:
            await self._attempt(flight)
        except Exception as error:  # noqa: BLE001 - whatever happens is the outcome of this attempt
            flight.end(error)
        else:
            flight.end(None)
        return flight.report

    def close(self) -> None:
        """Close all idle connections; those in use are closed when their request is over."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    def retire(self, *, unused_since: float, keep: int) -> None:
        """Close connections not used since then, except the *keep* used last."""
        while len(self._idle) > keep and self._idle[0].idle_since <= unused_since:
            self._idle.pop(0).close()

    async def _attempt(self, flight: Flight) -> None:
        flight.check_wanted()
        lane = self._take_idle()
        if lane is not None:
            try:
                await self._exchange(lane, flight)
            except ConnectionError:
                if flight.is_cut or flight.is_filling:
                    raise
                # The server closed an idle connection just now, which is its right: not a failure (RFC 9112, 9.6).
            else:
                return
        lane = await self._connect(flight)
        flight.report.connections_opened += 1
        await self._exchange(lane, flight)
        if lane in self._idle:
            self._route.resumption.keep(lane.sock)

    async def _exchange(self, lane: "_Lane", flight: Flight) -> None:
        is_reusable = False
        try:
            flight.use(lane.sock)
            request = flight.get.request(self._route)
            flight.note_sent()
            await lane.send(request)
            reads = receive(flight.get, lane.buffer, flight.report, flight.begin_filling)
            is_reusable = await lane.drive(reads, flight)
        finally:
            if is_reusable and not self._is_closed:
                lane.idle_since = time.monotonic()
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

    async def _connect(self, flight: Flight) -> "_Lane":
        """A new connection. A thread opens it, since resolving names and TLS block; one nobody waits for is closed."""
        if self._is_closed:
            raise StoreUnavailableError("the store is closed")
        lanes: list[_Lane] = []

        def connect() -> None:
            lane = _Lane(self._route.connect())
            lanes.append(lane)
            if not is_wanted:
                lane.close()

        is_wanted = True
        with trio.CancelScope() as scope:
            flight.let_go = scope.cancel
            try:
                await trio.to_thread.run_sync(connect, abandon_on_cancel=True, limiter=self._connect_limit)
            except trio.Cancelled:
                is_wanted = False  # before closing: the thread first adds, then looks
                while lanes:
                    lanes.pop().close()
                raise
        flight.let_go = None
        if not lanes:
            raise UnwantedError("cut off")
        return lanes[0]


class _Lane:
    """One connection. There are no timeouts: a flight that has stalled is cut off by `watch`."""

    def __init__(self, sock: socket.socket) -> None:
        self.buffer = bytearray(BUFFER_BYTES)
        self.sock = sock
        self.idle_since = 0.0
        sock.setblocking(False)

    def is_usable(self) -> bool:
        return is_usable(self.sock)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.close()

    async def send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self.sock.send(left) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                await trio.lowlevel.wait_writable(self.sock)

    async def drive(self, reads: Reads[T], flight: Flight) -> T:
        """Receive what *reads* asks for."""
        sock = self.sock
        try:
            into = next(reads)
            await trio.lowlevel.wait_readable(sock)  # an answer takes its time
            while True:
                try:
                    count = sock.recv_into(into)
                except (BlockingIOError, ssl.SSLWantReadError):
                    await trio.lowlevel.wait_readable(sock)
                else:
                    flight.note_arrival()
                    into = reads.send(count)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
