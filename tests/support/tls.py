"""Certificates for servers on this machine, from a certificate authority made for the occasion."""

import ssl
from pathlib import Path

import trustme


class ServerSocket(ssl.SSLSocket):
    """Closes itself when the client has gone before TLS began: `ssl.SSLContext.wrap_socket` would leave it open."""

    def getpeername(self) -> object:
        try:
            return super().getpeername()
        except OSError as error:
            self.close()
            raise ConnectionAbortedError("the client has gone before TLS began") from error


class ServerTls:
    """A server's side of TLS: a certificate for *hostnames*, and the authority that clients have to trust."""

    def __init__(self, *hostnames: str) -> None:
        ca = trustme.CA()
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.ca_pem = ca.cert_pem.bytes()
        ca.issue_cert(*hostnames).configure_cert(self.context)


def make_ca(folder: Path, *hostnames: str) -> tuple[ssl.SSLContext, Path]:
    """Make a certificate for *hostnames*: the context of a server that has it, and the file (PEM) to trust."""
    tls = ServerTls(*hostnames)
    path = folder / "ca.pem"
    path.write_bytes(tls.ca_pem)
    return tls.context, path
