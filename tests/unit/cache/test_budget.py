import pytest
import trio

from s3mount.cache.budget import MIN_BUDGET, SMALLEST_BUFFER, BufferPool, capacity_for
from s3mount.ranges import KIB, MIB


class Ranges:
    """Ranges that could be given up, as the block cache would know them."""

    def __init__(self):
        self.consumed = []
        self.ahead = []

    def reclaim_alike(self, capacity):
        alike = next((buffer for buffer in self.consumed if buffer.capacity == capacity), None)
        if alike is not None:
            self.consumed.remove(alike)
        return alike

    def reclaim_idle(self):
        return self.consumed.pop(0) if self.consumed else None

    def reclaim_any(self):
        return self.reclaim_idle() or (self.ahead.pop(0) if self.ahead else None)


@pytest.fixture
def ranges():
    return Ranges()


@pytest.fixture
def pool(ranges):
    pool = BufferPool(8 * MIB, ranges)
    yield pool
    pool.check_invariants()


@pytest.mark.parametrize("size", [1, 4096, 4097, 115_000, 128 * KIB, 5 * MIB, 8 * MIB])
def test_a_buffer_is_at_most_a_quarter_larger_than_asked_for(size):
    capacity = capacity_for(size)

    assert size <= capacity <= max(SMALLEST_BUFFER, size * 5 // 4 + SMALLEST_BUFFER)


def test_sizes_that_are_used_most_waste_nothing():
    assert [capacity_for(size) for size in (128 * KIB, MIB, 8 * MIB)] == [128 * KIB, MIB, 8 * MIB]


async def test_a_released_buffer_is_used_again(pool):
    first = await pool.acquire(MIB)
    pool.release(first)

    assert await pool.acquire(MIB) is first
    assert pool.allocated_bytes == MIB


async def test_a_consumed_range_of_the_same_size_is_used_before_new_memory(pool, ranges):
    consumed = await pool.acquire(MIB)
    ranges.consumed.append(consumed)

    assert await pool.acquire(MIB) is consumed


async def test_free_buffers_of_other_sizes_make_room(pool):
    for buffer in [await pool.acquire(MIB) for _ in range(8)]:
        pool.release(buffer)

    large = await pool.acquire(2 * MIB)

    assert large.capacity == 2 * MIB
    assert pool.allocated_bytes <= pool.limit_bytes


async def test_demand_takes_the_memory_of_readahead(pool, ranges):
    ranges.ahead = [await pool.acquire(MIB) for _ in range(8)]

    assert (await pool.acquire(MIB)).capacity == MIB


async def test_readahead_takes_none_of_other_readahead(pool, ranges):
    ranges.ahead = [await pool.acquire(MIB) for _ in range(8)]

    assert pool.acquire_nowait(MIB) is None


async def test_readahead_takes_idle_ranges_of_any_size(pool, ranges):
    ranges.consumed = [await pool.acquire(2 * MIB) for _ in range(4)]

    assert pool.acquire_nowait(MIB) is not None


async def test_demands_are_served_in_the_order_of_asking(autojump_clock, pool):
    held = [await pool.acquire(MIB) for _ in range(8)]
    served = []

    async def demand(number, size):
        await trio.sleep(number)
        buffer = await pool.acquire(size)
        served.append(number)
        pool.release(buffer)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(demand, 1, 4 * MIB)
        nursery.start_soon(demand, 2, MIB)
        await trio.sleep(10)
        pool.release(held.pop())
        await trio.sleep(1)
        assert served == []
        for buffer in held[:3]:
            pool.release(buffer)
        await trio.sleep(1)

        assert served[0] == 1
        for buffer in held[3:]:
            pool.release(buffer)

    assert served == [1, 2]


async def test_readahead_does_not_overtake_a_waiting_demand(autojump_clock, pool):
    held = [await pool.acquire(MIB) for _ in range(8)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.acquire, 4 * MIB)
        await trio.sleep(1)
        pool.release(held.pop())

        assert pool.acquire_nowait(MIB) is None
        nursery.cancel_scope.cancel()


async def test_a_cancelled_demand_leaves_no_trace(autojump_clock, pool):
    held = [await pool.acquire(MIB) for _ in range(8)]

    with trio.move_on_after(1):
        await pool.acquire(MIB)
    for buffer in held:
        pool.release(buffer)

    assert pool.held_bytes == 0


def test_a_tiny_budget_still_serves_several_demands(ranges):
    pool = BufferPool(1, ranges)

    assert pool.limit_bytes == MIN_BUDGET
    assert pool.max_buffer_bytes * 8 <= MIN_BUDGET
