"""Writes the headers of requests: what all of them carry, and the signature, made anew for every attempt."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from s3mount.store.endpoint import Endpoint
from s3mount.store.signing import SigningKey, signed_headers

_MIN_CORRECTION_SECONDS = 30.0
"""A smaller difference is no reason to be refused (S3 takes 15 minutes), so correcting it would not help."""


@dataclass(slots=True)
class ServerClock:
    """Time as the server sees it. Read from any thread; corrected on the trio thread only."""

    offset_seconds: float = 0.0

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time() + self.offset_seconds

    def correct(self, server_time: float | None) -> bool:
        """Take over the server's time; false if that would change nothing."""
        if server_time is None or abs(server_time - self.now()) < _MIN_CORRECTION_SECONDS:
            return False
        self.offset_seconds = server_time - time.time()
        return True


@dataclass(frozen=True, slots=True)
class RequestWriter:
    """Makes the headers of requests to one bucket. May be used from any thread."""

    endpoint: Endpoint
    current_key: Callable[[], SigningKey | None]
    """Latest credentials; absent: requests go out unsigned."""
    clock: ServerClock
    common_headers: Mapping[str, str] = field(default_factory=dict)
    """Lower-case names."""

    def headers(
        self, method: str, path: str, *, query: str = "", extra: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """All headers of one attempt, signed now."""
        headers = {
            "host": self.endpoint.authority,
            # Stored bytes are wanted, not a proxy's idea of them.
            "accept-encoding": "identity",
            **self.common_headers,
            **(extra or {}),
        }
        key = self.current_key()
        if key is None:
            return headers
        return signed_headers(
            method,
            path=path,
            query=query,
            headers=headers,
            key=key,
            region=self.endpoint.region,
            service=self.endpoint.service,
            now=self.clock.now(),
        )
