"""Object bytes in memory: what is present, what is being fetched, and who waits for it.

A *fetched range* is the unit: one GET fills one buffer, and everybody who wants bytes of it waits for the same GET.
Ranges of one object never overlap. What is fetched ahead for a stream belongs to its share (`shares`) until it was
delivered; which of the other ranges goes first when memory is wanted, `eviction` says.

Runs in trio. A range is removed only while nobody waits for it, and a waiter uses its bytes before the next await.
"""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from itertools import takewhile
from operator import attrgetter

import trio

from s3mount.cache.budget import Buffer, BufferPool, capacity_for
from s3mount.cache.eviction import EvictionOrder
from s3mount.cache.shares import IDLE_SECONDS, Share, Shares
from s3mount.errors import FileError
from s3mount.ids import ObjectId
from s3mount.metrics import Metric, Metrics
from s3mount.ranges import ByteRange
from s3mount.store.interface import Link, ObjectStore


class FetchedRange:
    """Bytes ``[start, stop)`` of one object, in a buffer that is being filled or is full."""

    __slots__ = (
        "_done",
        "begun_at",
        "blocks",
        "buffer",
        "consumed_bytes",
        "error",
        "is_present",
        "scope",
        "share",
        "start",
        "stop",
        "waiters",
    )

    def __init__(
        self, blocks: "ObjectBlocks", span: ByteRange, buffer: Buffer, share: "Share[FetchedRange] | None" = None
    ) -> None:
        self.blocks = blocks
        self.start, self.stop = span
        self.buffer = buffer
        self.share = share
        """Whose readahead it is, until it was delivered."""
        self.is_present = False
        self.error: FileError | None = None
        self.waiters = 0
        self.consumed_bytes = 0
        """Bytes delivered from it, repeated ones too."""
        self.begun_at = trio.current_time()
        self.scope = trio.CancelScope()
        self._done = trio.Event()

    @property
    def capacity(self) -> int:
        """Bytes of its buffer."""
        return self.buffer.capacity

    @property
    def is_consumed(self) -> bool:
        """Whether it was delivered to its end."""
        return self.consumed_bytes >= self.stop - self.start

    @property
    def is_pinned(self) -> bool:
        """Whether it is being fetched, or somebody is about to use it."""
        return self.waiters > 0 or not self.is_present

    def view(self, start: int, stop: int) -> memoryview:
        """The present bytes ``[start, stop)`` of the object; valid until the next await."""
        self.consumed_bytes += stop - start
        return self.buffer.memory[start - self.start : stop - self.start]

    async def wait(self) -> None:
        """Return when the fetch is over; nothing is present if it was given up.

        Raises:
            FileError: The fetch failed.
        """
        self.waiters += 1
        try:
            await self._done.wait()
        finally:
            self.waiters -= 1
        if self.error is not None:
            raise self.error

    def settle(self) -> None:
        """Wake everybody who waits."""
        self._done.set()


class ObjectBlocks:
    """What is in memory of one version of one object.

    **Invariant:** `_ranges` is sorted and its members do not overlap.
    """

    def __init__(self, object_id: ObjectId, size: int) -> None:
        self.object_id = object_id
        self.size = size
        self.readers = 0
        """Handles open on it; without any, fetches nobody waits for are given up."""
        self._ranges: list[FetchedRange] = []

    def __iter__(self) -> Iterator[FetchedRange]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def find(self, offset: int) -> FetchedRange | None:
        """The range, present or being fetched, that has the byte at *offset*."""
        index = bisect_right(self._ranges, offset, key=_start) - 1
        if index >= 0 and self._ranges[index].stop > offset:
            return self._ranges[index]
        return None

    def gaps(self, span: ByteRange) -> list[ByteRange]:
        """The parts of *span* that are neither present nor being fetched, in order."""
        gaps = []
        start = span.start
        index = max(0, bisect_right(self._ranges, start, key=_start) - 1)
        for fetched in self._ranges[index:]:
            if fetched.start >= span.stop:
                break
            if fetched.start > start:
                gaps.append(ByteRange(start, fetched.start))
            start = max(start, fetched.stop)
        if start < span.stop:
            gaps.append(ByteRange(start, span.stop))
        return gaps

    def add(self, fetched: FetchedRange) -> None:
        """Take in a range that begins to be fetched."""
        insort(self._ranges, fetched, key=_start)

    def remove(self, fetched: FetchedRange) -> None:
        """Forget a range."""
        self._ranges.remove(fetched)

    def check_invariants(self) -> None:
        """Raise `AssertionError` if ranges overlap."""
        for left, right in zip(self._ranges, self._ranges[1:], strict=False):
            assert left.stop <= right.start
        for fetched in self._ranges:
            assert 0 <= fetched.start < fetched.stop <= self.size


class BlockCache:
    """The bytes of all objects of one mount that are in memory.

    **Invariant:** a present range is either in one share or in the order of eviction; every buffer the pool handed out
    belongs to one range.
    """

    def __init__(self, store: ObjectStore, nursery: trio.Nursery, metrics: Metrics, *, limit_bytes: int) -> None:
        self._store = store
        self._nursery = nursery
        self._metrics = metrics
        self.pool = BufferPool(limit_bytes, self)
        self._objects: dict[ObjectId, ObjectBlocks] = {}
        self._order: EvictionOrder[FetchedRange] = EvictionOrder()
        self._begun: deque[FetchedRange] = deque()
        """Those whose tasks have not run yet, as many as there are such tasks."""
        self._shares: Shares[FetchedRange] = Shares(self.pool.readahead_limit_bytes)

    @property
    def link(self) -> Link:
        """What a request costs."""
        return self._store.link

    @property
    def streams(self) -> int:
        """Streams that read at present, at least one."""
        return max(1, len(self._shares))

    @property
    def fair_share_bytes(self) -> int:
        """Readahead that each stream may have in memory unread."""
        return self._shares.fair_bytes

    def open(self, object_id: ObjectId, size: int) -> ObjectBlocks:
        """The blocks of one version, for a reader that will `close` them."""
        blocks = self._blocks_of(object_id, size)
        blocks.readers += 1
        return blocks

    def close(self, blocks: ObjectBlocks) -> None:
        """End a reader's use; what is being fetched for nobody is given up, what is present stays until evicted."""
        blocks.readers -= 1
        if blocks.readers:
            return
        for fetched in blocks:
            if (share := fetched.share) is not None:
                self._unshare(fetched)
                self._disown([fetched])
                if not share.ranges:
                    self._shares.end(share)
            if not fetched.is_present and not fetched.waiters:
                fetched.scope.cancel()
        self._drop_if_unused(blocks)

    async def demand(self, blocks: ObjectBlocks, offset: int, within: ByteRange) -> FetchedRange:
        """The range that has the byte at *offset*, present or being fetched; waits for memory if need be.

        The caller must wait for it, or use it, before it awaits anything else: the range may be given up as soon as
        nobody waits for it. That each demand is used before the next one is made is what keeps readers from taking each
        other's memory away without end.

        Args:
            blocks: Of the object.
            offset: Byte that is wanted.
            within: Bytes worth fetching together with it, if they are missing.
        """
        while (fetched := blocks.find(offset)) is None:
            [gap] = [gap for gap in blocks.gaps(within) if gap.start <= offset < gap.stop]
            size = self.pool.max_buffer_bytes
            start = gap.start + (offset - gap.start) // size * size
            piece = ByteRange(start, min(gap.stop, start + size))
            buffer = await self.pool.acquire(piece.size)
            # Somebody else may have begun the same fetch meanwhile.
            if blocks.gaps(piece) == [piece]:
                self._begin(blocks, piece, buffer)
            else:
                self.pool.release(buffer)
        return fetched

    def begin(self, blocks: ObjectBlocks, span: ByteRange, owner: Hashable = None) -> int:
        """Begin to fetch what is missing of *span*, as far as there is memory to spare.

        Args:
            blocks: Of the object.
            span: Inside the object.
            owner: The stream it is fetched ahead for; None: it is wanted now.

        Returns:
            Where the first byte of *span* is that is neither present nor being fetched now; its end if there is none.
        """
        share = None if owner is None else self._share_of(owner)
        for gap in blocks.gaps(span):
            start = gap.start
            while start < gap.stop:
                piece = ByteRange(start, min(gap.stop, start + self.pool.max_buffer_bytes))
                buffer = self._buffer_ahead(piece.size, share)
                if buffer is None:
                    return start
                self._begin(blocks, piece, buffer, share)
                start = piece.stop
        return span.stop

    def fetch_ahead(self, object_id: ObjectId, size: int, span: ByteRange, owner: Hashable) -> bool:
        """Begin to fetch *span* of an object that nobody needs to have open; false if there is no memory for all of it.

        Args:
            object_id: Of the object.
            size: Of the object.
            span: Inside the object.
            owner: What it is fetched for, which counts as a stream.
        """
        blocks = self._blocks_of(object_id, size)
        is_begun = self.begin(blocks, span, owner) == span.stop
        self._drop_if_unused(blocks)
        return is_begun

    def note_stream(self, owner: Hashable) -> None:
        """A stream reads: it counts when memory is divided."""
        self._share_of(owner)

    def note_use(self, fetched: FetchedRange) -> None:
        """Bytes of a present range were delivered: it may be given up now."""
        share = fetched.share
        if share is None:
            self._order.note_use(fetched)
        else:
            # What lies more than one range behind in the object was left out by the stream, which will not come back.
            before = share.ranges[: max(0, share.ranges.index(fetched) - 1)]
            passed = [member for member in before if member.is_present and member.blocks is fetched.blocks]
            if fetched.is_consumed:
                passed.append(fetched)
            for member in passed:
                self._unshare(member)
            self._disown(passed)
        self.pool.serve_demands()

    def reclaim_alike(self, capacity: int) -> Buffer | None:
        """Give up a range that was delivered to its end, with a buffer of that very capacity."""
        return self._give_up(self._order.pop_alike(capacity))

    def reclaim_idle(self) -> Buffer | None:
        """Give up a range that is not in a share."""
        return self._give_up(self._order.pop_any())

    def reclaim_any(self) -> Buffer | None:
        """Give up the range that is least likely to be wanted."""
        return self.reclaim_idle() or self._give_up(self._unshare(self._shares.least_wanted()))

    def check_invariants(self) -> None:
        """Raise `AssertionError` if buffers leaked or ranges contradict each other."""
        self.pool.check_invariants()
        held = 0
        for blocks in self._objects.values():
            blocks.check_invariants()
            for fetched in blocks:
                held += fetched.buffer.capacity
                assert (fetched in self._order) == (fetched.is_present and fetched.share is None)
                assert fetched.share is None or fetched in fetched.share.ranges
        self._shares.check_invariants()
        assert held == self.pool.held_bytes, f"{self.pool.held_bytes - held} bytes leaked"

    def _blocks_of(self, object_id: ObjectId, size: int) -> ObjectBlocks:
        blocks = self._objects.get(object_id)
        if blocks is None:
            blocks = self._objects[object_id] = ObjectBlocks(object_id, size)
        return blocks

    def _share_of(self, owner: Hashable) -> Share[FetchedRange]:
        now = trio.current_time()
        share = self._shares.touch(owner, now)
        self._disown(self._shares.end_idle(now))
        return share

    def _buffer_ahead(self, size: int, share: Share[FetchedRange] | None) -> Buffer | None:
        """A buffer that can be had without waiting, if *share* may have it."""
        capacity = capacity_for(size)
        if share is not None:
            if not self._shares.has_room(share, capacity):
                self._disown_stale(share)
                if not self._shares.has_room(share, capacity):
                    return None
            while self._shares.is_full(capacity):
                spared = self._unshare(self._shares.surplus())
                if spared is None:
                    return None
                self._disown([spared])
        return self.pool.acquire_nowait(size)

    def _begin(
        self, blocks: ObjectBlocks, span: ByteRange, buffer: Buffer, share: Share[FetchedRange] | None = None
    ) -> None:
        fetched = FetchedRange(blocks, span, buffer, share)
        blocks.add(fetched)
        if share is not None:
            self._shares.add(share, fetched)
            self._metrics.add(Metric.READAHEAD_BYTES, span.size)
        self._begun.append(fetched)
        self._nursery.start_soon(self._fetch_next)

    async def _fetch_next(self) -> None:
        """Fetch the range that was begun first: trio runs new tasks in any order."""
        fetched = self._begun.popleft()
        blocks = fetched.blocks
        span = ByteRange(fetched.start, fetched.stop)
        into = fetched.buffer.memory[: span.size]
        try:
            with fetched.scope:
                await self._store.get_range(
                    blocks.object_id,
                    span,
                    object_size=blocks.size,
                    into=into,
                    is_urgent=lambda: fetched.waiters > 0,
                )
                fetched.is_present = True
        except FileError as error:
            fetched.error = error
        finally:
            into.release()
            fetched.settle()
            if fetched.is_present:
                if fetched.share is None:
                    self._order.add(fetched)
                self.pool.serve_demands()
            else:
                self._unshare(fetched)
                blocks.remove(fetched)
                self.pool.release(fetched.buffer)
                self._drop_if_unused(blocks)

    def _disown_stale(self, share: Share[FetchedRange]) -> None:
        """Let go what was fetched for a stream that has left it unread for long."""
        stale_at = trio.current_time() - IDLE_SECONDS
        stale = list(takewhile(lambda member: member.is_present and member.begun_at < stale_at, share.ranges))
        for fetched in stale:
            self._unshare(fetched)
        self._disown(stale)

    def _unshare(self, fetched: FetchedRange | None) -> FetchedRange | None:
        """Take a range out of the share it is in, if any."""
        if fetched is not None and fetched.share is not None:
            self._shares.remove(fetched.share, fetched)
            fetched.share = None
        return fetched

    def _disown(self, ranges: Iterable[FetchedRange]) -> None:
        """Let ranges that are in no share any more be given up like any other."""
        for fetched in ranges:
            fetched.share = None
            if fetched.is_present:
                self._order.add(fetched)

    def _give_up(self, fetched: FetchedRange | None) -> Buffer | None:
        if fetched is None:
            return None
        fetched.blocks.remove(fetched)
        self._drop_if_unused(fetched.blocks)
        return fetched.buffer

    def _drop_if_unused(self, blocks: ObjectBlocks) -> None:
        if not blocks.readers and not len(blocks):
            self._objects.pop(blocks.object_id, None)


_start = attrgetter("start")
