"""Decides how many requests may be in flight at a time.

Two limits, both only felt by those who meet them:

- `Throttle` holds for all requests. It lies at the most connections allowed until the server says that it wants fewer
  requests; then it halves, at most once per round trip and interval, and recovers by one per round trip (AIMD, as TCP
  does). Where even one request at a time is too many, requests are spaced out.
- `Width` holds for large bodies only, which share a bandwidth. It grows while growing brings more bytes per second.
  Small requests wait for the server rather than for bandwidth: they may use all connections.

Pure.
"""

from dataclasses import dataclass

HALVING_INTERVAL_SECONDS = 0.1
"""Halve no more often than this: refusals come faster than answers, and are told by many requests at once."""

SMALLEST_THROTTLE = 1 / 64
"""Then a request starts every 0.64 s: the server is hardly asked, but its recovery is noticed."""

SPACING_SECONDS = 0.01
"""Time between starts at a throttle of 1/2; grows as the throttle shrinks."""

NARROWEST = 8
"""Large bodies at a time that need not prove their use: 8 connections of 90 MB/s fill a network of 6 Gbit/s."""

MIN_WINDOW_SECONDS = 0.2
"""Shortest time over which bytes per second are compared."""

WIDENING = 1.5
"""Growth of the width from one window to the next."""

MIN_GAIN = 1.1
"""Growth in bytes per second that shows that more connections help; a tenth is noise."""

HOLD_SECONDS = 10.0
"""How long a width that was found holds before more is tried again."""


class Throttle:
    """How many requests the server tolerates.

    **Invariant:** ``SMALLEST_THROTTLE <= allowed <= most``.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.allowed = float(most)
        """Requests in flight; below 1: the share of the time in which one may be."""
        self._next_start_at = float("-inf")
        self._halved_at = float("-inf")

    @property
    def is_narrowed(self) -> bool:
        """Whether the server has asked for fewer requests and may still mean it."""
        return self.allowed < self.most

    def has_room(self, in_flight: int) -> bool:
        """Whether one more request may start beside those *in_flight*."""
        return in_flight < max(1.0, self.allowed // 1)

    def delay_of_start(self, now: float) -> float:
        """How long a request that has found room waits before it is sent; it has to be sent then."""
        if self.allowed >= 1:
            return 0.0
        start_at = max(now, self._next_start_at)
        self._next_start_at = start_at + SPACING_SECONDS / self.allowed
        return start_at - now

    def note_refusal(self, *, sent_at: float, in_flight: int, now: float) -> None:
        """The server refused a request for there being too many.

        Args:
            sent_at: Clock when it was sent: what was sent before the last halving says nothing about its effect.
            in_flight: Requests in flight at present, this one included.
            now: Clock.
        """
        if sent_at < self._halved_at or now - self._halved_at < HALVING_INTERVAL_SECONDS:
            return
        self._halved_at = now
        self.allowed = max(SMALLEST_THROTTLE, min(self.allowed, max(1, in_flight)) / 2)

    def note_answer(self) -> None:
        """The server answered a request."""
        if self.allowed < self.most:
            step = 1 / self.allowed if self.allowed >= 1 else self.allowed / 4
            self.allowed = min(float(self.most), self.allowed + step)


@dataclass(frozen=True, slots=True)
class _Measured:
    width: int
    bytes_per_second: float


@dataclass(slots=True)
class _Window:
    """A time in which large bodies came while others waited for room."""

    began_at: float
    bodies: int = 0
    size: int = 0


class Width:
    """How many large bodies at a time bring the most bytes per second.

    **Invariant:** ``1 <= allowed <= most``.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.allowed = min(NARROWEST, most)
        self._narrower: _Measured | None = None
        """What came at the width before, while it is found out whether the present one brings more."""
        self._window: _Window | None = None
        self._holds_until = 0.0

    def note_body(self, size: int, *, is_limiting: bool, now: float) -> None:
        """A large body has come.

        Args:
            size: Its bytes.
            is_limiting: Whether others wait for room, and all that are in flight make progress: only then do the bytes
                of this time tell something about the width.
            now: Clock.
        """
        if not is_limiting:
            self._window = None
            return
        window = self._window = self._window or _Window(began_at=now)
        elapsed = now - window.began_at
        if elapsed > 0:  # the first body came at the beginning, not within
            window.bodies += 1
            window.size += size
        if elapsed >= MIN_WINDOW_SECONDS and window.bodies >= 2 * self.allowed:
            self._window = None
            self._judge(_Measured(self.allowed, window.size / elapsed), now)

    def _judge(self, measured: _Measured, now: float) -> None:
        narrower = self._narrower
        if narrower is not None and measured.bytes_per_second < MIN_GAIN * narrower.bytes_per_second:
            self.allowed = narrower.width
            self._narrower = None
            self._holds_until = now + HOLD_SECONDS
        elif self.allowed < self.most and now >= self._holds_until:
            self._narrower = measured
            wider = int(self.allowed * WIDENING) + 1
            # The last step is no small one: it would gain too little to be told from noise.
            self.allowed = wider if wider * WIDENING**0.5 <= self.most else self.most
        else:
            self._narrower = None


@dataclass(slots=True)
class Concurrency:
    """Both limits."""

    throttle: Throttle
    width: Width

    @classmethod
    def upto(cls, most: int) -> "Concurrency":
        """Start without evidence, with room for *most* requests."""
        return cls(Throttle(most), Width(most))

    def has_room(self, *, is_large: bool, in_flight: int, large_in_flight: int) -> bool:
        """Whether one more request may start."""
        if is_large and large_in_flight >= self.width.allowed:
            return False
        return self.throttle.has_room(in_flight)
