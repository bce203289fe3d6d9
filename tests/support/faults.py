"""What a `FaultProxy` can do to a request, and rules that say to which.

An `Action` is a set of primitives which go together; a `Rule` chooses requests. Where a rule is not enough, any
callable from `Request` to ``Action | None`` is a hook as well.
"""

import fnmatch
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from tests.support.http_heads import Kind, Request


class End(Enum):
    """How a body ends early."""

    RESET = auto()
    """TCP RST, after what was sent has reached the client's kernel."""
    CLOSE = auto()
    """TCP FIN: shorter than Content-Length says."""
    TERMINATE = auto()
    """As a correct chunked body: only the missing bytes tell."""


@dataclass(frozen=True, slots=True)
class Cut:
    """End the body early; no effect on a body that is not longer."""

    after_bytes: int
    end: End


@dataclass(frozen=True, slots=True)
class Stall:
    """Stop in the body until the event is set, then go on; at 0 the head is sent, then nothing."""

    after_bytes: int
    until: threading.Event


@dataclass(frozen=True, slots=True)
class Answer:
    """A response the server knows nothing of."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Action:
    """Done to one request, in the order of the fields. The default does nothing."""

    delay_seconds: float = 0.0
    """Wait before the server is asked."""
    drop: bool = False
    """Never answer; the connection stays open until the client closes it."""
    reset: bool = False
    """Reset the connection instead of answering."""
    answer: Answer | None = None
    """Answer without asking the server."""
    request_headers: Mapping[str, str | None] = field(default_factory=dict)
    """Change what the server gets; None removes."""
    answer_delay_seconds: float = 0.0
    """Wait after the server has answered, before the client gets its first byte."""
    hold: threading.Event | None = None
    """The same, until the event is set."""
    status: int | None = None
    """Replace the status the server gave."""
    response_headers: Mapping[str, str | None] = field(default_factory=dict)
    """Change what the client gets; None removes."""
    rewrite_body: Callable[[bytes], bytes] | None = None
    """Change the whole body; Content-Length follows unless `response_headers` sets it."""
    stall: Stall | None = None
    cut: Cut | None = None
    bytes_per_second: float | None = None
    """Send the body no faster."""
    close_after: bool = False
    """Close the connection after the whole response, without having announced it."""


NOTHING = Action()

Hook = Callable[[Request], Action | None]
"""Decides on a request; None leaves it to the next hook. Called in the connections' threads."""


class Rule:
    """A hook that chooses requests by what they are and by how many came before. Thread-safe."""

    def __init__(
        self,
        action: Action | Callable[[Request], Action],
        *,
        kind: Kind | None = None,
        key: str | None = None,
        range_start: int | None = None,
        where: Callable[[Request], bool] | None = None,
        skip: int = 0,
        every: int = 1,
        times: int | None = None,
        probability: float = 1.0,
        seed: int = 0,
    ) -> None:
        """Apply *action* to the requests that match.

        Args:
            action: What to do, or what makes it from the request.
            kind: Only requests of this kind.
            key: Only keys that fit this pattern, as in `fnmatch`.
            range_start: Only ranges that begin here.
            where: Only requests for which it is true.
            skip: Leave out so many matching requests first.
            every: Of the following ones take the first and every n-th after it.
            times: Act so often at most.
            probability: Act by chance, from a generator seeded with *seed*.
            seed: See *probability*.
        """
        self._action = action
        self._kind, self._key, self._range_start, self._where = kind, key, range_start, where
        self._skip, self._every, self._times, self._probability = skip, every, times, probability
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.matched = 0
        """Requests that fitted, acted upon or not."""
        self.fired = 0
        """Requests acted upon."""

    def __call__(self, request: Request) -> Action | None:
        """The action if *request* is chosen."""
        if not self._fits(request):
            return None
        with self._lock:
            self.matched += 1
            if not self._is_due():
                return None
            self.fired += 1
        return self._action if isinstance(self._action, Action) else self._action(request)

    def _fits(self, request: Request) -> bool:
        return (
            (self._kind is None or request.kind is self._kind)
            and (self._key is None or fnmatch.fnmatchcase(request.key, self._key))
            and (self._range_start is None or request.range_start == self._range_start)
            and (self._where is None or self._where(request))
        )

    def _is_due(self) -> bool:
        index = self.matched - 1 - self._skip
        if index < 0 or index % self._every or (self._times is not None and self.fired >= self._times):
            return False
        return self._probability >= 1.0 or self._random.random() < self._probability


def s3_error(status: int, code: str, *, headers: Mapping[str, str] | None = None) -> Action:
    """Answer with an error of S3, as 503 and SlowDown."""
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>Injected: {code}.</Message>'
        "<RequestId>0000000000000000</RequestId></Error>"
    ).encode()
    return Action(answer=Answer(status, {"Content-Type": "application/xml", **(headers or {})}, body))


def slow_down(*, retry_after: int | None = None) -> Action:
    """Answer 503 SlowDown."""
    return s3_error(503, "SlowDown", headers=None if retry_after is None else {"Retry-After": str(retry_after)})


def cut_after(size: int, end: End = End.RESET) -> Action:
    """Send *size* bytes of the body, then end it."""
    return Action(cut=Cut(size, end))


def stall_after(size: int, until: threading.Event) -> Action:
    """Send *size* bytes of the body, then wait for the event."""
    return Action(stall=Stall(size, until))


def ignore_range() -> Action:
    """Let the server answer with the whole object."""
    return Action(request_headers={"Range": None})
