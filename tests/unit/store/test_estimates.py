import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3mount.ranges import MIB
from s3mount.store.estimates import Durations, LinkEstimate
from s3mount.store.interface import UNMEASURED_LINK


@given(st.lists(st.floats(2e-4, 100), min_size=1, max_size=50), st.floats(0.01, 1))
def test_a_quantile_is_that_of_the_durations_within_the_width_of_a_bin(seconds, share):
    durations = Durations()
    for duration in seconds:
        durations.note(duration)

    low = sorted(seconds)[max(0, int(share * len(seconds) * 0.9) - 1)]
    high = sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds) * 1.1) + 1)]
    assert low / 1.21 <= durations.quantile(share) <= high * 1.21


def test_what_is_long_past_fades():
    durations = Durations()
    for seconds in [1.0] * 5000 + [0.01] * 3000:
        durations.note(seconds)

    assert durations.quantile(0.99) == pytest.approx(0.01, rel=0.25)


def test_weights_stay_finite():
    durations = Durations()
    for _ in range(30_000):
        durations.note(0.02)

    assert durations.quantile(0.5) == pytest.approx(0.02, rel=0.2)


def test_an_unmeasured_link_is_assumed():
    assert LinkEstimate().link == UNMEASURED_LINK


def test_a_link_is_what_was_measured():
    estimate = LinkEstimate()
    for _ in range(50):
        estimate.note_first_byte(0.1)
        estimate.note_body(8 * MIB, 0.5)

    assert estimate.link.round_trip_seconds == pytest.approx(0.1, rel=0.2)
    assert estimate.link.bytes_per_second == 16 * MIB


def test_one_slow_first_byte_does_not_make_the_link_slow():
    estimate = LinkEstimate()
    for seconds in [0.02] * 20 + [5.0]:
        estimate.note_first_byte(seconds)

    assert estimate.link.round_trip_seconds == pytest.approx(0.02, rel=0.2)


def test_small_bodies_say_nothing_about_bytes_per_second():
    estimate = LinkEstimate()
    estimate.note_body(100_000, 0.000_001)

    assert estimate.link.bytes_per_second == UNMEASURED_LINK.bytes_per_second
