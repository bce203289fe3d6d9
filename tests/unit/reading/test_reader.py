import random

import pytest
import trio

from s3mount.cache.blocks import BlockCache
from s3mount.errors import StaleObjectError, StoreUnavailableError
from s3mount.metrics import Metric, Metrics, RequestKind
from s3mount.ranges import KIB, MIB
from s3mount.reading.reader import Readers
from s3mount.reading.window import RANGE_SIZE
from s3mount.store.memory import MemoryStore

SIZE = 24 * MIB + 12345


def content(size=SIZE):
    return random.Random(1).randbytes(size)


@pytest.fixture
def store():
    return MemoryStore(latency_seconds=0.03)


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def limit_bytes():
    return 64 * MIB


@pytest.fixture
async def cache(store, nursery, metrics, limit_bytes):
    cache = BlockCache(store, nursery, metrics, limit_bytes=limit_bytes)
    yield cache
    cache.check_invariants()


@pytest.fixture
def open_reader(cache, metrics):
    readers = Readers(cache, metrics, max_readahead=16 * MIB)
    opened = []

    def open_it(object_id, size):
        opened.append(readers.open(object_id, size))
        return opened[-1]

    yield open_it
    for reader in opened:
        reader.close()


def gets(store):
    return [call.span for call in store.calls if call.kind is RequestKind.GET]


async def test_a_sequential_read_gives_the_objects_bytes_once_fetched(autojump_clock, store, open_reader, metrics):
    body = content()
    reader = open_reader(store.put("k", body), SIZE)

    got = b"".join([bytes(await reader.read(start, 100_000)) for start in range(0, SIZE, 100_000)])

    assert got == body
    assert sum(span.size for span in gets(store)) == SIZE
    assert metrics.counters[Metric.SERVED_BYTES] == SIZE


async def test_reads_at_random_places_are_right(autojump_clock, store, open_reader):
    body = content()
    reader = open_reader(store.put("k", body), SIZE)
    rng = random.Random(2)

    for _ in range(200):
        start, size = rng.randrange(SIZE), rng.randrange(1, 300 * KIB)
        assert bytes(await reader.read(start, size)) == body[start : start + size]


async def test_reads_of_one_handle_run_at_the_same_time(autojump_clock, store, open_reader):
    body = content()
    reader = open_reader(store.put("k", body), SIZE)
    store.latency_seconds = 1.0
    started_at = trio.current_time()

    async with trio.open_nursery() as nursery:
        for index in range(20):
            nursery.start_soon(reader.read, index * MIB + 7, 1000)

    assert trio.current_time() - started_at < 2.5


async def test_a_small_object_is_one_request(autojump_clock, store, open_reader):
    body = content(100_000)
    reader = open_reader(store.put("k", body), 100_000)

    assert bytes(await reader.read(50_000, 10)) == body[50_000:50_010]
    assert bytes(await reader.read(0, 1 * MIB)) == body

    assert gets(store) == [(0, 100_000)]


async def test_reading_past_the_end_gives_nothing(autojump_clock, store, open_reader):
    reader = open_reader(store.put("k", b"abc"), 3)

    assert bytes(await reader.read(2, 10)) == b"c"
    assert bytes(await reader.read(3, 10)) == b""
    assert bytes(await reader.read(99, 10)) == b""


async def test_an_empty_object_needs_no_request(autojump_clock, store, open_reader):
    reader = open_reader(store.put("k", b""), 0)

    assert bytes(await reader.read(0, 10)) == b""
    assert gets(store) == []


async def test_a_failed_read_leaves_the_handle_usable(autojump_clock, store, open_reader):
    body = content()
    reader = open_reader(store.put("k", body), SIZE)
    store.inject(RequestKind.GET, error=StoreUnavailableError("down"))

    with pytest.raises(StoreUnavailableError):
        await reader.read(0, 1000)

    assert bytes(await reader.read(0, 1000)) == body[:1000]


async def test_a_replaced_object_is_never_mixed(autojump_clock, store, open_reader):
    body = content()
    reader = open_reader(store.put("k", body), SIZE)
    assert bytes(await reader.read(0, 1000)) == body[:1000]
    store.put("k", bytes(SIZE))

    with pytest.raises(StaleObjectError):
        await reader.read(20 * MIB, 1000)
    assert bytes(await reader.read(0, 1000)) == body[:1000]


async def test_an_application_that_stops_reading_fetches_no_more(autojump_clock, store, open_reader):
    reader = open_reader(store.put("k", content()), SIZE)
    for start in range(0, 3 * MIB, MIB):
        await reader.read(start, MIB)
    await trio.sleep(10)
    fetched = sum(span.size for span in gets(store))

    await trio.sleep(100)

    assert sum(span.size for span in gets(store)) == fetched


class TestWithLittleMemory:
    @pytest.fixture
    def limit_bytes(self):
        return 4 * MIB

    async def test_many_readers_at_once_all_get_their_bytes(self, autojump_clock, store, open_reader, cache):
        bodies = {f"k{index}": random.Random(index).randbytes(RANGE_SIZE + 1000) for index in range(30)}

        async def read(key, body):
            reader = open_reader(store.put(key, body), len(body))
            for start in range(0, len(body), MIB):
                assert bytes(await reader.read(start, MIB)) == body[start : start + MIB]

        with trio.fail_after(1000):
            async with trio.open_nursery() as nursery:
                for key, body in bodies.items():
                    nursery.start_soon(read, key, body)

        cache.check_invariants()
        assert cache.pool.allocated_bytes <= 4 * MIB


async def test_a_file_opened_anew_for_every_read_is_read_as_a_stream(autojump_clock, store, open_reader):
    body = content()
    object_id = store.put("k", body)

    for start in range(0, SIZE, 256 * KIB):
        reader = open_reader(object_id, SIZE)
        assert bytes(await reader.read(start, 256 * KIB)) == body[start : start + 256 * KIB]

    assert len(gets(store)) < 20


async def test_two_readers_of_one_object_share_what_each_fetched(autojump_clock, store, open_reader):
    object_id = store.put("k", content())
    first, second = open_reader(object_id, SIZE), open_reader(object_id, SIZE)

    for start in range(0, SIZE, MIB):
        await first.read(start, MIB)
        await second.read(start, MIB)

    assert sum(span.size for span in gets(store)) == SIZE


async def test_the_second_zip_archive_has_its_directory_fetched_with_the_first_read(autojump_clock, store, open_reader):
    for name in ("one.zip", "two.zip"):
        reader = open_reader(store.put(name, content()), SIZE)
        await reader.read(0, 4 * KIB)
        before = len(gets(store))
        await reader.read(SIZE - 4 * KIB, 4 * KIB)

    assert len(gets(store)) == before


async def test_reads_that_waited_count_as_misses(autojump_clock, store, open_reader, metrics):
    reader = open_reader(store.put("k", content(1000)), 1000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.read, 0, 10)
        nursery.start_soon(reader.read, 10, 10)

    await reader.read(20, 10)

    assert metrics.counters[Metric.MEMORY_MISSES] == 2
    assert metrics.counters[Metric.MEMORY_HITS] == 1
