"""What a `FaultProxy` has seen: one `Exchange` per request, in order of arrival."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from tests.support.http_heads import Kind, Request


class Outcome(StrEnum):
    """How an exchange ended."""

    PENDING = "pending"
    COMPLETE = "complete"
    """The whole response was sent, whatever it was."""
    CUT = "cut"
    """Ended early on purpose."""
    DROPPED = "dropped"
    """Not answered on purpose."""
    CLIENT_GONE = "client gone"
    """The client, or the end of the proxy, ended the connection."""
    SERVER_GONE = "server gone"
    """The server could not be reached, or ended its response early."""


@dataclass(slots=True)
class Exchange:
    """A request and what became of it. Written by one thread; complete once `outcome` is not PENDING."""

    request: Request
    started_at: float = field(default_factory=time.monotonic)
    """When its head had arrived, by `time.monotonic`."""
    ended_at: float | None = None
    status: int | None = None
    """Status sent to the client."""
    bytes_sent: int = 0
    """Bytes of the body handed to the client's connection, without framing; right as soon as the client has them."""
    bytes_received: int = 0
    """Bytes of the request's body."""
    outcome: Outcome = Outcome.PENDING

    @property
    def kind(self) -> Kind:
        """Kind of the request."""
        return self.request.kind

    @property
    def key(self) -> str:
        """Key of the request."""
        return self.request.key

    @property
    def is_pending(self) -> bool:
        """Whether it goes on."""
        return self.outcome is Outcome.PENDING


class RequestLog:
    """All exchanges since the last `clear`. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._exchanges: list[Exchange] = []
        self._last_number = 0

    def next_number(self) -> int:
        """Number for a new request."""
        with self._changed:
            self._last_number += 1
            return self._last_number

    def begin(self, request: Request) -> Exchange:
        """Add a request."""
        exchange = Exchange(request)
        with self._changed:
            self._exchanges.append(exchange)
            self._changed.notify_all()
        return exchange

    def end(self, exchange: Exchange, outcome: Outcome) -> None:
        """Record how it ended."""
        exchange.ended_at = time.monotonic()
        exchange.outcome = outcome
        with self._changed:
            self._changed.notify_all()

    def clear(self) -> None:
        """Forget everything so far; numbers go on."""
        with self._changed:
            self._exchanges.clear()

    def select(
        self, kind: Kind | None = None, key: str | None = None, where: Callable[[Exchange], bool] | None = None
    ) -> list[Exchange]:
        """Exchanges of one kind, one key, and for which *where* is true."""
        with self._changed:
            found = list(self._exchanges)
        return [
            exchange
            for exchange in found
            if (kind is None or exchange.kind is kind)
            and (key is None or exchange.key == key)
            and (where is None or where(exchange))
        ]

    def wait_for(self, is_enough: Callable[[list[Exchange]], bool], *, timeout_seconds: float = 10.0) -> list[Exchange]:
        """Wait until *is_enough* is true of the exchanges, which are returned.

        Raises:
            TimeoutError: It did not become true.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: is_enough(self._exchanges), timeout_seconds):
                raise TimeoutError(f"not after {timeout_seconds:g} s; there are {len(self._exchanges)} requests")
            return list(self._exchanges)

    def wait_until_idle(self, *, timeout_seconds: float = 10.0) -> list[Exchange]:
        """Wait until no exchange is pending."""
        return self.wait_for(
            lambda exchanges: not any(exchange.is_pending for exchange in exchanges), timeout_seconds=timeout_seconds
        )


def bytes_sent(exchanges: Iterable[Exchange]) -> int:
    """Bytes of all bodies."""
    return sum(exchange.bytes_sent for exchange in exchanges)


def most_at_once(exchanges: Iterable[Exchange]) -> int:
    """The largest number of exchanges that were in flight at the same time."""
    moments: list[tuple[float, int]] = []
    for exchange in exchanges:
        moments.append((exchange.started_at, 1))
        if exchange.ended_at is not None:
            moments.append((exchange.ended_at, -1))
    count = most = 0
    for _, change in sorted(moments):
        count += change
        most = max(most, count)
    return most
