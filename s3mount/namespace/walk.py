"""Recognises a walk over sibling directories and says which ones come next.

Pure.
"""

from collections.abc import Sequence

from s3mount.namespace.inodes import DirectoryInode

MAX_AHEAD = 16
"""Directories that are listed ahead at most; at 30 ms per LIST a walk then passes over 500 directories per second."""

TOLERANCE = 4
"""Directories a walk may pass over and still be one, as ``find -prune`` does."""


class SiblingWalk:
    """The position of one program that opens the subdirectories of a directory in turn.

    **Invariant:** ``0 <= position < len(siblings)``; `ahead` doubles while the walk goes on.
    """

    def __init__(self, siblings: Sequence[DirectoryInode], first: DirectoryInode) -> None:
        self._siblings = siblings
        self._index = {sibling: index for index, sibling in enumerate(siblings)}
        self._position = self._index.get(first, 0)
        self._ahead = 1

    def advance(self, opened: DirectoryInode) -> bool:
        """Take note of an opened directory; whether it continues the walk."""
        index = self._index.get(opened)
        if index is None or not 0 <= index - self._position <= TOLERANCE:
            return False
        if index > self._position:
            self._position = index
            self._ahead = min(2 * self._ahead, MAX_AHEAD)
        return True

    def next_siblings(self) -> Sequence[DirectoryInode]:
        """Directories that are likely to be opened next, nearest first."""
        return self._siblings[self._position + 1 : self._position + 1 + self._ahead]
