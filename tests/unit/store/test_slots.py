from collections.abc import Callable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from s3mount.store.concurrency import Concurrency
from s3mount.store.slots import Slots


@pytest.fixture
def slots() -> Slots:
    return Slots(Concurrency.upto(1))


async def wait(slots: Slots, served: list[str], name: str, is_urgent: Callable[[], bool]) -> None:
    await slots.take(is_large=False, is_urgent=is_urgent)
    served.append(name)
    await trio.lowlevel.checkpoint()
    slots.free(is_large=False)


async def enqueue(nursery: trio.Nursery, slots: Slots, served: list[str], **waiters: Callable[[], bool]) -> None:
    for name, is_urgent in waiters.items():
        nursery.start_soon(wait, slots, served, name, is_urgent)
        await wait_all_tasks_blocked()


def always() -> bool:
    return True


def never() -> bool:
    return False


async def test_urgent_ones_go_first_each_in_order_of_arrival(slots):
    served: list[str] = []
    async with trio.open_nursery() as nursery:
        await slots.take(is_large=False, is_urgent=always)
        await enqueue(nursery, slots, served, ahead=never, urgent=always, further=never, also_urgent=always)
        slots.free(is_large=False)

    assert served == ["urgent", "also_urgent", "ahead", "further"]
    assert slots.taken == 0


async def test_what_became_urgent_while_it_waited_counts(slots):
    wanted: set[str] = set()
    served: list[str] = []
    async with trio.open_nursery() as nursery:
        await slots.take(is_large=False, is_urgent=always)
        await enqueue(nursery, slots, served, first=never, second=lambda: "second" in wanted)
        wanted.add("second")
        slots.free(is_large=False)

    assert served == ["second", "first"]


async def test_a_cancelled_waiter_takes_no_slot_along(slots):
    served: list[str] = []
    async with trio.open_nursery() as nursery:
        await slots.take(is_large=False, is_urgent=always)
        with trio.CancelScope() as scope:
            nursery.start_soon(_cancel, scope)
            await slots.take(is_large=False, is_urgent=always)
        await enqueue(nursery, slots, served, later=always)
        slots.free(is_large=False)

    assert served == ["later"]
    assert slots.taken == 0


async def _cancel(scope: trio.CancelScope) -> None:
    await wait_all_tasks_blocked()
    scope.cancel()


async def test_a_waiter_cancelled_in_the_moment_it_is_served_frees_its_slot(slots):
    async with trio.open_nursery() as nursery:
        await slots.take(is_large=False, is_urgent=always)
        with trio.CancelScope() as scope:
            nursery.start_soon(_serve_and_cancel, slots, scope)
            await wait(slots, [], "served", always)

    assert scope.cancelled_caught
    assert slots.taken == 1  # `wait` had it when its checkpoint raised: a slot is only lost by its owner


async def _serve_and_cancel(slots: Slots, scope: trio.CancelScope) -> None:
    await wait_all_tasks_blocked()
    slots.free(is_large=False)
    scope.cancel()


async def test_there_is_no_checkpoint_where_there_is_room(slots):
    with trio.CancelScope() as scope:
        scope.cancel()
        await slots.take(is_large=False, is_urgent=always)

    assert slots.taken == 1
    assert not scope.cancelled_caught


async def test_large_ones_that_have_to_wait_do_not_hold_up_small_ones():
    slots = Slots(Concurrency.upto(10))
    for _ in range(8):
        await slots.take(is_large=True, is_urgent=always)
    with trio.move_on_after(0) as scope:
        await slots.take(is_large=True, is_urgent=always)

    await slots.take(is_large=False, is_urgent=never)

    assert scope.cancelled_caught
    assert slots.taken == 9


async def test_slots_that_are_excused_make_room(slots):
    await slots.take(is_large=False, is_urgent=always)
    slots.excused = 1

    await slots.take(is_large=False, is_urgent=always)

    assert slots.taken == 2


async def test_limits_that_have_grown_let_waiters_start():
    concurrency = Concurrency.upto(1)
    slots = Slots(concurrency)
    served: list[str] = []
    async with trio.open_nursery() as nursery:
        await slots.take(is_large=False, is_urgent=always)
        await enqueue(nursery, slots, served, patient=always)
        concurrency.throttle.allowed = 2.0
        slots.wake()
        await wait_all_tasks_blocked()
        assert served == ["patient"]

        slots.free(is_large=False)
