"""Decides when a request that is slow is sent a second time, and when one that has stalled is cut off.

"The Tail at Scale" (Dean and Barroso, CACM 2013): a second request after the time in which 99 % are answered costs 1 %
more requests, and takes away most of what the slowest 1 % cost. How slow is slow follows what was seen last. Whatever
the link is like, second requests and cuts together stay below a share of all requests: a link that is slow for
everybody is not made slower. Pure.
"""

from s3mount.store.estimates import Durations

EXTRA_SHARE = 0.03
"""Most requests sent a second time or cut off, of all."""

MAX_SAVED = 10.0
"""Extra requests that a long time without any allows at once."""

UNMEASURED_SECONDS = 1.0
"""Patience for a first byte until something was measured."""

MIN_COUNT = 16
"""Fewer answers tell nothing about the slowest ones."""

MIN_SECONDS = 0.005
"""Shortest patience: below, it is the scheduler of this machine that is slow."""

MIN_STALL_SECONDS = 0.5
"""Shortest time without a byte that counts as a stall: a lost packet comes again sooner (RFC 6298: 0.2 s in Linux)."""

MAX_STALL_SECONDS = 4.0

STALL_FACTOR = 4.0
"""How much longer than the slowest first bytes a stall is."""

CONNECT_SECONDS = 0.25
"""Shortest patience for a connection: names are resolved, TLS takes two round trips."""

MAX_CONNECT_SECONDS = 1.0
"""Longest patience for a connection: then a lost first packet is sent again (RFC 6298)."""

_REFRESH_EVERY = 16


class Budget:
    """Allows extra requests as a share of all.

    **Invariant:** of *n* requests, no more than ``EXTRA_SHARE * n + 1`` were extra.
    """

    def __init__(self) -> None:
        self._saved = 1.0

    def note_request(self) -> None:
        """A request is sent that is not extra."""
        self._saved = min(MAX_SAVED, self._saved + EXTRA_SHARE)

    def take(self) -> bool:
        """Whether one more extra request may be made; it counts as made."""
        if self._saved < 1:
            return False
        self._saved -= 1
        return True


class Patience:
    """How long to wait for requests of one kind."""

    def __init__(self) -> None:
        self._first_bytes = Durations()
        self.first_byte_seconds = UNMEASURED_SECONDS
        """After this, a request without a single byte is sent a second time."""
        self.stall_seconds = MAX_STALL_SECONDS
        """After this, a request to which no more bytes come has stalled."""

    @property
    def connect_seconds(self) -> float:
        """After this, a request that has no connection yet is sent over another."""
        return min(MAX_CONNECT_SECONDS, max(CONNECT_SECONDS, 4 * self.first_byte_seconds))

    def note_first_byte(self, seconds: float) -> None:
        """The first byte of a good answer came so long after the request was sent."""
        self._first_bytes.note(seconds)
        count = self._first_bytes.count
        if count >= MIN_COUNT and count % _REFRESH_EVERY == 0:
            self._refresh()

    def _refresh(self) -> None:
        slowest = self._first_bytes.quantile(0.99)
        # One and a half of the usual: where all are equally fast, the 99th of 100 is not slow.
        self.first_byte_seconds = max(MIN_SECONDS, 1.1 * slowest, 1.5 * self._first_bytes.quantile(0.5))
        self.stall_seconds = min(MAX_STALL_SECONDS, max(MIN_STALL_SECONDS, STALL_FACTOR * slowest))
