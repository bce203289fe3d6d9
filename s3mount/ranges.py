"""Half-open byte ranges and sizes. Pure."""

from typing import NamedTuple

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


class ByteRange(NamedTuple):
    """Bytes ``[start, stop)``; empty when the two are equal.

    **Invariant:** ``0 <= start <= stop``.
    """

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.stop - self.start

    def intersect(self, other: "ByteRange") -> "ByteRange":
        """Bytes in both; empty (at the larger start) when there are none."""
        start = max(self.start, other.start)
        return ByteRange(start, max(start, min(self.stop, other.stop)))

    def clamp(self, size: int) -> "ByteRange":
        """The part of it that lies inside an object of *size* bytes."""
        return ByteRange(min(self.start, size), min(self.stop, size))

    def aligned(self, block_size: int) -> "ByteRange":
        """The smallest range of whole blocks that covers it."""
        return ByteRange(self.start // block_size * block_size, -(-self.stop // block_size) * block_size)
