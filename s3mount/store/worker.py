"""One thread of the fetch engine, with its connection, and the attempt it works on.

A worker connects if need be, signs, sends, and judges the answer's head before it touches the buffer.

Who owns the buffer: the worker, from `Fetch.begin_filling` until its report. A cancelled caller cuts the connection and
returns once the worker has reported; before `begin_filling` it returns at once, and the worker finds that it is not
wanted any more.

Locks: `Fetch.lock` is the only one, and nothing that waits is called under it.
"""

import http.client
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import outcome

from s3mount.errors import StoreUnavailableError
from s3mount.store.answer import BUFFER_BYTES, receive_from
from s3mount.store.bridge import Deliver
from s3mount.store.connection import Route, cut, is_usable
from s3mount.store.exchange import RangeGet, Report, fault_of_exception, receive

DeliverReport = Deliver[Report]
"""Named, since an annotation of a nested function is evaluated at each call, at 50 µs."""


@dataclass(slots=True)
class Fetch:
    """An attempt in the hands of a worker."""

    get: RangeGet
    deliver: DeliverReport
    free_worker: Callable[[], None]
    """Called on the worker's thread when its report comes after the caller has gone."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_cancelled: bool = False
    is_filling: bool = False
    is_abandoned: bool = False
    """The caller was let go before the report."""
    connection: http.client.HTTPConnection | None = None

    def use(self, connection: http.client.HTTPConnection) -> None:
        """Tell which connection to cut on cancellation.

        Raises:
            _UnwantedError: The caller has gone.
        """
        with self.lock:
            self.connection = connection
            if self.is_cancelled:
                raise _UnwantedError

    def begin_filling(self) -> None:
        """Take the buffer.

        Raises:
            _UnwantedError: The caller has gone.
        """
        with self.lock:
            if self.is_cancelled:
                raise _UnwantedError
            self.is_filling = True

    def report(self, report: Report) -> None:
        """Give the buffer back."""
        with self.lock:
            self.connection = None
            self.is_filling = False
            was_cancelled, is_abandoned = self.is_cancelled, self.is_abandoned
            self.is_cancelled = True  # a cancellation from now on has nothing to let go
        if is_abandoned:
            self.free_worker()
        elif was_cancelled and report.fault is not None:
            self.deliver(outcome.Error(StoreUnavailableError("cancelled")))  # the fault is of our own making
        else:
            self.deliver(outcome.Value(report))

    def cancel(self) -> None:
        """Wake the worker, and let the caller go unless the worker has the buffer."""
        with self.lock:
            if self.is_cancelled:
                return
            self.is_cancelled = True
            self.is_abandoned = not self.is_filling
            if self.connection is not None and self.connection.sock is not None:
                cut(self.connection.sock)
        if self.is_abandoned:
            self.deliver(outcome.Error(StoreUnavailableError("cancelled")))


class _UnwantedError(OSError):
    """Nobody waits for the answer any more."""


class Worker(threading.Thread):
    """A thread with its connection. All but the constructor and `end` run on it."""

    def __init__(self, route: Route, *, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.inbox: queue.SimpleQueue[Fetch | None] = queue.SimpleQueue()
        self._route = route
        self._connection: http.client.HTTPConnection | None = None
        self._buffer = bytearray(BUFFER_BYTES)
        self._is_ending = False

    def run(self) -> None:
        """Make attempts until told to end."""
        while (fetch := self.inbox.get()) is not None:
            fetch.report(self._attempt(fetch))
        self._disconnect()

    def end(self) -> None:
        """Tell the thread to end, and wake it if it waits for the network; called on the trio thread."""
        self._is_ending = True
        self.inbox.put(None)
        connection = self._connection
        if connection is not None and connection.sock is not None:
            cut(connection.sock)

    def _attempt(self, fetch: Fetch) -> Report:
        report = Report()
        try:
            self._exchange(fetch, report)
        except Exception as error:  # noqa: BLE001 - the top of a thread, which must report whatever happens
            report.fault = fault_of_exception(error)
        return report

    def _exchange(self, fetch: Fetch, report: Report) -> None:
        """One request and its answer; counts in *report* as it goes."""
        if self._connection is not None and is_usable(self._connection):
            try:
                self._exchange_on(self._connection, fetch, report)
            except ConnectionError:
                if fetch.is_cancelled or fetch.is_filling:
                    raise
                # The server closed an idle connection just now, which is its right: not a failure (RFC 9112, 9.6).
            else:
                return
        self._disconnect()
        if self._is_ending:
            raise _UnwantedError
        self._connection = self._route.connect()
        report.connections_opened += 1
        self._exchange_on(self._connection, fetch, report)

    def _exchange_on(self, connection: http.client.HTTPConnection, fetch: Fetch, report: Report) -> None:
        fetch.use(connection)
        is_reusable = False
        try:
            request = fetch.get.request(self._route)
            report.requests_sent += 1
            connection.sock.sendall(request)
            reads = receive(fetch.get, self._buffer, report, fetch.begin_filling)
            is_reusable = receive_from(connection.sock, reads)
        finally:
            if not is_reusable:
                self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
