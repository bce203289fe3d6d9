"""One connection of a client through a `FaultProxy`: takes requests, asks the server, sends and harms responses."""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.client import responses
from typing import Protocol

from tests.support.faults import Action, Answer, Cut, End
from tests.support.http_heads import Head, Request
from tests.support.proxy_log import Exchange, Outcome, RequestLog
from tests.support.streams import BUFFER_SIZE, Pipe, Stream

CONNECT_SECONDS = 10.0

SPLICED_SIZE = 256 * 1024
"""Bodies from here on are spliced: 0.45 instead of 0.98 CPU-s/GiB at 8 MiB, 8 at a time (2 shared cores)."""

LAST_CHUNK = b"0\r\n\r\n"

HIDDEN_FROM_CLIENT: dict[str, str | None] = {"Connection": None, "Keep-Alive": None}
"""The connection to the server is not the client's."""


class Proxy(Protocol):
    """What a connection needs of its proxy."""

    server_address: tuple[str, int]
    log: RequestLog
    latency_seconds: float
    idle_seconds: float | None
    idle_reset: bool

    def decide(self, request: Request) -> Action: ...
    def pause(self, seconds: float) -> None: ...
    def pause_until(self, event: threading.Event) -> None: ...
    def client_stream(self, sock: socket.socket) -> Stream: ...


class ServerGoneError(Exception):
    """The server cannot be reached, or ended its response early."""


class EndConnectionError(Exception):
    """The connection to the client ends here, on purpose."""

    def __init__(self, outcome: Outcome, *, reset: bool = False) -> None:
        super().__init__(outcome)
        self.outcome = outcome
        self.reset = reset


class Connection:
    """A client's connection and the one to the server that belongs to it. Belongs to its thread."""

    def __init__(self, proxy: Proxy, sock: socket.socket, *, connection_id: int) -> None:
        self._proxy = proxy
        self._id = connection_id
        self._client = proxy.client_stream(sock)
        self._server: Stream | None = None
        self._is_aborted = False

    def abort(self) -> None:
        """End the connection, from any thread. The owner notices."""
        self._is_aborted = True
        self._client.abort()
        server = self._server
        if server is not None:
            server.abort()

    def serve(self) -> None:
        """Serve until the connection ends."""
        reset = False
        try:
            while self._serve_one():
                pass
        except EndConnectionError as end:
            reset = end.reset
        except OSError:  # the client has gone, or never spoke TLS
            pass
        finally:
            self._leave_server()
            if reset:
                self._client.reset()
            else:
                self._client.close()

    def _serve_one(self) -> bool:
        """Serve a request; returns whether there may be another."""
        raw = self._next_head()
        if raw is None:
            return False
        log = self._proxy.log
        request = Request.parse(raw, number=log.next_number(), connection_id=self._id)
        exchange = log.begin(request)
        outcome = Outcome.CLIENT_GONE
        try:
            may_continue = self._exchange(request, self._proxy.decide(request), exchange)
            outcome = Outcome.COMPLETE
        except EndConnectionError as end:
            outcome = end.outcome
            raise
        except ServerGoneError:
            outcome = Outcome.SERVER_GONE
            if exchange.status is None and not self._is_aborted:
                self._client.send(_encode(Answer(HTTPStatus.BAD_GATEWAY)))
                exchange.status = HTTPStatus.BAD_GATEWAY
            return False
        finally:
            if outcome is not Outcome.COMPLETE:
                self._leave_server()
            log.end(exchange, outcome)
        return may_continue

    def _next_head(self) -> bytes | None:
        idle_seconds = self._proxy.idle_seconds
        if idle_seconds is None:
            return self._client.read_head()
        self._client.sock.settimeout(idle_seconds)
        try:
            return self._client.read_head()
        except TimeoutError as error:
            raise EndConnectionError(Outcome.CUT, reset=self._proxy.idle_reset) from error
        finally:
            self._client.sock.settimeout(None)

    def _exchange(self, request: Request, action: Action, exchange: Exchange) -> bool:
        self._proxy.pause(self._proxy.latency_seconds + action.delay_seconds)
        if action.drop:
            self._wait_for_client_to_leave()
            raise EndConnectionError(Outcome.DROPPED)
        if action.reset:
            raise EndConnectionError(Outcome.CUT, reset=True)
        if (request.header("expect") or "").lower() == "100-continue":
            self._client.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if action.answer is not None:
            for piece in self._client.read_body(request.head):
                exchange.bytes_received += len(piece)
            head = Head.parse(_encode(action.answer, with_body=False))
            body = iter([memoryview(action.answer.body)] if action.answer.body else [])
            server = None
        else:
            head = self._ask_server(request, action, exchange)
            body = self._server_body(head, request)
            server = self._server
        self._proxy.pause(action.answer_delay_seconds)
        if action.hold is not None:
            self._proxy.pause_until(action.hold)
        response = Response(self._proxy, self._client, exchange, action)
        if server is not None and _has_body(head, request) and response.may_splice(head):
            response.splice(head, server)
        else:
            response.send(head, body, has_body=_has_body(head, request))
        if action.answer is None and not _keeps_alive(head, request):
            self._leave_server()
        return not (action.close_after or request.head.wants_close)

    def _wait_for_client_to_leave(self) -> None:
        while self._client.sock.recv(BUFFER_SIZE):
            pass

    def _ask_server(self, request: Request, action: Action, exchange: Exchange) -> Head:
        """Send *request* to the server and return the head of its response.

        An old connection may be closed by the server at any time: a request without body then goes to a new one.
        """
        head = request.head.changed({"Expect": None, **action.request_headers})
        has_body = head.is_chunked or bool(head.content_length)
        while True:
            server, is_new = self._reach_server()
            try:
                return self._try_server(server, head, exchange)
            except ServerGoneError:
                self._leave_server()
                if is_new or has_body or self._is_aborted:
                    raise

    def _try_server(self, server: Stream, head: Head, exchange: Exchange) -> Head:
        with translated():
            server.send(head.encode())
        for piece in self._client.read_body(head):
            exchange.bytes_received += len(piece)
            with translated():
                server.send(*(_chunk(piece) if head.is_chunked else (piece,)))
        with translated():
            if head.is_chunked:
                server.send(LAST_CHUNK)
            return _read_answer(server)

    def _server_body(self, head: Head, request: Request) -> Iterator[memoryview]:
        if not _has_body(head, request):
            return
        assert self._server is not None
        with translated():
            yield from self._server.read_body(head, until_close=True)

    def _reach_server(self) -> tuple[Stream, bool]:
        """The connection to the server, and whether it is a new one."""
        if self._server is not None and not self._server.is_quiet():
            self._leave_server()
        if self._server is not None:
            return self._server, False
        with translated():
            sock = socket.create_connection(self._proxy.server_address, timeout=CONNECT_SECONDS)
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server = Stream(sock)
        if self._is_aborted:  # abort() may have come before there was anything to shut down
            raise ServerGoneError("aborted")
        return self._server, True

    def _leave_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()


class Response:
    """Sends one response to the client as an action wants it."""

    def __init__(self, proxy: Proxy, client: Stream, exchange: Exchange, action: Action) -> None:
        self._proxy = proxy
        self._client = client
        self._exchange = exchange
        self._action = action
        self._is_chunked = False
        self._head = b""
        """Not sent yet: it goes with the first bytes of the body."""
        self._started_at = 0.0

    def send(self, head: Head, body: Iterator[memoryview], *, has_body: bool) -> None:
        """Send it.

        Raises:
            EndConnectionError: The body was cut, or its length is not what the head says.
        """
        action = self._action
        head = head.changed(HIDDEN_FROM_CLIENT)
        if has_body and action.rewrite_body is not None:
            whole = action.rewrite_body(b"".join(body))
            body = iter([memoryview(whole)])
            head = head.changed({"Transfer-Encoding": None, "Content-Length": str(len(whole))})
        terminates = action.cut is not None and action.cut.end is End.TERMINATE
        if has_body and (head.content_length is None or terminates):
            head = head.changed({"Content-Length": None, "Transfer-Encoding": "chunked"})
        head = head.changed(action.response_headers)
        self._is_chunked = has_body and head.is_chunked
        self._exchange.status = action.status or _status(head)
        self._head = _with_status(head, self._exchange.status).encode()
        self._started_at = time.monotonic()
        if has_body:
            self._send_body(body)
        self._flush(LAST_CHUNK if self._is_chunked else b"")
        if has_body and head.content_length not in {None, self._exchange.bytes_sent}:
            raise EndConnectionError(Outcome.CUT)

    def may_splice(self, head: Head) -> bool:
        """Whether the body passes as it is, and is long enough to be worth it."""
        action, size = self._action, head.content_length
        touches_body = action.stall or action.cut or action.bytes_per_second or action.rewrite_body
        is_plain = not (touches_body or action.response_headers) and not isinstance(self._client.sock, ssl.SSLSocket)
        return is_plain and size is not None and size >= SPLICED_SIZE

    def splice(self, head: Head, server: Stream) -> None:
        """Send it without touching the body: half the CPU time."""
        size = head.content_length
        assert size is not None
        self._exchange.status = self._action.status or _status(head)
        self._head = _with_status(head.changed(HIDDEN_FROM_CLIENT), self._exchange.status).encode()
        self._send_piece(server.take_received(size))
        with Pipe() as pipe:
            while self._exchange.bytes_sent < size:
                with translated():
                    count = pipe.fill(server.sock, size - self._exchange.bytes_sent)
                self._exchange.bytes_sent += count
                pipe.drain(self._client.sock, count)

    def _send_body(self, body: Iterator[memoryview]) -> None:
        self._act_at(0)
        for piece in body:
            rest = piece
            while rest:
                size = self._until_next_act(len(rest))
                self._keep_pace(size)
                self._send_piece(rest[:size])
                rest = rest[size:]
                self._act_at(self._exchange.bytes_sent)

    def _until_next_act(self, size: int) -> int:
        """How much of *size* may be sent before something else has to be done."""
        action, sent = self._action, self._exchange.bytes_sent
        places = [place.after_bytes for place in (action.stall, action.cut) if place is not None]
        if action.bytes_per_second:
            size = min(size, max(1, int(action.bytes_per_second / 50)))
        return min([size, *(place - sent for place in places if place > sent)])

    def _act_at(self, sent: int) -> None:
        """Stall or end when so much of the body has been sent."""
        action = self._action
        if action.stall is not None and action.stall.after_bytes == sent:
            self._flush()
            self._proxy.pause_until(action.stall.until)
        if action.cut is not None and action.cut.after_bytes == sent:
            self._end_early(action.cut)

    def _keep_pace(self, size: int) -> None:
        """Wait until *size* more bytes may have been sent."""
        if self._action.bytes_per_second:
            self._flush()
            due_at = self._started_at + (self._exchange.bytes_sent + size) / self._action.bytes_per_second
            self._proxy.pause(due_at - time.monotonic())

    def _end_early(self, cut: Cut) -> None:
        self._flush(LAST_CHUNK if cut.end is End.TERMINATE else b"")
        raise EndConnectionError(Outcome.CUT, reset=cut.end is End.RESET)

    def _send_piece(self, piece: memoryview) -> None:
        self._exchange.bytes_sent += len(piece)  # first: who has read it all must not find fewer in the log
        if self._is_chunked:
            self._flush(*_chunk(piece))
        else:
            self._flush(piece)

    def _flush(self, *buffers: bytes | memoryview) -> None:
        head, self._head = self._head, b""
        self._client.send(*(buffer for buffer in (head, *buffers) if buffer))


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Tell trouble with the server from trouble with the client."""
    try:
        yield
    except OSError as error:
        raise ServerGoneError(str(error)) from error


def _read_answer(server: Stream) -> Head:
    """Head of the response, without those of 100 Continue and the like before it."""
    while True:
        raw = server.read_head()
        if raw is None:
            raise ServerGoneError("no response")
        head = Head.parse(raw)
        if _status(head) >= HTTPStatus.OK:
            return head


def _status(head: Head) -> int:
    return int(head.first_line.split(" ", 2)[1])


def _with_status(head: Head, status: int) -> Head:
    if head.first_line.startswith(f"HTTP/1.1 {status} "):
        return head
    return Head(f"HTTP/1.1 {status} {responses.get(status, 'Unknown')}", head.headers)


def _has_body(head: Head, request: Request) -> bool:
    return request.method != "HEAD" and _status(head) not in {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}


def _keeps_alive(head: Head, request: Request) -> bool:
    """Whether the server takes another request on the connection."""
    is_framed = head.is_chunked or head.content_length is not None or not _has_body(head, request)
    return is_framed and not head.wants_close and head.first_line.startswith("HTTP/1.1")


def _chunk(piece: memoryview) -> tuple[bytes, memoryview, bytes]:
    return (b"%x\r\n" % len(piece), piece, b"\r\n")


def _encode(answer: Answer, *, with_body: bool = True) -> bytes:
    """An answer of our own as it goes over the wire."""
    headers = {"Content-Length": str(len(answer.body)), **answer.headers}
    head = _with_status(Head("", tuple(headers.items())), answer.status)
    return head.encode() + (answer.body if with_body else b"")
