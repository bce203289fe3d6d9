"""Each test is a pattern of reads and the requests it leads to."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3mount.cache.blocks import ObjectBlocks
from s3mount.ids import ETag, ObjectId
from s3mount.ranges import GIB, KIB, MIB, ByteRange
from s3mount.reading.streams import BLOCK_SIZE
from s3mount.reading.window import MAX_FRESH, MAX_STREAMS, RANGE_SIZE, Window
from s3mount.store.interface import Link

LAN = Link(round_trip_seconds=0.001, bytes_per_second=1e9)
S3 = Link(round_trip_seconds=0.03, bytes_per_second=90e6)
BUDGET = 384 * MIB


class Present:
    """Stands for a range in memory."""

    def __init__(self, span):
        self.start, self.stop = span


class Reading:
    """Reads of one object, in a memory that never forgets."""

    def __init__(self, size=GIB, *, link=LAN, budget=BUDGET, max_readahead=256 * MIB, expects_tail=False, streams=1):
        self.window = Window(size, max_readahead, expects_tail=expects_tail)
        self.size = size
        self.link = link
        self.budget = budget
        self.streams = streams
        self.blocks = ObjectBlocks(ObjectId("k", ETag("e")), size)
        self.requests = []
        self.planned_ahead = []
        self.read_bytes = 0

    def read(self, start, size):
        """One read; returns the requests it leads to."""
        span = ByteRange(start, start + size).clamp(self.size)
        plan = self.window.plan(span, link=self.link, budget=self.budget, streams=self.streams)
        assert plan.demand.start <= span.start
        assert plan.demand.stop >= span.stop
        assert all(0 <= ahead.start < ahead.stop <= self.size for ahead in plan.ahead)
        wanted_in_turn = (plan.demand, *plan.ahead) if plan.is_demand_first else (*plan.ahead, plan.demand)
        requests = [gap for wanted in wanted_in_turn for gap in self._take(wanted)]
        self.planned_ahead += plan.ahead
        self.requests += requests
        self.read_bytes += span.size
        return requests

    def read_all(self, spans):
        for start, size in spans:
            self.read(start, size)

    @property
    def fetched_bytes(self):
        return sum(span.size for span in self.requests)

    def _take(self, span):
        gaps = self.blocks.gaps(span)
        for gap in gaps:
            self.blocks.add(Present(gap))
        return gaps


def pieces(start, stop, size):
    return [(at, min(size, stop - at)) for at in range(start, stop, size)]


def test_a_small_object_is_one_request():
    reading = Reading(RANGE_SIZE)

    assert reading.read(100, 100) == [(0, RANGE_SIZE)]
    assert reading.read(5 * MIB, MIB) == []


def test_a_random_read_fetches_just_its_blocks():
    reading = Reading()

    assert reading.read(500 * MIB + 5, 4 * KIB) == [(500 * MIB, 500 * MIB + BLOCK_SIZE)]


@pytest.mark.parametrize("size", [4 * KIB, 64 * KIB, 256 * KIB])
def test_random_reads_fetch_no_more_than_their_blocks(size):
    rng = random.Random(1)
    reading = Reading(2 * GIB)
    spans = [
        ByteRange(start, start + size) for start in (rng.randrange(2 * GIB // 4096 - 64) * 4096 for _ in range(4000))
    ]

    reading.read_all((span.start, size) for span in spans)

    assert sum(span.size for span in reading.planned_ahead) <= 0.01 * sum(
        span.aligned(BLOCK_SIZE).size for span in spans
    )


def test_demand_ends_with_the_object():
    reading = Reading(GIB + 1)

    assert reading.read(GIB, 1) == [(GIB, GIB + 1)]


@pytest.mark.parametrize("step", [16 * KIB, 128 * KIB, MIB])
def test_a_sequential_read_takes_about_a_request_per_range_and_fetches_nothing_twice(step):
    reading = Reading(GIB)

    reading.read_all(pieces(0, GIB, step))

    assert len(reading.requests) <= 100
    assert reading.fetched_bytes == GIB


def test_a_shard_of_150_mb_read_by_4_kib_takes_at_most_20_requests():
    reading = Reading(150_000_000)

    reading.read_all(pieces(0, 150_000_000, 16 * KIB))

    assert len(reading.requests) <= 20


def test_readahead_begins_with_the_second_read_and_grows_with_what_was_read():
    reading = Reading()

    assert reading.read(0, 128 * KIB) == [(0, 128 * KIB)]
    sizes = [
        sum(span.size for span in reading.read(start, size)) for start, size in pieces(128 * KIB, 8 * MIB, 128 * KIB)
    ]

    assert sizes[0] > 128 * KIB
    assert reading.fetched_bytes <= 5 * 8 * MIB + RANGE_SIZE


def test_a_fast_long_link_gets_enough_requests_to_fill_it():
    reading = Reading(4 * GIB, link=S3)
    reading.read_all(pieces(0, 512 * MIB, MIB))

    ahead = reading.fetched_bytes - 512 * MIB

    assert ahead >= 1e9 * (S3.round_trip_seconds + 16 * MIB / S3.bytes_per_second) - RANGE_SIZE


def test_streams_that_share_a_link_need_less_each():
    alone, one_of_four = Reading(4 * GIB, link=S3), Reading(4 * GIB, link=S3, streams=4)

    alone.read_all(pieces(0, 256 * MIB, MIB))
    one_of_four.read_all(pieces(0, 256 * MIB, MIB))

    assert one_of_four.fetched_bytes - 256 * MIB < (alone.fetched_bytes - 256 * MIB) / 2


def test_a_short_link_gets_no_more_than_it_needs():
    reading = Reading(4 * GIB, link=LAN)

    reading.read_all(pieces(0, 512 * MIB, MIB))

    assert reading.fetched_bytes - 512 * MIB <= 64 * MIB + 2 * RANGE_SIZE


def test_readahead_keeps_to_its_budget():
    reading = Reading(budget=2 * MIB)

    reading.read_all(pieces(0, 64 * MIB, 128 * KIB))

    assert reading.fetched_bytes <= 66 * MIB
    assert len(reading.requests) < 140


def test_a_budget_below_a_block_leaves_demand_alone():
    reading = Reading(budget=BLOCK_SIZE - 1)

    reading.read_all(pieces(0, 4 * MIB, BLOCK_SIZE))

    assert reading.requests == [ByteRange(start, start + size) for start, size in pieces(0, 4 * MIB, BLOCK_SIZE)]


def test_no_request_is_a_scrap_at_the_end_of_the_object():
    reading = Reading(64 * MIB + 5)

    reading.read_all(pieces(0, 64 * MIB + 5, MIB))

    assert reading.requests[-1].size > MIB


def test_kernel_readahead_out_of_order_is_still_sequential():
    in_order, swapped = Reading(256 * MIB), Reading(256 * MIB)
    spans = pieces(0, 256 * MIB, 128 * KIB)
    in_order.read_all(spans)

    swapped.read_all(itertools.chain.from_iterable(zip(spans[1::2], spans[::2], strict=True)))

    assert len(swapped.requests) <= 2 * len(in_order.requests)
    assert swapped.fetched_bytes == 256 * MIB


def test_small_steps_back_do_not_end_a_stream():
    reading = Reading(256 * MIB)
    for start, size in pieces(0, 256 * MIB, 128 * KIB):
        reading.read(start, size)
        if start % (16 * MIB) == 8 * MIB:
            reading.read(start - MIB, 128 * KIB)

    assert reading.fetched_bytes == 256 * MIB
    assert len(reading.requests) <= 60


@pytest.mark.parametrize("count", [8, 32])
def test_interleaved_readers_are_streams_of_their_own(count):
    reading = Reading(GIB, budget=BUDGET // count)
    slices = [pieces(index * GIB // count, (index + 1) * GIB // count, 256 * KIB) for index in range(count)]

    reading.read_all(itertools.chain.from_iterable(zip(*slices, strict=True)))

    assert reading.fetched_bytes == GIB
    assert len(reading.requests) <= 140 + 28 * count


def test_a_second_reader_from_the_start_is_a_stream_of_its_own():
    reading = Reading(GIB)
    reading.read_all(pieces(0, 100 * MIB, MIB))
    reading.read(0, MIB)
    before = len(reading.planned_ahead)

    reading.read(MIB, MIB)

    assert reading.planned_ahead[before].start == 2 * MIB


def test_reading_the_end_first_does_not_disturb_the_stream_at_the_start():
    reading = Reading()
    reading.read(0, 4 * KIB)
    reading.read(GIB - 64 * KIB, 64 * KIB)

    reading.read_all(pieces(4 * KIB, 64 * MIB, 128 * KIB))

    assert len(reading.requests) <= 20
    assert reading.window.is_tail_first


def test_the_end_is_fetched_with_the_first_read_where_that_is_the_habit():
    reading = Reading(expects_tail=True)

    assert reading.read(0, 4 * KIB) == [(0, BLOCK_SIZE), (GIB - BLOCK_SIZE, GIB)]
    assert reading.read(GIB - 64 * KIB, 64 * KIB) == []


def test_a_read_of_the_middle_first_is_no_habit_of_the_end():
    reading = Reading()

    for start in range(0, 6 * MIB, MIB):
        reading.read(start, MIB)

    assert reading.window.is_tail_first is False


def test_reading_backwards_reads_ahead_downwards():
    reading = Reading(256 * MIB)

    reading.read_all(reversed(pieces(0, 256 * MIB, 256 * KIB)))

    assert reading.fetched_bytes == 256 * MIB
    assert len(reading.requests) <= 60


def test_small_gaps_are_read_over():
    reading = Reading(GIB, link=S3)

    reading.read_all((start, 768 * KIB) for start in range(0, 256 * MIB, MIB))

    assert len(reading.requests) <= 60


def test_a_gap_is_read_over_only_as_far_as_bytes_read_have_earned_it():
    reading = Reading(GIB, link=S3)

    reading.read_all((start, 128 * KIB) for start in range(0, 512 * MIB, 2 * MIB + 640 * KIB + 4096))

    assert reading.fetched_bytes <= 2 * (reading.read_bytes + 128 * KIB * len(reading.requests))


@pytest.mark.parametrize("step", [4 * MIB, -4 * MIB])
def test_strided_reads_are_fetched_ahead_item_by_item(step):
    reading = Reading(GIB)
    starts = list(range(0, GIB, 4 * MIB))[:: 1 if step > 0 else -1]

    requests = [reading.read(start, 100_000) for start in starts]

    assert sorted(reading.requests) == [ByteRange(start, start + BLOCK_SIZE) for start in sorted(starts)]
    late = zip(requests[6:], starts[6:], strict=True)
    assert all(span.start != start for made, start in late for span in made)


def test_random_reads_after_a_sequential_one_fetch_just_their_blocks():
    reading = Reading(GIB)
    reading.read_all(pieces(0, 64 * MIB, MIB))

    requests = [reading.read(start, 4 * KIB) for start in (700 * MIB, 300 * MIB, 900 * MIB)]

    assert all(len(made) == 1 and made[0].size == BLOCK_SIZE for made in requests)


def test_reading_on_after_random_reads_reads_ahead_again():
    reading = Reading(GIB)
    rng = random.Random(3)
    for _ in range(200):
        reading.read(rng.randrange(GIB - 4096), 4096)

    reading.read_all(pieces(500 * MIB, 600 * MIB, MIB))

    assert len(reading.requests) <= 200 + 60


def test_short_runs_teach_caution():
    reading = Reading(GIB)
    rng = random.Random(4)
    starts = rng.sample(range(0, GIB // MIB, 8), 100)

    for start in starts:
        reading.read_all(pieces(start * MIB, start * MIB + MIB, 256 * KIB))

    assert reading.fetched_bytes <= 1.6 * reading.read_bytes


def test_a_long_run_ends_the_caution_of_short_ones():
    reading = Reading(4 * GIB)
    for start in range(0, 200, 10):
        reading.read_all(pieces(start * MIB, start * MIB + MIB, 256 * KIB))
    before = len(reading.requests)

    reading.read_all(pieces(GIB, 2 * GIB, MIB))

    assert len(reading.requests) - before <= 140


def test_columns_read_at_once_are_hardly_read_beyond_their_end():
    reading = Reading()
    columns = [pieces(group * 64 * MIB + 5 * MIB, group * 64 * MIB + 13 * MIB, MIB) for group in range(8)]

    reading.read_all(itertools.chain.from_iterable(zip(*columns, strict=True)))

    assert reading.fetched_bytes <= 1.4 * reading.read_bytes


def test_pieces_of_one_length_are_hardly_read_beyond_their_end():
    generator = random.Random(4)
    reading = Reading(16 * GIB)

    for _ in range(50):
        start = generator.randrange(16 * GIB // MIB) * MIB
        reading.read_all(pieces(start, start + 3 * MIB, MIB))

    assert reading.fetched_bytes <= 1.1 * reading.read_bytes


def test_a_stream_goes_on_where_others_were_read_just_before_it():
    """As loaders read the headers of all tensors first: these single reads take nothing over from the stream."""
    reading = Reading()
    for start in range(0, 256 * MIB, 16 * MIB):
        reading.read(start, 100 * KIB)
    before = len(reading.requests)

    reading.read_all(pieces(0, 256 * MIB, MIB))

    assert len(reading.requests) - before <= 2 * 256 // 8


def test_the_missing_end_of_a_read_is_fetched_with_the_readahead_behind_it():
    reading = Reading()
    reading.read_all(pieces(20 * KIB, 20 * KIB + 2 * MIB, MIB))
    asked = reading.planned_ahead[-1].stop

    requests = reading.read(asked - 256 * KIB, MIB)

    assert requests[0].start == asked
    assert requests[0].stop > asked - 256 * KIB + MIB


def test_what_could_not_be_fetched_is_planned_again():
    window = Window(GIB, 256 * MIB)
    window.plan(ByteRange(0, MIB), link=LAN, budget=BUDGET)
    refused = window.plan(ByteRange(MIB, 2 * MIB), link=LAN, budget=BUDGET)
    refused.stream.give_back(refused.ahead[0])

    plan = window.plan(ByteRange(2 * MIB, 3 * MIB), link=LAN, budget=BUDGET)

    assert plan.ahead[0].start == 3 * MIB


def test_no_more_streams_are_remembered_than_the_bound():
    reading = Reading(64 * GIB)
    rng = random.Random(5)

    for _ in range(1000):
        reading.read(rng.randrange(64 * GIB), 1)

    assert len(reading.window._streams) <= MAX_STREAMS
    assert len(reading.window._fresh) <= MAX_FRESH


READS = st.lists(
    st.one_of(
        st.tuples(st.integers(0, GIB - 1), st.integers(1, MIB), st.integers(1, 1)),
        st.tuples(st.integers(0, GIB - 1), st.integers(1, MIB), st.integers(2, 40)),
        st.tuples(st.integers(0, GIB - 1), st.integers(1, MIB), st.integers(-40, -2)),
    ),
    max_size=20,
)


@settings(deadline=None, max_examples=200)
@given(
    size=st.integers(RANGE_SIZE + 1, GIB),
    runs=READS,
    budget=st.integers(0, BUDGET),
    link=st.sampled_from([LAN, S3]),
    expects_tail=st.booleans(),
)
def test_plans_cover_the_read_stay_inside_and_ask_for_no_byte_that_is_there(size, runs, budget, link, expects_tail):
    reading = Reading(size, link=link, budget=budget, expects_tail=expects_tail)

    for offset, length, count in runs:
        for index in range(abs(count)):
            start = offset + (index if count > 0 else -index) * length
            if 0 <= start < size:
                reading.read(start, length)

    reading.blocks.check_invariants()
    assert reading.fetched_bytes <= size


@settings(deadline=None)
@given(size=st.integers(RANGE_SIZE + 1, GIB), start=st.integers(0, GIB), step=st.integers(4 * KIB, MIB))
def test_a_stream_never_plans_a_byte_ahead_twice(size, start, step):
    reading = Reading(size)

    reading.read_all(pieces(start, min(size, start + 64 * step), step))

    assert all(left.stop <= right.start for left, right in itertools.pairwise(reading.planned_ahead))
