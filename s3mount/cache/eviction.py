"""Which range in memory goes first when its buffer is wanted.

Ranges that were delivered to their end go first: the kernel's page cache has their bytes. Among those, and among the
others, the least recently used goes. A range that somebody waits for never goes.

Pure.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar


class Evictable(Protocol):
    """What the order has to know of a range."""

    @property
    def capacity(self) -> int:
        """Bytes of its buffer."""
        ...

    @property
    def is_consumed(self) -> bool:
        """Whether it was delivered to its end."""
        ...

    @property
    def is_pinned(self) -> bool:
        """Whether somebody waits for it."""
        ...


Range = TypeVar("Range", bound=Evictable)


class EvictionOrder(Generic[Range]):
    """The present ranges of one cache, in the order in which they go.

    **Invariant:** each range is in one place; `consumed_bytes` is the capacity of the consumed ones.
    """

    def __init__(self) -> None:
        self._unconsumed: OrderedDict[Range, None] = OrderedDict()
        self._consumed: dict[int, OrderedDict[Range, None]] = {}
        self.consumed_bytes = 0

    def __contains__(self, member: Range) -> bool:
        return member in self._unconsumed or member in self._consumed.get(member.capacity, ())

    def add(self, member: Range) -> None:
        """Take in a range nothing was delivered from yet."""
        self._unconsumed[member] = None

    def note_use(self, member: Range) -> None:
        """Bytes of it were delivered just now."""
        if not member.is_consumed:
            self._unconsumed.move_to_end(member)
            return
        alike = self._consumed.setdefault(member.capacity, OrderedDict())
        if member in self._unconsumed:
            del self._unconsumed[member]
            self.consumed_bytes += member.capacity
        alike[member] = None
        alike.move_to_end(member)

    def pop_alike(self, capacity: int) -> Range | None:
        """Remove and return the first consumed range with that very capacity."""
        return self._pop(self._consumed.get(capacity, OrderedDict()))

    def pop_consumed(self) -> Range | None:
        """Remove and return a consumed range."""
        for alike in self._consumed.values():
            member = self._pop(alike)
            if member is not None:
                return member
        return None

    def pop_any(self) -> Range | None:
        """Remove and return the range that is least likely to be wanted."""
        return self.pop_consumed() or self._pop(self._unconsumed)

    def _pop(self, members: OrderedDict[Range, None]) -> Range | None:
        member = _first_unpinned(members)
        if member is not None:
            if members is not self._unconsumed:
                self.consumed_bytes -= member.capacity
            del members[member]
        return member


def _first_unpinned(members: Iterable[Range]) -> Range | None:
    return next((member for member in members if not member.is_pinned), None)
