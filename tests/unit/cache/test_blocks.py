import pytest
import trio

from s3mount.cache.blocks import BlockCache
from s3mount.cache.shares import IDLE_SECONDS
from s3mount.errors import StoreUnavailableError
from s3mount.metrics import Metrics, RequestKind
from s3mount.ranges import KIB, MIB, ByteRange
from s3mount.store.memory import MemoryStore

SIZE = 4 * MIB
CONTENT = bytes(range(256)) * (SIZE // 256)


@pytest.fixture
def store():
    return MemoryStore(latency_seconds=1.0)


@pytest.fixture
async def cache(store, nursery):
    cache = BlockCache(store, nursery, Metrics(), limit_bytes=8 * MIB)
    yield cache
    cache.check_invariants()


@pytest.fixture
def blocks(store, cache):
    return cache.open(store.put("k", CONTENT), SIZE)


async def fetch(cache, blocks, start, stop):
    fetched = await cache.demand(blocks, start, ByteRange(start, stop))
    if not fetched.is_present:
        await fetched.wait()
    return fetched


def gets(store):
    return [call.span for call in store.calls if call.kind is RequestKind.GET]


async def test_a_fetched_range_has_the_objects_bytes(autojump_clock, cache, blocks):
    fetched = await fetch(cache, blocks, 1000, 5000)

    assert fetched.view(1000, 5000) == CONTENT[1000:5000]


async def test_only_what_is_missing_is_fetched(autojump_clock, store, cache, blocks):
    cache.begin(blocks, ByteRange(1000, 2000))
    cache.begin(blocks, ByteRange(3000, 4000))

    cache.begin(blocks, ByteRange(0, 5000))

    await trio.sleep(2)

    assert sorted(gets(store)) == [(0, 1000), (1000, 2000), (2000, 3000), (3000, 4000), (4000, 5000)]


@pytest.mark.parametrize("turn", range(4))
async def test_what_is_begun_first_is_asked_for_first(autojump_clock, store, cache, blocks, turn):
    """Trio begins the tasks of one moment in either order."""
    spans = [(start, start + 1000) for start in range(0, 10_000, 1000)]

    for span in spans:
        cache.begin(blocks, ByteRange(*span))
    await trio.sleep(2)

    assert gets(store) == spans


async def test_streams_that_hold_nothing_soon_stop_counting(autojump_clock, cache):
    for number in range(20):
        cache.note_stream(number)
    await trio.sleep(0.2)

    cache.note_stream("other")

    assert cache.streams == 1


async def test_streams_with_readahead_count_while_they_pause(autojump_clock, cache, blocks):
    cache.begin(blocks, ByteRange(0, MIB), "paused")
    await trio.sleep(IDLE_SECONDS / 2)

    cache.note_stream("other")

    assert cache.streams == 2


async def test_many_demands_for_the_same_bytes_are_one_request(autojump_clock, store, cache, blocks):
    async def read():
        fetched = await fetch(cache, blocks, 0, 1000)
        assert fetched.view(0, 1000) == CONTENT[:1000]

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(read)

    assert gets(store) == [(0, 1000)]


async def test_a_failure_reaches_all_who_wait_and_releases_the_buffer(autojump_clock, store, cache, blocks):
    store.inject(RequestKind.GET, error=StoreUnavailableError("down"))
    failures = []

    async def read():
        try:
            await fetch(cache, blocks, 0, 1000)
        except StoreUnavailableError as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(read)

    assert len(failures) == 3
    assert cache.pool.held_bytes == 0
    assert (await fetch(cache, blocks, 0, 1000)).view(0, 10) == CONTENT[:10]


async def test_closing_gives_up_what_is_fetched_for_nobody(autojump_clock, store, cache, blocks):
    assert cache.begin(blocks, ByteRange(0, 2 * MIB)) == 2 * MIB

    cache.close(blocks)
    await trio.sleep(0.5)

    assert cache.pool.held_bytes == 0


async def test_closing_keeps_what_is_present(autojump_clock, store, cache, blocks):
    await fetch(cache, blocks, 0, 1000)
    cache.close(blocks)

    again = cache.open(blocks.object_id, SIZE)

    assert again.find(0).is_present


async def test_a_cancelled_reader_does_not_harm_another(autojump_clock, cache, blocks):
    with trio.move_on_after(0.5):
        await fetch(cache, blocks, 0, 1000)

    assert (await fetch(cache, blocks, 0, 1000)).is_present


async def test_more_objects_than_memory_are_read_one_after_the_other(autojump_clock, store, cache):
    for index in range(30):
        blocks = cache.open(store.put(f"k{index}", CONTENT[: 900 * KIB]), 900 * KIB)
        assert (await fetch(cache, blocks, 0, 900 * KIB)).view(0, 10) == CONTENT[:10]
        cache.close(blocks)
        cache.check_invariants()

    assert cache.pool.allocated_bytes <= 8 * MIB


async def test_readers_that_sleep_do_not_keep_another_from_memory(autojump_clock, store, cache):
    for index in range(20):
        blocks = cache.open(store.put(f"k{index}", CONTENT[:MIB]), MIB)
        cache.begin(blocks, ByteRange(0, MIB))
    await trio.sleep(2)
    last = cache.open(store.put("last", CONTENT[:MIB]), MIB)

    with trio.fail_after(5):
        assert (await fetch(cache, last, 0, MIB)).view(0, 10) == CONTENT[:10]


async def test_delivered_ranges_go_first(autojump_clock, cache, blocks):
    for start in (0, MIB, 2 * MIB):
        await fetch(cache, blocks, start, start + MIB)
    middle = blocks.find(MIB)
    middle.view(MIB, 2 * MIB)
    cache.note_use(middle)

    assert cache.reclaim_any() is middle.buffer
    cache.pool.release(middle.buffer)
    assert blocks.find(MIB) is None


async def test_a_range_larger_than_a_buffer_is_cut(autojump_clock, store, cache, blocks):
    cache.begin(blocks, ByteRange(0, SIZE))
    await trio.sleep(2)

    assert {span.size for span in gets(store)} == {cache.pool.max_buffer_bytes}


class TestReadahead:
    """The budget is 8 MiB: 6 MiB of it for what is read ahead."""

    @pytest.fixture
    def others(self, store, cache):
        return [cache.open(store.put(f"other{index}", CONTENT), SIZE) for index in range(8)]

    async def test_says_where_memory_ended(self, cache, blocks, others):
        assert cache.begin(blocks, ByteRange(0, SIZE), "stream") == SIZE
        assert cache.begin(others[0], ByteRange(0, SIZE), "stream") == 2 * MIB

    async def test_leaves_a_quarter_for_demand(self, cache, others):
        for index, blocks in enumerate(others):
            cache.note_stream(index)
            cache.begin(blocks, ByteRange(0, SIZE), index)

        assert cache.pool.held_bytes <= 6 * MIB

    async def test_is_fair_to_a_stream_that_comes_later(self, autojump_clock, cache, blocks, others):
        cache.begin(blocks, ByteRange(0, SIZE), "first")
        cache.begin(others[0], ByteRange(0, 2 * MIB), "first")
        await trio.sleep(2)

        assert cache.begin(others[1], ByteRange(0, SIZE), "second") == 3 * MIB
        assert not blocks.gaps(ByteRange(0, 3 * MIB))

    async def test_of_two_fair_streams_takes_nothing_of_each_other(self, autojump_clock, cache, blocks, others):
        cache.note_stream("second")
        cache.begin(blocks, ByteRange(0, 3 * MIB), "first")
        cache.begin(others[0], ByteRange(0, 3 * MIB), "second")
        await trio.sleep(2)

        assert cache.begin(others[1], ByteRange(0, SIZE), "first") == 0
        assert not blocks.gaps(ByteRange(0, 3 * MIB))
        assert not others[0].gaps(ByteRange(0, 3 * MIB))

    async def test_takes_the_memory_of_what_random_reads_left(self, autojump_clock, cache, blocks, others):
        for other in others[:2]:
            for start in range(0, SIZE, MIB):
                await fetch(cache, other, start, start + MIB)

        assert cache.begin(blocks, ByteRange(0, SIZE), "stream") == SIZE

    async def test_takes_the_memory_of_a_stream_that_went_idle(self, autojump_clock, cache, blocks, others):
        cache.begin(blocks, ByteRange(0, SIZE), "first")
        await trio.sleep(IDLE_SECONDS + 1)

        cache.note_stream("second")

        assert cache.begin(others[0], ByteRange(0, SIZE), "second") == SIZE

    async def test_takes_the_memory_of_a_stream_whose_file_was_closed(self, autojump_clock, cache, blocks, others):
        cache.begin(blocks, ByteRange(0, SIZE), "first")
        await trio.sleep(2)
        cache.close(blocks)

        assert cache.begin(others[0], ByteRange(0, SIZE), "second") == SIZE

    async def test_that_was_delivered_makes_room_for_more(self, autojump_clock, cache, blocks, others):
        cache.begin(blocks, ByteRange(0, SIZE), "stream")
        cache.begin(others[0], ByteRange(0, 2 * MIB), "stream")
        await trio.sleep(2)
        fetched = blocks.find(0)

        fetched.view(0, MIB)
        cache.note_use(fetched)

        assert cache.begin(others[0], ByteRange(2 * MIB, SIZE), "stream") == 3 * MIB

    async def test_that_a_stream_left_out_makes_room_once_it_is_two_ranges_further(
        self, autojump_clock, cache, blocks, others
    ):
        cache.begin(blocks, ByteRange(0, SIZE), "stream")
        cache.begin(others[0], ByteRange(0, 2 * MIB), "stream")
        await trio.sleep(2)
        fetched = blocks.find(2 * MIB)

        fetched.view(2 * MIB, 2 * MIB + 1)
        cache.note_use(fetched)

        assert cache.begin(others[0], ByteRange(2 * MIB, SIZE), "stream") == 3 * MIB

    async def test_gives_way_to_demand(self, autojump_clock, cache, blocks, others):
        cache.begin(blocks, ByteRange(0, SIZE), "stream")
        await trio.sleep(2)

        with trio.fail_after(20):
            for start in range(0, SIZE, MIB):
                await fetch(cache, others[0], start, start + MIB)
                await fetch(cache, others[1], start, start + MIB)
