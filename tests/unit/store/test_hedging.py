import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3mount.store.hedging import (
    CONNECT_SECONDS,
    EXTRA_SHARE,
    MAX_STALL_SECONDS,
    MIN_COUNT,
    MIN_SECONDS,
    MIN_STALL_SECONDS,
    UNMEASURED_SECONDS,
    Budget,
    Patience,
)


def patience_after(*seconds: float) -> Patience:
    patience = Patience()
    for first_byte in seconds:
        patience.note_first_byte(first_byte)
    return patience


def test_without_measurements_patience_is_long():
    patience = patience_after(*[0.02] * (MIN_COUNT - 1))

    assert patience.first_byte_seconds == UNMEASURED_SECONDS
    assert patience.stall_seconds == MAX_STALL_SECONDS


def test_equally_fast_answers_leave_room_for_a_second_one_within_three_times_the_usual():
    patience = patience_after(*[0.02] * 64)

    assert 1.4 * 0.02 < patience.first_byte_seconds < 2 * 0.02


def test_patience_covers_all_but_the_slowest():
    patience = patience_after(*([0.02] * 95 + [0.2] * 5) * 8)

    assert 0.2 < patience.first_byte_seconds < 0.3


def test_patience_follows_a_server_that_becomes_slow():
    patience = patience_after(*[0.02] * 500, *[0.3] * 64)

    assert patience.first_byte_seconds > 0.3


def test_quick_servers_are_given_the_time_of_a_scheduler():
    patience = patience_after(*[0.0005] * 64)

    assert patience.first_byte_seconds == MIN_SECONDS
    assert patience.connect_seconds == CONNECT_SECONDS
    assert patience.stall_seconds == MIN_STALL_SECONDS


def test_a_stall_is_several_times_the_slowest_first_byte():
    patience = patience_after(*[0.3] * 64)

    assert patience.stall_seconds == pytest.approx(4 * 0.3, rel=0.25)


@given(st.lists(st.booleans(), max_size=500))
def test_extra_requests_stay_a_small_share(events):
    budget, requests, extra = Budget(), 0, 0
    for is_extra in events:
        if is_extra:
            extra += budget.take()
        else:
            requests += 1
            budget.note_request()

        assert extra <= EXTRA_SHARE * requests + 1 + 1e-9


def test_after_a_long_quiet_time_only_some_are_allowed_at_once():
    budget = Budget()
    for _ in range(10_000):
        budget.note_request()

    assert sum(budget.take() for _ in range(100)) == 10
