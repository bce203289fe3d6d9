"""Fetches byte ranges straight into callers' buffers: small ones in the trio thread, large ones in threads.

A fetch makes one attempt; whether and when another follows is `retry`'s business. For a large range the caller's task
takes a slot, hands a `Fetch` to an idle worker thread, which owns one keep-alive connection, and sleeps until the
worker's report wakes it; `worker` says who owns the buffer. `lanes` makes the small ones.

A slot is freed only by the worker's report, so there are never more threads than slots, however many callers give up.
"""

import contextlib
import threading
import time
from collections.abc import Callable

import trio

from s3mount.errors import StoreUnavailableError
from s3mount.ranges import KIB, MIB
from s3mount.store.bridge import wait_foreign
from s3mount.store.concurrency import Concurrency
from s3mount.store.connection import Route
from s3mount.store.exchange import RangeGet, Report
from s3mount.store.lanes import Lanes
from s3mount.store.retry import FaultKind
from s3mount.store.slots import Slots
from s3mount.store.worker import DeliverReport, Fetch, Worker

LARGEST_IN_LANES = 1 * MIB
"""Ranges up to this size are fetched in the trio thread: a thread takes twice the CPU for them (0.74 against 0.45 s/GiB
at 1 MiB; loopback, 2 cores), and the trio thread is kept from other work for less than 1 ms."""

_STACK_BYTES = 512 * KIB
"""Stack of a worker; the default of 8 MiB counts 32 times against limits on address space."""

_CLOSE_SECONDS = 2.0
"""Longest wait for workers at the end; daemon threads that are stuck then die with the process."""


class FetchEngine:
    """The worker threads. All methods are called on the trio thread.

    **Invariant:** a worker is idle, or busy for exactly one taken slot.
    """

    def __init__(self, route: Route, *, connections: int) -> None:
        self._route = route
        self._lanes = Lanes(route)
        self._concurrency = Concurrency.upto(connections)
        self._slots = Slots(self._concurrency)
        self._workers: list[Worker] = []
        self._idle: list[Worker] = []
        """Last in, first out: few warm connections are better than many lukewarm ones."""
        self._is_closed = False

    async def fetch(self, get: RangeGet, *, is_urgent: Callable[[], bool] = lambda: True) -> Report:
        """Make one attempt. Waits for a free connection first, behind those that are urgent and those that came before.

        A cancelled call no longer touches ``get.into`` once it has returned.

        Raises:
            StoreUnavailableError: The engine is closed.
        """
        is_large = get.expected.span.size > LARGEST_IN_LANES
        sent_at = await self._start(is_large=is_large, is_urgent=is_urgent)
        if is_large:
            report = await self._fetch_in_thread(get)
        else:
            try:
                report = await self._lanes.fetch(get)
            finally:
                self._slots.free(is_large=False)
        self._learn(report, is_large=is_large, sent_at=sent_at)
        return report

    async def _start(self, *, is_large: bool, is_urgent: Callable[[], bool]) -> float:
        """Take a slot, and wait until a request may be sent; returns the time of that."""
        await self._slots.take(is_large=is_large, is_urgent=is_urgent)
        delay = self._concurrency.throttle.delay_of_start(time.monotonic())
        if delay > 0:
            try:
                await trio.sleep(delay)
            except trio.Cancelled:
                self._slots.free(is_large=is_large)
                raise
        if self._is_closed:
            self._slots.free(is_large=is_large)
            raise StoreUnavailableError("the store is closed")
        return time.monotonic()

    def _learn(self, report: Report, *, is_large: bool, sent_at: float) -> None:
        """Let the outcome of an attempt decide how many there may be."""
        now = time.monotonic()
        throttle = self._concurrency.throttle
        if report.fault is None:
            throttle.note_answer()
            if is_large:
                is_limiting = self._slots.has_waiting_large
                self._concurrency.width.note_body(report.received, is_limiting=is_limiting, now=now)
        elif report.fault.kind is FaultKind.THROTTLED:
            throttle.note_refusal(sent_at=sent_at, in_flight=self._slots.taken + 1, now=now)

    async def _fetch_in_thread(self, get: RangeGet) -> Report:
        worker = self._idle.pop() if self._idle else self._start_worker()
        token = trio.lowlevel.current_trio_token()

        def free() -> None:
            self._idle.append(worker)
            self._slots.free(is_large=True)

        def free_later() -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(free)

        fetches: list[Fetch] = []

        def start(deliver: DeliverReport) -> "Callable[[], None]":
            fetch = Fetch(get, deliver, free_later)
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
        self._lanes.close()
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.end()
        if workers:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(_join_all, workers)

    def _start_worker(self) -> "Worker":
        worker = Worker(self._route, name=f"s3mount-fetch-{len(self._workers)}")
        self._workers.append(worker)
        # The size is the process's: a thread that a library starts at this very moment gets it too, and does not mind.
        previous = threading.stack_size(_STACK_BYTES)
        try:
            worker.start()
        finally:
            threading.stack_size(previous)
        return worker


def _join_all(workers: "list[Worker]") -> None:
    deadline = time.monotonic() + _CLOSE_SECONDS
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
