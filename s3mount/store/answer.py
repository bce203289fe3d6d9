"""Reads HTTP/1.1 answers from a socket straight into given buffers.

`http.client` does the same at twice the CPU time: 350 µs for a signed GET of 100 kB where this takes 170, most of it in
the e-mail parser it reads headers with (measured over loopback on 2 shared cores, Python 3.11). Only what a GET can
bring is understood; anything doubtful is refused, since a misread length would shift the next answer on the connection.

`AnswerReader` does no I/O: its methods are generators that yield memory to receive into, so that threads and tasks can
both drive them.
"""

import re
import socket
from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

from s3mount.ranges import KIB

BUFFER_BYTES = 64 * KIB
"""Receive buffer for heads and the framing of chunks, and the longest head there may be."""

_STATUS_LINE = re.compile(r"HTTP/1\.([01]) ([1-9]\d\d)(?: .*)?")
_HEX = re.compile(r"[0-9A-Fa-f]{1,15}")
_FIRST_FINAL_STATUS = 200
_BODYLESS_STATUSES = frozenset({204, 304})


T = TypeVar("T")

Reads: TypeAlias = Generator[memoryview, int, T]
"""Work that needs bytes: yields where they should go, is sent how many came (0: the connection has ended)."""


class NoAnswerError(ConnectionError):
    """The connection ended before the first byte of an answer."""


class BadAnswerError(ValueError):
    """What came is not an HTTP answer."""


class AnswerReader:
    """One answer to a GET, read as its body is asked for.

    **Invariant:** the bytes received but not consumed are ``buffer[start:stop]``. Once `is_complete`, the connection
    may carry another request if `is_keeping_alive`.
    """

    def __init__(self, buffer: bytearray) -> None:
        """Read the answer that comes next; *buffer*, of `BUFFER_BYTES`, belongs to it until the one after."""
        self._buffer = memoryview(buffer)
        self._bytes = buffer
        self._start = self._stop = 0
        self.status = 0

    def receive_head(self) -> Reads[None]:
        """Receive the head; everything else comes after this.

        Raises:
            NoAnswerError: The server closed the connection instead.
            BadAnswerError: It is not HTTP/1.
            ConnectionError: The connection ended in the middle.
        """
        while self.status < _FIRST_FINAL_STATUS:  # skips 100 Continue and its kind
            minor_version = yield from self._read_head()
        connection = self.headers.get("connection", "").lower()
        self.is_keeping_alive = "close" not in connection and (minor_version == 1 or "keep-alive" in connection)
        self._set_framing()

    @property
    def has_length(self) -> bool:
        """Whether the head told how long the body is."""
        return "content-length" in self.headers and not self._was_chunked

    @property
    def is_complete(self) -> bool:
        """Whether the body has been read to its end."""
        return self._left == 0 and not self._is_chunked

    def readinto(self, into: memoryview) -> Reads[int]:
        """Read some bytes of the body, at least one; 0 at its end, or where the connection ended before it.

        Raises:
            BadAnswerError: The framing is broken.
            ConnectionError: The connection ended within it.
        """
        if self._left == 0 and self._is_chunked:
            yield from self._next_chunk()
        if self._left == 0:
            return 0
        wanted = len(into) if self._left is None else min(len(into), self._left)
        count = self._take(into[:wanted]) or (yield into[:wanted])
        if self._left is not None:
            self._left -= count
        return count

    def read_upto(self, limit: int) -> Reads[bytes]:
        """The body as far as it goes, cut to *limit* bytes."""
        body = memoryview(bytearray(limit))
        filled = 0
        while filled < limit and (count := (yield from self.readinto(body[filled:]))):
            filled += count
        return bytes(body[:filled])

    def skip(self, count: int) -> Reads[int]:
        """Drop up to *count* bytes of the body; fewer only where it ends."""
        scratch = memoryview(bytearray(min(count, BUFFER_BYTES)))
        dropped = 0
        while dropped < count and (n := (yield from self.readinto(scratch[: count - dropped]))):
            dropped += n
        return dropped

    def _read_head(self) -> Reads[int]:
        head = yield from self._read_until(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        match = _STATUS_LINE.fullmatch(lines[0])
        if match is None:
            raise BadAnswerError(f"bad status line {lines[0][:80]!r}")
        self.status = int(match[2])
        self.headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            name, value = name.lower(), value.strip(" \t")
            if not colon or not name or name[0] in " \t":
                raise BadAnswerError(f"bad header line {line[:80]!r}")
            if name == "content-length" and self.headers.get(name, value) != value:
                raise BadAnswerError("two lengths")
            self.headers[name] = value
        return int(match[1])

    def _set_framing(self) -> None:
        self._is_chunked = self._was_chunked = False
        self._left: int | None = None
        coding = self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length")
        if self.status in _BODYLESS_STATUSES:
            self._left = 0
        elif coding == "chunked":
            self._is_chunked = self._was_chunked = True
            self._left = 0
            self._is_first_chunk = True
            self.is_keeping_alive = self.is_keeping_alive and length is None
        elif coding not in {"", "identity"}:
            raise BadAnswerError(f"unknown transfer coding {coding[:40]!r}")
        elif length is not None:
            if not (length.isascii() and length.isdigit()):
                raise BadAnswerError(f"bad Content-Length {length[:40]!r}")
            self._left = int(length)
        else:
            self.is_keeping_alive = False  # the body ends where the connection does

    def _next_chunk(self) -> Reads[None]:
        if not self._is_first_chunk and (yield from self._read_until(b"\r\n")):
            raise BadAnswerError("a chunk is longer than it says")
        self._is_first_chunk = False
        line = yield from self._read_until(b"\r\n")
        size = line.partition(b";")[0].strip().decode("latin-1")
        if not _HEX.fullmatch(size):
            raise BadAnswerError(f"bad chunk size {size[:40]!r}")
        self._left = int(size, 16)
        if self._left == 0:
            while (yield from self._read_until(b"\r\n")):  # trailers
                pass
            self._is_chunked = False

    def _take(self, into: memoryview) -> int:
        """Consume buffered bytes."""
        count = min(len(into), self._stop - self._start)
        into[:count] = self._buffer[self._start : self._start + count]
        self._start += count
        return count

    def _read_until(self, end: bytes) -> Reads[bytes]:
        """Consume up to and with *end*; returns what stands before it."""
        while (found := self._bytes.find(end, self._start, self._stop)) < 0:
            yield from self._receive()
        line = bytes(self._buffer[self._start : found])
        self._start = found + len(end)
        return line

    def _receive(self) -> Reads[None]:
        if self._start and self._stop == BUFFER_BYTES:
            rest = bytes(self._buffer[self._start : self._stop])
            self._buffer[: len(rest)] = rest
            self._start, self._stop = 0, len(rest)
        if self._stop == BUFFER_BYTES:
            raise BadAnswerError("the head is too long")
        count = yield self._buffer[self._stop :]
        if count == 0:
            if self.status == 0 and self._stop == 0:
                raise NoAnswerError("the server closed the connection")
            raise ConnectionError("the connection ended within an answer")
        self._stop += count


def _ignore() -> None:
    """Nobody wants to know."""


def receive_from(sock: socket.socket, reads: Reads[T], note_arrival: Callable[[], None] = _ignore) -> T:
    """Do *reads* with what comes from *sock*, which blocks, with a timeout.

    Args:
        sock: Where from.
        reads: What to receive.
        note_arrival: Called each time that something came.

    Raises:
        OSError: The connection broke or stalled.
    """
    try:
        into = next(reads)
        while True:
            count = sock.recv_into(into)
            note_arrival()
            into = reads.send(count)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
