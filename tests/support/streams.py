"""Reading HTTP/1.1 from a socket: heads, and bodies in whatever way they are framed."""

import contextlib
import fcntl
import os
import socket
import struct
import termios
import time
from collections.abc import Iterator
from typing import Self

from tests.support.http_heads import HEAD_END, MAX_HEAD, Head

BUFFER_SIZE = 256 * 1024
"""Of one reception."""

PIPE_SIZE = 1 << 20
"""Largest an ordinary user may have (``/proc/sys/fs/pipe-max-size``)."""

RESET_WAIT_SECONDS = 2.0
"""How long a reset waits for what was sent to arrive; a client that does not read gets less."""


class Stream:
    """One connection. Belongs to one thread; only `abort` may be called from another."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = bytearray(BUFFER_SIZE)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._stop = 0

    def read_head(self) -> bytes | None:
        """The next head, its empty last line included; None if the other side has ended the connection before it."""
        head = bytearray()
        while True:
            if self._start == self._stop and not self._receive():
                return None
            taken = bytes(self._view[self._start : self._stop])
            searched = max(0, len(head) - len(HEAD_END) + 1)
            head += taken
            end = head.find(HEAD_END, searched)
            if end >= 0:
                end += len(HEAD_END)
                self._start += len(taken) - (len(head) - end)
                return bytes(head[:end])
            self._start = self._stop
            if len(head) > MAX_HEAD:
                raise ConnectionError("the head is too long")

    def read_body(self, head: Head, *, until_close: bool = False) -> Iterator[memoryview]:
        """Pieces of the body that follows *head*. Each is valid until the next one is asked for.

        Raises:
            ConnectionError: The other side ended the connection too early.
        """
        if head.is_chunked:
            yield from self._read_chunks()
        elif head.content_length is not None:
            yield from self._read_exactly(head.content_length)
        elif until_close:
            while piece := self._next(BUFFER_SIZE):
                yield piece

    def take_received(self, limit: int) -> memoryview:
        """What came with a head already; may be empty. Valid until the next reading."""
        stop = min(self._stop, self._start + limit)
        piece = self._view[self._start : stop]
        self._start = stop
        return piece

    def send(self, *buffers: bytes | memoryview) -> None:
        """Send everything, in one packet if it is small."""
        if sum(map(len, buffers)) <= 2048 and len(buffers) > 1:
            self.sock.sendall(b"".join(buffers))
            return
        for buffer in buffers:
            self.sock.sendall(buffer)

    def abort(self) -> None:
        """Wake up whoever reads or writes; the owner closes."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)  # SSLSocket's own takes TLS away under a reader's feet

    def is_quiet(self) -> bool:
        """Whether nothing waits to be read, the end included: that the connection still stands between requests."""
        try:
            self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return self._start == self._stop
        except OSError:
            return False
        return False

    def close(self) -> None:
        """End the connection (FIN)."""
        self.sock.close()

    def reset(self) -> None:
        """End the connection (RST), but let arrive what was sent before."""
        deadline = time.monotonic() + RESET_WAIT_SECONDS
        with contextlib.suppress(OSError):
            while _unacknowledged(self.sock) and time.monotonic() < deadline:
                time.sleep(0.0005)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def _read_chunks(self) -> Iterator[memoryview]:
        while size := int(self._read_line().partition(b";")[0], 16):
            yield from self._read_exactly(size)
            self._read_line()
        while self._read_line():  # trailers
            pass

    def _read_exactly(self, size: int) -> Iterator[memoryview]:
        while size:
            piece = self._next(size)
            if not piece:
                raise ConnectionError("the body ended early")
            size -= len(piece)
            yield piece

    def _read_line(self) -> bytes:
        line = bytearray()
        while not line.endswith(b"\r\n"):
            byte = self._next(1)
            if not byte:
                raise ConnectionError("the body ended early")
            line += byte
        return bytes(line[:-2])

    def _next(self, limit: int) -> memoryview:
        """Up to *limit* bytes; empty at the end."""
        if self._start == self._stop and not self._receive():
            return self._view[:0]
        stop = min(self._stop, self._start + limit)
        piece = self._view[self._start : stop]
        self._start = stop
        return piece

    def _receive(self) -> bool:
        self._start, self._stop = 0, self.sock.recv_into(self._view)
        return self._stop > 0


class Pipe:
    """Moves bytes from one socket to another inside the kernel."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        with contextlib.suppress(OSError):  # a user has only so much room in pipes
            fcntl.fcntl(self._writer, fcntl.F_SETPIPE_SZ, PIPE_SIZE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._reader)
        os.close(self._writer)

    def fill(self, sock: socket.socket, limit: int) -> int:
        """Take up to *limit* bytes from *sock*; returns how many.

        Raises:
            ConnectionError: There are no more.
        """
        count = os.splice(sock.fileno(), self._writer, min(limit, PIPE_SIZE), flags=os.SPLICE_F_MOVE)
        if not count:
            raise ConnectionError("the body ended early")
        return count

    def drain(self, sock: socket.socket, count: int) -> None:
        """Give *count* bytes, which must be in the pipe, to *sock*."""
        while count:
            count -= os.splice(self._reader, sock.fileno(), count, flags=os.SPLICE_F_MOVE | os.SPLICE_F_MORE)


def _unacknowledged(sock: socket.socket) -> int:
    """Bytes that the other side's kernel has not confirmed (SIOCOUTQ)."""
    answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    return int.from_bytes(answer, "little")
