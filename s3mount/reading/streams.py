"""Recognises streams among the reads of one object, and says what each will want next.

A *run* is a sequence of reads that continue each other, forwards or backwards, with small gaps and in the order the
kernel happens to send them. A *stride* is a sequence of reads at a constant distance. Readahead grows with the bytes
that were read, so that what a stream leaves unread stays in proportion to what it read.

Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from s3mount.ranges import KIB, MIB, ByteRange

BLOCK_SIZE = 128 * KIB
"""Demand is rounded out to this. Smaller ones save no time: 128 KiB take 1.5 ms at 90 MB/s, a round trip 10-30 ms."""

REORDER_TOLERANCE = 2 * MIB
"""The kernel sends its own readahead, which is no longer than this, out of order."""

MAX_GAP_BYTES = 4 * MIB
"""Longest gap that is read over."""

MAX_READ_BYTES = 1 * MIB
"""Longest read the kernel sends."""

MAX_STRIDE_ITEMS = 32
"""Reads of a stride that are fetched ahead; each is a request of its own."""


EAGER_WINDOW = 32 * MIB
"""A window up to this size may grow faster than what was read; a larger one is at most as large as that."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How far ahead a stream may plan at this moment."""

    object_size: int
    window_bytes: int
    """Most bytes between what was read and where readahead ends."""
    range_bytes: int
    """Size of one request once the window is large."""
    growth: float
    """Bytes of window per byte the stream has read, while the window is small."""


class Stream(Protocol):
    """Reads that belong together."""

    turn: int
    """Count of reads of the object when it was last used."""
    low: int
    high: int
    """Only reads that start between the two can belong to it: a quick test before `distance`."""

    has_continued: bool
    """Whether it consists of more than one read."""

    def __hash__(self) -> int:
        """By identity."""
        ...

    def distance(self, span: ByteRange, gap_bytes: int) -> int | None:
        """How far a read of *span* is from the one that is expected; None: it belongs to another stream."""
        ...

    def note(self, span: ByteRange) -> None:
        """Take in a read that belongs to it."""
        ...

    def ahead(self, reach: Reach) -> list[ByteRange]:
        """What to fetch now for later reads: one request each, never the same byte twice."""
        ...

    def give_back(self, span: ByteRange) -> None:
        """Plan *span*, which `ahead` told last, again later: it could not be fetched now."""
        ...

    @property
    def unread_bytes(self) -> int:
        """Bytes planned ahead that no read has reached."""
        ...

    @property
    def read_bytes(self) -> int:
        """Bytes its reads asked for."""
        ...


class Run:
    """Reads that continue each other.

    It grows at its end, or at its start once two reads have extended it backwards. Gaps are allowed as far as bytes
    read have earned them, so that at least two thirds of what a run covers is read, apart from parts of blocks.

    **Invariant:** nothing beyond `_asked` was planned ahead; it lies on the side to which the run grows.
    """

    def __init__(self, span: ByteRange, turn: int) -> None:
        self.turn = turn
        self.has_continued = False
        self.read_bytes = span.size
        self._start, self._stop = span
        self._last_start = span.start
        self._asked = span.stop
        self._earned_gap = span.size // 2
        self._steps = 0
        self._steps_back = 0
        self._is_backward = False
        self._set_bounds()

    @property
    def unread_bytes(self) -> int:
        """See `Stream`."""
        return max(0, self._start - self._asked if self._is_backward else self._asked - self._stop)

    def distance(self, span: ByteRange, gap_bytes: int) -> int | None:
        """See `Stream`."""
        tolerance = max(BLOCK_SIZE, min(gap_bytes, self._earned_gap))
        reorder = min(REORDER_TOLERANCE, self._stop - self._start)
        if span.start < self._start:
            low = min(self._start - tolerance, self._asked if self._is_backward else self._start)
            return abs(self._start - span.stop) if low <= span.stop <= self._start + reorder else None
        low = self._start if self._is_backward else self._stop - reorder
        high = self._start + reorder if self._is_backward else max(self._stop + tolerance, self._asked)
        return abs(span.start - self._stop) if low <= span.start <= high else None

    def note(self, span: ByteRange) -> None:
        """See `Stream`."""
        self.has_continued = True
        if span.start < self._start:
            self._extend_back(span)
        elif span.stop > self._stop:
            self._extend(span)
        self._last_start = span.start
        self._set_bounds()

    def ahead(self, reach: Reach) -> list[ByteRange]:
        """See `Stream`."""
        window = min(_window(self.read_bytes, reach.growth), reach.window_bytes)
        if not self._steps or window < BLOCK_SIZE:
            return []
        size = request_size(window, reach.range_bytes)
        if self._is_backward:
            spans = list(self._below(self._start - window, size))
        else:
            spans = list(self._above(min(self._stop + window, reach.object_size), size, reach.object_size))
        self._set_bounds()
        return spans

    def give_back(self, span: ByteRange) -> None:
        """See `Stream`."""
        self._asked = max(self._asked, span.stop) if self._is_backward else min(self._asked, span.start)

    def _set_bounds(self) -> None:
        self.low = min(self._start, self._asked) - MAX_GAP_BYTES - MAX_READ_BYTES
        self.high = max(self._stop, self._asked) + MAX_GAP_BYTES + 1

    def _extend(self, span: ByteRange) -> None:
        gap = max(0, span.start - self._stop)
        fresh = span.stop - max(span.start, self._stop)
        self._earned_gap = max(0, self._earned_gap + fresh // 2 - max(0, gap - BLOCK_SIZE))
        self.read_bytes += fresh
        self._stop = span.stop
        self._steps += 1
        self._steps_back = 0
        if self._is_backward:
            self._is_backward = False
            self._asked = self._stop

    def _extend_back(self, span: ByteRange) -> None:
        self.read_bytes += min(span.stop, self._start) - span.start
        self._start = span.start
        self._steps_back += 1
        if self._steps_back > 1 and not self._is_backward:
            self._is_backward = True
            self._asked = self._start
            self._steps += 1

    def _above(self, limit: int, size: int, object_size: int) -> Iterator[ByteRange]:
        """Requests that end at multiples of *size*, as far as whole ones fit below *limit*.

        The first one includes the end of the last read if only its beginning was planned ahead: that saves a request.
        """
        begin = ByteRange(self._start, self._stop).aligned(BLOCK_SIZE).stop
        if self._asked >= begin or self._last_start < self._asked < self._stop:
            begin = self._asked
        if begin < self._stop:
            size = min(size, MAX_READ_BYTES)
        while begin < object_size:
            stop = (begin // size + 1) * size
            if object_size - stop < size // 4:
                stop = object_size
            if stop > limit:
                return
            self._asked = stop
            yield ByteRange(begin, stop)
            begin = stop

    def _below(self, limit: int, size: int) -> Iterator[ByteRange]:
        """The same downwards."""
        begin = min(self._asked, self._start // BLOCK_SIZE * BLOCK_SIZE)
        while begin > 0:
            start = (begin - 1) // size * size
            if start < max(limit, 0):
                return
            self._asked = start
            yield ByteRange(start, begin)
            begin = start


class Stride:
    """Reads at a constant distance, upwards or downwards.

    **Invariant:** the next `_asked_items` items after the last one read were planned ahead.
    """

    def __init__(self, span: ByteRange, step: int, turn: int) -> None:
        self.turn = turn
        self.has_continued = True
        self.read_bytes = span.size
        self._start = span.start
        self._size = span.size
        self._step = step
        self._asked_items = 0
        self._set_bounds()

    @property
    def unread_bytes(self) -> int:
        """See `Stream`."""
        return self._asked_items * self._size

    def distance(self, span: ByteRange, gap_bytes: int) -> int | None:  # noqa: ARG002 - gaps are what it is made of
        """See `Stream`."""
        return 0 if span.start == self._start + self._step else None

    def note(self, span: ByteRange) -> None:
        """See `Stream`."""
        self._start = span.start
        self._asked_items = max(0, self._asked_items - 1)
        self._size = max(self._size, span.size)
        self.read_bytes += span.size
        self._set_bounds()

    def ahead(self, reach: Reach) -> list[ByteRange]:
        """See `Stream`."""
        item_bytes = ByteRange(self._start, self._start + self._size).aligned(BLOCK_SIZE).size
        items = min(reach.window_bytes // item_bytes, MAX_STRIDE_ITEMS, int(self.read_bytes / self._size * 2))
        spans = []
        for index in range(self._asked_items + 1, items + 1):
            start = self._start + index * self._step
            if not 0 <= start < reach.object_size:
                break
            self._asked_items = index
            spans.append(ByteRange(start, start + self._size).aligned(BLOCK_SIZE).clamp(reach.object_size))
        return spans

    def give_back(self, span: ByteRange) -> None:
        """See `Stream`."""
        distance = span.start - self._start
        index = -(-distance // self._step) if self._step > 0 else distance // self._step
        self._asked_items = min(self._asked_items, max(0, index - 1))

    def _set_bounds(self) -> None:
        self.low = self._start + self._step - 1
        self.high = self.low + 2


def _window(read_bytes: int, growth: float) -> int:
    """How far ahead a run may be that has read so much."""
    return min(int(read_bytes * growth), max(EAGER_WINDOW, read_bytes))


def request_size(window: int, range_bytes: int) -> int:
    """Size of the requests of a window that still grows: as large as it is, so that they double with it."""
    return min(range_bytes, max(BLOCK_SIZE, 1 << max(0, window.bit_length() - 1)))
