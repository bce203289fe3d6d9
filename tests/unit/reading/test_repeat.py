import pytest

from s3mount.errors import StoreUnavailableError
from s3mount.ranges import KIB, ByteRange
from s3mount.reading.repeat import SECOND_TRY_SECONDS, FailedRead

SPAN = ByteRange(64 * KIB, 128 * KIB)
DOWN = StoreUnavailableError("down")


def page(start):
    return ByteRange(start, start + 4 * KIB)


@pytest.fixture
def failed():
    failed = FailedRead()
    failed.note(SPAN, DOWN, 100.0)
    return failed


@pytest.mark.parametrize("start", [64 * KIB, 100 * KIB, 124 * KIB])
def test_one_page_of_what_just_failed_is_the_second_try(failed, start):
    assert failed.take_error(page(start), 100.001) is DOWN


@pytest.mark.parametrize("span", [page(60 * KIB), page(128 * KIB), SPAN])
def test_another_page_or_several_are_not(failed, span):
    assert failed.take_error(span, 100.001) is None


def test_a_later_read_is_not(failed):
    assert failed.take_error(page(64 * KIB), 100.0 + 2 * SECOND_TRY_SECONDS) is None


def test_nothing_is_a_second_try_before_a_read_failed():
    assert FailedRead().take_error(page(0), 0.0) is None


def test_a_third_try_is_made(failed):
    failed.take_error(page(64 * KIB), 100.001)

    assert failed.take_error(page(64 * KIB), 100.002) is None


def test_a_third_try_that_fails_is_followed_by_a_fourth_one(failed):
    failed.take_error(page(64 * KIB), 100.001)
    failed.note(page(64 * KIB), DOWN, 100.002)

    assert failed.take_error(page(64 * KIB), 100.003) is None


def test_a_single_page_is_tried_twice_by_the_kernel_too():
    failed = FailedRead()
    failed.note(page(0), DOWN, 100.0)

    assert failed.take_error(page(0), 100.001) is DOWN
