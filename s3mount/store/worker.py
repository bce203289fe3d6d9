"""One thread of the fetch engine, with its connection.

A worker connects if need be, signs, sends, and judges the answer's head before it touches the buffer; `flight` says who
owns that.
"""

import queue
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

import outcome

from s3mount.errors import StoreUnavailableError
from s3mount.store.answer import BUFFER_BYTES, receive_from
from s3mount.store.bridge import Deliver
from s3mount.store.connection import Route, cut, is_usable
from s3mount.store.exchange import Report, receive
from s3mount.store.flight import Flight, UnwantedError, cut_off

DeliverReport = Deliver[Report]
"""Named, since an annotation of a nested function is evaluated at each call, at 50 µs."""


@dataclass(slots=True)
class Job:
    """A flight in the hands of a worker."""

    flight: Flight
    deliver: DeliverReport
    free_worker: Callable[[], None]
    """Called on the worker's thread when its report comes after the caller has gone."""
    is_cancelled: bool = False

    def report(self, error: Exception | None) -> None:
        """The worker has let go of the flight."""
        flight = self.flight
        flight.end(error)
        if flight.was_let_go:
            self.free_worker()
        elif self.is_cancelled and error is not None:
            self.deliver(outcome.Error(StoreUnavailableError("cancelled")))  # the fault is of our own making
        else:
            self.deliver(outcome.Value(flight.report))

    def cancel(self) -> None:
        """The caller wants to go."""
        self.is_cancelled = True
        self.flight.cut()

    def let_go(self) -> None:
        """Wake the caller before the worker has reported."""
        if self.is_cancelled:
            self.deliver(outcome.Error(StoreUnavailableError("cancelled")))
        else:
            self.deliver(outcome.Value(Report(requests_sent=self.flight.report.requests_sent, fault=cut_off())))


class Worker(threading.Thread):
    """A thread with its connection. All but the constructor and `end` run on it."""

    def __init__(self, route: Route, *, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._route = route
        self._sock: socket.socket | None = None
        self._buffer = bytearray(BUFFER_BYTES)
        self._is_ending = False
        self.idle_since = 0.0
        """When it last had something to do; the crew's."""

    def run(self) -> None:
        """Make attempts until told to end."""
        while (job := self.inbox.get()) is not None:
            job.report(self._attempt(job.flight))
        self._disconnect()

    def end(self) -> None:
        """Tell the thread to end, and wake it if it waits for the network; called on the trio thread."""
        self._is_ending = True
        self.inbox.put(None)
        sock = self._sock
        if sock is not None:
            cut(sock)

    def _attempt(self, flight: Flight) -> Exception | None:
        try:
            self._exchange(flight)
        except Exception as error:  # noqa: BLE001 - the top of a thread, which must report whatever happens
            return error
        return None

    def _exchange(self, flight: Flight) -> None:
        """One request and its answer."""
        flight.check_wanted()
        if self._sock is not None and is_usable(self._sock):
            try:
                self._exchange_on(self._sock, flight)
            except ConnectionError:
                if flight.is_cut or flight.is_filling:
                    raise
                # The server closed an idle connection just now, which is its right: not a failure (RFC 9112, 9.6).
            else:
                return
        self._disconnect()
        flight.check_wanted()
        if self._is_ending:
            raise UnwantedError("the store is closed")
        sock = self._sock = self._route.connect()
        flight.report.connections_opened += 1
        self._exchange_on(sock, flight)
        if self._sock is not None:
            self._route.resumption.keep(sock)

    def _exchange_on(self, sock: socket.socket, flight: Flight) -> None:
        flight.use(sock)
        is_reusable = False
        try:
            request = flight.get.request(self._route)
            flight.note_sent()
            sock.sendall(request)
            reads = receive(flight.get, self._buffer, flight.report, flight.begin_filling)
            is_reusable = receive_from(sock, reads, flight.note_arrival)
        finally:
            if not is_reusable:
                self._disconnect()

    def _disconnect(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
