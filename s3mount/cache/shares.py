"""Divides the memory for readahead fairly between the streams that are read.

Each stream has a share: the ranges that were fetched for it and not delivered yet. All shares together are bounded, and
each by an equal part of that bound; the bound leaves room for demand. A share that is not used for a while no longer
counts, and what it holds is then like any other range nobody asked for.

Pure.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Generic, Protocol, TypeVar

IDLE_SECONDS = 30.0
"""A stream that did not read for so long does not count."""

EMPTY_SECONDS = 0.1
"""The same where nothing is held for it: programs that read pieces of a file leave many streams behind them."""


class Sharable(Protocol):
    """What a share has to know of a range."""

    @property
    def capacity(self) -> int:
        """Bytes of its buffer."""
        ...

    @property
    def is_pinned(self) -> bool:
        """Whether it must stay for now."""
        ...


Range = TypeVar("Range", bound=Sharable)


class Share(Generic[Range]):
    """What was fetched ahead for one stream and not delivered yet, on its way or present."""

    __slots__ = ("held_bytes", "last_used", "owner", "ranges")

    def __init__(self, owner: Hashable) -> None:
        self.owner = owner
        self.ranges: list[Range] = []
        """The ones wanted soonest first."""
        self.held_bytes = 0
        self.last_used = 0.0


class Shares(Generic[Range]):
    """The shares that count, of one cache.

    **Invariant:** they are in the order of their last use; `held_bytes` is the sum of theirs.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Let all shares together hold *limit_bytes*."""
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._shares: OrderedDict[Hashable, Share[Range]] = OrderedDict()
        self._swept_at = 0.0

    def __len__(self) -> int:
        return len(self._shares)

    @property
    def fair_bytes(self) -> int:
        """What each share may hold."""
        return self.limit_bytes // max(1, len(self._shares))

    def touch(self, owner: Hashable, now: float) -> Share[Range]:
        """The share of *owner*, which reads just now, at *now* seconds."""
        share = self._shares.get(owner)
        if share is None:
            share = self._shares[owner] = Share(owner)
        self._shares.move_to_end(owner)
        share.last_used = now
        return share

    def end_idle(self, now: float) -> list[Range]:
        """Count shares no longer that are not used any more; returns what they held, which belongs to nobody then."""
        if now < self._swept_at + EMPTY_SECONDS:
            return []
        self._swept_at = now
        idle = []
        for share in self._shares.values():
            idle_seconds = now - share.last_used
            if idle_seconds <= EMPTY_SECONDS:
                break
            if idle_seconds > IDLE_SECONDS or not share.ranges:
                idle.append(share)
        for share in idle:
            self.end(share)
        return [member for share in idle for member in share.ranges]

    def end(self, share: Share[Range]) -> None:
        """Count *share* no longer; the ranges it lists belong to nobody then."""
        if self._shares.pop(share.owner, None) is not None:
            self.held_bytes -= share.held_bytes

    def has_room(self, share: Share[Range], capacity: int) -> bool:
        """Whether *share* may take a range of that capacity, if there is room in all."""
        return share.held_bytes + capacity <= self.fair_bytes

    def is_full(self, capacity: int) -> bool:
        """Whether all shares together hold too much for another range of that capacity."""
        return self.held_bytes + capacity > self.limit_bytes

    def add(self, share: Share[Range], member: Range) -> None:
        """Take in a range that is fetched for *share*."""
        share.ranges.append(member)
        share.held_bytes += member.capacity
        self.held_bytes += member.capacity

    def remove(self, share: Share[Range], member: Range) -> None:
        """Take out a range that was delivered or given up."""
        share.ranges.remove(member)
        share.held_bytes -= member.capacity
        self.held_bytes -= member.capacity

    def surplus(self) -> Range | None:
        """The range that is spared best by those that hold more than is fair."""
        fair = self.fair_bytes
        return _farthest(share for share in self._shares.values() if share.held_bytes > fair)

    def least_wanted(self) -> Range | None:
        """The range that is spared best."""
        return _farthest(self._shares.values())

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the books do not balance."""
        for share in self._shares.values():
            assert share.held_bytes == sum(member.capacity for member in share.ranges)
        assert self.held_bytes == sum(share.held_bytes for share in self._shares.values())


def _farthest(shares: Iterable[Share[Range]]) -> Range | None:
    """The last range that may go of the share that was not used for longest."""
    return next((member for share in shares for member in reversed(share.ranges) if not member.is_pinned), None)
