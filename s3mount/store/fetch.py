"""Fetches byte ranges straight into callers' buffers: small ones in the trio thread, large ones in threads.

A fetch makes one attempt; whether and when another follows is `retry`'s business. It takes a slot, and becomes a
`Flight`, carried by one of the `Lanes` or by a worker of the `Crew`. `watch` looks after those in flight: where it has
one sent a second time, the fetch ends with whichever attempt brings the bytes.

The engine has threads and connections: it is made after any fork, as the daemon is, which starts by exec.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Callable

import trio

from s3mount.errors import StoreUnavailableError
from s3mount.ranges import MIB
from s3mount.store.concurrency import Concurrency
from s3mount.store.connection import Route
from s3mount.store.crew import Crew
from s3mount.store.estimates import LinkEstimate
from s3mount.store.exchange import RangeGet, Report
from s3mount.store.flight import Flight
from s3mount.store.interface import Link
from s3mount.store.lanes import Lanes
from s3mount.store.retry import FaultKind
from s3mount.store.slots import Slots
from s3mount.store.watch import Watch

LARGEST_IN_LANES = 1 * MIB
"""Ranges up to this size are fetched in the trio thread: a thread takes twice the CPU for them (0.74 against 0.45 s/GiB
at 1 MiB; loopback, 2 cores), and the trio thread is kept from other work for less than 1 ms."""

IDLE_SECONDS = 60.0
"""How long a connection may be unused; servers close it after 5 s (S3) to a few minutes."""

KEPT_IDLE = 2
"""Connections of each kind that stay for whoever reads next, however long that takes."""


class FetchEngine:
    """What makes range GETs. All methods are called on the trio thread.

    **Invariant:** a flight has exactly one taken slot, from before it is sent until its carrier has let go of it.
    """

    def __init__(self, route: Route, *, connections: int, nursery: trio.Nursery) -> None:
        """Use `running` instead: it also ends what this begins."""
        self._nursery = nursery
        self._concurrency = Concurrency.upto(connections)
        self._slots = Slots(self._concurrency)
        self._lanes = Lanes(route)
        self._crew = Crew(route)
        self._link = LinkEstimate()
        self._watch = Watch(
            self._slots, most=connections, stall_timeout_seconds=route.stall_timeout_seconds, hedge=self._hedge
        )
        self._is_closed = False
        nursery.start_soon(self._watch.run)
        nursery.start_soon(self._retire_again_and_again)

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, route: Route, *, connections: int) -> AsyncIterator["FetchEngine"]:
        """Provide an engine, and end it afterwards within a bounded time."""
        try:
            async with trio.open_nursery() as nursery:
                engine = cls(route, connections=connections, nursery=nursery)
                try:
                    yield engine
                finally:
                    await engine.close()
                    nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            # What the nursery wraps is nearly always the one exception of whoever uses the engine.
            if len(group.exceptions) > 1:
                raise
            raise group.exceptions[0] from group.exceptions[0].__cause__

    @property
    def link(self) -> Link:
        """What a range GET costs at present."""
        return self._link.link

    async def fetch(
        self,
        get: RangeGet,
        *,
        is_urgent: Callable[[], bool] = lambda: True,
        count: Callable[[Report], None] | None = None,
    ) -> Report:
        """Make one attempt. Waits for a free connection first, behind those that are urgent and those that came before.

        A cancelled call no longer touches ``get.into`` once it has returned.

        Args:
            get: What to fetch, and into what.
            is_urgent: Whether somebody waits for it.
            count: Is told once what the attempt took, also if it is cancelled.

        Raises:
            StoreUnavailableError: The engine is closed.
        """
        is_large = get.expected.span.size > LARGEST_IN_LANES
        await self._start(is_large=is_large, is_urgent=is_urgent)
        flight = Flight(get, is_large, began_at=time.monotonic())
        report = flight.report
        try:
            report = await self._fly(flight)
            if flight.rival is not None:
                report = await _first_of(flight, report, flight.rival)
        except trio.Cancelled:
            if flight.rival is not None:
                _note_rival(report, flight.rival.report, flight.rival)
            raise
        finally:
            if count is not None:
                count(report)
            if flight.rival is not None:
                await _end(flight.rival)
        assert report.fault is not None or report.received == get.expected.span.size
        self._learn(report, is_large=is_large, began_at=flight.began_at)
        return report

    def retire(self, *, unused_since: float) -> None:
        """Close connections not used since then, and end their threads, except a few."""
        self._lanes.retire(unused_since=unused_since, keep=KEPT_IDLE)
        self._crew.retire(unused_since=unused_since, keep=KEPT_IDLE)

    async def close(self) -> None:
        """End all workers within a bounded time. Doing it twice does no harm."""
        self._is_closed = True
        self._lanes.close()
        await self._crew.close()

    async def _retire_again_and_again(self) -> None:
        while True:
            await trio.sleep(IDLE_SECONDS / 2)
            self.retire(unused_since=time.monotonic() - IDLE_SECONDS)

    async def _start(self, *, is_large: bool, is_urgent: Callable[[], bool]) -> None:
        """Take a slot, and wait until a request may be sent."""
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

    async def _fly(self, flight: Flight) -> Report:
        """Carry a flight that has a slot, which is free afterwards."""
        self._watch.begin(flight)
        try:
            if flight.is_large:
                return await self._crew.fetch(flight, lambda: self._slots.free(is_large=True))
            try:
                return await self._lanes.fetch(flight)
            finally:
                self._slots.free(is_large=False)
        finally:
            self._watch.end(flight)

    def _hedge(self, flight: Flight) -> None:
        """Send the request of *flight* a second time."""
        rival = Flight(flight.get, flight.is_large, began_at=time.monotonic(), claim=flight.claim, rival=flight)
        rival.landed = trio.Event()
        flight.rival = rival
        self._slots.take_extra(is_large=flight.is_large)
        self._nursery.start_soon(self._fly_rival, rival, rival.landed)

    async def _fly_rival(self, rival: Flight, landed: trio.Event) -> None:
        try:
            rival.outcome = await self._fly(rival)
        finally:
            landed.set()

    def _learn(self, report: Report, *, is_large: bool, began_at: float) -> None:
        """Let the outcome of an attempt decide how many there may be."""
        now = time.monotonic()
        throttle = self._concurrency.throttle
        if report.fault is None:
            throttle.note_answer()
            if report.first_byte_seconds is not None and report.body_seconds is not None:
                self._link.note_first_byte(report.first_byte_seconds)
                self._link.note_body(report.received, report.body_seconds)
            if is_large:
                is_limiting = self._slots.has_waiting_large and not self._watch.has_stalled
                self._concurrency.width.note_body(report.received, is_limiting=is_limiting, now=now)
        elif report.fault.kind is FaultKind.THROTTLED:
            throttle.note_refusal(sent_at=began_at, in_flight=self._slots.taken + 1, now=now)


async def _first_of(flight: Flight, report: Report, rival: Flight) -> Report:
    """The report of whichever of both brought bytes, *report* being that of *flight*."""
    assert rival.landed is not None
    best = report
    if _is_settled(flight, report):
        rival.cut()
    else:
        await rival.landed.wait()
        outcome = rival.outcome
        if outcome is not None and (outcome.fault is None or outcome.received or flight.is_cut):
            best = outcome
    _note_rival(best, rival.report if best is report else report, rival)
    best.was_won_by_second = best is not report and best.received > 0
    return best


def _note_rival(best: Report, other: Report, rival: Flight) -> None:
    """Add to one of two reports what the other attempt took."""
    best.was_hedged = rival.report.requests_sent > 0
    best.requests_sent += other.requests_sent
    best.connections_opened += other.connections_opened


def _is_settled(flight: Flight, report: Report) -> bool:
    """Whether a second request could change nothing any more."""
    if report.fault is None or report.received:
        return True
    return not flight.is_cut and report.fault.kind is not FaultKind.TRANSIENT


async def _end(rival: Flight) -> None:
    """Return once *rival* no longer touches the buffer."""
    assert rival.landed is not None
    rival.cut()
    if rival.is_filling:
        with trio.CancelScope(shield=True):
            await rival.landed.wait()
