"""An S3 server that costs little: ``python -m scripts.bench.object_server`` serves made-up objects by sendfile.

It is a process of its own, and its workers share one listening socket. It says its port in one line on standard output
and lives until its standard input ends. Any signature is taken. ``GET /-/counts`` shows what was counted,
``POST /-/reset`` begins anew, ``POST /-/settings?NAME=VALUE`` changes how it behaves (see `object_state.SETTINGS`).
"""

import argparse
import contextlib
import json
import os
import socket
import ssl
import sys
import threading
import time
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from scripts.bench.object_state import SharedState, Verdict
from scripts.bench.objects import PERIOD, Found, Made, Objects, make_backing
from tests.support.tls import ServerSocket, ServerTls

PROCESSES = 2
BACKLOG = 1024
SLICE_BYTES = 512 * 1024
"""Sent at a time where the bandwidth is limited."""

TLS_SLICE_BYTES = 256 * 1024
HEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """A request without a body."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]

    @property
    def key(self) -> str:
        """What follows the bucket."""
        return self.path.lstrip("/").partition("/")[2]

    @property
    def kind(self) -> str:
        """What it is counted as."""
        if self.method == "GET":
            return "get" if self.key else "list"
        return "head" if self.method == "HEAD" else "other"


class Connection:
    """A client's connection; runs in a thread of its own."""

    def __init__(self, sock: socket.socket, objects: Objects, state: SharedState) -> None:
        self._socket = sock
        self._objects = objects
        self._state = state
        self._received = b""
        self._is_counted = False

    def serve(self) -> None:
        """Answer until the client goes."""
        while (request := self._next_request()) is not None:
            if request.path.startswith("/-/"):
                self._answer_private(request)
                continue
            if not self._is_counted:
                self._is_counted = True
                self._state.count_connection()
            verdict = self._state.begin(request.kind)
            sent = [0]
            try:
                if verdict.wait_seconds:
                    time.sleep(verdict.wait_seconds)
                if self._has_gone():
                    return
                self._answer(request, verdict, sent)
            finally:
                self._state.end(sent[0])

    def _next_request(self) -> Request | None:
        while b"\r\n\r\n" not in self._received:
            received = self._socket.recv(HEAD_BYTES)
            if not received or len(self._received) > HEAD_BYTES:
                return None
            self._received += received
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        parts = urlsplit(target)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Request(method, unquote(parts.path), dict(parse_qsl(parts.query, keep_blank_values=True)), headers)

    def _has_gone(self) -> bool:
        """Whether the client has closed meanwhile, so that nothing is sent and counted in vain; unknown with TLS."""
        if isinstance(self._socket, ssl.SSLSocket):
            return False
        with contextlib.suppress(BlockingIOError):
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        return False

    def _answer(self, request: Request, verdict: Verdict, sent: list[int]) -> None:
        if verdict.is_refused:
            self._send_error(503, "SlowDown")
        elif request.kind == "other":
            self._send_error(501, "NotImplemented")
        elif not request.key:
            page = "" if request.kind == "head" else self._list(request)
            self._send_text(200, page, "application/xml")
        else:
            self._answer_object(request, verdict, sent)

    def _list(self, request: Request) -> str:
        if "location" in request.query:
            return '<?xml version="1.0" encoding="UTF-8"?><LocationConstraint/>'
        return self._objects.list_page(request.query)

    def _answer_object(self, request: Request, verdict: Verdict, sent: list[int]) -> None:
        found = self._objects.find(request.key)
        is_head = request.method == "HEAD"
        if found is None:
            self._send_error(404, "NoSuchKey", with_body=not is_head)
            return
        if request.headers.get("if-match", found.etag).strip('"') != found.etag.strip('"'):
            self._send_error(412, "PreconditionFailed", with_body=not is_head)
            return
        asked = request.headers.get("range")
        span = _span_of(asked, found.size) if asked else range(found.size)
        if span is None:
            self._send_error(416, "InvalidRange", with_body=not is_head)
            return
        head = _head_of(found, span, is_partial=bool(asked))
        if is_head or not span:
            self._socket.sendall(head)
        else:
            self._send_object(head, found, span, verdict.bytes_per_second, sent)

    def _send_object(self, head: bytes, found: Found, span: range, bytes_per_second: float, sent: list[int]) -> None:
        descriptor = self._objects.open(found)
        try:
            if isinstance(self._socket, ssl.SSLSocket):
                self._socket.sendall(head)
            else:
                self._socket.sendall(head, socket.MSG_MORE)
            started_at = time.monotonic()
            while sent[0] < len(span):
                offset = span[sent[0]]
                in_file = offset % PERIOD if found.path is None else offset
                size = min(len(span) - sent[0], PERIOD - in_file if found.path is None else found.size)
                if bytes_per_second:
                    size = min(size, SLICE_BYTES)
                done = self._send_from(descriptor, in_file, size)
                if not done:
                    raise ConnectionAbortedError("the file has become shorter")
                sent[0] += done
                if bytes_per_second:
                    time.sleep(max(0.0, started_at + sent[0] / bytes_per_second - time.monotonic()))
        finally:
            os.close(descriptor)

    def _send_from(self, descriptor: int, offset: int, size: int) -> int:
        if not isinstance(self._socket, ssl.SSLSocket):
            return os.sendfile(self._socket.fileno(), descriptor, offset, size)
        piece = os.pread(descriptor, min(size, TLS_SLICE_BYTES), offset)
        self._socket.sendall(piece)
        return len(piece)

    def _answer_private(self, request: Request) -> None:
        if request.method == "POST" and request.path == "/-/reset":
            self._state.reset()
        for name, value in request.query.items():
            self._state.change(name, float(value))
        self._send_text(200, json.dumps(self._state.counts()), "application/json")

    def _send_error(self, status: int, code: str, *, with_body: bool = True) -> None:
        text = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'
        self._send_text(status, text if with_body else "", "application/xml")

    def _send_text(self, status: int, text: str, kind: str) -> None:
        body = text.encode()
        head = f"HTTP/1.1 {status} x\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        self._socket.sendall(f"{head}x-amz-request-id: 0\r\nx-amz-bucket-region: us-east-1\r\n\r\n".encode() + body)


def _span_of(asked: str, size: int) -> range | None:
    """The bytes that a Range header names; None if there are none."""
    first, _, last = asked.removeprefix("bytes=").partition("-")
    if not first:
        span = range(max(0, size - int(last)), size)
    else:
        span = range(int(first), min(size, int(last) + 1) if last else size)
    return span or None


def _head_of(found: Found, span: range, *, is_partial: bool) -> bytes:
    lines = ["HTTP/1.1 206 Partial Content" if is_partial else "HTTP/1.1 200 OK"]
    if is_partial:
        lines.append(f"Content-Range: bytes {span.start}-{span.stop - 1}/{found.size}")
    lines += [
        f"Content-Length: {len(span)}",
        f"ETag: {found.etag}",
        f"Last-Modified: {formatdate(found.changed_at, usegmt=True)}",
        "Accept-Ranges: bytes",
        "Content-Type: binary/octet-stream",
        "x-amz-request-id: 0",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _accept_forever(listener: socket.socket, objects: Objects, state: SharedState, tls: ssl.SSLContext | None) -> None:
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=_serve, args=(sock, objects, state, tls), daemon=True).start()


def _serve(sock: socket.socket, objects: Objects, state: SharedState, tls: ssl.SSLContext | None) -> None:
    with contextlib.suppress(OSError, ValueError), contextlib.closing(sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            Connection(sock, objects, state).serve()
        else:
            with tls.wrap_socket(sock, server_side=True) as wrapped:
                Connection(wrapped, objects, state).serve()


def main() -> int:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.object_server", description=__doc__)
    parser.add_argument("--made", nargs=3, action="append", default=[], metavar=("PATTERN", "COUNT", "SIZE"))
    parser.add_argument("--root", type=Path, help="directory whose files are objects, too")
    parser.add_argument("--tls", type=Path, metavar="FILE", help="speak TLS; the certificate to trust goes to FILE")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    options = parser.parse_args()
    made = [Made(pattern, int(count), int(size)) for pattern, count, size in options.made]
    objects = Objects(made, options.root, make_backing())
    state = SharedState()
    context = None
    if options.tls is not None:
        tls = ServerTls("127.0.0.1", "localhost")
        context = tls.context
        context.sslsocket_class = ServerSocket
        options.tls.write_bytes(tls.ca_pem)
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    print(listener.getsockname()[1], flush=True)
    for _ in range(options.processes - 1):
        if os.fork() == 0:
            break
    threading.Thread(target=_accept_forever, args=(listener, objects, state, context), daemon=True).start()
    while os.read(sys.stdin.fileno(), 4096):  # every process sees the end of it
        pass
    # Not sys.exit: threads that wait in the kernel must not keep it.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
