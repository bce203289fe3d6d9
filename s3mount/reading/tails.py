"""Learns which kinds of file are read at their end first, such as zip archives and Parquet.

A kind is the end of the name. One round trip is saved per opened file of such a kind, at the cost of one request for a
block that is wanted anyway; a kind that is not read so costs nothing.

Pure.
"""

from posixpath import splitext

from cachetools import LRUCache

MAX_KINDS = 64
MAX_SCORE = 3
"""A kind's habit outlives so many files that do not share it."""


class TailHabits:
    """What is known of the kinds of file of one mount."""

    def __init__(self) -> None:
        self._scores: LRUCache[str, int] = LRUCache(MAX_KINDS)

    def expects_tail(self, key: str) -> bool:
        """Whether an object of that key will probably be read at its end first."""
        return self._scores.get(_kind(key), 0) > 0

    def note(self, key: str, *, is_tail_first: bool) -> None:
        """Tell how an object was read."""
        kind = _kind(key)
        score = self._scores.get(kind, 0) + (2 if is_tail_first else -1)
        self._scores[kind] = min(max(score, -MAX_SCORE), MAX_SCORE)


def _kind(key: str) -> str:
    return splitext(key)[1]
