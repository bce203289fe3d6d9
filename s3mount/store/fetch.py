"""Fetches byte ranges straight into callers' buffers: threads that each own one keep-alive connection.

A fetch makes one attempt; whether and when another follows is `retry`'s business. The caller's task takes a slot, hands
a `_Fetch` to an idle worker thread, and sleeps. The worker connects if need be, signs, sends, and judges the answer's
head before it touches the buffer. Its report wakes the caller.

Who owns the buffer: the worker, from `_Fetch.begin_filling` until its report. A cancelled caller cuts the connection
and returns once the worker has reported; before `begin_filling` it returns at once, and the worker finds that it is not
wanted any more. Its slot is freed only by the worker's report, so there are never more threads than slots, however many
callers give up.

Locks: `_Fetch.lock` is the only one, and nothing that waits is called under it.
"""

import contextlib
import http.client
import logging
import queue
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import outcome
import trio

from s3mount.errors import CorruptResponseError, FileError, StaleObjectError, StoreUnavailableError
from s3mount.ranges import KIB
from s3mount.store.answer import BUFFER_BYTES, Answer
from s3mount.store.bridge import Deliver, wait_foreign
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

_STACK_BYTES = 512 * KIB
"""Stack of a worker; the default of 8 MiB counts 32 times against limits on address space."""

_CLOSE_SECONDS = 2.0
"""Longest wait for workers at the end; daemon threads that are stuck then die with the process."""

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


_DeliverReport = Deliver[Report]
"""Named, since an annotation of a nested function is evaluated at each call, at 50 µs."""


@dataclass(slots=True)
class _Fetch:
    """An attempt in the hands of a worker."""

    get: RangeGet
    deliver: _DeliverReport
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


class FetchEngine:
    """The worker threads. All methods are called on the trio thread.

    **Invariant:** a worker is idle, or busy for exactly one taken slot.
    """

    def __init__(self, route: Route, *, connections: int) -> None:
        self._route = route
        self._slots = trio.CapacityLimiter(connections)
        self._workers: list[_Worker] = []
        self._idle: list[_Worker] = []
        """Last in, first out: few warm connections are better than many lukewarm ones."""
        self._is_closed = False

    async def fetch(self, get: RangeGet) -> Report:
        """Make one attempt. Waits for a free connection first.

        A cancelled call no longer touches ``get.into`` once it has returned.

        Raises:
            StoreUnavailableError: The engine is closed.
        """
        slot = object()
        try:
            self._slots.acquire_on_behalf_of_nowait(slot)  # spares a turn of the scheduler
        except trio.WouldBlock:
            await self._slots.acquire_on_behalf_of(slot)
        if self._is_closed:
            self._slots.release_on_behalf_of(slot)
            raise StoreUnavailableError("the store is closed")
        worker = self._idle.pop() if self._idle else self._start_worker()
        token = trio.lowlevel.current_trio_token()

        def free() -> None:
            self._idle.append(worker)
            self._slots.release_on_behalf_of(slot)

        def free_later() -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(free)

        fetches: list[_Fetch] = []

        def start(deliver: _DeliverReport) -> "Callable[[], None]":
            fetch = _Fetch(get, deliver, free_later)
            fetches.append(fetch)
            worker.inbox.put(fetch)
            return fetch.cancel

        try:
            return await wait_foreign(start)
        finally:
            if not any(fetch.is_abandoned for fetch in fetches):
                free()

    async def close(self) -> None:
        """End all workers within a bounded time. Doing it twice does no harm."""
        self._is_closed = True
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.end()
        if workers:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(_join_all, workers)

    def _start_worker(self) -> "_Worker":
        worker = _Worker(self._route, name=f"s3mount-fetch-{len(self._workers)}")
        self._workers.append(worker)
        # The size is the process's: a thread that a library starts at this very moment gets it too, and does not mind.
        previous = threading.stack_size(_STACK_BYTES)
        try:
            worker.start()
        finally:
            threading.stack_size(previous)
        return worker


def _join_all(workers: "list[_Worker]") -> None:
    deadline = time.monotonic() + _CLOSE_SECONDS
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))


class _Worker(threading.Thread):
    """A thread with its connection. All but the constructor and `end` run on it."""

    def __init__(self, route: Route, *, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.inbox: queue.SimpleQueue[_Fetch | None] = queue.SimpleQueue()
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

    def _attempt(self, fetch: _Fetch) -> Report:
        report = Report()
        try:
            self._exchange(fetch, report)
        except AttemptError as error:
            report.fault = error.fault
        except Exception as error:  # noqa: BLE001 - the top of a thread, which must report whatever happens
            self._disconnect()
            report.fault = fault_of_exception(error)
        return report

    def _exchange(self, fetch: _Fetch, report: Report) -> None:
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

    def _answer_to(self, fetch: _Fetch, report: Report) -> Answer:
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

    def _send(self, fetch: _Fetch, report: Report, connection: http.client.HTTPConnection) -> Answer:
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
