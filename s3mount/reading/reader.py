"""Answers the reads of one handle: plans them, waits for the bytes, hands them out without a copy where it can.

Reads of one handle run concurrently. A failed one harms nobody else, and leaves the handle usable.
"""

from cachetools import LRUCache

from s3mount.cache.blocks import BlockCache, FetchedRange, ObjectBlocks
from s3mount.ids import ObjectId
from s3mount.metrics import Metric, Metrics
from s3mount.ranges import ByteRange
from s3mount.reading.tails import TailHabits
from s3mount.reading.window import RANGE_SIZE, ReadPlan, Window

MAX_WINDOWS = 1024
"""Objects whose access pattern is known, open or not: programs that open a file for every read are streams too."""


class Readers:
    """Opens the readers of one mount. All readers of one version of an object share its window."""

    def __init__(self, cache: BlockCache, metrics: Metrics, *, max_readahead: int) -> None:
        self._cache = cache
        self._metrics = metrics
        self._max_readahead = max_readahead
        self._windows: LRUCache[ObjectId, Window] = LRUCache(MAX_WINDOWS)
        self._tails = TailHabits()

    def open(self, object_id: ObjectId, size: int) -> "Reader":
        """A reader of one version of one object of *size* bytes; must be closed."""
        blocks = self._cache.open(object_id, size)
        if size <= RANGE_SIZE:  # fetched whole: there is nothing to learn
            return Reader(self._cache, self._metrics, self._tails, Window(size, self._max_readahead), blocks)
        window = self._windows.get(object_id)
        if window is None:
            expects_tail = self._tails.expects_tail(object_id.key)
            window = self._windows[object_id] = Window(size, self._max_readahead, expects_tail=expects_tail)
        return Reader(self._cache, self._metrics, self._tails, window, blocks)


class Reader:
    """One handle on one version of one object. Must be closed."""

    def __init__(
        self, cache: BlockCache, metrics: Metrics, tails: TailHabits, window: Window, blocks: ObjectBlocks
    ) -> None:
        self._cache = cache
        self._metrics = metrics
        self._tails = tails
        self._window = window
        self._blocks = blocks

    @property
    def object_id(self) -> ObjectId:
        """The version this handle is pinned to."""
        return self._blocks.object_id

    async def read(self, offset: int, size: int) -> memoryview | bytes:
        """Bytes ``[offset, offset + size)``, fewer only at the end of the object; valid until the next await.

        Raises:
            StaleObjectError: The object has another version now.
            FileError: Whatever else kept the store from delivering; a later read may succeed.
        """
        span = ByteRange(offset, offset + size).clamp(self._blocks.size)
        if not span.size:
            return b""
        plan = self._plan(span)
        if plan.is_demand_first and self._blocks.gaps(span):
            self._cache.begin(self._blocks, plan.demand)
        self._begin_ahead(plan)
        content = await self._collect(span, plan.demand)
        self._metrics.add(Metric.SERVED_BYTES, span.size)
        return content

    def close(self) -> None:
        """End the use of the handle; fetches that only it wanted are given up."""
        self._cache.close(self._blocks)

    def _plan(self, span: ByteRange) -> ReadPlan:
        window = self._window
        was_open = window.is_tail_first is None
        cache = self._cache
        plan = window.plan(span, link=cache.link, budget=cache.fair_share_bytes, streams=cache.streams)
        if was_open and window.is_tail_first is not None:
            self._tails.note(self.object_id.key, is_tail_first=window.is_tail_first)
        return plan

    def _begin_ahead(self, plan: ReadPlan) -> None:
        """Begin what the plan wants beyond the read, as far as there is memory."""
        if plan.stream is not None:
            self._cache.note_stream(plan.stream)
        for span in plan.ahead:
            begun_to = self._cache.begin(self._blocks, span, plan.stream)
            if begun_to < span.stop:
                if plan.stream is not None:
                    plan.stream.give_back(ByteRange(begun_to, span.stop))
                return

    async def _collect(self, span: ByteRange, demand: ByteRange) -> memoryview | bytes:
        """The bytes of *span*: a view if one range has them all, otherwise put together as the ranges arrive.

        No range is held while another one is waited for: that could block the memory it needs.
        """
        fetched = self._blocks.find(span.start)
        if fetched is not None and fetched.is_present and fetched.stop >= span.stop:
            self._metrics.add(Metric.MEMORY_HITS)
            return self._deliver(fetched, span)
        parts = bytearray()
        start, has_waited = span.start, False
        while start < span.stop:
            fetched = await self._cache.demand(self._blocks, start, demand)
            if not fetched.is_present:
                has_waited = True
                await fetched.wait()
                if not fetched.is_present:
                    continue
            piece = ByteRange(start, min(span.stop, fetched.stop))
            view = self._deliver(fetched, piece)
            if piece == span:
                self._metrics.add(Metric.MEMORY_MISSES if has_waited else Metric.MEMORY_HITS)
                return view
            parts += view
            start = piece.stop
        self._metrics.add(Metric.MEMORY_MISSES if has_waited else Metric.MEMORY_HITS)
        return memoryview(parts)

    def _deliver(self, fetched: FetchedRange, span: ByteRange) -> memoryview:
        view = fetched.view(span.start, span.stop)
        self._cache.note_use(fetched)
        return view
