import os
import random

import pytest
import trio

from s3mount.cache.blocks import BlockCache
from s3mount.filesystem import FileSystem
from s3mount.ids import ROOT_INODE, InodeNumber
from s3mount.metrics import Metrics, RequestKind
from s3mount.namespace.tree import Tree
from s3mount.options import NamespaceOptions, ReadOptions
from s3mount.ranges import KIB, MIB
from s3mount.store.memory import MemoryStore
from s3mount.upcoming import UpcomingFiles

SIZE = 100 * KIB
NAMES = [f"f{index:04}" for index in range(400)]
OPTIONS = NamespaceOptions(ttl_seconds=3600)


class Mount:
    """A file system without a kernel: its page cache is what `cached` says."""

    def __init__(self, store, nursery, limit_bytes):
        metrics = Metrics()
        self.store = store
        tree = Tree(store, OPTIONS, metrics, nursery, mounted_at_ns=7, on_stale=lambda parent, name: None)
        self.cache = BlockCache(store, nursery, metrics, limit_bytes=limit_bytes)
        self.upcoming = UpcomingFiles(tree, self.cache, nursery, ttl_seconds=OPTIONS.ttl_seconds)
        self.filesystem = FileSystem(
            tree, self.cache, self.upcoming, metrics, namespace_options=OPTIONS, read_options=ReadOptions()
        )
        self.cached = set()

    async def list(self, number=ROOT_INODE):
        handle = self.filesystem.opendir(number)
        entries = []
        position = 0
        while True:
            before = len(entries)
            await self.filesystem.readdir(handle, position, lambda entry: entries.append(entry) or True)
            if len(entries) == before:
                return {entry.name: entry.entry.attributes.number for entry in entries}
            position = entries[-1].next_position

    async def read(self, path):
        number = InodeNumber(ROOT_INODE)
        for name in path.split("/"):
            number = (await self.filesystem.lookup(number, name)).attributes.number
        handle = await self.filesystem.open(number, os.O_RDONLY)
        if path not in self.cached:
            assert len(await self.filesystem.read(handle, 0, MIB)) == SIZE
        self.filesystem.release(handle)

    def gets(self):
        return [call.key for call in self.store.calls if call.kind is RequestKind.GET]


@pytest.fixture
def store():
    store = MemoryStore(latency_seconds=0.03)
    for name in NAMES:
        store.put(name, bytes(SIZE))
        store.put(f"dir/{name}", bytes(SIZE))
    return store


@pytest.fixture
async def mount(store, nursery):
    mount = Mount(store, nursery, limit_bytes=64 * MIB)
    yield mount
    mount.filesystem.check_invariants()


async def seconds_to_read(mount, paths):
    started_at = trio.current_time()
    for path in paths:
        await mount.read(path)
    return trio.current_time() - started_at


async def test_files_read_in_the_order_of_their_listing_are_there_before_they_are_read(autojump_clock, mount):
    await mount.list()

    seconds = await seconds_to_read(mount, NAMES)

    assert sorted(mount.gets()) == NAMES
    assert seconds < len(NAMES) * 0.03 / 8


async def test_files_read_in_another_order_are_fetched_when_they_are_read(autojump_clock, mount):
    await mount.list()
    shuffled = random.Random(1).sample(NAMES, len(NAMES))

    await seconds_to_read(mount, shuffled)

    assert sorted(mount.gets()) == NAMES


async def test_a_hinted_order_is_there_before_it_is_read(autojump_clock, mount):
    await mount.list()
    shuffled = random.Random(1).sample(NAMES, len(NAMES))
    mount.upcoming.add_hint("\n".join(shuffled).encode())
    await trio.sleep(1)

    seconds = await seconds_to_read(mount, shuffled)

    assert seconds == 0
    assert sorted(mount.gets()) == NAMES


async def test_hinted_files_in_directories_that_were_not_listed_are_found(autojump_clock, mount):
    paths = [f"dir/{name}" for name in random.Random(1).sample(NAMES, len(NAMES))]
    mount.upcoming.add_hint("\n".join(paths).encode())
    await trio.sleep(1)

    await seconds_to_read(mount, paths)

    assert sorted(mount.gets()) == sorted(paths)
    assert len(mount.store.calls) - len(paths) < 10


async def test_a_hint_that_names_what_is_not_there_is_followed_as_far_as_it_goes(autojump_clock, mount):
    mount.upcoming.add_hint(b"absent\ndir\ndir/absent/x\nf0001/below\nf0002\n")
    await trio.sleep(1)

    assert mount.gets() == ["f0002"]


async def test_orders_of_several_processes_are_followed_at_once(autojump_clock, mount):
    await mount.list()
    for part in (NAMES[:200], NAMES[200:]):
        mount.upcoming.add_hint("\n".join(part).encode())
    await trio.sleep(1)

    seconds = await seconds_to_read(
        mount, [name for pair in zip(NAMES[:200], NAMES[200:], strict=True) for name in pair]
    )

    assert seconds == 0
    assert sorted(mount.gets()) == NAMES


async def test_files_the_page_cache_has_are_not_fetched_again(autojump_clock, mount):
    await mount.list()
    await seconds_to_read(mount, NAMES)
    mount.cached = set(NAMES)
    mount.store.calls.clear()
    shuffled = random.Random(2).sample(NAMES, len(NAMES))

    mount.upcoming.add_hint("\n".join(shuffled).encode())
    await trio.sleep(1)
    await seconds_to_read(mount, shuffled)

    assert mount.gets() == []


async def test_files_the_page_cache_has_lost_are_fetched_ahead_once_that_shows(autojump_clock, nursery, store):
    mount = Mount(store, nursery, limit_bytes=8 * MIB)
    await mount.list()
    await seconds_to_read(mount, NAMES)

    mount.upcoming.add_hint("\n".join(NAMES).encode())
    await trio.sleep(1)
    seconds = await seconds_to_read(mount, NAMES)

    assert seconds < len(NAMES) * 0.03 / 2


class TestWithLittleMemory:
    @pytest.fixture
    async def mount(self, store, nursery):
        mount = Mount(store, nursery, limit_bytes=4 * MIB)
        yield mount
        mount.filesystem.check_invariants()

    async def test_a_hinted_order_waits_for_room_and_fetches_each_file_once(self, autojump_clock, mount):
        await mount.list()
        shuffled = random.Random(1).sample(NAMES, len(NAMES))
        mount.upcoming.add_hint("\n".join(shuffled).encode())
        await trio.sleep(1)
        assert mount.cache.pool.held_bytes <= 4 * MIB

        seconds = await seconds_to_read(mount, shuffled)

        assert sorted(mount.gets()) == NAMES
        assert seconds < len(NAMES) * 0.03 / 4

    async def test_files_that_are_never_read_do_not_end_the_fetching_ahead(self, autojump_clock, mount):
        await mount.list()
        mount.upcoming.add_hint("\n".join(NAMES).encode())

        for name in NAMES[::2]:
            await trio.sleep(5)
            await mount.read(name)

        assert NAMES[-1] in mount.gets()
