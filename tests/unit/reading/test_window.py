import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from s3mount.ranges import GIB, KIB, MIB, ByteRange
from s3mount.reading.window import BLOCK_SIZE, RANGE_SIZE, Window

BUDGET = 64 * MIB


def plans_of_sequential_read(size, *, step=1 * MIB, budget=BUDGET, max_readahead=64 * MIB):
    window = Window(size, max_readahead)
    spans = [ByteRange(start, min(start + step, size)) for start in range(0, size, step)]
    return [window.plan(span, budget=budget) for span in spans]


def test_a_small_object_is_fetched_whole():
    plan = Window(RANGE_SIZE, 64 * MIB).plan(ByteRange(100, 200), budget=BUDGET)

    assert plan.demand == ByteRange(0, RANGE_SIZE)
    assert not plan.ahead.size


def test_a_random_read_fetches_just_its_blocks():
    window = Window(GIB, 64 * MIB)

    plan = window.plan(ByteRange(500 * MIB + 5, 500 * MIB + 4 * KIB), budget=BUDGET)

    assert plan.demand == ByteRange(500 * MIB, 500 * MIB + BLOCK_SIZE)
    assert not plan.ahead.size


def test_demand_ends_with_the_object():
    window = Window(GIB + 1, 64 * MIB)

    plan = window.plan(ByteRange(GIB, GIB + 1), budget=BUDGET)

    assert plan.demand == ByteRange(GIB, GIB + 1)


def test_a_sequential_read_doubles_its_window_up_to_the_limit():
    plans = plans_of_sequential_read(GIB, max_readahead=16 * MIB)

    furthest = 0
    for index, plan in enumerate(plans):
        furthest = max(furthest, plan.ahead.stop)
        assert furthest <= (index + 1) * MIB + 16 * MIB + RANGE_SIZE
    assert furthest == GIB


def test_a_long_sequential_read_asks_once_per_range():
    plans = plans_of_sequential_read(GIB)

    ahead = [plan.ahead for plan in plans if plan.ahead.size]
    assert sum(-(-span.size // RANGE_SIZE) for span in ahead) <= 140


def test_readahead_never_asks_twice_for_the_same_bytes():
    spans = [plan.ahead for plan in plans_of_sequential_read(256 * MIB, step=128 * KIB) if plan.ahead.size]

    assert all(left.stop <= right.start for left, right in itertools.pairwise(spans))


def test_a_seek_shrinks_the_window():
    window = Window(GIB, 64 * MIB)
    for start in range(0, 16 * MIB, MIB):
        window.plan(ByteRange(start, start + MIB), budget=BUDGET)

    plan = window.plan(ByteRange(700 * MIB, 700 * MIB + 4 * KIB), budget=BUDGET)

    assert not plan.ahead.size


def test_kernel_readahead_out_of_order_is_still_sequential():
    window = Window(GIB, 64 * MIB)
    order = [0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11]

    plans = [window.plan(ByteRange(index * 128 * KIB, (index + 1) * 128 * KIB), budget=BUDGET) for index in order]

    assert max(plan.ahead.stop for plan in plans) >= 16 * MIB


def test_reading_on_after_a_seek_reads_ahead_again():
    window = Window(GIB, 64 * MIB)
    window.plan(ByteRange(500 * MIB, 501 * MIB), budget=BUDGET)

    plan = window.plan(ByteRange(501 * MIB, 502 * MIB), budget=BUDGET)

    assert plan.ahead.start == 502 * MIB
    assert plan.ahead.size


def test_readahead_keeps_to_its_budget():
    plans = plans_of_sequential_read(GIB, budget=2 * MIB)

    assert max(plan.ahead.stop - plan.demand.stop for plan in plans) <= 3 * MIB


@settings(deadline=None)
@given(
    st.integers(min_value=RANGE_SIZE + 1, max_value=GIB),
    st.lists(st.tuples(st.integers(0, GIB - 1), st.integers(1, MIB)), max_size=30),
)
def test_plans_cover_the_read_and_stay_inside_the_object(size, reads):
    window = Window(size, 64 * MIB)

    for offset, length in reads:
        span = ByteRange(offset, offset + length).clamp(size)
        if span.size:
            plan = window.plan(span, budget=BUDGET)
            assert plan.demand.start <= span.start
            assert plan.demand.stop >= span.stop
            assert plan.demand.size < length + 2 * BLOCK_SIZE
            assert plan.ahead.stop <= size
