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
from s3mount.store.connection import Route
from s3mount.store.exchange import RangeGet, Report
from s3mount.store.lanes import Lanes
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
        self._slots = trio.CapacityLimiter(connections)
        self._workers: list[Worker] = []
        self._idle: list[Worker] = []
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
        if get.expected.span.size <= LARGEST_IN_LANES:
            try:
                return await self._lanes.fetch(get)
            finally:
                self._slots.release_on_behalf_of(slot)
        worker = self._idle.pop() if self._idle else self._start_worker()
        token = trio.lowlevel.current_trio_token()

        def free() -> None:
            self._idle.append(worker)
            self._slots.release_on_behalf_of(slot)

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
