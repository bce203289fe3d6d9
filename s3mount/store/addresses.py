"""Finds the addresses of hosts, and spreads connections over them.

A name of S3 stands for many machines, and each answer to a DNS question names some of them: to use one address only
would leave most of the service's bandwidth aside. The address with the fewest connections so far is next; one that
failed comes last for a while. Names are asked for anew after a short time, and at once when a connection failed.

May be used from any thread. Locks: ``Addresses._lock`` is the only one, and is held for no I/O.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Address: TypeAlias = tuple[int, tuple[object, ...]]
"""Family, and what `socket.socket.connect` is given."""

FRESH_SECONDS = 30.0
"""How long an answer is used: S3's own answers may be kept for a few seconds to a minute."""

FAILED_SECONDS = 30.0
"""How long an address that failed comes last."""


@dataclass(slots=True)
class _Use:
    connections: int = 0
    failed_at: float = float("-inf")


@dataclass(slots=True)
class _Host:
    """What is known of one name."""

    resolved_at: float = float("-inf")
    uses: dict[Address, _Use] = field(default_factory=dict)

    def renew(self, addresses: Sequence[Address], now: float) -> None:
        """Take over an answer; what is known of addresses that are still in it stays."""
        fewest = min((use.connections for use in self.uses.values()), default=0)
        self.uses = {address: self.uses.get(address) or _Use(fewest) for address in addresses}
        self.resolved_at = now

    def best(self, *, but: set[Address], now: float) -> Address | None:
        """Where to connect next, leaving some out."""
        left = [address for address in self.uses if address not in but]
        return min(left, key=lambda address: self._rank(self.uses[address], now), default=None)

    @staticmethod
    def _rank(use: _Use, now: float) -> tuple[bool, int]:
        return now - use.failed_at < FAILED_SECONDS, use.connections


def resolve(host: str, port: int) -> list[Address]:
    """Ask the system for the addresses of *host*, IPv4 and IPv6.

    Raises:
        OSError: There are none.
    """
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((int(family), address) for family, _, _, _, address in answers))


def open_socket(address: Address, timeout_seconds: float) -> socket.socket:
    """Connect to *address*.

    Raises:
        OSError: It cannot be reached in time.
    """
    sock = socket.socket(address[0], socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_seconds)
        sock.connect(address[1])
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        sock.close()
        raise
    return sock


class Addresses:
    """The addresses of all hosts in use."""

    def __init__(
        self,
        resolve: Callable[[str, int], list[Address]] = resolve,
        open_socket: Callable[[Address, float], socket.socket] = open_socket,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resolve = resolve
        self._open_socket = open_socket
        self._clock = clock
        self._lock = threading.Lock()
        self._hosts: dict[tuple[str, int], _Host] = {}

    def connect(self, host: str, port: int, timeout_seconds: float) -> socket.socket:
        """Connect to one of the addresses of *host*; try others if it fails.

        Args:
            host: Name or address.
            port: Of TCP.
            timeout_seconds: For all addresses together.

        Raises:
            OSError: None can be reached, or there are none.
        """
        give_up_at = self._clock() + timeout_seconds
        tried: set[Address] = set()
        failure = OSError(f"{host} has no address")
        while (address := self._next(host, port, tried)) is not None:
            tried.add(address)
            left = give_up_at - self._clock()
            if left <= 0:
                break
            is_last = self._peek(host, port, tried) is None
            try:
                return self._open_socket(address, left if is_last else left / 2)
            except OSError as error:
                failure = error
                self._note_failure(host, port, address)
        raise failure

    def _next(self, host: str, port: int, tried: set[Address]) -> Address | None:
        """The next address to try, counted as used. The first failure has the name asked for anew."""
        now = self._clock()
        with self._lock:
            known = self._hosts.setdefault((host, port), _Host())
            is_stale = now - known.resolved_at >= FRESH_SECONDS
        if is_stale or len(tried) == 1:
            try:
                found = self._resolve(host, port)
            except OSError:
                if not known.uses:
                    raise
            else:
                with self._lock:
                    known.renew(found, now)
        with self._lock:
            address = known.best(but=tried, now=now)
            if address is not None:
                known.uses[address].connections += 1
        return address

    def _peek(self, host: str, port: int, tried: set[Address]) -> Address | None:
        with self._lock:
            return self._hosts[host, port].best(but=tried, now=self._clock())

    def _note_failure(self, host: str, port: int, address: Address) -> None:
        with self._lock, contextlib.suppress(KeyError):  # another thread may have asked anew
            self._hosts[host, port].uses[address].failed_at = self._clock()
