"""An HTTP server that answers exactly what a test tells it to, down to the byte and the reset."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Self
from urllib.parse import unquote, urlsplit


class Act(Enum):
    """What a server does besides sending bytes."""

    CLOSE = auto()
    """End the connection in order."""
    RESET = auto()
    """Break the connection."""
    STALL = auto()
    """Send nothing more until the server ends."""


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    headers: dict[str, str]
    connection: int
    """Number of the connection it came over, from 0."""

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.target).path)

    @property
    def range(self) -> tuple[int, int] | None:
        """First and last byte."""
        value = self.headers.get("range")
        if value is None:
            return None
        first, _, last = value.removeprefix("bytes=").partition("-")
        return int(first), int(last)


Answer = Iterable[bytes | Act]
Script = Callable[[Request], Answer]


def answer(status: int, body: bytes = b"", *, length: int | None = None, **headers: str) -> bytes:
    """An answer whose Content-Length is that of the body unless *length* lies."""
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body) if length is None else length}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def error(status: int, code: str, extra: str = "", **headers: str) -> bytes:
    """An S3 error document."""
    return answer(status, f"<Error><Code>{code}</Code><Message>no</Message>{extra}</Error>".encode(), **headers)


EMPTY_LISTING = answer(
    200, b"<ListBucketResult><IsTruncated>false</IsTruncated><KeyCount>0</KeyCount></ListBucketResult>"
)


@dataclass
class ServedObject:
    """The object a server has; `get` answers rightly."""

    body: bytes
    etag: str = "version-1"

    def get(self, request: Request) -> bytes:
        if request.range is None:
            return answer(200, self.body, ETag=f'"{self.etag}"', Last_Modified="Thu, 01 Jan 2026 00:00:00 GMT")
        first, last = request.range
        part = self.body[first : last + 1]
        return answer(206, part, ETag=f'"{self.etag}"', Content_Range=f"bytes {first}-{last}/{len(self.body)}")


@dataclass
class ScriptedServer:
    """Serves on a loopback port while entered."""

    script: Script
    requests: list[Request] = field(default_factory=list)
    connections: int = 0

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._ended = threading.Event()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.refuse_connections()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)

    def refuse_connections(self) -> None:
        """From now on nobody can connect."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def close_idle_connections(self) -> None:
        """What servers do after a while."""
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                number, self.connections = self.connections, self.connections + 1
                self._sockets.append(sock)
                thread = threading.Thread(target=self._serve, args=(sock, number))
                self._threads.append(thread)
                thread.start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        with sock, contextlib.suppress(OSError), sock.makefile("rb") as lines:
            while (request := _read_request(lines, number)) is not None:
                self.requests.append(request)
                for step in self.script(request):
                    is_head = request.method == "HEAD" and isinstance(step, bytes)
                    if not self._do(sock, step[: step.index(b"\r\n\r\n") + 4] if is_head else step):
                        return

    def _do(self, sock: socket.socket, step: bytes | Act) -> bool:
        match step:
            case bytes():
                sock.sendall(step)
                return True
            case Act.STALL:
                self._ended.wait(30)
            case Act.RESET:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            case Act.CLOSE:
                sock.shutdown(socket.SHUT_RDWR)
        return False


def _read_request(lines: "Iterable[bytes]", number: int) -> Request | None:
    head: list[str] = []
    for line in lines:
        text = line.decode("latin-1").rstrip("\r\n")
        if not text:
            break
        head.append(text)
    if not head:
        return None
    method, target, _ = head[0].split(" ")
    pairs = (line.partition(":") for line in head[1:])
    return Request(method, target, {name.lower(): value.strip() for name, _, value in pairs}, number)
