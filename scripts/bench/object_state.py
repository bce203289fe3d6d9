"""What the processes of the object server share: how it behaves, and what it counted.

All of it is numbers in one shared array, guarded by one lock: a request costs two short visits.
"""

import time
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.sharedctypes import SynchronizedArray

KINDS = ("get", "head", "list", "other")

COUNTERS = (*KINDS, "bytes", "connections", "refused", "served_in_storm", "stalled", "most_in_flight")
"""Requests by kind, those refused included; bytes of objects that were sent; and what went wrong on purpose.

Bytes that the kernel has taken count as sent, although a client that closes its connection early never reads the last
few megabytes of them.
"""

SETTINGS = {
    "latency_seconds": "before the first byte of every answer",
    "bytes_per_second": "most that one connection gets; 0 is no limit",
    "stall_every": "every so manieth GET is stalled; 0 is none",
    "stall_seconds": "how long it is stalled, before its first byte",
    "storm_rate": "requests per second that are served in a storm; the rest gets 503 SlowDown",
    "storm_seconds": "how long the storm lasts, from when this is set",
}

BURST_SECONDS = 0.1
"""Requests of so long a time may come at once in a storm."""

_PRIVATE = ("in_flight", "gets", "storm_until", "tokens", "tokens_at")
_PLACES = {name: place for place, name in enumerate((*COUNTERS, *SETTINGS, *_PRIVATE))}


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a request is to be treated."""

    wait_seconds: float
    is_refused: bool
    bytes_per_second: float


class SharedState:
    """Counters and settings; made before the processes part."""

    def __init__(self) -> None:
        self._values: SynchronizedArray[float] = get_context("fork").Array("d", len(_PLACES))

    def begin(self, kind: str) -> Verdict:
        """Count a request and say what becomes of it; `end` follows."""
        with self._values:
            self._add(kind, 1)
            self._add("in_flight", 1)
            self._set("most_in_flight", max(self._get("most_in_flight"), self._get("in_flight")))
            wait_seconds = self._get("latency_seconds")
            is_refused = time.monotonic() < self._get("storm_until") and not self._take_token()
            if is_refused:
                self._add("refused", 1)
            elif kind == "get":
                self._add("gets", 1)
                every = self._get("stall_every")
                if every and self._get("gets") % every == 0:
                    self._add("stalled", 1)
                    wait_seconds += self._get("stall_seconds")
            return Verdict(wait_seconds, is_refused, self._get("bytes_per_second"))

    def end(self, sent_bytes: int) -> None:
        """Count what was sent of an object."""
        with self._values:
            self._add("in_flight", -1)
            self._add("bytes", sent_bytes)

    def count_connection(self) -> None:
        """Count a connection."""
        with self._values:
            self._add("connections", 1)

    def counts(self) -> dict[str, int]:
        """Everything that was counted."""
        with self._values:
            return {name: int(self._get(name)) for name in COUNTERS}

    def reset(self) -> None:
        """Begin to count anew."""
        with self._values:
            for name in (*COUNTERS, "gets"):
                self._set(name, 0)

    def change(self, name: str, value: float) -> None:
        """Change a setting, from the next request on."""
        with self._values:
            self._set(name, value)
            if name == "storm_seconds":
                now = time.monotonic()
                self._set("storm_until", now + value)
                self._set("tokens", 0)
                self._set("tokens_at", now)

    def _take_token(self) -> bool:
        now, rate = time.monotonic(), self._get("storm_rate")
        tokens = self._get("tokens") + (now - self._get("tokens_at")) * rate
        tokens = min(tokens, max(1.0, rate * BURST_SECONDS))
        self._set("tokens_at", now)
        self._set("tokens", tokens - 1 if tokens >= 1 else tokens)
        if tokens >= 1:
            self._add("served_in_storm", 1)
        return tokens >= 1

    def _get(self, name: str) -> float:
        return self._values[_PLACES[name]]

    def _set(self, name: str, value: float) -> None:
        self._values[_PLACES[name]] = value

    def _add(self, name: str, value: float) -> None:
        self._values[_PLACES[name]] += value
