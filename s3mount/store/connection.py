"""Opens connections for data reads: directly or through a proxy, in the clear or by TLS."""

import contextlib
import select
import socket
import ssl
from base64 import b64encode
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from s3mount.store.addresses import Addresses
from s3mount.store.answer import BUFFER_BYTES, AnswerReader, receive_from
from s3mount.store.endpoint import Endpoint

_FIRST_REFUSAL = 300
"""Statuses of a proxy from here on are no tunnel."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy."""

    host: str
    port: int
    headers: dict[str, str]
    """What introduces us to it."""


def proxy_from_url(url: str) -> Proxy:
    """Take a proxy apart as ``http_proxy`` and ``https_proxy`` write it; the scheme may be missing.

    Raises:
        ValueError: It is not the address of an HTTP proxy.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError("only http:// proxies are supported")
    headers = {}
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
    return Proxy(parts.hostname, parts.port or 80, headers)


class Resumption:
    """The TLS session of an earlier connection, which spares the next one half of the handshake.

    May be used from any thread: a session is replaced as a whole.
    """

    def __init__(self) -> None:
        self._session: ssl.SSLSession | None = None

    def wrap(self, sock: socket.socket, context: ssl.SSLContext, hostname: str) -> ssl.SSLSocket:
        """Begin TLS; always with the same *context* and *hostname*, to which a session belongs.

        Raises:
            OSError: The server, or its certificate, is not the right one.
        """
        try:
            return context.wrap_socket(sock, server_hostname=hostname, session=self._session)
        except OSError:
            self._session = None  # in case that was the reason
            raise

    def keep(self, sock: socket.socket) -> None:
        """Note the session of a connection that has brought an answer: with TLS 1.3 it is there only then."""
        if isinstance(sock, ssl.SSLSocket):
            self._session = sock.session


@dataclass(frozen=True, slots=True)
class Route:
    """How connections reach the endpoint. May be used from any thread."""

    endpoint: Endpoint
    proxy: Proxy | None = None
    ssl_context: ssl.SSLContext | None = None
    """Present if and only if the endpoint speaks TLS."""
    connect_timeout_seconds: float = 5.0
    stall_timeout_seconds: float = 10.0
    addresses: Addresses = field(default_factory=Addresses)
    resumption: Resumption = field(default_factory=Resumption)

    def connect(self) -> socket.socket:
        """Open a connection.

        Raises:
            OSError: It cannot be reached, or not by TLS.
            ValueError: The proxy does not speak HTTP.
        """
        host, port = (self.endpoint.host, self.endpoint.port)
        if self.proxy is not None:
            host, port = (self.proxy.host, self.proxy.port)
        sock = self.addresses.connect(host, port, self.connect_timeout_seconds)
        try:
            sock.settimeout(self.connect_timeout_seconds)
            if self.ssl_context is not None:
                if self.proxy is not None:
                    self._open_tunnel(sock, self.proxy)
                sock = self.resumption.wrap(sock, self.ssl_context, self.endpoint.host)
            sock.settimeout(self.stall_timeout_seconds)
        except (OSError, ValueError):
            sock.close()
            raise
        return sock

    def _open_tunnel(self, sock: socket.socket, proxy: Proxy) -> None:
        """Have the proxy pass on what follows as it is (RFC 9110, 9.3.6)."""
        host = f"[{self.endpoint.host}]" if ":" in self.endpoint.host else self.endpoint.host
        authority = f"{host}:{self.endpoint.port}"
        headers = {"Host": authority, **proxy.headers}
        lines = [f"CONNECT {authority} HTTP/1.1", *(f"{name}: {headers[name]}" for name in headers), "", ""]
        sock.sendall("\r\n".join(lines).encode("latin-1"))
        answer = AnswerReader(bytearray(BUFFER_BYTES))
        receive_from(sock, answer.receive_head())
        if answer.status >= _FIRST_REFUSAL:
            raise OSError(f"the proxy refuses to connect: status {answer.status}")

    def target(self, path: str) -> str:
        """What the request line says: a plain proxy is told the whole URL."""
        return path if self.proxy is None or self.endpoint.is_tls else f"{self.endpoint.origin}{path}"

    def hop_headers(self) -> dict[str, str]:
        """Headers for a plain proxy, not signed."""
        return {} if self.proxy is None or self.endpoint.is_tls else self.proxy.headers


def is_usable(sock: socket.socket) -> bool:
    """Whether an idle connection has neither been closed by the server nor been sent something nobody asked for."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    if not poller.poll(0):
        return True
    return isinstance(sock, ssl.SSLSocket) and _has_only_tls_messages(sock)


def _has_only_tls_messages(sock: ssl.SSLSocket) -> bool:
    """Servers send session tickets unasked, which are no data; reading takes them in."""
    timeout = sock.gettimeout()
    sock.settimeout(0)
    try:
        sock.recv(1)
    except ssl.SSLWantReadError:
        return True
    except OSError:
        return False
    else:
        return False
    finally:
        sock.settimeout(timeout)


def cut(sock: socket.socket) -> None:
    """End all traffic on *sock*, so that a thread that waits for it wakes up; safe from another thread.

    Not ``sock.shutdown``: that of a TLS socket takes away the TLS layer below the reading thread.
    """
    with contextlib.suppress(OSError):  # not connected any more
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
