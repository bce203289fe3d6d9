"""Recognises the kernel's second try of a read that failed.

When a read fails that was to bring pages into its cache, the kernel asks at once for the one page that is wanted (seen
with Linux 6.18; ``filemap_read`` in mm/filemap.c). Tried in earnest, that would let an application wait for the request
deadline twice. A program's own next read must be tried, however soon it comes: it comes after the second try, and the
kernel then asks for that page just once, since it has a place for it already.

Pure.
"""

from s3mount.errors import FileError
from s3mount.ranges import KIB, ByteRange

PAGE_SIZE = 4 * KIB
"""Of the kernel's second try; where pages are larger, that is made in earnest."""

SECOND_TRY_SECONDS = 0.1
"""How soon it comes: below 1 ms on an idle host."""


class FailedRead:
    """The last read of one handle that failed.

    **Invariant:** its error is told once more at most.
    """

    def __init__(self) -> None:
        self._span = ByteRange(0, 0)
        self._error: FileError | None = None
        self._failed_at = 0.0

    def note(self, span: ByteRange, error: FileError, now: float) -> None:
        """A read of *span* failed."""
        if self._has_page(span) and self._error is None:
            return  # the kernel has its second try behind it
        self._span, self._error, self._failed_at = span, error, now

    def take_error(self, span: ByteRange, now: float) -> FileError | None:
        """The error to answer a read of *span* with, if it is the second try."""
        if not self._has_page(span) or now - self._failed_at > SECOND_TRY_SECONDS:
            return None
        error, self._error = self._error, None
        return error

    def _has_page(self, span: ByteRange) -> bool:
        return span.size <= PAGE_SIZE and self._span.start <= span.start < self._span.stop
