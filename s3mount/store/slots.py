"""Hands out the right to have a request in flight: to those somebody waits for first, then in the order of arrival.

A request that has become urgent while it waited counts: urgency is asked for when there is room.
"""

from collections.abc import Callable
from dataclasses import dataclass

import trio

from s3mount.store.concurrency import Concurrency


@dataclass(eq=False, slots=True)
class _Waiter:
    task: trio.lowlevel.Task
    is_large: bool
    is_urgent: Callable[[], bool]


class Slots:
    """The requests in flight, and those that wait for it. Used on the trio thread only.

    **Invariant:** a slot is taken from the moment its waiter is woken; a waiter that was cancelled has none.
    """

    def __init__(self, concurrency: Concurrency) -> None:
        self._concurrency = concurrency
        self._waiters: dict[_Waiter, None] = {}
        """In order of arrival."""
        self.taken = 0
        self.taken_by_large = 0
        self.excused = 0
        """Of those taken, how many make room for others since they make no progress."""

    async def take(self, *, is_large: bool, is_urgent: Callable[[], bool]) -> None:
        """Wait for a slot. No checkpoint if there is room; once it returns, the caller has to `free` it."""
        if self._waiters:
            self.wake()  # the limits may have grown
        if self._has_room(is_large=is_large):
            self._count(is_large=is_large)
            return
        waiter = _Waiter(trio.lowlevel.current_task(), is_large, is_urgent)
        self._waiters[waiter] = None

        def abort(_: object) -> trio.lowlevel.Abort:
            del self._waiters[waiter]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    @property
    def may_take_extra(self) -> bool:
        """Whether one more request beyond the limits does no harm."""
        return not self._concurrency.throttle.is_narrowed and self.taken < 2 * self._concurrency.throttle.most

    def take_extra(self, *, is_large: bool) -> None:
        """Take a slot beyond the limits; to be freed like any other."""
        self._count(is_large=is_large)

    def free(self, *, is_large: bool) -> None:
        """Give a slot back."""
        self.taken -= 1
        self.taken_by_large -= is_large
        self.wake()

    def wake(self) -> None:
        """Let start what there is room for."""
        while self._waiters and (waiter := self._next()) is not None:
            del self._waiters[waiter]
            self._count(is_large=waiter.is_large)
            trio.lowlevel.reschedule(waiter.task)

    def urgent_waiting(self) -> int:
        """How many wait that somebody waits for."""
        return sum(waiter.is_urgent() for waiter in self._waiters)

    @property
    def has_waiting_large(self) -> bool:
        """Whether large requests wait."""
        return any(waiter.is_large for waiter in self._waiters)

    def _next(self) -> _Waiter | None:
        """Who goes next: the first that is urgent, or else the first."""
        room = {is_large: self._has_room(is_large=is_large) for is_large in (False, True)}
        if not room[False]:  # nor is there for large ones
            return None
        able = [waiter for waiter in self._waiters if room[waiter.is_large]]
        return next((waiter for waiter in able if waiter.is_urgent()), able[0] if able else None)

    def _has_room(self, *, is_large: bool) -> bool:
        return self._concurrency.has_room(
            is_large=is_large,
            in_flight=self.taken - self.excused,
            large_in_flight=self.taken_by_large - self.excused,
        )

    def _count(self, *, is_large: bool) -> None:
        self.taken += 1
        self.taken_by_large += is_large
