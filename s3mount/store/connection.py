"""Opens connections for data reads: directly or through a proxy, in the clear or by TLS."""

import contextlib
import http.client
import select
import socket
import ssl
from base64 import b64encode
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from s3mount.store.endpoint import Endpoint


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


@dataclass(frozen=True, slots=True)
class Route:
    """How connections reach the endpoint."""

    endpoint: Endpoint
    proxy: Proxy | None = None
    ssl_context: ssl.SSLContext | None = None
    """Present if and only if the endpoint speaks TLS."""
    connect_timeout_seconds: float = 5.0
    stall_timeout_seconds: float = 10.0

    def connect(self) -> http.client.HTTPConnection:
        """Open a connection; resolves the host name anew.

        Raises:
            OSError: It cannot be reached, or not by TLS.
        """
        host, port = (self.endpoint.host, self.endpoint.port)
        if self.proxy is not None:
            host, port = (self.proxy.host, self.proxy.port)
        timeout = self.connect_timeout_seconds
        if self.ssl_context is None:
            connection = http.client.HTTPConnection(host, port, timeout=timeout)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=self.ssl_context)
            if self.proxy is not None:
                connection.set_tunnel(self.endpoint.host, self.endpoint.port, self.proxy.headers)
        connection.connect()
        connection.sock.settimeout(self.stall_timeout_seconds)
        return connection

    def target(self, path: str) -> str:
        """What the request line says: a plain proxy is told the whole URL."""
        return path if self.proxy is None or self.endpoint.is_tls else f"{self.endpoint.origin}{path}"

    def hop_headers(self) -> dict[str, str]:
        """Headers for a plain proxy, not signed."""
        return {} if self.proxy is None or self.endpoint.is_tls else self.proxy.headers


def is_usable(connection: http.client.HTTPConnection) -> bool:
    """Whether an idle connection has neither been closed by the server nor been sent something nobody asked for."""
    sock = connection.sock
    if sock is None:
        return False
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
