import os
import stat

import pytest
import trio

from s3mount.cache.blocks import BlockCache
from s3mount.errors import (
    AccessDeniedError,
    ArchivedObjectError,
    BadHandleError,
    IsADirectoryEntryError,
    NoSuchAttributeError,
    NotADirectoryEntryError,
    ReadOnlyError,
    StaleObjectError,
    StoreUnavailableError,
    UnsupportedOperationError,
)
from s3mount.filesystem import FileSystem
from s3mount.ids import ROOT_INODE
from s3mount.metrics import Gauge, Metrics, RequestKind
from s3mount.namespace.tree import Tree
from s3mount.options import NamespaceOptions, ReadOptions
from s3mount.ranges import MIB
from s3mount.store.memory import MemoryStore
from s3mount.upcoming import UpcomingFiles

OPTIONS = NamespaceOptions(uid=1000, gid=100, file_mode=0o640, dir_mode=0o750, ttl_seconds=300.0)


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def stale_names():
    return []


@pytest.fixture
async def filesystem(store, metrics, stale_names, nursery):
    tree = Tree(
        store,
        OPTIONS,
        metrics,
        nursery,
        mounted_at_ns=7,
        on_stale=lambda parent, name: stale_names.append((parent, name)),
    )
    cache = BlockCache(store, nursery, metrics, limit_bytes=16 * MIB)
    upcoming = UpcomingFiles(tree, cache, nursery, ttl_seconds=OPTIONS.ttl_seconds)
    filesystem = FileSystem(tree, cache, upcoming, metrics, namespace_options=OPTIONS, read_options=ReadOptions())
    yield filesystem
    filesystem.check_invariants()


async def list_names(filesystem, handle, *, room=1000, position=0):
    """What one readdir call emits into a reply with that much room."""
    emitted = []

    def emit(entry):
        if len(emitted) == room:
            return False
        emitted.append(entry)
        return True

    await filesystem.readdir(handle, position, emit)
    return emitted


async def open_file(filesystem, name):
    entry = await filesystem.lookup(ROOT_INODE, name)
    return await filesystem.open(entry.attributes.number, os.O_RDONLY)


async def test_a_file_shows_its_size_time_and_configured_owner(store, filesystem):
    store.put("f", b"x" * 1000, mtime_ns=1_700_000_000_000_000_000)

    attributes = (await filesystem.lookup(ROOT_INODE, "f")).attributes

    assert stat.S_ISREG(attributes.mode)
    assert stat.S_IMODE(attributes.mode) == 0o640
    assert (attributes.uid, attributes.gid, attributes.size, attributes.blocks) == (1000, 100, 1000, 2)
    assert attributes.mtime_ns == 1_700_000_000_000_000_000
    assert attributes.link_count == 1


async def test_a_directory_shows_the_time_of_the_mount(store, filesystem):
    store.put("d/f")

    attributes = (await filesystem.lookup(ROOT_INODE, "d")).attributes

    assert stat.S_ISDIR(attributes.mode)
    assert (stat.S_IMODE(attributes.mode), attributes.mtime_ns, attributes.link_count) == (0o750, 7, 1)


async def test_readdir_begins_with_the_directory_itself_and_its_parent(store, filesystem):
    store.put("d/f")
    directory = (await filesystem.lookup(ROOT_INODE, "d")).attributes.number
    handle = filesystem.opendir(directory)

    entries = await list_names(filesystem, handle)

    assert [entry.name for entry in entries] == [".", "..", "f"]
    assert [entry.entry.attributes.number for entry in entries[:2]] == [directory, ROOT_INODE]
    filesystem.release(handle)


async def test_readdir_goes_on_where_a_full_reply_ended(store, filesystem):
    for index in range(10):
        store.put(f"f{index}")
    handle = filesystem.opendir(ROOT_INODE)
    names, position = [], 0

    while entries := await list_names(filesystem, handle, room=3, position=position):
        names += [entry.name for entry in entries]
        position = entries[-1].next_position

    assert names == [".", "..", *(f"f{index}" for index in range(10))]
    filesystem.release(handle)


async def test_each_listed_entry_is_a_reference_that_forget_gives_back(store, filesystem, metrics):
    for index in range(10):
        store.put(f"f{index}")
    handle = filesystem.opendir(ROOT_INODE)

    entries = await list_names(filesystem, handle)
    assert metrics.gauges[Gauge.INODES]() == 11
    filesystem.forget([(entry.entry.attributes.number, 1) for entry in entries[2:]])

    assert metrics.gauges[Gauge.INODES]() == 1
    filesystem.release(handle)


async def test_an_entry_without_room_is_no_reference(store, filesystem, metrics):
    for index in range(10):
        store.put(f"f{index}")
    handle = filesystem.opendir(ROOT_INODE)

    await list_names(filesystem, handle, room=5)

    assert metrics.gauges[Gauge.INODES]() == 1 + 3
    filesystem.release(handle)


async def test_rewinding_a_directory_shows_what_it_has_then(autojump_clock, store, filesystem):
    store.put("a")
    handle = filesystem.opendir(ROOT_INODE)
    await list_names(filesystem, handle)
    store.put("b")
    await trio.sleep(OPTIONS.ttl_seconds)

    names = [entry.name for entry in await list_names(filesystem, handle)]

    assert names == [".", "..", "a", "b"]
    filesystem.release(handle)


async def test_a_directory_that_cannot_be_listed_shows_no_entry(store, filesystem):
    store.inject(RequestKind.LIST, error=StoreUnavailableError("down"))
    handle = filesystem.opendir(ROOT_INODE)

    with pytest.raises(StoreUnavailableError):
        await list_names(filesystem, handle)
    filesystem.release(handle)


async def test_a_handle_reads_until_it_is_closed(store, filesystem):
    store.put("f", b"content")
    handle = await open_file(filesystem, "f")

    assert bytes(await filesystem.read(handle, 3, 100)) == b"tent"
    filesystem.release(handle)
    with pytest.raises(BadHandleError):
        await filesystem.read(handle, 0, 1)


async def test_the_kernels_second_try_gets_the_error_of_the_first(autojump_clock, store, filesystem):
    store.put("f", b"x" * 100_000)
    handle = await open_file(filesystem, "f")
    store.inject(RequestKind.GET, error=StoreUnavailableError("down"), times=1)
    with pytest.raises(StoreUnavailableError):
        await filesystem.read(handle, 0, 65536)

    with pytest.raises(StoreUnavailableError):
        await filesystem.read(handle, 4096, 4096)

    assert await filesystem.read(handle, 4096, 4096) == b"x" * 4096
    filesystem.release(handle)


async def test_direct_reads_are_never_taken_for_a_second_try(autojump_clock, store, filesystem):
    store.put("f", b"x" * 100_000)
    entry = await filesystem.lookup(ROOT_INODE, "f")
    handle = await filesystem.open(entry.attributes.number, os.O_RDONLY | os.O_DIRECT)
    store.inject(RequestKind.GET, error=StoreUnavailableError("down"), times=1)
    with pytest.raises(StoreUnavailableError):
        await filesystem.read(handle, 0, 65536)

    assert await filesystem.read(handle, 4096, 4096) == b"x" * 4096
    filesystem.release(handle)


async def test_opening_for_writing_is_refused(store, filesystem):
    store.put("f")
    number = (await filesystem.lookup(ROOT_INODE, "f")).attributes.number

    with pytest.raises(ReadOnlyError):
        await filesystem.open(number, os.O_RDWR)


async def test_files_and_directories_are_not_taken_for_each_other(store, filesystem):
    store.put("f")
    number = (await filesystem.lookup(ROOT_INODE, "f")).attributes.number

    with pytest.raises(NotADirectoryEntryError):
        filesystem.opendir(number)
    with pytest.raises(NotADirectoryEntryError):
        await filesystem.lookup(number, "x")
    with pytest.raises(IsADirectoryEntryError):
        await filesystem.open(ROOT_INODE, os.O_RDONLY)


async def test_an_object_replaced_before_it_was_read_is_read_anew_if_its_size_is_the_same(store, filesystem):
    store.put("f", b"old")
    handle = await open_file(filesystem, "f")
    store.put("f", b"new")

    assert bytes(await filesystem.read(handle, 0, 10)) == b"new"
    filesystem.release(handle)


async def test_many_reads_of_a_handle_survive_the_correction_of_its_etag(autojump_clock, store, filesystem):
    store.put("f", b"old")
    handle = await open_file(filesystem, "f")
    store.put("f", b"new")
    store.latency_seconds = 0.1
    got = []

    async def read():
        got.append(bytes(await filesystem.read(handle, 0, 10)))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(read)

    assert got == [b"new"] * 10
    filesystem.release(handle)


class LateReader:
    """A reader whose bytes arrived before the object was replaced, and are handed out after."""

    def __init__(self, object_id, content):
        self.object_id = object_id
        self._content = content

    async def read(self, _offset, _size):
        await trio.sleep(1)
        return self._content

    def close(self):
        pass


async def test_two_versions_never_reach_the_kernel_under_one_inode(autojump_clock, store, filesystem):
    old = store.put("f", b"old")
    slow, quick = await open_file(filesystem, "f"), await open_file(filesystem, "f")
    filesystem._handles.file(slow).reader.close()
    filesystem._handles.file(slow).reader = LateReader(old, b"old")
    store.put("f", b"new")
    got = {}

    async def read(name, handle):
        got[name] = bytes(await filesystem.read(handle, 0, 10))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, "slow", slow)
        nursery.start_soon(read, "quick", quick)

    assert got == {"quick": b"new", "slow": b"new"}
    filesystem.release(quick)
    filesystem.release(slow)


async def test_a_read_refused_late_uses_the_version_its_handle_has_by_then(autojump_clock, store, filesystem):
    store.put("f", bytes(9 * MIB))
    handle = await open_file(filesystem, "f")
    store.put("f", b"1" * 9 * MIB)
    late = store.inject(RequestKind.GET, stall=True)
    got = []

    async def read(offset):
        got.append(bytes(await filesystem.read(handle, offset, 3)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, 5 * MIB)
        await trio.sleep(1)
        await read(0)
        late.lift()

    assert got == [b"111", b"111"]
    filesystem.release(handle)


async def test_an_object_replaced_after_it_was_read_is_stale(autojump_clock, store, filesystem, stale_names):
    store.put("f", bytes(12 * MIB))
    handle = await open_file(filesystem, "f")
    await filesystem.read(handle, 0, 10)
    store.put("f", b"1" * 12 * MIB)

    with pytest.raises(StaleObjectError):
        await filesystem.read(handle, 11 * MIB, 10)

    assert stale_names == [(ROOT_INODE, "f")]
    again = await open_file(filesystem, "f")
    assert bytes(await filesystem.read(again, 11 * MIB, 3)) == b"111"
    filesystem.release(handle)
    filesystem.release(again)


async def test_an_object_replaced_by_one_of_another_size_is_stale(store, filesystem):
    store.put("f", b"old")
    handle = await open_file(filesystem, "f")
    store.put("f", b"longer")

    with pytest.raises(StaleObjectError):
        await filesystem.read(handle, 0, 10)
    again = await open_file(filesystem, "f")
    assert bytes(await filesystem.read(again, 0, 10)) == b"longer"
    filesystem.release(handle)
    filesystem.release(again)


async def test_an_archived_object_opens_and_fails_to_read_with_one_warning(store, filesystem, caplog):
    store.put("f", b"cold", storage_class="GLACIER")
    handle = await open_file(filesystem, "f")

    for _ in range(3):
        with pytest.raises(ArchivedObjectError):
            await filesystem.read(handle, 0, 10)

    assert [record.levelname for record in caplog.records if "archived" in record.message] == ["WARNING"]
    filesystem.release(handle)


async def test_refused_reads_are_one_warning_per_key_with_the_reason(store, filesystem, caplog):
    handles = []
    for name in ("f", "g"):
        store.put(name, b"secret")
        refusal = AccessDeniedError(f"403 because of {name}\nERROR forged")
        store.inject(RequestKind.GET, name, error=refusal, times=None)
        handles += [await open_file(filesystem, name), await open_file(filesystem, name)]

    for handle in handles * 2:
        with pytest.raises(AccessDeniedError):
            await filesystem.read(handle, 0, 10)

    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [f"key '{name}' may not be read: '403 because of {name}\\nERROR forged'" for name in "fg"]
    for handle in handles:
        filesystem.release(handle)


async def test_a_read_that_is_refused_after_its_version_was_replaced_is_a_warning_too(store, filesystem, caplog):
    store.put("f", b"old")
    handle = await open_file(filesystem, "f")
    store.put("f", b"new")
    store.inject(RequestKind.HEAD, "f", error=AccessDeniedError("403"), times=None)
    store.inject(RequestKind.LIST, "f", error=AccessDeniedError("403"), times=None)

    with pytest.raises(AccessDeniedError):
        await filesystem.read(handle, 0, 10)

    assert [record.getMessage() for record in caplog.records] == ["key 'f' may not be read: '403'"]
    filesystem.release(handle)


async def test_reads_that_fail_otherwise_are_no_warning(store, filesystem, caplog):
    store.put("f", b"x")
    store.inject(RequestKind.GET, "f", error=StoreUnavailableError("503"))
    handle = await open_file(filesystem, "f")

    with pytest.raises(StoreUnavailableError):
        await filesystem.read(handle, 0, 10)

    assert [record for record in caplog.records if record.levelname == "WARNING"] == []
    filesystem.release(handle)


async def test_extended_attributes_tell_what_is_known(store, filesystem):
    object_id = store.put("f", b"x")
    number = (await filesystem.lookup(ROOT_INODE, "f")).attributes.number
    store.calls.clear()

    assert filesystem.getxattr(number, "user.s3mount.etag") == object_id.etag.encode()
    assert filesystem.getxattr(number, "user.s3mount.key") == b"f"
    with pytest.raises(NoSuchAttributeError):
        filesystem.getxattr(number, "user.other")
    with pytest.raises(UnsupportedOperationError):
        filesystem.getxattr(number, "system.posix_acl_access")
    assert filesystem.listxattr(number) == []
    assert store.calls == []


async def test_a_forgotten_inode_is_stale(filesystem):
    with pytest.raises(StaleObjectError):
        filesystem.getattr(12345)
