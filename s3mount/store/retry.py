"""Decides whether a failed attempt at a request is made again, and after how long.

Control requests and range GETs share this one policy. Delays grow twofold with full jitter ("Exponential Backoff And
Jitter", AWS Architecture Blog, 2015): the delay is a random share of the bound, so that clients that failed together do
not come back together. A server's Retry-After is a lower bound. The deadline counts from the start, or from the last
byte that arrived: a slow download that moves is not a failure. Pure.
"""

import dataclasses
from dataclasses import dataclass, field
from enum import Enum, auto

from s3mount.errors import FileError


class FaultKind(Enum):
    """What can be done about a failed attempt."""

    FINAL = auto()
    """Nothing: the answer would be the same."""
    TRANSIENT = auto()
    """Network trouble or a server's error: try until the deadline."""
    THROTTLED = auto()
    """The server asks for fewer requests: try until the deadline, slower."""
    CORRUPT = auto()
    """A wrong answer: few tries, since a broken server or proxy stays broken."""
    CREDENTIALS = auto()
    """The credentials may have expired: renew them, then try once."""
    CLOCK = auto()
    """Our clock is off: take the server's, then try once."""
    PRECONDITION = auto()
    """``If-Match`` failed: ask once without it, if the server refused it although the version is the right one."""


REPAIRABLE = frozenset({FaultKind.CREDENTIALS, FaultKind.CLOCK, FaultKind.PRECONDITION})
"""Kinds that are tried again at once, and once per request, after a repair."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why one attempt failed."""

    kind: FaultKind
    error: FileError
    """What the caller gets when nothing helps."""
    code: str | None = None
    """S3's error code, if it sent one."""
    status: int | None = None
    """HTTP status, if there was an answer."""
    retry_after_seconds: float | None = None
    server_time: float | None = None
    """The answer's ``Date``, in seconds since the epoch."""
    region: str | None = None
    """Region the server says the bucket is in."""


class AttemptError(Exception):
    """An attempt failed; stays inside the store."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault.error))
        self.fault = fault


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds of all retries."""

    deadline_seconds: float
    first_delay_seconds: float = 0.1
    first_throttled_delay_seconds: float = 0.5
    max_delay_seconds: float = 8.0
    max_throttled_delay_seconds: float = 8.0
    max_corrupt_tries: int = 5
    """Wrong answers in a row without a single new byte."""

    def delay_bound_seconds(self, kind: FaultKind, failures: int) -> float:
        """Largest delay after this many failures in a row, at least one."""
        first, most = self.first_delay_seconds, self.max_delay_seconds
        if kind is FaultKind.THROTTLED:
            first, most = self.first_throttled_delay_seconds, self.max_throttled_delay_seconds
        return min(most, first * 2.0 ** min(failures - 1, 30))

    def where_starts_are_limited(self) -> "RetryPolicy":
        """The same for requests that `concurrency.Throttle` holds back already: long delays would add to its own."""
        return dataclasses.replace(self, first_throttled_delay_seconds=0.1, max_throttled_delay_seconds=0.5)


@dataclass(slots=True)
class Retries:
    """The retries of one request so far."""

    policy: RetryPolicy
    counted_from: float
    """Clock when the request began, or when its last byte so far arrived."""
    failures: int = 0
    corrupt_answers: int = 0
    repaired: set[FaultKind] = field(default_factory=set)

    @property
    def give_up_at(self) -> float:
        """Clock at which waiting ends."""
        return self.counted_from + self.policy.deadline_seconds

    def note_progress(self, now: float) -> None:
        """Bytes arrived: failures before them no longer count."""
        self.counted_from = now
        self.failures = 0
        self.corrupt_answers = 0

    def delay_after(self, fault: Fault, *, now: float, share: float) -> float | None:
        """Seconds to wait before the next attempt; absent: give up.

        Args:
            fault: Why the attempt failed.
            now: Clock in seconds, the same as of *counted_from*.
            share: Random, in [0, 1).
        """
        if fault.kind is FaultKind.FINAL:
            return None
        if fault.kind in REPAIRABLE:
            if fault.kind in self.repaired:
                return None
            self.repaired.add(fault.kind)
            return 0.0
        self.failures += 1
        if fault.kind is FaultKind.CORRUPT:
            self.corrupt_answers += 1
            if self.corrupt_answers >= self.policy.max_corrupt_tries:
                return None
        delay = share * self.policy.delay_bound_seconds(fault.kind, self.failures)
        if fault.retry_after_seconds is not None:
            delay += fault.retry_after_seconds
        return None if now + delay >= self.give_up_at else delay
