"""Which range in memory goes first when its buffer is wanted, of those that were not fetched ahead for a stream.

Ranges that were delivered to their end go first: the kernel's page cache has their bytes. Among those, and among the
others, the least recently used goes. A pinned range never goes.

Pure.
"""

from collections import OrderedDict
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
        """Whether it must stay for now."""
        ...


Range = TypeVar("Range", bound=Evictable)


class EvictionOrder(Generic[Range]):
    """The present ranges of one cache, in the order in which they go.

    **Invariant:** each range is in one place.
    """

    def __init__(self) -> None:
        self._unconsumed: OrderedDict[Range, None] = OrderedDict()
        self._consumed: dict[int, OrderedDict[Range, None]] = {}

    def __contains__(self, member: Range) -> bool:
        return member in self._unconsumed or member in self._consumed.get(member.capacity, ())

    def add(self, member: Range) -> None:
        """Take in a range, as the most recently used one."""
        self._unconsumed[member] = None
        self.note_use(member)

    def note_use(self, member: Range) -> None:
        """Bytes of it were delivered just now."""
        if not member.is_consumed:
            self._unconsumed.move_to_end(member)
            return
        alike = self._consumed.setdefault(member.capacity, OrderedDict())
        self._unconsumed.pop(member, None)
        alike[member] = None
        alike.move_to_end(member)

    def pop_alike(self, capacity: int) -> Range | None:
        """Remove and return the first consumed range with that very capacity."""
        return self._pop(self._consumed.get(capacity, OrderedDict()))

    def pop_any(self) -> Range | None:
        """Remove and return the range that is least likely to be wanted."""
        for members in (*self._consumed.values(), self._unconsumed):
            member = self._pop(members)
            if member is not None:
                return member
        return None

    @staticmethod
    def _pop(members: OrderedDict[Range, None]) -> Range | None:
        member = next((member for member in members if not member.is_pinned), None)
        if member is not None:
            del members[member]
        return member
