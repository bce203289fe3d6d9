import heapq
import random
from collections import deque
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3mount.ranges import MIB
from s3mount.store.concurrency import (
    HALVING_INTERVAL_SECONDS,
    HOLD_SECONDS,
    NARROWEST,
    SMALLEST_THROTTLE,
    Concurrency,
    Throttle,
    Width,
)


def test_nothing_is_limited_until_the_server_refuses():
    throttle = Throttle(32)
    for _ in range(100):
        throttle.note_answer()

    assert throttle.allowed == 32
    assert throttle.has_room(31)
    assert not throttle.has_room(32)
    assert throttle.delay_of_start(0.0) == 0


def test_a_refusal_halves_what_was_in_flight():
    throttle = Throttle(32)
    throttle.note_refusal(sent_at=0.0, in_flight=10, now=1.0)

    assert throttle.allowed == 5
    assert throttle.is_narrowed


def test_refusals_of_one_round_trip_halve_once():
    throttle = Throttle(32)
    for _ in range(20):
        throttle.note_refusal(sent_at=0.0, in_flight=32, now=1.0)

    assert throttle.allowed == 16


def test_refusals_of_requests_sent_before_the_halving_say_nothing():
    throttle = Throttle(32)
    throttle.note_refusal(sent_at=0.0, in_flight=32, now=1.0)
    throttle.note_refusal(sent_at=0.9, in_flight=32, now=5.0)

    assert throttle.allowed == 16


def test_refusals_of_later_requests_halve_again():
    throttle = Throttle(32)
    throttle.note_refusal(sent_at=0.0, in_flight=32, now=1.0)
    now = 1.0 + HALVING_INTERVAL_SECONDS
    throttle.note_refusal(sent_at=now - 0.01, in_flight=16, now=now)

    assert throttle.allowed == 8


def test_a_round_trip_of_answers_allows_one_more():
    throttle = Throttle(32)
    throttle.note_refusal(sent_at=0.0, in_flight=8, now=1.0)
    for _ in range(4):
        throttle.note_answer()

    assert 4.8 < throttle.allowed < 5.1


def test_below_one_at_a_time_starts_are_spaced_out():
    throttle = Throttle(32)
    throttle.note_refusal(sent_at=0.0, in_flight=1, now=1.0)

    delays = [throttle.delay_of_start(2.0) for _ in range(3)]

    assert throttle.has_room(0)
    assert not throttle.has_room(1)
    assert delays == pytest.approx([0.0, 0.02, 0.04])


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1), st.integers(1, 64)), max_size=20), st.integers(1, 64))
def test_the_throttle_stays_within_bounds_and_always_lets_one_through(events, most):
    throttle, now = Throttle(most), 0.0
    for is_refused, elapsed, in_flight in events:
        now += elapsed
        if is_refused:
            throttle.note_refusal(sent_at=now, in_flight=in_flight, now=now)
        else:
            throttle.note_answer()

        assert SMALLEST_THROTTLE <= throttle.allowed <= most
        assert throttle.has_room(0)


@dataclass
class Storm:
    """Clients that each fetch one thing after the other, and a server that refuses beyond a rate."""

    rate: float
    answer_seconds: float
    refusal_seconds: float
    clients: int
    chance: random.Random = field(default_factory=lambda: random.Random(1))

    def goodput(self, seconds: float) -> float:
        """Answers, as a share of what the server allows in this time."""
        self._throttle = Throttle(32)
        self._events: list[tuple[float, int, str, float]] = []
        self._number = count()
        self._waiting, self._in_flight = self.clients, 0
        burst = tokens = max(1.0, self.rate / 10)
        now, seen_at, answers = 0.0, 0.0, 0
        self._start(now)
        while self._events[0][0] < seconds:
            now, _, what, sent_at = heapq.heappop(self._events)
            if what == "arrives":
                tokens, seen_at = min(burst, tokens + (now - seen_at) * self.rate), now
                is_taken = tokens >= 1
                tokens -= is_taken
                after = self.answer_seconds if is_taken else self.refusal_seconds
                self._later(now + after, "answered" if is_taken else "refused", sent_at)
            elif what == "answered":
                answers += 1
                self._throttle.note_answer()
                self._in_flight -= 1
                self._waiting += 1
            elif what == "refused":
                self._throttle.note_refusal(sent_at=sent_at, in_flight=self._in_flight, now=now)
                self._in_flight -= 1
                self._later(now + self.chance.uniform(0, 0.3), "again", sent_at)
            else:
                self._waiting += 1
            self._start(now)
        return answers / (self.rate * seconds + burst)

    def _start(self, now: float) -> None:
        while self._waiting and self._throttle.has_room(self._in_flight):
            self._waiting -= 1
            self._in_flight += 1
            at = now + self._throttle.delay_of_start(now)
            self._later(at, "arrives", at)

    def _later(self, at: float, what: str, sent_at: float) -> None:
        heapq.heappush(self._events, (at, next(self._number), what, sent_at))


@pytest.mark.parametrize("rate", [20, 100, 500])
@pytest.mark.parametrize(("answer_seconds", "refusal_seconds"), [(0.001, 0.001), (0.03, 0.005), (0.03, 0.03)])
@pytest.mark.parametrize("clients", [16, 64])
def test_in_a_storm_of_refusals_most_of_what_the_server_allows_is_used(rate, answer_seconds, refusal_seconds, clients):
    assert Storm(rate, answer_seconds, refusal_seconds, clients).goodput(3.0) >= 0.7


def deliver(width: Width, *, seconds: float, ceiling: float, now: float = 0.0, is_limiting: bool = True) -> float:
    """Bodies of 8 MiB come over connections of 50 MiB/s each, and all together *ceiling*; returns the clock then."""
    end = now + seconds
    sizes = deque([8 * MIB])
    while now < end:
        now += sizes[0] / min(width.allowed * 50 * MIB, ceiling)
        width.note_body(sizes[0], is_limiting=is_limiting, now=now)
    return now


def test_the_width_grows_while_that_brings_more():
    width = Width(32)
    deliver(width, seconds=8.0, ceiling=10_000 * MIB)

    assert width.allowed == 32


def test_the_width_does_not_grow_where_that_brings_nothing():
    width = Width(32)
    deliver(width, seconds=5.0, ceiling=300 * MIB)

    assert width.allowed == NARROWEST


def test_the_width_is_tried_again_after_a_while():
    width = Width(32)
    now = deliver(width, seconds=5.0, ceiling=300 * MIB)
    deliver(width, seconds=HOLD_SECONDS + 8, ceiling=10_000 * MIB, now=now)

    assert width.allowed == 32


def test_bodies_that_nobody_waits_behind_say_nothing_about_the_width():
    width = Width(32)
    deliver(width, seconds=5.0, ceiling=10_000 * MIB, is_limiting=False)

    assert width.allowed == NARROWEST


def test_small_requests_use_all_connections_whatever_the_width():
    concurrency = Concurrency.upto(32)

    assert concurrency.has_room(is_large=False, in_flight=31, large_in_flight=0)
    assert not concurrency.has_room(is_large=True, in_flight=NARROWEST, large_in_flight=NARROWEST)


def test_few_connections_are_all_for_large_bodies_too():
    assert Width(4).allowed == 4
