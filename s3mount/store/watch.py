"""Looks after the requests in flight: has slow ones sent a second time, and cuts off those that have stalled.

One task for all of them. It sleeps until the oldest may be late, so that quick requests are never looked at; and for
ever while none is in flight. `hedging` says what is late.

Requests that make no progress give up their place to others: up to twice as many connections as allowed come into use
then. When even these have stalled and somebody waits, the longest stalled are cut off to wait their turn anew.

A stall in mid-body is cut off, so that `retry` has the rest fetched; before the first byte, only where a second request
has stalled, too.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import trio

from s3mount.store.flight import Flight
from s3mount.store.hedging import Budget, Patience
from s3mount.store.slots import Slots

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""How often is looked for progress; a stall is noticed so much late."""

LATE_SECONDS = 0.5
"""When this task itself wakes so late, the machine was busy or asleep, and no server is to blame."""

UNPUNCTUAL_SECONDS = 0.002
"""When it wakes so late, the trio thread was busy."""


@dataclass(slots=True)
class _Look:
    """What one look found."""

    now: float
    due: float
    """When the next is needed."""
    stalled: "list[tuple[float, Flight]]"
    """With the time of their last byte."""


class Watch:
    """The requests in flight. Used on the trio thread only."""

    def __init__(
        self, slots: Slots, *, most: int, stall_timeout_seconds: float, hedge: Callable[[Flight], None]
    ) -> None:
        """Watch nothing yet.

        Args:
            slots: Where they make room for each other.
            most: How many stalled ones may make room at a time.
            stall_timeout_seconds: Time without a byte after which a request is cut off whatever that costs.
            hedge: Sends a request a second time.
        """
        self._slots = slots
        self._most = most
        self._stall_timeout_seconds = stall_timeout_seconds
        self._hedge = hedge
        self._patience = {False: Patience(), True: Patience()}
        self._budget = Budget()
        self._flights: dict[Flight, None] = {}
        """In the order in which they began."""
        self._due = float("inf")
        self._scope = trio.CancelScope()

    def begin(self, flight: Flight) -> None:
        """Look after it from now on."""
        self._flights[flight] = None
        if flight.rival is None:
            self._budget.note_request()
        self._look_by(flight.began_at + min(LOOK_SECONDS, self._patience[flight.is_large].first_byte_seconds))

    def end(self, flight: Flight) -> None:
        """It is over; learn from it."""
        del self._flights[flight]
        seconds = flight.report.first_byte_seconds
        if seconds is not None and flight.report.fault is None:
            self._patience[flight.is_large].note_first_byte(seconds)

    @property
    def has_stalled(self) -> bool:
        """Whether some make no progress."""
        return self._slots.excused > 0

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            with self._scope:
                await trio.sleep_forever()
            late = time.monotonic() - self._due
            if late > UNPUNCTUAL_SECONDS:
                # Bytes may have come that nobody could read: let those who wait for them go first.
                await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
            self._due, self._scope = float("inf"), trio.CancelScope()
            try:
                self.look(is_late=late > LATE_SECONDS)
            except Exception:  # the top of a background task: without it, nothing would be cut off any more
                log.exception("a look at the requests in flight failed")
                self._look_by(time.monotonic() + LOOK_SECONDS)

    def look(self, *, is_late: bool = False) -> None:
        """Look at all that are in flight, now.

        Args:
            is_late: Nobody has looked when it was due: what has not moved since may have had no chance to.
        """
        now = time.monotonic()
        look = _Look(now, now + LOOK_SECONDS, [])
        for flight in tuple(self._flights):
            if is_late or flight.arrivals != flight.seen_arrivals:
                flight.seen_arrivals = flight.arrivals
                flight.moved_at = now
            self._look_at(flight, look)
        self._make_room(look)
        if self._flights:
            self._look_by(look.due)

    def _look_by(self, due: float) -> None:
        if due < self._due:
            self._due = due
            self._scope.deadline = trio.current_time() + (due - time.monotonic())

    def _look_at(self, flight: Flight, look: _Look) -> None:
        if flight.is_cut:
            return
        patience = self._patience[flight.is_large]
        quiet_since = max(flight.moved_at, flight.sent_at or flight.began_at)
        quiet = look.now - quiet_since
        if quiet >= self._stall_timeout_seconds:
            flight.cut()
            return
        if not flight.arrivals and flight.rival is None:
            late_after = patience.connect_seconds if flight.sent_at is None else patience.first_byte_seconds
            if quiet < late_after:
                look.due = min(look.due, quiet_since + late_after)
            elif self._slots.may_take_extra and self._budget.take():
                self._hedge(flight)
                return
        if quiet >= patience.stall_seconds:
            look.stalled.append((quiet_since, flight))

    def _make_room(self, look: _Look) -> None:
        look.stalled.sort(key=lambda entry: entry[0])
        self._slots.excused = min(self._most, len(look.stalled))
        self._slots.wake()
        in_the_way = self._slots.urgent_waiting() if len(look.stalled) >= self._most else 0
        for place, (_, flight) in enumerate(look.stalled):
            if place < in_the_way:
                flight.cut()
            elif (flight.arrivals or flight.landed is not None) and self._budget.take():
                flight.cut()
                if flight.rival is not None:  # there were two, and both have stalled
                    flight.rival.cut()
