import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3mount.errors import StoreUnavailableError
from s3mount.store.retry import Fault, FaultKind, Retries, RetryPolicy

POLICY = RetryPolicy(deadline_seconds=60.0)


def fault(kind: FaultKind = FaultKind.TRANSIENT, *, retry_after_seconds: float | None = None) -> Fault:
    return Fault(kind, StoreUnavailableError(), retry_after_seconds=retry_after_seconds)


def bounds(kind: FaultKind, count: int) -> list[float]:
    return [POLICY.delay_bound_seconds(kind, failures) for failures in range(1, count + 1)]


def test_delays_double_up_to_a_bound():
    assert bounds(FaultKind.TRANSIENT, 9) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 8.0, 8.0]


def test_throttling_starts_slower():
    assert bounds(FaultKind.THROTTLED, 5) == [0.5, 1.0, 2.0, 4.0, 8.0]


def test_many_failures_do_not_overflow():
    assert POLICY.delay_bound_seconds(FaultKind.TRANSIENT, 100_000) == 8.0


@given(st.floats(0, 1, exclude_max=True))
def test_the_delay_is_a_random_share_of_the_bound(share: float):
    retries = Retries(POLICY, counted_from=0.0)

    first = retries.delay_after(fault(), now=0.0, share=share)
    second = retries.delay_after(fault(), now=0.0, share=share)

    assert first == pytest.approx(0.1 * share)
    assert second == pytest.approx(0.2 * share)


def test_retry_after_is_a_lower_bound():
    retries = Retries(POLICY, counted_from=0.0)

    assert retries.delay_after(fault(FaultKind.THROTTLED, retry_after_seconds=7.0), now=0.0, share=0.5) == 7.25


def test_the_deadline_ends_it():
    retries = Retries(POLICY, counted_from=100.0)

    assert retries.delay_after(fault(), now=159.0, share=0.0) == 0.0
    assert retries.delay_after(fault(), now=160.0, share=0.0) is None


def test_a_delay_beyond_the_deadline_is_not_waited():
    retries = Retries(POLICY, counted_from=0.0)

    assert retries.delay_after(fault(retry_after_seconds=61.0), now=0.0, share=0.0) is None


def test_final_faults_are_not_retried():
    assert Retries(POLICY, counted_from=0.0).delay_after(fault(FaultKind.FINAL), now=0.0, share=0.0) is None


def test_corrupt_answers_are_asked_for_few_times():
    retries = Retries(POLICY, counted_from=0.0)

    delays = [
        retries.delay_after(fault(FaultKind.CORRUPT), now=0.0, share=0.0) for _ in range(POLICY.max_corrupt_tries)
    ]

    assert delays == [*[0.0] * (POLICY.max_corrupt_tries - 1), None]


@pytest.mark.parametrize("kind", [FaultKind.CREDENTIALS, FaultKind.CLOCK, FaultKind.PRECONDITION])
def test_repairs_are_tried_at_once_and_once(kind: FaultKind):
    retries = Retries(POLICY, counted_from=0.0)

    assert retries.delay_after(fault(kind), now=0.0, share=0.9) == 0.0
    assert retries.delay_after(fault(), now=0.0, share=0.0) == 0.0
    assert retries.delay_after(fault(kind), now=0.0, share=0.9) is None


def test_progress_starts_anew():
    retries = Retries(POLICY, counted_from=0.0)
    for _ in range(3):
        retries.delay_after(fault(FaultKind.CORRUPT), now=0.0, share=0.0)

    retries.note_progress(59.0)

    assert retries.delay_after(fault(), now=118.0, share=0.5) == pytest.approx(0.05)
    assert retries.corrupt_answers == 0


def test_where_starts_are_limited_already_throttled_requests_come_back_soon():
    policy = RetryPolicy(deadline_seconds=60).where_starts_are_limited()

    assert [policy.delay_bound_seconds(FaultKind.THROTTLED, failures) for failures in (1, 2, 3, 9)] == [
        0.1,
        0.2,
        0.4,
        0.5,
    ]
    assert policy.delay_bound_seconds(FaultKind.TRANSIENT, 9) == RetryPolicy(60).max_delay_seconds
