"""Answers the reads of one handle: plans them, waits for the bytes, hands them out without a copy where it can.

Reads of one handle run concurrently. A failed one harms nobody else, and leaves the handle usable.
"""

from s3mount.cache.blocks import BlockCache, ObjectBlocks
from s3mount.ids import ObjectId
from s3mount.metrics import Metric, Metrics
from s3mount.ranges import ByteRange
from s3mount.reading.window import Window


class Reader:
    """One handle on one version of one object. Must be closed."""

    def __init__(
        self, cache: BlockCache, metrics: Metrics, object_id: ObjectId, size: int, *, max_readahead: int
    ) -> None:
        self._cache = cache
        self._metrics = metrics
        self._blocks: ObjectBlocks = cache.open(object_id, size)
        self._window = Window(size, max_readahead)

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
        plan = self._window.plan(span, budget=self._cache.fair_share_bytes)
        is_hit = not self._blocks.gaps(span)
        if not is_hit:
            self._cache.begin(self._blocks, plan.demand)
        if plan.ahead.size:
            self._metrics.add(Metric.READAHEAD_BYTES, self._cache.begin(self._blocks, plan.ahead))
        content = await self._collect(span, plan.demand)
        self._metrics.add(Metric.MEMORY_HITS if is_hit else Metric.MEMORY_MISSES)
        self._metrics.add(Metric.SERVED_BYTES, span.size)
        return content

    def close(self) -> None:
        """End the use of the handle; fetches that only it wanted are given up."""
        self._cache.close(self._blocks)

    async def _collect(self, span: ByteRange, demand: ByteRange) -> memoryview | bytes:
        """The bytes of *span*: a view if one range has them all, otherwise put together as the ranges arrive.

        No range is held while another one is waited for: that could block the memory it needs.
        """
        parts = bytearray()
        start = span.start
        while True:
            fetched = await self._cache.demand(self._blocks, start, demand)
            if not fetched.is_present:
                await fetched.wait()
                if not fetched.is_present:
                    continue
            stop = min(span.stop, fetched.stop)
            view = fetched.view(start, stop)
            self._cache.note_use(fetched)
            if stop - start == span.size:
                return view
            parts += view
            start = stop
            if start == span.stop:
                return bytes(parts)
