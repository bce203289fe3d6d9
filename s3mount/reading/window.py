"""Decides which bytes a read fetches: what is asked for, and how much beyond it.

A small object is fetched whole. In a larger one a read that continues no other fetches just the blocks it touches;
reads that do continue another are a stream (`streams`), which reads ahead. Streams belong to the object, not to a
handle: processes share descriptors and mappings.

Pure.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

from s3mount.ranges import MIB, ByteRange
from s3mount.reading.streams import BLOCK_SIZE, MAX_GAP_BYTES, Reach, Run, Stream, Stride, request_size
from s3mount.store.interface import Link

RANGE_SIZE = 8 * MIB
"""Size of a request for readahead, and of the largest object that is fetched whole. Beyond it the CPU per byte does not
fall any more (0.36 CPU-s/GiB, loopback, 2 cores); at 30 ms and 90 MB/s three quarters of its time bring bytes."""

LONG_RUN_BYTES = 4 * RANGE_SIZE
"""A run that read so much will go on: its requests become twice as large, to save half of them."""

FULL_RATE = 1.2e9
"""Bytes per second that one reader takes through FUSE at most. A window need not be longer than what brings that."""

MIN_REQUESTS_AHEAD = 4

MAX_STREAMS = 64
"""Streams of one object that are told apart."""

MAX_FRESH = 40
"""Reads that continued nothing and may become streams."""

RECENT_STARTS = 16
"""Reads that continued nothing, among which strides are looked for."""

EAGER, CAREFUL, SHARED = 4.0, 0.5, 0.25
"""Growth of windows: of a stream that is alone, of one that has read more than others of its object did, and at least
of one beside others, whose requests overlap anyway."""

RANDOM_SHARE = 0.8
"""Where more of the recent reads continue nothing, one that comes near the end of another does so by chance."""

RECENT_READS = 32
"""About how many reads are recent."""

TAIL_READS = 4
"""Among so many first reads a read of the object's end makes it one of a tail-first format."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What to fetch for one read, as far as it is not there yet."""

    demand: ByteRange
    """What the application waits for; covers the read."""
    ahead: tuple[ByteRange, ...] = ()
    """What will probably be wanted next, one request each, the most urgent first."""
    stream: Stream | None = None
    """Whose readahead it is; None if the read continues nothing."""

    @property
    def is_demand_first(self) -> bool:
        """Whether to begin with the demand. If not, the first readahead includes all of it that is missing."""
        return not self.ahead or not self.demand.start < self.ahead[0].start < self.demand.stop


class Window:
    """The access pattern of one version of one object, for all who read it.

    **Invariant:** readahead stays inside the object; no byte is planned ahead twice by one stream.
    """

    def __init__(self, object_size: int, max_readahead: int, *, expects_tail: bool = False) -> None:
        """Watch an object of *object_size* bytes.

        Args:
            object_size: In bytes.
            max_readahead: Most bytes one stream may be ahead.
            expects_tail: Whether objects of its kind are read at their end first: that is fetched with the first read.
        """
        self._size = object_size
        self._max_readahead = max_readahead
        self._expects_tail = expects_tail
        self._streams: list[Stream] = []
        """The most recently used first."""
        self._fresh: list[Run] = []
        """Those of a single read, the latest first."""
        self._recent_starts: deque[int] = deque(maxlen=RECENT_STARTS)
        self._turn = 0
        self._unmatched_share = 0.0
        """Of the recent reads, how many continued nothing."""
        self._usual_bytes = 0
        """What the stream read that ended last with readahead unread; 0 if none did. Others will end there, too."""
        self.is_tail_first: bool | None = None
        """Whether its end was read first; None while that is open."""

    def plan(self, span: ByteRange, *, link: Link, budget: int, streams: int = 1) -> ReadPlan:
        """What to fetch for a read of *span* (inside the object).

        Args:
            span: Not empty.
            link: What requests cost.
            budget: Bytes that the stream it belongs to may have in memory unread.
            streams: How many streams of all objects share the link.
        """
        if self._size <= RANGE_SIZE:
            return ReadPlan(ByteRange(0, self._size))
        self._turn += 1
        demand = span.aligned(BLOCK_SIZE).clamp(self._size)
        tail = self._tail(span)
        gap_bytes = min(int(link.round_trip_bytes), MAX_GAP_BYTES)
        stream = self._match(span, gap_bytes)
        self._unmatched_share += ((stream is None) - self._unmatched_share) / RECENT_READS
        if stream is None:
            self._begin(span)
            return ReadPlan(demand, tail)
        if isinstance(stream, Stride):
            self._add_fresh(span)  # readers that began at equal distances look like one that strides
        stream.note(span)
        stream.turn = self._turn
        if stream.read_bytes > LONG_RUN_BYTES:
            self._usual_bytes = 0
        ahead = stream.ahead(self._reach(stream, link, budget, streams))
        return ReadPlan(demand, (*ahead, *tail), stream)

    def _reach(self, stream: Stream, link: Link, budget: int, streams: int) -> Reach:
        limit = min(self._max_readahead, budget)
        largest, window = RANGE_SIZE, _full_window(RANGE_SIZE, link, streams)
        if stream.read_bytes > LONG_RUN_BYTES and streams == 1:
            wider = _full_window(2 * RANGE_SIZE, link, streams)
            if wider <= limit:
                largest, window = 2 * RANGE_SIZE, wider
        window = min(window, limit)
        requests_ahead = max(2, MIN_REQUESTS_AHEAD // streams)  # of several streams they overlap
        range_bytes = request_size(window // requests_ahead, largest)
        growth = EAGER
        if stream.read_bytes <= LONG_RUN_BYTES:
            left_bytes = self._usual_bytes - stream.read_bytes
            if self._usual_bytes and left_bytes >= 0:
                window = min(window, left_bytes)
            elif self._usual_bytes:
                growth = CAREFUL
            else:
                active = sum(other.turn > self._turn - RECENT_READS for other in self._streams)
                growth = max(EAGER / active**2, SHARED)
        return Reach(self._size, window_bytes=window, range_bytes=range_bytes, growth=growth)

    def _match(self, span: ByteRange, gap_bytes: int) -> Stream | None:
        """The stream that *span* continues best; it becomes the most recently used one."""
        best: Stream | None = None
        best_distance = 0
        is_random = self._unmatched_share > RANDOM_SHARE
        for stream in (*self._streams, *self._fresh):
            if not stream.low < span.start < stream.high:
                continue
            distance = stream.distance(span, gap_bytes)
            if distance is None or (distance and is_random and not stream.has_continued):
                continue
            if best is None or distance < best_distance:
                best, best_distance = stream, distance
                if distance <= BLOCK_SIZE:  # better than a single read that ended just there
                    break
        if best is not None and best not in self._streams[:1]:
            members: list[Any] = self._streams if best in self._streams else self._fresh
            members.remove(best)
            self._streams.insert(0, best)
            del self._streams[MAX_STREAMS:]
        return best

    def _begin(self, span: ByteRange) -> None:
        """Take in a read that continues nothing."""
        ended = self._turn - 2 * (len(self._streams) + 1)
        for stream in self._streams:
            if stream.turn < ended and stream.unread_bytes and isinstance(stream, Run):
                self._usual_bytes = stream.read_bytes
                break
        step = self._step_to(span.start)
        self._recent_starts.appendleft(span.start)
        if step:
            self._streams.insert(0, Stride(span, step, self._turn))
            del self._streams[MAX_STREAMS:]
        self._add_fresh(span)

    def _add_fresh(self, span: ByteRange) -> None:
        self._fresh.insert(0, Run(span, self._turn))
        del self._fresh[MAX_FRESH:]

    def _step_to(self, start: int) -> int:
        """The distance that led to *start* twice in a row; 0 if there is none."""
        known = set(self._recent_starts)
        for latest in self._recent_starts:
            step = start - latest
            if abs(step) > BLOCK_SIZE and latest - step in known:
                return step
        return 0

    def _tail(self, span: ByteRange) -> tuple[ByteRange, ...]:
        """The object's end, if it is expected to be wanted soon."""
        tail = ByteRange(self._size - BLOCK_SIZE // 2, self._size).aligned(BLOCK_SIZE).clamp(self._size)
        if self.is_tail_first is None:
            if self._turn > 1 and span.start >= tail.start:
                self.is_tail_first = True
            elif self._turn > TAIL_READS:
                self.is_tail_first = False
        if self._expects_tail and self._turn == 1 and span.start < tail.start:
            return (tail,)
        return ()


def _full_window(request_bytes: int, link: Link, streams: int) -> int:
    """Bytes that must be on their way in such requests for one of *streams* to get its part of the full rate."""
    rate = request_bytes / (link.round_trip_seconds + request_bytes / link.bytes_per_second)
    return int(max(MIN_REQUESTS_AHEAD, FULL_RATE / streams / rate)) * request_bytes
