import pytest
import trio

from s3mount.errors import (
    AccessDeniedError,
    NameTooLongError,
    NoSuchEntryError,
    StaleObjectError,
    StoreUnavailableError,
)
from s3mount.metrics import Metrics, RequestKind
from s3mount.namespace.inodes import DirectoryInode, FileInode
from s3mount.namespace.tree import OPEN_GRACE_SECONDS, Tree
from s3mount.options import NamespaceOptions
from s3mount.store.memory import MemoryStore

TTL = 60.0
NEGATIVE_TTL = 5.0


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def stale_names():
    return []


@pytest.fixture
def options():
    return NamespaceOptions(ttl_seconds=TTL, negative_ttl_seconds=NEGATIVE_TTL)


@pytest.fixture
async def tree(store, options, stale_names, nursery):
    tree = Tree(
        store,
        options,
        Metrics(),
        nursery,
        mounted_at_ns=0,
        on_stale=lambda parent, name: stale_names.append((parent, name)),
    )
    yield tree
    tree.names.check_invariants()


def root_of(tree):
    return tree.names.inodes.root


def requests(store):
    made = [call.kind.value for call in store.calls]
    store.calls.clear()
    return made


async def list_whole(tree, directory):
    listing = tree.list_directory(directory)
    listing.waiting += 1
    while not listing.is_over:
        await listing.wait_for_more()
    if listing.error is not None:
        raise listing.error
    return [inode.name for inode in listing.entries]


async def test_a_lookup_costs_one_list_whether_file_or_directory(autojump_clock, store, tree):
    store.put("foo", b"1")
    store.put("bar/x", b"2")

    file = await tree.lookup(root_of(tree), "foo")
    directory = await tree.lookup(root_of(tree), "bar")

    assert (file.size, directory.key_prefix) == (1, "bar/")
    assert requests(store) == ["list", "list"]


async def test_an_absent_name_costs_one_list_and_nothing_while_it_is_fresh(autojump_clock, store, tree):
    for _ in range(2):
        with pytest.raises(NoSuchEntryError):
            await tree.lookup(root_of(tree), "nope")

    assert requests(store) == ["list"]


async def test_a_name_behind_many_siblings_is_found(autojump_clock, store, tree):
    for index in range(20):
        store.put(f"foo-{index:02}")
    store.put("foo/x")

    directory = await tree.lookup(root_of(tree), "foo")

    assert directory.key_prefix == "foo/"
    assert requests(store) == ["list", "list"]


@pytest.mark.parametrize("order", [["foo", "@s3mount-file:foo"], ["@s3mount-file:foo", "foo"]])
async def test_a_key_that_is_also_a_prefix_is_a_directory_and_a_hidden_file(autojump_clock, store, tree, order):
    store.put("foo", b"file")
    store.put("foo/x", b"")
    found = {name: await tree.lookup(root_of(tree), name) for name in order}

    assert found["foo"].key_prefix == "foo/"
    assert found["@s3mount-file:foo"].size == 4


async def test_a_hidden_name_without_a_directory_does_not_exist(autojump_clock, store, tree):
    store.put("foo", b"file")

    with pytest.raises(NoSuchEntryError):
        await tree.lookup(root_of(tree), "@s3mount-file:foo")


async def test_a_markers_content_is_found_inside_its_directory(autojump_clock, store, tree):
    store.put("e/", b"hello")
    directory = await tree.lookup(root_of(tree), "e")

    content = await tree.lookup(directory, "@s3mount:")

    assert content.size == 5
    assert await list_whole(tree, directory) == []


async def test_long_names_are_reached_through_their_parts(autojump_clock, store, tree):
    store.put("x" * 290 + "1", b"one")
    store.put("x" * 290 + "2", b"two!")

    part = await tree.lookup(root_of(tree), "@s3mount-part:" + "x" * 241)
    first = await tree.lookup(part, "x" * 49 + "1")
    second = await tree.lookup(part, "x" * 49 + "2")

    assert (first.size, second.size) == (3, 4)
    assert tree.names.key_of(second) == "x" * 290 + "2"


async def test_a_name_over_255_bytes_is_too_long(autojump_clock, tree):
    with pytest.raises(NameTooLongError):
        await tree.lookup(root_of(tree), "é" * 128)


async def test_a_key_over_1024_bytes_is_too_long(autojump_clock, store, tree):
    store.put("a" * 255 + "/" + "b" * 255 + "/" + "c" * 255 + "/" + "d" * 250 + "/x")
    directory = root_of(tree)
    for letter, length in (("a", 255), ("b", 255), ("c", 255), ("d", 250)):
        directory = await tree.lookup(directory, letter * length)

    with pytest.raises(NameTooLongError):
        await tree.lookup(directory, "e" * 10)


async def test_after_a_listing_no_name_costs_a_request(autojump_clock, store, tree):
    for index in range(2500):
        store.put(f"f{index:04}")

    await list_whole(tree, root_of(tree))
    assert requests(store) == ["list"] * 3
    for index in range(2500):
        await tree.lookup(root_of(tree), f"f{index:04}")
    with pytest.raises(NoSuchEntryError):
        await tree.lookup(root_of(tree), "g")

    assert requests(store) == []


async def test_the_third_miss_lists_the_directory(autojump_clock, store, tree):
    for index in range(100):
        store.put(f"f{index}")

    for index in range(100):
        await tree.lookup(root_of(tree), f"f{index}")

    assert requests(store) == ["list"] * 3


async def test_a_directory_too_big_to_list_on_suspicion_is_asked_name_by_name(autojump_clock, store, tree):
    store.page_size = 10
    for index in range(100):
        store.put(f"f{index:02}")

    for index in range(10):
        await tree.lookup(root_of(tree), f"f{99 - index}")

    assert requests(store) == ["list"] * (10 + 3)


async def test_lookups_of_one_name_share_a_request(autojump_clock, store, tree):
    store.put("foo")
    store.latency_seconds = 1.0

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(tree.lookup, root_of(tree), "foo")

    assert requests(store) == ["list"]


async def test_an_error_reaches_all_who_wait_and_is_not_remembered(autojump_clock, store, tree):
    store.put("foo")
    store.latency_seconds = 1.0
    store.inject(RequestKind.LIST, error=StoreUnavailableError("down"))
    failures = []

    async def look():
        try:
            await tree.lookup(root_of(tree), "foo")
        except StoreUnavailableError as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(look)

    assert len(failures) == 5
    assert (await tree.lookup(root_of(tree), "foo")).name == "foo"
    assert requests(store) == ["list", "list"]


async def test_a_known_file_is_confirmed_by_one_head_after_its_ttl(autojump_clock, store, tree):
    store.put("foo")
    before = await tree.lookup(root_of(tree), "foo")
    await trio.sleep(TTL)

    after = await tree.lookup(root_of(tree), "foo")

    assert after is before
    assert requests(store) == ["list", "head"]


async def test_a_replaced_file_is_a_new_inode_after_the_ttl(autojump_clock, store, tree):
    store.put("foo", b"1")
    before = await tree.lookup(root_of(tree), "foo")
    before.was_read = True
    store.put("foo", b"2")

    assert await tree.lookup(root_of(tree), "foo") is before
    await trio.sleep(TTL)
    after = await tree.lookup(root_of(tree), "foo")

    assert after.number != before.number


async def test_a_deleted_file_is_gone_after_the_ttl(autojump_clock, store, tree):
    store.put("foo")
    await tree.lookup(root_of(tree), "foo")
    store.delete("foo")
    await trio.sleep(TTL)

    with pytest.raises(NoSuchEntryError):
        await tree.lookup(root_of(tree), "foo")


async def test_without_the_right_to_list_a_file_is_found_by_head(autojump_clock, store, tree):
    store.put("foo", b"123")
    store.inject(RequestKind.LIST, error=AccessDeniedError("list"), times=None)

    assert (await tree.lookup(root_of(tree), "foo")).size == 3
    with pytest.raises(AccessDeniedError):
        await tree.lookup(root_of(tree), "nope")


async def test_without_the_right_to_head_a_file_is_found_by_list(autojump_clock, store, tree):
    store.put("foo", b"123")
    store.inject(RequestKind.HEAD, error=AccessDeniedError("head"), times=None)

    await tree.lookup(root_of(tree), "foo")
    await trio.sleep(TTL)

    assert (await tree.lookup(root_of(tree), "foo")).size == 3


async def test_a_listing_shows_entries_before_it_is_complete(autojump_clock, store, tree):
    store.page_size = 10
    store.latency_seconds = 1.0
    for index in range(100):
        store.put(f"f{index:02}")
    listing = tree.list_directory(root_of(tree))
    listing.waiting += 1

    await listing.wait_for_more()

    # The last name of a page waits for the next one: a directory of its name could come.
    assert len(listing.entries) == 9
    assert not listing.is_over


async def test_a_listing_nobody_waits_for_ends_early(autojump_clock, store, tree):
    store.page_size = 10
    for index in range(100):
        store.put(f"f{index:02}")
    listing = tree.list_directory(root_of(tree))
    listing.waiting += 1
    await listing.wait_for_more()
    listing.waiting -= 1

    while not listing.is_over:
        await listing.wait_for_more()

    assert not listing.is_complete
    assert requests(store) == ["list"] * 3


async def test_a_listing_that_breaks_is_an_error_and_proves_nothing_absent(autojump_clock, store, tree):
    store.page_size = 10
    store.latency_seconds = 1.0
    for index in range(30):
        store.put(f"f{index:02}")
    listing = tree.list_directory(root_of(tree))
    listing.waiting += 1
    await listing.wait_for_more()
    store.inject(RequestKind.LIST, error=StoreUnavailableError("down"))

    while not listing.is_over:
        await listing.wait_for_more()

    assert isinstance(listing.error, StoreUnavailableError)
    assert (await tree.lookup(root_of(tree), "f29")).name == "f29"


async def test_a_walk_lists_the_next_directories_ahead(autojump_clock, store, tree):
    store.latency_seconds = 0.03
    for index in range(200):
        store.put(f"d{index:03}/x")
    names = await list_whole(tree, root_of(tree))
    started_at = trio.current_time()

    for name in names:
        await list_whole(tree, root_of(tree).children[name])

    assert requests(store) == ["list"] * 201
    assert trio.current_time() - started_at < 200 * 0.03 / 4


async def test_a_single_directory_lists_nothing_ahead(autojump_clock, store, tree):
    for index in range(20):
        store.put(f"d{index:02}/x")
    await list_whole(tree, root_of(tree))

    await list_whole(tree, root_of(tree).children["d07"])

    assert requests(store) == ["list", "list"]


async def test_an_open_within_the_ttl_costs_nothing(autojump_clock, store, tree):
    expected = store.put("foo", b"1")
    file = await tree.lookup(root_of(tree), "foo")
    store.calls.clear()

    assert await tree.pin(file) == expected
    assert requests(store) == []


async def test_an_open_beyond_the_ttl_finds_a_replaced_object(autojump_clock, store, tree, stale_names):
    store.put("foo", b"1")
    file = await tree.lookup(root_of(tree), "foo")
    file.was_read = True
    store.put("foo", b"2")
    await trio.sleep(TTL)

    with pytest.raises(StaleObjectError):
        await tree.pin(file)

    assert stale_names == [(root_of(tree).number, "foo")]
    assert (await tree.lookup(root_of(tree), "foo")).number != file.number


async def test_an_open_of_a_deleted_object_is_stale(autojump_clock, store, tree, stale_names):
    store.put("foo", b"1")
    file = await tree.lookup(root_of(tree), "foo")
    store.delete("foo")
    await trio.sleep(TTL)

    with pytest.raises(StaleObjectError):
        await tree.pin(file)

    assert stale_names == [(root_of(tree).number, "foo")]


class TestWithoutTtl:
    @pytest.fixture
    def options(self):
        return NamespaceOptions(ttl_seconds=0.0, negative_ttl_seconds=0.0)

    async def test_each_lookup_asks(self, autojump_clock, store, tree):
        store.put("foo")

        for _ in range(5):
            await tree.lookup(root_of(tree), "foo")

        assert requests(store) == ["list"] * 5

    async def test_a_directory_that_takes_a_files_name_is_seen_at_once(self, autojump_clock, store, tree):
        store.put("foo")
        await tree.lookup(root_of(tree), "foo")
        store.put("foo/x")

        assert isinstance(await tree.lookup(root_of(tree), "foo"), DirectoryInode)

        store.delete("foo/x")
        assert isinstance(await tree.lookup(root_of(tree), "foo"), FileInode)

    async def test_an_open_right_after_the_lookup_does_not_ask_again(self, autojump_clock, store, tree):
        store.put("foo")
        file = await tree.lookup(root_of(tree), "foo")

        await tree.pin(file)
        assert requests(store) == ["list"]

        await trio.sleep(OPEN_GRACE_SECONDS)
        await tree.pin(file)
        assert requests(store) == ["head"]

    async def test_a_new_object_is_seen_at_once(self, autojump_clock, store, tree):
        with pytest.raises(NoSuchEntryError):
            await tree.lookup(root_of(tree), "foo")
        store.put("foo")

        assert (await tree.lookup(root_of(tree), "foo")).name == "foo"
