"""Decides which bytes a read fetches: what is asked for, and how much beyond it.

A small object is fetched whole. In a larger one the first read and every read that does not continue another fetch just
the blocks they touch; reads that do continue double the readahead window up to its limit. Readahead is asked for in
ranges that grow with the window, so that a long sequential read costs one request per `RANGE_SIZE`.

Pure.
"""

from dataclasses import dataclass

from s3mount.ranges import KIB, MIB, ByteRange

BLOCK_SIZE = 128 * KIB
"""Demand is rounded out to this. Smaller ones save no time: 128 KiB take 1.5 ms at 90 MB/s, a round trip 10-30 ms."""

RANGE_SIZE = 8 * MIB
"""Largest range of one GET: beyond it the CPU per byte does not fall any more (0.36 CPU-s/GiB, loopback, 2 cores)."""

FIRST_WINDOW = 1 * MIB
"""Readahead after the first two reads in sequence."""

REORDER_TOLERANCE = 2 * MIB
"""The kernel sends its own readahead out of order: a read this near to the expected place continues the sequence."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What to fetch for one read, as far as it is not there yet."""

    demand: ByteRange
    """What the application waits for; covers the read."""
    ahead: ByteRange
    """What will probably be wanted next; empty if nothing."""


class Window:
    """The access pattern of one handle.

    **Invariant:** `_size` is 0 while reads look random; readahead never passes the end of the object.
    """

    def __init__(self, object_size: int, max_readahead: int) -> None:
        """Watch a handle on an object of *object_size* bytes; read at most *max_readahead* bytes ahead."""
        self._object_size = object_size
        self._max_readahead = max_readahead
        self._expected = 0
        self._size = 0
        self._asked_until = 0

    def plan(self, span: ByteRange, *, budget: int) -> ReadPlan:
        """What to fetch for a read of *span* (inside the object) when readahead may take *budget* bytes."""
        if self._object_size <= RANGE_SIZE:
            return ReadPlan(ByteRange(0, self._object_size), ByteRange(span.stop, span.stop))
        self._adapt(span)
        demand = span.aligned(BLOCK_SIZE).clamp(self._object_size)
        return ReadPlan(demand, self._ahead(demand.stop, min(self._size, budget)))

    def _adapt(self, span: ByteRange) -> None:
        is_sequential = abs(span.start - self._expected) <= min(REORDER_TOLERANCE, max(self._size, BLOCK_SIZE))
        if not is_sequential:
            self._size = 0
            self._asked_until = 0
            self._expected = span.stop
        elif span.stop > self._expected:
            self._size = min(max(2 * self._size, FIRST_WINDOW), self._max_readahead)
            self._expected = span.stop

    def _ahead(self, start: int, size: int) -> ByteRange:
        """The next part of the window, once it is worth a request; it ends at a multiple of the request's size."""
        request_size = min(RANGE_SIZE, max(size // 2, BLOCK_SIZE))
        begin = max(start, self._asked_until)
        stop = ByteRange(start, start + size).aligned(request_size).stop
        stop = min(stop, self._object_size)
        if not size or stop - begin < min(request_size, self._object_size - begin):
            return ByteRange(start, start)
        self._asked_until = stop
        return ByteRange(begin, stop)
