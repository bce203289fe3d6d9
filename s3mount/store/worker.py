"""One thread of the fetch engine, with its connection, and the attempt it works on.

A worker connects if need be, signs, sends, and judges the answer's head before it touches the buffer.

Who owns the buffer: the worker, from `Fetch.begin_filling` until its report. A cancelled caller cuts the connection and
returns once the worker has reported; before `begin_filling` it returns at once, and the worker finds that it is not
wanted any more.

Locks: `Fetch.lock` is the only one, and nothing that waits is called under it.
"""

import http.client
import logging
import queue
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import outcome

from s3mount.errors import CorruptResponseError, FileError, StaleObjectError, StoreUnavailableError
from s3mount.store.answer import BUFFER_BYTES, Answer
from s3mount.store.bridge import Deliver
from s3mount.store.connection import Route, cut, is_usable
from s3mount.store.responses import (
    MAX_ERROR_BODY_BYTES,
    ExpectedRange,
    bytes_to_skip,
    check_whole_object,
    fault_of_answer,
)
from s3mount.store.retry import AttemptError, Fault, FaultKind

log = logging.getLogger(__name__)

_FIRST_REFUSAL = 300
"""Statuses from here on carry no object bytes."""


@dataclass(frozen=True, slots=True)
class RangeGet:
    """One attempt at a range."""

    path: str
    """As `Endpoint.object_path` writes it."""
    sign: Callable[[], dict[str, str]]
    """Makes the headers; called on the worker's thread when the request is sent."""
    expected: ExpectedRange
    into: memoryview
    """Writable, of exactly the expected range's size."""


@dataclass(slots=True)
class Report:
    """How an attempt went."""

    received: int = 0
    """Bytes at the start of the buffer that are right."""
    requests_sent: int = 0
    connections_opened: int = 0
    fault: Fault | None = None
    """Present if and only if bytes are missing."""


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


class _UnwantedError(Exception):
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
        except AttemptError as error:
            report.fault = error.fault
        except Exception as error:  # noqa: BLE001 - the top of a thread, which must report whatever happens
            self._disconnect()
            report.fault = fault_of_exception(error)
        return report

    def _exchange(self, fetch: Fetch, report: Report) -> None:
        """One request and its answer; counts in *report* as it goes."""
        answer = self._answer_to(fetch, report)
        if answer.status >= _FIRST_REFUSAL:
            body = answer.read_upto(MAX_ERROR_BODY_BYTES)
            self._leave(answer)
            raise AttemptError(fault_of_answer(answer.status, answer.headers, body))
        skipped = bytes_to_skip(answer.status, answer.headers, fetch.get.expected)
        into = fetch.get.into
        if answer.skip(skipped) == skipped:
            fetch.begin_filling()
            while report.received < len(into) and (count := answer.readinto(into[report.received :])):
                report.received += count
        if report.received < len(into):
            raise CorruptResponseError(f"the body ended after {report.received} of {len(into)} bytes")
        try:
            self._check_end(fetch.get, answer, ends_with_range=skipped == 0)
        except (CorruptResponseError, OSError, ValueError):
            report.received = 0  # then none of it can be trusted
            raise
        self._leave(answer)

    @staticmethod
    def _check_end(get: RangeGet, answer: Answer, *, ends_with_range: bool) -> None:
        """Refuse a body that goes on after the range, or does not match the object's checksum."""
        expected = get.expected
        is_last = ends_with_range or expected.span.stop == expected.object_size
        if is_last and not answer.has_length and answer.skip(1):
            raise CorruptResponseError(f"the body is longer than {len(get.into)} bytes")
        if expected.is_whole_object:
            check_whole_object(answer.headers, get.into)

    def _answer_to(self, fetch: Fetch, report: Report) -> Answer:
        """Send the request and receive the head of its answer."""
        if self._connection is not None and is_usable(self._connection):
            try:
                return self._send(fetch, report, self._connection)
            except ConnectionError:
                if fetch.is_cancelled:
                    raise
                # The server closed an idle connection just now, which is its right: not a failure (RFC 9112, 9.6).
        self._disconnect()
        if self._is_ending:
            raise _UnwantedError
        self._connection = self._route.connect()
        report.connections_opened += 1
        return self._send(fetch, report, self._connection)

    def _send(self, fetch: Fetch, report: Report, connection: http.client.HTTPConnection) -> Answer:
        fetch.use(connection)
        headers = fetch.get.sign() | self._route.hop_headers()
        lines = [
            f"GET {self._route.target(fetch.get.path)} HTTP/1.1",
            *(f"{name}: {headers[name]}" for name in headers),
        ]
        report.requests_sent += 1
        connection.sock.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        return Answer(connection.sock, self._buffer)

    def _leave(self, answer: Answer) -> None:
        """Keep the connection for the next request if nothing of this answer is left on it."""
        if not answer.is_keeping_alive or not answer.is_complete:
            self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def fault_of_exception(error: Exception) -> Fault:
    """What an exception of a worker means for its caller."""
    failure: FileError = StoreUnavailableError(str(error) or type(error).__name__)
    kind = FaultKind.TRANSIENT
    match error:
        case FileError():
            return Fault(FaultKind.FINAL if isinstance(error, StaleObjectError) else FaultKind.CORRUPT, error)
        case ssl.SSLCertVerificationError():
            kind = FaultKind.FINAL
        case OSError() | _UnwantedError():
            pass
        case ValueError() | http.client.HTTPException():
            kind, failure = FaultKind.CORRUPT, CorruptResponseError(str(error))
        case _:
            log.error("a fetch failed unexpectedly", exc_info=error)
            kind = FaultKind.FINAL
    failure.__cause__ = error
    return Fault(kind, failure)
