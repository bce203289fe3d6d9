from dataclasses import dataclass

import pytest

from s3mount.cache.eviction import EvictionOrder


@dataclass(eq=False)
class Range:
    capacity: int = 10
    is_consumed: bool = False
    is_pinned: bool = False


@pytest.fixture
def order():
    return EvictionOrder()


def add(order, **kwargs):
    member = Range(**kwargs)
    order.add(member)
    return member


def consume(order, member):
    member.is_consumed = True
    order.note_use(member)


def test_the_least_recently_used_goes_first(order):
    first, second = add(order), add(order)
    order.note_use(first)

    assert order.pop_any() is second
    assert order.pop_any() is first
    assert order.pop_any() is None


def test_a_consumed_range_goes_before_one_that_was_not_read(order):
    add(order)
    consumed = add(order)
    consume(order, consumed)

    assert order.pop_any() is consumed


def test_a_pinned_range_never_goes(order):
    add(order, is_pinned=True)

    assert order.pop_any() is None


def test_only_a_consumed_range_of_that_capacity_is_alike(order):
    small, large = add(order, capacity=10), add(order, capacity=20)
    consume(order, small)

    assert order.pop_alike(20) is None
    consume(order, large)
    assert order.pop_alike(20) is large


def test_a_range_that_comes_consumed_is_one(order):
    consumed = add(order, is_consumed=True)

    assert order.pop_alike(10) is consumed
    assert consumed not in order


def test_a_consumed_range_that_is_used_again_goes_later(order):
    first, second = add(order, is_consumed=True), add(order, is_consumed=True)
    order.note_use(first)

    assert order.pop_any() is second
    assert first in order
