"""Estimates of what is usual, from what was seen last: durations by quantile, and the link as a whole. Pure."""

import dataclasses
import math

from s3mount.ranges import MIB
from s3mount.store.interface import UNMEASURED_LINK

MIN_BODY_BYTES = MIB
"""Smaller bodies tell nothing about bytes per second: much of them came with the head."""

_SHORTEST_SECONDS = 1e-4
_GROWTH: float = 1.2
_LOG_GROWTH = math.log(_GROWTH)
_BINS = 80
"""From 0.1 ms to 180 s, each a fifth longer than the one before."""

_FADING = 0.998
"""What a duration still weighs when the next one comes: about 500 count."""

_HEAVIEST = 1e9

_RATE_SHARE = 0.1
"""Weight of a new rate against all before."""

_REFRESH_EVERY = 16
"""A quantile costs 5 µs, which is too much for every request."""


class Durations:
    """How long something takes, by quantile; the last few hundred count.

    Adding weighs less than a microsecond: the bins' widths grow like the durations.
    """

    def __init__(self) -> None:
        self.count = 0
        """Noted ever."""
        self._weights = [0.0] * _BINS
        self._total = 0.0
        self._next_weight = 1.0

    def note(self, seconds: float) -> None:
        """Take one more into account."""
        place = int(math.log(max(seconds, _SHORTEST_SECONDS) / _SHORTEST_SECONDS) / _LOG_GROWTH)
        self._weights[min(place, _BINS - 1)] += self._next_weight
        self._total += self._next_weight
        self._next_weight /= _FADING  # older ones weigh less, without touching them
        self.count += 1
        if self._next_weight > _HEAVIEST:
            self._weights = [weight / _HEAVIEST for weight in self._weights]
            self._total /= _HEAVIEST
            self._next_weight /= _HEAVIEST

    def quantile(self, share: float) -> float:
        """Seconds that this share of them do not exceed; something must have been noted."""
        assert self.count > 0
        missing = share * self._total
        for place, weight in enumerate(self._weights):
            if weight and missing <= weight:
                return _SHORTEST_SECONDS * math.pow(_GROWTH, place + max(0.0, missing) / weight)
            missing -= weight
        return _SHORTEST_SECONDS * math.pow(_GROWTH, _BINS)


class LinkEstimate:
    """What a range GET costs at present."""

    def __init__(self) -> None:
        self.link = UNMEASURED_LINK
        """The estimates; what was not measured is assumed."""
        self._first_bytes = Durations()
        self._has_rate = False

    def note_first_byte(self, seconds: float) -> None:
        """The first byte of an answer came so long after the request was sent."""
        self._first_bytes.note(seconds)
        count = self._first_bytes.count
        if count < _REFRESH_EVERY or count % _REFRESH_EVERY == 0:
            self.link = dataclasses.replace(self.link, round_trip_seconds=self._first_bytes.quantile(0.5))

    def note_body(self, size: int, seconds: float) -> None:
        """So many bytes took so long, from the first one on."""
        if size < MIN_BODY_BYTES or seconds <= 0:
            return
        before, rate = self.link.bytes_per_second, size / seconds
        if self._has_rate:
            rate = before + _RATE_SHARE * (rate - before)
        self._has_rate = True
        self.link = dataclasses.replace(self.link, bytes_per_second=rate)
