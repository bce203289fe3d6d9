"""What every `ObjectStore` does, over each implementation and each server."""

import contextlib
import functools
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest
import trio
from types_boto3_s3 import S3Client

from s3mount.errors import NoSuchEntryError, StaleObjectError
from s3mount.ids import ETag, ObjectId
from s3mount.metrics import Metrics
from s3mount.options import StoreOptions
from s3mount.ranges import MIB, ByteRange
from s3mount.store.interface import ListPage, ObjectStore
from s3mount.store.memory import MemoryStore
from s3mount.store.s3 import open_s3_store
from tests.support.servers import ACCESS_KEY, SECRET_KEY, S3Server

PLAIN_NAMES = [
    "a b", "a+b", "a%2Bb", "a%2Fb", "%41", "100%", "a+b c", "trailing ", " leading", "-dash", "q?x", "h#x", "semi;x",
    "q'x", 'd"x', "star*x", "tilde~x", "comma,x", "eq=x", "amp&x", "<tag>", "caf\u00e9", "cafe\u0301",
    "\U0001f600", "$x", "@x", ":x", "(x)", "[x]", "{x}", "^x", "`x", "|x", "!x", "a++b", "%", "%%20",
]  # fmt: skip
STRANGE_NAMES = ["back\\slash", "/lead", "a//b", "//", ".", "..", "a/./b", "a/../b", "x/", "dir//"]


@dataclass
class Bucket:
    """A store, and a way to change its bucket that does not go through it."""

    store: ObjectStore
    put: Callable[[str, bytes], ObjectId]
    delete: Callable[[str], None]
    has_strange_names: bool = True


@contextlib.asynccontextmanager
async def memory_bucket() -> AsyncIterator[Bucket]:
    store = MemoryStore()
    yield Bucket(store, store.put, store.delete)


@contextlib.asynccontextmanager
async def served_bucket(server: S3Server, *, has_strange_names: bool) -> AsyncIterator[Bucket]:
    client = client_of(server)
    name = f"test-{secrets.token_hex(6)}"
    client.create_bucket(Bucket=name)

    def put(key: str, body: bytes) -> ObjectId:
        return ObjectId(key, ETag(client.put_object(Bucket=name, Key=key, Body=body)["ETag"].strip('"')))

    options = StoreOptions(bucket=name, endpoint_url=server.endpoint_url, region="us-east-1")
    async with open_s3_store(options, Metrics()) as store:
        yield Bucket(store, put, lambda key: client.delete_object(Bucket=name, Key=key), has_strange_names)


@functools.cache
def client_of(server: S3Server) -> S3Client:
    return server.client()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)


@pytest.fixture(params=["memory", "moto", "seaweed"])
async def bucket(request: pytest.FixtureRequest) -> AsyncIterator[Bucket]:
    match request.param:
        case "memory":
            opened = memory_bucket()
        case "moto":
            opened = served_bucket(request.getfixturevalue("moto"), has_strange_names=True)
        case _:
            opened = served_bucket(request.getfixturevalue("seaweed"), has_strange_names=False)
    async with opened as bucket:
        with trio.fail_after(20):
            yield bucket


async def all_pages(store: ObjectStore, prefix: str, *, delimiter: str = "/", max_keys: int = 1000) -> list[ListPage]:
    pages = [await store.list_page(prefix, delimiter=delimiter, max_keys=max_keys)]
    while (token := pages[-1].next_token) is not None:
        pages.append(await store.list_page(prefix, delimiter=delimiter, token=token, max_keys=max_keys))
    return pages


def names_of(pages: list[ListPage]) -> list[str]:
    return sorted([o.key for page in pages for o in page.objects] + [p for page in pages for p in page.prefixes])


async def read(store: ObjectStore, object_id: ObjectId, span: ByteRange, size: int) -> bytes:
    into = bytearray(span.size)
    await store.get_range(object_id, span, object_size=size, into=memoryview(into))
    return bytes(into)


async def test_head_tells_the_attributes(bucket: Bucket):
    object_id = bucket.put("d/f", b"hello")

    summary = await bucket.store.head("d/f")

    assert (summary.key, summary.size, summary.etag) == ("d/f", 5, object_id.etag)
    assert not summary.is_archived
    assert summary.mtime_ns > 10**18


async def test_head_and_list_agree(bucket: Bucket):
    bucket.put("f", b"hello")

    head = await bucket.store.head("f")
    (listed,) = (await bucket.store.list_page("")).objects

    assert (listed.key, listed.size, listed.etag, listed.mtime_ns) == (head.key, head.size, head.etag, head.mtime_ns)


@pytest.mark.parametrize("key", ["absent", "d", "d/", "f/x"])
async def test_head_of_an_absent_key_says_so(bucket: Bucket, key: str):
    if key == "d/" and not bucket.has_strange_names:
        pytest.skip("the server makes up an object for a directory")
    bucket.put("d/f", b"")
    bucket.put("f", b"")

    with pytest.raises(NoSuchEntryError):
        await bucket.store.head(key)


async def test_list_groups_by_the_delimiter(bucket: Bucket):
    for key in ("a", "d/1", "d/2", "d/e/3", "f"):
        bucket.put(key, b"x")

    top = await bucket.store.list_page("")
    below = await bucket.store.list_page("d/")

    assert ([o.key for o in top.objects], top.prefixes) == (["a", "f"], ("d/",))
    assert ([o.key for o in below.objects], below.prefixes) == (["d/1", "d/2"], ("d/e/",))
    assert top.next_token is below.next_token is None


async def test_list_without_delimiter_is_flat(bucket: Bucket):
    for key in ("a", "d/1", "d/e/3"):
        bucket.put(key, b"x")

    page = await bucket.store.list_page("", delimiter="")

    assert ([o.key for o in page.objects], page.prefixes) == (["a", "d/1", "d/e/3"], ())


async def test_list_of_an_absent_prefix_is_empty(bucket: Bucket):
    page = await bucket.store.list_page("absent/")

    assert page == ListPage((), (), None)


async def test_list_by_a_part_of_a_name(bucket: Bucket):
    for key in ("data", "data/x", "data-1", "date"):
        bucket.put(key, b"x")

    page = await bucket.store.list_page("data")

    assert ([o.key for o in page.objects], page.prefixes) == (["data", "data-1"], ("data/",))


@pytest.mark.parametrize("max_keys", [1, 2, 3, 7])
async def test_pages_add_up(bucket: Bucket, max_keys: int):
    keys = ["dir", "dir-1", "dir.x", "dir0", "z", *(f"dir/{letter}" for letter in "abcdefg")]
    for key in keys:
        bucket.put(key, b"x")

    grouped = await all_pages(bucket.store, "", max_keys=max_keys)
    flat = await all_pages(bucket.store, "dir/", delimiter="", max_keys=max_keys)

    assert names_of(grouped) == ["dir", "dir-1", "dir.x", "dir/", "dir0", "z"]
    assert names_of(flat) == [f"dir/{letter}" for letter in "abcdefg"]
    assert len(flat) == -(-7 // max_keys)


async def test_plain_names_are_exact(bucket: Bucket):
    ids = {name: bucket.put(f"n/{name}", name.encode()) for name in PLAIN_NAMES}

    listed = names_of(await all_pages(bucket.store, "n/", max_keys=7))
    heads = {name: await bucket.store.head(f"n/{name}") for name in PLAIN_NAMES}

    assert listed == sorted(f"n/{name}" for name in PLAIN_NAMES)
    for name, object_id in ids.items():
        body = name.encode()
        assert heads[name].etag == object_id.etag
        assert await read(bucket.store, object_id, ByteRange(0, len(body)), len(body)) == body


@pytest.mark.parametrize("name", ["a b", "a+b", "a+b c", "a++b", "a%2Bb", "100%"])
async def test_a_plain_name_is_exact_by_itself(bucket: Bucket, name: str):
    bucket.put(f"{name}/{name}", b"x")

    top = await bucket.store.list_page("")
    below = await bucket.store.list_page(f"{name}/")

    assert top.prefixes == (f"{name}/",)
    assert [o.key for o in below.objects] == [f"{name}/{name}"]


@pytest.mark.parametrize("key", STRANGE_NAMES)
async def test_strange_names_are_exact(bucket: Bucket, key: str):
    if not bucket.has_strange_names:
        pytest.skip("the server changes such keys")
    object_id = bucket.put(key, b"body")

    page = await bucket.store.list_page("", delimiter="")
    summary = await bucket.store.head(key)

    assert [o.key for o in page.objects] == [key]
    assert summary.etag == object_id.etag
    assert await read(bucket.store, object_id, ByteRange(1, 3), 4) == b"od"


async def test_ranges_are_exact(bucket: Bucket):
    body = b"".join(number.to_bytes(4, "big") for number in range(3 * MIB // 4))
    object_id = bucket.put("f", body)
    spans = [
        ByteRange(0, 1),
        ByteRange(len(body) - 1, len(body)),
        ByteRange(MIB - 1, 2 * MIB + 1),
        ByteRange(0, len(body)),
    ]

    for span in spans:
        assert await read(bucket.store, object_id, span, len(body)) == body[span.start : span.stop]


async def test_many_ranges_at_a_time(bucket: Bucket):
    body = b"".join(number.to_bytes(4, "big") for number in range(MIB // 4))
    object_id = bucket.put("f", body)
    into = bytearray(len(body))

    async with trio.open_nursery() as nursery:
        for start in range(0, MIB, 16_384):
            view = memoryview(into)[start : start + 16_384]
            span = ByteRange(start, start + 16_384)
            nursery.start_soon(lambda s=span, v=view: bucket.store.get_range(object_id, s, object_size=MIB, into=v))

    assert into == body


async def test_a_replaced_object_is_stale(bucket: Bucket):
    old = bucket.put("f", b"old version")
    bucket.put("f", b"new version")

    with pytest.raises(StaleObjectError):
        await read(bucket.store, old, ByteRange(0, 11), 11)
    with pytest.raises(StaleObjectError):
        await read(bucket.store, old, ByteRange(2, 5), 11)


async def test_a_deleted_object_is_stale(bucket: Bucket):
    old = bucket.put("f", b"body")
    bucket.delete("f")

    with pytest.raises(StaleObjectError):
        await read(bucket.store, old, ByteRange(0, 4), 4)


async def test_a_wrong_size_is_stale(bucket: Bucket):
    object_id = bucket.put("f", b"12345678")

    with pytest.raises(StaleObjectError):
        await read(bucket.store, object_id, ByteRange(2, 5), 9)


async def test_a_cancelled_read_leaves_the_store_usable(bucket: Bucket):
    object_id = bucket.put("f", b"x" * MIB)
    with trio.move_on_after(0) as scope:
        await read(bucket.store, object_id, ByteRange(0, MIB), MIB)

    assert scope.cancelled_caught
    assert await read(bucket.store, object_id, ByteRange(5, 6), MIB) == b"x"


async def test_stores_of_different_buckets_have_different_identities(bucket: Bucket):
    other = MemoryStore(name="other")

    assert bucket.store.identity != other.identity
