"""The worker threads: hands each a flight, and lets the caller sleep until the worker's report wakes it.

A worker is idle again only with its own report, so there are never more threads than slots, however many callers give
up. Those that have been idle for long end.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable

import trio

from s3mount.ranges import KIB
from s3mount.store.bridge import wait_foreign
from s3mount.store.connection import Route
from s3mount.store.exchange import Report
from s3mount.store.flight import Flight
from s3mount.store.worker import DeliverReport, Job, Worker

_STACK_BYTES = 512 * KIB
"""Stack of a worker; the default of 8 MiB counts 32 times against limits on address space."""

_CLOSE_SECONDS = 2.0
"""Longest wait for workers at the end; daemon threads that are stuck then die with the process."""


class Crew:
    """The workers. Used on the trio thread only.

    **Invariant:** a worker is idle, or busy with exactly one flight.
    """

    def __init__(self, route: Route) -> None:
        self._route = route
        self._workers: list[Worker] = []
        self._numbers = itertools.count()
        self._idle: list[Worker] = []
        """Last in, first out: few warm connections are better than many lukewarm ones. The first ones are those not
        used for longest."""

    async def fetch(self, flight: Flight, free_slot: Callable[[], None]) -> Report:
        """Make one attempt.

        A cancelled call no longer touches the buffer once it has returned.

        Args:
            flight: What to fetch.
            free_slot: Called once, on the trio thread, when the worker has let go; perhaps after the return.
        """
        worker = self._idle.pop() if self._idle else self._start_worker()
        token = trio.lowlevel.current_trio_token()

        def free() -> None:
            worker.idle_since = time.monotonic()
            self._idle.append(worker)
            free_slot()

        def free_later() -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(free)

        def start(deliver: DeliverReport) -> "Callable[[], None]":
            job = Job(flight, deliver, free_later)
            flight.let_go = job.let_go
            worker.inbox.put(job)
            return job.cancel

        try:
            return await wait_foreign(start)
        finally:
            flight.let_go = None  # the job refers to the flight
            if not flight.was_let_go:
                free()

    def retire(self, *, unused_since: float, keep: int) -> None:
        """End workers not used since then, and their connections, except the *keep* used last."""
        while len(self._idle) > keep and self._idle[0].idle_since <= unused_since:
            worker = self._idle.pop(0)
            self._workers.remove(worker)
            worker.end()

    async def close(self) -> None:
        """End all workers within a bounded time. Doing it twice does no harm."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.end()
        if workers:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(_join_all, workers)

    def _start_worker(self) -> Worker:
        worker = Worker(self._route, name=f"s3mount-fetch-{next(self._numbers)}")
        self._workers.append(worker)
        # The size is the process's: a thread that a library starts at this very moment gets it too, and does not mind.
        previous = threading.stack_size(_STACK_BYTES)
        try:
            worker.start()
        finally:
            threading.stack_size(previous)
        return worker


def _join_all(workers: list[Worker]) -> None:
    deadline = time.monotonic() + _CLOSE_SECONDS
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
