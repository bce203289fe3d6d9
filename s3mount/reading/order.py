"""Recognises the order in which small files are read, and names those that come next.

Two orders are known: the one a program handed over (a hint), and the one of a directory's listing. In a hinted order
each file will be read; in a listed one that is only likely, so the number of files named ahead grows with those that
were read in a row.

Pure.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter

MAX_FILES_AHEAD = 512
"""Files named ahead: some batches of each of some workers."""

MAX_CURSORS = 64
"""Readers of one directory that are told apart: the last ones to read."""

MIN_RUN = 5
"""Files in a row before any is named ahead: so that a shuffled order of some thousand files hardly shows one."""

MAX_SLACK = 16
"""How far from the expected file a reader may go on: several processes share one order, none keeps to it exactly."""


class HintedOrder:
    """Files in the order in which they will be read, as a program handed it over.

    **Invariant:** `_upcoming` holds the paths that were taken and not opened yet; none is more than `MAX_FILES_AHEAD`
    files beyond the furthest one opened.
    """

    def __init__(self, text: bytes) -> None:
        """Read paths, one per line, relative to the mounted directory."""
        self._text = text
        self._next_line_at = 0
        self._taken = 0
        self._furthest_opened = 0
        self._upcoming: OrderedDict[str, int] = OrderedDict()
        """Path -> position."""

    @property
    def text_bytes(self) -> int:
        """Memory its paths take."""
        return len(self._text)

    @property
    def is_over(self) -> bool:
        """Whether every path was taken."""
        return self._next_line_at >= len(self._text)

    @property
    def is_read(self) -> bool:
        """Whether it is over and every path was opened."""
        return self.is_over and not self._upcoming

    def note_opened(self, path: str) -> bool:
        """Whether *path* was one of those to come."""
        position = self._upcoming.pop(path, None)
        if position is None:
            return False
        self._furthest_opened = max(self._furthest_opened, position)
        while self._upcoming and next(iter(self._upcoming.values())) < self._furthest_opened - 2 * MAX_FILES_AHEAD:
            self._upcoming.popitem(last=False)  # the program left it out
        return True

    def upcoming(self, count: int) -> list[str]:
        """The next *count* paths of those that were taken and not opened yet."""
        beyond = (path for path, position in self._upcoming.items() if position > self._furthest_opened)
        return list(islice(beyond, count))

    def take(self) -> str | None:
        """The next path to fetch; None if there is none for now. Lines that cannot be paths are skipped."""
        while not self.is_over and self._taken < self._furthest_opened + MAX_FILES_AHEAD:
            stop = self._text.find(b"\n", self._next_line_at)
            stop = len(self._text) if stop < 0 else stop
            line = self._text[self._next_line_at : stop]
            self._next_line_at = stop + 1
            path = _as_path(line)
            if path:
                self._taken += 1
                self._upcoming[path] = self._taken
                return path
        return None


def _as_path(line: bytes) -> str:
    try:
        return line.decode().rstrip("\r").removeprefix("./").strip("/")
    except UnicodeDecodeError:
        return ""


@dataclass(slots=True, eq=False)
class _Cursor:
    """One reader's place in a listing."""

    expected: int
    run: int = 1
    """Files read in a row."""
    named_to: int = 0
    """Position up to which files were named ahead."""

    def is_at(self, position: int) -> bool:
        slack = min(self.run, MAX_SLACK)
        return self.expected - slack <= position <= max(self.expected + slack, self.named_to)


class ListedOrder:
    """The files of one directory, in the order of its listing, and how far they were read.

    **Invariant:** a cursor is in `_running` once its run is long enough, before that in `_fresh` under its expected
    position: so a read that continues nothing, as all in a shuffled order, is cheap.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Watch a directory with these entries; unless they are sorted, nothing is recognised."""
        self._names = names
        self._running: list[_Cursor] = []
        """The most recently used first."""
        self._fresh: OrderedDict[int, _Cursor] = OrderedDict()
        """The most recently used last."""

    def note_read(self, name: str) -> range:
        """Positions of the files to fetch now, since *name* is read."""
        position = bisect_left(self._names, name)
        if position == len(self._names) or self._names[position] != name:
            return range(0)
        cursor = self._advance(position)
        if cursor.run < MIN_RUN:
            return range(0)
        start = max(cursor.expected, cursor.named_to)
        cursor.named_to = max(start, min(cursor.expected + min(2 * cursor.run, MAX_FILES_AHEAD), len(self._names)))
        return range(start, cursor.named_to)

    def _advance(self, position: int) -> _Cursor:
        """The reader that has come to *position*, a new one if need be."""
        here = [cursor for cursor in self._running if cursor.is_at(position)]
        for expected in range(position - MIN_RUN, position + MIN_RUN + 1):
            fresh = self._fresh.get(expected)
            if fresh is not None and fresh.is_at(position):
                del self._fresh[expected]
                here.append(fresh)
        cursor = max(here, key=_run, default=None)
        if cursor is None:
            cursor = _Cursor(position + 1)
        else:
            cursor.run += 1
            cursor.expected = max(cursor.expected, position + 1)
            cursor.named_to = max(other.named_to for other in here)  # readers that have met go on as one
        if cursor.run < MIN_RUN:
            self._fresh[cursor.expected] = cursor
            if len(self._fresh) > MAX_CURSORS:
                self._fresh.popitem(last=False)
        else:
            self._running = [cursor, *(other for other in self._running if other not in here)][:MAX_CURSORS]
        return cursor

    def give_back(self, position: int) -> None:
        """Name the files from *position* on again later: they could not be fetched now."""
        if self._running:
            self._running[0].named_to = min(self._running[0].named_to, position)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, position: int) -> str:
        return self._names[position]


_run = attrgetter("run")
