"""`FaultProxy`: an HTTP proxy between a client and an S3 server which counts requests and injects faults.

Each connection of a client has a thread and a connection to the server of its own; both are kept alive. Requests pass
unchanged, Host included, since the signature covers it: a client that is given the proxy's URL as its endpoint signs
for the proxy, and SeaweedFS and moto check the signature against the Host they get.

A request goes to the first hook that wants it (see `tests.support.faults`), then to the server. What the proxy did
stands in `FaultProxy.log`.
"""

import contextlib
import dataclasses
import socket
import ssl
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Self, TypeVar, overload
from urllib.parse import urlsplit

from tests.support.faults import NOTHING, Action, Hook, Rule, slow_down
from tests.support.http_heads import Kind, Request
from tests.support.proxy_connection import Connection
from tests.support.proxy_log import RequestLog
from tests.support.streams import Stream
from tests.support.tls import ServerSocket, ServerTls

BACKLOG = 1024
JOIN_SECONDS = 10.0

ACCEPT_RETRY_SECONDS = 0.05
"""Between attempts to take a connection while there are no descriptors left."""

HookT = TypeVar("HookT", bound=Hook)


class FaultProxy:
    """A reverse proxy on a free loopback port, as a context manager.

    Attributes may be set, and hooks added and removed, at any time from any thread; they hold for the next request.

    **Invariant**: while not closed, every open connection is in ``_connections`` and has a thread.
    """

    def __init__(self, server_url: str, *, tls: bool | ssl.SSLContext = False) -> None:
        """Prepare a proxy for the server at *server_url*.

        Args:
            server_url: Where the server is, by plain HTTP.
            tls: Speak HTTPS to clients, with a certificate of its own (see `write_ca`) or as the context says.
        """
        server = urlsplit(server_url)
        assert server.hostname is not None
        assert server.port is not None
        self.server_address = (server.hostname, server.port)
        self.log = RequestLog()
        self.hooks: list[Hook] = []
        self.latency_seconds = 0.0
        """Added to every request, before the server is asked."""
        self.bytes_per_second_per_connection: float | None = None
        """No body is sent faster than this, whatever hooks say."""
        self.idle_seconds: float | None = None
        """Connections that wait so long for their next request are closed; holds from the next request on."""
        self.idle_reset = False
        """Whether idle connections are reset instead of closed."""
        self.limiter: RateLimiter | None = None
        """Answers 503 SlowDown to what is too much."""
        self.connections_total = 0
        """Connections made by clients so far."""
        self.closing = threading.Event()
        """Set when the proxy ends: every wait ends with it."""
        self._port = 0
        self._lock = threading.Lock()
        self._connections: dict[Connection, threading.Thread] = {}
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._own_tls = ServerTls("127.0.0.1", "localhost") if tls is True else None
        self._tls: ssl.SSLContext | None = None
        if isinstance(tls, ssl.SSLContext):
            self._tls = tls
        elif self._own_tls is not None:
            self._tls = self._own_tls.context
        if self._tls is not None:
            self._tls.sslsocket_class = ServerSocket

    def __enter__(self) -> Self:
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def endpoint_url(self) -> str:
        """Where clients find the proxy; stays the same when it stops listening and listens again."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    def write_ca(self, folder: Path) -> Path:
        """Write the certificate (PEM) that clients have to trust, and return where it is."""
        assert self._own_tls is not None
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".pem", delete=False) as file:
            file.write(self._own_tls.ca_pem)
        return Path(file.name)

    @property
    def open_connections(self) -> int:
        """Connections of clients that have not ended."""
        with self._lock:
            return len(self._connections)

    def counts(self) -> dict[Kind, int]:
        """Requests in the log by kind; kinds that did not occur are left out."""
        return dict(Counter(exchange.kind for exchange in self.log.select()))

    @overload
    def add(self, hook: Action) -> Rule: ...
    @overload
    def add(self, hook: HookT) -> HookT: ...
    def add(self, hook: Hook | Action) -> Hook:
        """Put *hook* before all others, and return it for `remove`; an action becomes a rule for every request."""
        added = Rule(hook) if isinstance(hook, Action) else hook
        self.hooks.insert(0, added)
        return added

    def remove(self, hook: Hook) -> None:
        """Take *hook* away; it may be gone already."""
        with contextlib.suppress(ValueError):
            self.hooks.remove(hook)

    def blackhole_connections(self) -> Rule:
        """Never answer again on the connections made so far, as behind a router that forgot them; new ones work.

        Kernels still acknowledge what is sent: only the response is missing.
        """
        last_id = self.connections_total
        return self.add(Rule(Action(drop=True), where=lambda request: request.connection_id <= last_id))

    def heal(self) -> None:
        """Take all faults away, and listen if it did not."""
        self.hooks.clear()
        self.latency_seconds = 0.0
        self.bytes_per_second_per_connection = None
        self.idle_seconds = None
        self.limiter = None
        self.listen()

    def decide(self, request: Request) -> Action:
        """What to do to *request*."""
        limiter = self.limiter
        if limiter is not None and not limiter.take_nowait():
            return slow_down(retry_after=limiter.retry_after_seconds)
        actions = (hook(request) for hook in list(self.hooks))
        action = next((action for action in actions if action is not None), NOTHING)
        most = self.bytes_per_second_per_connection
        if most is None:
            return action
        return dataclasses.replace(action, bytes_per_second=min(most, action.bytes_per_second or most))

    def pause(self, seconds: float) -> None:
        """Wait in a connection's thread.

        Raises:
            ConnectionAbortedError: The proxy ends.
        """
        if seconds > 0 and self.closing.wait(seconds):
            raise ConnectionAbortedError

    def pause_until(self, event: threading.Event) -> None:
        """The same, until *event* is set."""
        while not event.wait(0.02):
            if self.closing.is_set():
                raise ConnectionAbortedError

    def listen(self) -> None:
        """Take connections, on the same port as before."""
        if self._listener is not None:
            return
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        listener.listen(BACKLOG)
        self._port = listener.getsockname()[1]
        self._listener = listener
        self._acceptor = threading.Thread(target=self._accept, args=(listener,), name="proxy-accept", daemon=True)
        self._acceptor.start()

    def refuse(self) -> None:
        """Be gone: cut all connections, and refuse new ones until `listen`."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        if self._acceptor is not None:
            self._acceptor.join(JOIN_SECONDS)
            self._acceptor = None
        self.cut_connections()

    def cut_connections(self) -> None:
        """End all connections there are now."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.abort()

    def close(self) -> None:
        """End, and wait for all threads.

        Raises:
            RuntimeError: A thread does not end: a fault of the proxy or of a hook.
        """
        self.closing.set()
        self.refuse()
        with self._lock:
            threads = list(self._connections.values())
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            raise RuntimeError("a thread of the proxy does not end")

    def _accept(self, listener: socket.socket) -> None:
        while self._listener is listener:
            try:
                client, _ = listener.accept()
            except OSError:  # `refuse` shut the listener down; or no descriptors are left, or the client has gone again
                self.closing.wait(ACCEPT_RETRY_SECONDS if self._listener is listener else 0)
                continue
            self._start(client)

    def _start(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self.connections_total += 1
            try:
                connection = Connection(self, client, connection_id=self.connections_total)
            except OSError:  # TLS needs a client that is still there; its socket has closed itself
                return
            thread = threading.Thread(target=self._serve, args=(connection,), name="proxy", daemon=True)
            self._connections[connection] = thread
        thread.start()

    def _serve(self, connection: Connection) -> None:
        try:
            connection.serve()
        finally:
            with self._lock:
                del self._connections[connection]

    def client_stream(self, sock: socket.socket) -> Stream:
        """Speak TLS over *sock* if the proxy does."""
        if self._tls is None:
            return Stream(sock)
        # The handshake comes with the first reading, in the connection's thread.
        return Stream(self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False))


class RateLimiter:
    """Token bucket of requests. Thread-safe."""

    def __init__(
        self, *, requests_per_second: float, burst: float = 1.0, retry_after_seconds: int | None = None
    ) -> None:
        """Allow *burst* requests at once, and then so many per second.

        Others are told to come back after *retry_after_seconds*, or not told when.
        """
        self.retry_after_seconds = retry_after_seconds
        self._rate = requests_per_second
        self._burst = burst
        self._tokens = burst
        self._updated_at = time.monotonic()
        self._lock = threading.Lock()
        self.refused = 0
        """Requests that were too much."""

    def take_nowait(self) -> bool:
        """Whether one more request is allowed."""
        with self._lock:
            now = time.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._updated_at) * self._rate)
            self._updated_at = now
            if self._tokens < 1:
                self.refused += 1
                return False
            self._tokens -= 1
            return True
