import pytest
import trio

from s3mount.errors import ArchivedObjectError, NoSuchEntryError, StaleObjectError, StoreUnavailableError
from s3mount.metrics import RequestKind
from s3mount.ranges import ByteRange
from s3mount.store.interface import ObjectStore
from s3mount.store.memory import Call, MemoryStore


async def read(store: ObjectStore, object_id, span: ByteRange, size: int) -> bytes:
    into = bytearray(span.size)
    await store.get_range(object_id, span, object_size=size, into=memoryview(into))
    return bytes(into)


async def test_it_logs_its_calls():
    store = MemoryStore()
    object_id = store.put("d/f", b"body")

    await store.head("d/f")
    await store.list_page("d/")
    await read(store, object_id, ByteRange(1, 3), 4)

    assert store.calls == [
        Call(RequestKind.HEAD, "d/f"),
        Call(RequestKind.LIST, "d/"),
        Call(RequestKind.GET, "d/f", ByteRange(1, 3)),
    ]


async def test_latency_takes_its_time(autojump_clock: trio.testing.MockClock):
    store = MemoryStore(latency_seconds=3.0)
    started = trio.current_time()

    await store.list_page("")

    assert trio.current_time() - started == 3.0


async def test_an_error_strikes_as_often_as_asked():
    store = MemoryStore()
    store.put("k")
    store.inject(RequestKind.HEAD, "k", error=StoreUnavailableError(), times=2)

    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            await store.head("k")

    assert (await store.head("k")).key == "k"


async def test_an_error_strikes_only_what_it_is_for():
    store = MemoryStore()
    store.put("k")
    store.inject(RequestKind.HEAD, "other", error=StoreUnavailableError())
    store.inject(RequestKind.LIST, error=StoreUnavailableError())

    await store.head("k")
    with pytest.raises(StoreUnavailableError):
        await store.list_page("p/")


async def test_a_stall_lasts_until_it_is_lifted():
    store = MemoryStore()
    store.put("k")
    stall = store.inject(RequestKind.HEAD, stall=True, times=None)
    with trio.move_on_after(0) as scope:
        await store.head("k")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.head, "k")
        await trio.testing.wait_all_tasks_blocked()
        stall.lift()

    assert scope.cancelled_caught
    await store.head("k")


async def test_another_version_may_come_in_between():
    store = MemoryStore()
    object_id = store.put("k", b"old!")
    store.inject(RequestKind.GET, "k", replacement=b"new!")

    with pytest.raises(StaleObjectError):
        await read(store, object_id, ByteRange(0, 4), 4)

    assert (await store.head("k")).etag != object_id.etag


async def test_archived_objects_cannot_be_read():
    store = MemoryStore()
    object_id = store.put("k", b"cold", storage_class="GLACIER")

    assert (await store.head("k")).is_archived
    with pytest.raises(ArchivedObjectError):
        await read(store, object_id, ByteRange(0, 4), 4)


async def test_pages_are_as_long_as_set():
    store = MemoryStore(page_size=2)
    for key in "abc":
        store.put(key)

    page = await store.list_page("")

    assert [summary.key for summary in page.objects] == ["a", "b"]
    assert page.next_token is not None


async def test_a_listing_goes_on_although_the_bucket_changes():
    store = MemoryStore(page_size=1)
    for key in ("a", "b", "c"):
        store.put(key)
    first = await store.list_page("")
    store.delete("a")
    store.delete("b")

    second = await store.list_page("", token=first.next_token)

    assert [summary.key for summary in second.objects] == ["c"]


async def test_deleted_objects_are_gone():
    store = MemoryStore()
    store.put("k")
    store.delete("k")
    store.delete("k")

    with pytest.raises(NoSuchEntryError):
        await store.head("k")
    assert await store.list_page("") == await MemoryStore().list_page("")
