"""The global memory budget: pooled buffers for object bytes.

Buffers are reused, since the page faults of fresh ones cost more than receiving the bytes. When the budget is spent,
the block cache gives up ranges nobody waits for. A read that an application waits for (demand) always gets its buffer,
in the order of asking; readahead takes only what is neither demanded nor fetched ahead for others, and never waits.

There is no hold-and-wait: whoever waits for a buffer holds none that others could need, and a buffer being filled is
released within the request deadline.
"""

import mmap
from collections import deque
from collections.abc import Callable
from typing import Protocol

import trio

from s3mount.ranges import KIB, MIB

SMALLEST_BUFFER = 4 * KIB
"""A page; below it bookkeeping would outweigh the bytes."""

MIN_BUDGET = 4 * MIB
"""Least budget: a few demands at a time, each of at least 512 KiB."""

STEPS_PER_DOUBLING = 4
"""Buffer sizes between two powers of two: at most a fifth of a buffer is unused."""


class Reclaimer(Protocol):
    """Gives up ranges nobody waits for and hands out their buffers; None if there is no such range."""

    def reclaim_alike(self, capacity: int) -> "Buffer | None":
        """The buffer, of that very capacity, of a range that was delivered to its end."""
        ...

    def reclaim_idle(self) -> "Buffer | None":
        """The buffer of a range that was not fetched ahead for a stream."""
        ...

    def reclaim_any(self) -> "Buffer | None":
        """The buffer of the range that is least likely to be wanted."""
        ...


class Buffer:
    """Page-aligned memory for the bytes of one range; the system gets it back once nobody has it or a view of it."""

    __slots__ = ("memory",)

    def __init__(self, capacity: int) -> None:
        self.memory = memoryview(mmap.mmap(-1, capacity))

    @property
    def capacity(self) -> int:
        """Usable bytes."""
        return len(self.memory)


def capacity_for(size: int) -> int:
    """Capacity of the buffer for *size* bytes: few different ones, so that buffers fit again."""
    if size <= SMALLEST_BUFFER:
        return SMALLEST_BUFFER
    step = max(SMALLEST_BUFFER, (1 << ((size - 1).bit_length() - 1)) // STEPS_PER_DOUBLING)
    return -(-size // step) * step


class BufferPool:
    """All buffers of one mount.

    **Invariant:** ``allocated_bytes <= limit_bytes``; waiting demands are served in order; a buffer is either free or
    held by exactly one block.
    """

    def __init__(self, limit_bytes: int, reclaimer: Reclaimer) -> None:
        """Hand out up to *limit_bytes*, at least `MIN_BUDGET`."""
        self.limit_bytes = max(limit_bytes, MIN_BUDGET)
        self.allocated_bytes = 0
        self._reclaimer = reclaimer
        self._free: dict[int, list[Buffer]] = {}
        self._free_bytes = 0
        self._demands: deque[_Demand] = deque()

    @property
    def max_buffer_bytes(self) -> int:
        """Largest buffer to ask for: several must fit into the budget."""
        return self.limit_bytes // 8

    @property
    def readahead_limit_bytes(self) -> int:
        """Bytes that unread readahead may fill together; the rest is for demand."""
        return self.limit_bytes - self.limit_bytes // 4

    async def acquire(self, size: int) -> Buffer:
        """A buffer for demand, waiting for one if need be. Demands are served in order."""
        if not self._demands and (buffer := self._take(capacity_for(size), self._reclaimer.reclaim_any)) is not None:
            return buffer
        demand = _Demand(capacity_for(size))
        self._demands.append(demand)
        try:
            await demand.served.wait()
        except BaseException:
            if demand.buffer is not None:
                self.release(demand.buffer)
            else:
                self._demands.remove(demand)
            raise
        assert demand.buffer is not None
        return demand.buffer

    def acquire_nowait(self, size: int) -> Buffer | None:
        """A buffer for readahead, if there is one that neither a demand nor other readahead needs."""
        return None if self._demands else self._take(capacity_for(size), self._reclaimer.reclaim_idle)

    def release(self, buffer: Buffer) -> None:
        """Take back a buffer."""
        self._keep(buffer)
        self.serve_demands()

    def serve_demands(self) -> None:
        """Give buffers to the demands that wait; call it when a range may have become reclaimable."""
        while self._demands:
            demand = self._demands[0]
            demand.buffer = self._take(demand.capacity, self._reclaimer.reclaim_any)
            if demand.buffer is None:
                return
            self._demands.popleft()
            demand.served.set()

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the books do not balance."""
        assert self._free_bytes == sum(capacity * len(free) for capacity, free in self._free.items())
        assert 0 <= self._free_bytes <= self.allocated_bytes <= self.limit_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of buffers that blocks hold."""
        return self.allocated_bytes - self._free_bytes

    def _take(self, capacity: int, reclaim: Callable[[], Buffer | None]) -> Buffer | None:
        buffer = self._take_free(capacity) or self._reclaimer.reclaim_alike(capacity)
        while buffer is None:
            if self.allocated_bytes + capacity <= self.limit_bytes:
                return self._new(capacity)
            if not self._shrink():
                reclaimed = reclaim()
                if reclaimed is None:
                    return None
                self._keep(reclaimed)
                buffer = self._take_free(capacity)
        return buffer

    def _take_free(self, capacity: int) -> Buffer | None:
        free = self._free.get(capacity)
        if not free:
            return None
        self._free_bytes -= capacity
        return free.pop()

    def _new(self, capacity: int) -> Buffer:
        self.allocated_bytes += capacity
        return Buffer(capacity)

    def _keep(self, buffer: Buffer) -> None:
        self._free.setdefault(buffer.capacity, []).append(buffer)
        self._free_bytes += buffer.capacity

    def _shrink(self) -> bool:
        """Give a free buffer (of a size that is not wanted) back to the system."""
        for capacity, free in self._free.items():
            if free:
                free.pop()
                self._free_bytes -= capacity
                self.allocated_bytes -= capacity
                return True
        return False


class _Demand:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.buffer: Buffer | None = None
        self.served = trio.Event()
