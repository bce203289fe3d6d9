"""Reading: the right bytes, whoever reads how, and no more requests than that takes."""

import gzip
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.data import check_coded, coded_bytes
from tests.support.faults import Action, Rule
from tests.support.file_user import FileUser, file_users
from tests.support.http_heads import Kind
from tests.support.proxy_log import bytes_sent, most_at_once
from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

KIB = 1024
MIB = 1024 * KIB

LARGE = 40 * MIB + 12_345
"""Several ranges, and an end at no border."""


@pytest.fixture(scope="module")
def shared(seaweed: S3Server) -> Iterator[Scene]:
    with scene(seaweed, "--negative-ttl", "0", life_seconds=300) as built:
        built.put("large", LARGE)
        yield built


def open_uncached(user: FileUser, path: str) -> int:
    """Open a file, and have all its bytes come from the daemon."""
    fd = user.open(path)
    user.drop_pages(fd)
    return fd


# What comes back


def test_sequential_read_of_several_ranges_is_right_and_fetches_each_byte_once(place: Scene, user: FileUser) -> None:
    fd = open_uncached(user, "large")

    content = user.read_all(fd, size=100 * KIB)

    check_coded(content, "large", 0, LARGE)
    assert bytes_sent(place.gets("large")) <= 1.05 * LARGE


@pytest.mark.parametrize("size", [1, 15, 4095, 4096, 4097, 128 * KIB, 128 * KIB + 1, 8 * MIB, 8 * MIB + 1])
def test_file_of_any_size_is_read_whole(place: Scene, user: FileUser, size: int) -> None:
    key = place.folder() + "x"
    place.put(key, size)

    content = user.read_file(key)

    check_coded(content, key, 0, size)
    assert user.size(key) == size


def test_read_at_the_end_is_short_and_past_it_empty(place: Scene, user: FileUser) -> None:
    key = place.folder() + "x"
    place.put(key, 10_000)
    fd = user.open(key)

    across = user.pread(fd, 4096, 9_990)

    check_coded(across, key, 9_990, 10_000)
    assert user.pread(fd, 4096, 10_000) == b""
    assert user.pread(fd, 4096, 1 << 40) == b""
    check_coded(user.pread(fd, 1 << 20, 0), key, 0, 10_000)


def test_empty_file_is_read_without_a_request_for_its_bytes(place: Scene, user: FileUser) -> None:
    key = place.folder() + "empty"
    place.put(key, 0)

    content = user.read_file(key)

    assert content == b""
    assert user.size(key) == 0
    assert not place.gets(key)


def test_direct_reads_of_any_alignment_are_right(place: Scene, user: FileUser) -> None:
    generator = random.Random(1)
    places = [(1, 0), (4096, 1), (4095, 4097), (100, LARGE - 50), (4096, LARGE), (3 * MIB + 7, 8 * MIB - 1)]
    places += [(generator.randrange(1, 300 * KIB), generator.randrange(LARGE)) for _ in range(30)]
    fd = user.open("large", flags=os.O_RDONLY | os.O_DIRECT)

    contents = [user.pread(fd, size, offset) for size, offset in places]

    for (size, offset), content in zip(places, contents, strict=True):
        check_coded(content, "large", offset, max(offset, min(LARGE, offset + size)))


def test_many_threads_read_one_descriptor(place: Scene, user: FileUser) -> None:
    generator = random.Random(2)
    places = [(generator.randrange(1, 256 * KIB), generator.randrange(LARGE)) for _ in range(256)]
    fd = open_uncached(user, "large")

    contents = user.pread_many(fd, places, threads=32, timeout=60)

    for (size, offset), content in zip(places, contents, strict=True):
        assert isinstance(content, bytes), content
        check_coded(content, "large", offset, min(LARGE, offset + size))


@pytest.mark.parametrize("body", [gzip.compress(coded_bytes("gz", 0, MIB), mtime=0), b"not compressed at all" * 1000])
def test_content_encoding_changes_neither_bytes_nor_size(place: Scene, user: FileUser, body: bytes) -> None:
    key = place.folder() + "x.gz"
    place.client.put_object(Bucket=place.bucket, Key=key, Body=body, ContentEncoding="gzip")
    fd = user.open(key)

    content = user.read_all(fd)

    assert content == body
    assert user.size(key) == len(body)
    user.drop_pages(fd)
    assert user.pread(fd, 100, 777) == body[777:877]


def test_readers_of_one_file_share_each_request(place: Scene) -> None:
    key = place.folder() + "x"
    place.put(key, MIB)
    release = threading.Event()
    place.proxy.add(Rule(Action(hold=release), kind=Kind.GET, key=key))
    with file_users(place.mount.path, 8) as users:
        descriptors = [user.open(key, flags=os.O_RDONLY | os.O_DIRECT) for user in users]
        reads_before = place.mount.log().count("DEBUG s3mount.fuse: read(")

        for user, fd in zip(users, descriptors, strict=True):
            user.start("pread", fd, 4 * KIB, 5 * KIB)
        place.wait_until(lambda: place.mount.log().count("DEBUG s3mount.fuse: read(") >= reads_before + 8)
        release.set()
        contents = [user.result() for user in users]

    for content in contents:
        assert isinstance(content, bytes)
        check_coded(content, key, 5 * KIB, 9 * KIB)
    assert len(place.first_gets(key)) == 1


def test_reads_of_one_descriptor_are_served_concurrently(place: Scene, user: FileUser) -> None:
    key = place.folder() + "x"
    place.put(key, 32 * MIB)
    release = threading.Event()
    place.proxy.add(Rule(Action(hold=release), kind=Kind.GET, key=key))
    fd = user.open(key)
    places = [(4 * KIB, (2 * index + 1) * 2 * MIB) for index in range(8)]

    user.start("each", "pread", [(fd, *span) for span in places], 8)
    place.wait_for_gets(8, pending=True)
    release.set()
    contents = user.result()

    assert isinstance(contents, list)
    for (size, offset), content in zip(places, contents, strict=True):
        check_coded(content, key, offset, offset + size)
    assert most_at_once(place.gets(key)) >= 8


def test_reads_out_of_order_fetch_little_twice(place: Scene, user: FileUser) -> None:
    step = 128 * KIB
    order = [index for first in range(0, LARGE // step - 3, 4) for index in (first, first + 2, first + 1, first + 3)]
    fd = user.open("large", flags=os.O_RDONLY | os.O_DIRECT)

    for index in order:
        check_coded(user.pread(fd, step, index * step), "large", index * step, (index + 1) * step)

    assert bytes_sent(place.gets("large")) <= 1.25 * LARGE


def test_slices_read_in_turn_fetch_little_twice(place: Scene, user: FileUser) -> None:
    """As by forked workers that share a descriptor."""
    slice_size = LARGE // 8 // 4096 * 4096
    step = 256 * KIB
    fd = user.open("large", flags=os.O_RDONLY | os.O_DIRECT)
    places = [(step, first * slice_size + at) for at in range(0, slice_size, step) for first in range(8)]

    contents = user.pread_many(fd, places, threads=8, timeout=60)

    for (size, offset), content in zip(places, contents, strict=True):
        assert isinstance(content, bytes), content
        check_coded(content, "large", offset, min(LARGE, offset + size))
    assert bytes_sent(place.gets("large")) <= 1.5 * LARGE


# What it costs


def test_small_file_after_a_listing_costs_one_request_and_then_none(place: Scene, user: FileUser) -> None:
    folder = place.folder()
    place.put(folder + "x", 100 * KIB)
    assert user.listdir(folder) == ["x"]
    place.proxy.log.clear()

    first = user.read_file(folder + "x")
    counts_of_first = place.proxy.counts()
    second = user.read_file(folder + "x")

    check_coded(first, folder + "x", 0, 100 * KIB)
    assert second == first
    assert counts_of_first == {Kind.GET: 1}
    assert place.proxy.counts() == {Kind.GET: 1}


def test_second_open_is_answered_from_the_page_cache(place: Scene, user: FileUser) -> None:
    folder = place.folder()
    place.put(folder + "x", 9 * MIB)
    user.read_file(folder + "x")
    fetched, served = (place.mount.status()["counters"][name] for name in ("fetched_bytes", "served_bytes"))
    place.proxy.log.clear()

    content = user.read_file(folder + "x")

    check_coded(content, folder + "x", 0, 9 * MIB)
    assert place.proxy.counts() == {}
    counters = place.mount.status()["counters"]
    assert (counters["fetched_bytes"], counters["served_bytes"]) == (fetched, served)


def test_every_get_names_the_version(place: Scene, user: FileUser) -> None:
    key = place.folder() + "x"
    place.put(key, 10 * MIB)
    etag = place.client.head_object(Bucket=place.bucket, Key=key)["ETag"]

    user.read_file(key)

    assert {exchange.request.header("if-match") for exchange in place.gets(key)} == {etag}


# Locks


def test_lock_excludes_other_processes_of_this_host(place: Scene, user: FileUser) -> None:
    with place.user() as other:
        own, others = user.open("large"), other.open("large")
        user.call("lock", own)

        with pytest.raises(BlockingIOError):
            other.call("lock", others)
        user.close_file(own)
        other.call("lock", others)


# Archived objects


def test_archived_object_is_shown_but_not_read(moto: S3Server) -> None:
    with scene(moto, allow_warnings=True) as place, place.user() as user:
        place.client.put_object(Bucket=place.bucket, Key="cold", Body=b"x" * 5000, StorageClass="GLACIER")
        place.client.put_object(Bucket=place.bucket, Key="warm", Body=b"y" * 5000)
        names = user.listdir()
        blocks = place.mount.run("stat", "--format=%n %s %b", "cold", "warm").stdout
        fd = user.open("cold")
        place.proxy.log.clear()

        for _ in range(3):
            with pytest.raises(OSError, match="Input/output error"):
                user.pread(fd, 100, 0)

        assert names == ["cold", "warm"]
        assert blocks.splitlines() == ["cold 5000 0", "warm 5000 10"]
        assert not place.gets(), "it is known that this cannot succeed"
        assert sum("'cold' is archived" in line for line in place.mount.log().splitlines()) == 1
        assert user.read_file("warm") == b"y" * 5000


def test_object_archived_after_its_listing_fails_at_once(moto: S3Server) -> None:
    with scene(moto, "--ttl", "1h", allow_warnings=True) as place, place.user() as user:
        place.client.put_object(Bucket=place.bucket, Key="x", Body=b"x" * 5000)
        place.proxy.add(Rule(Action(rewrite_body=lambda body: body.replace(b"GLACIER", b"STANDARD")), kind=Kind.LIST))
        place.client.put_object(Bucket=place.bucket, Key="x", Body=b"x" * 5000, StorageClass="GLACIER")
        user.listdir()
        fd = user.open("x", flags=os.O_RDONLY | os.O_DIRECT)

        with pytest.raises(OSError, match="Input/output error"):
            user.pread(fd, 100, 0)

        assert len(place.first_gets()) == 1
        assert "'x' is archived" in place.mount.log()


def test_restored_object_is_read(moto: S3Server) -> None:
    with scene(moto) as place, place.user() as user:
        place.client.put_object(Bucket=place.bucket, Key="cold", Body=b"x" * 5000, StorageClass="GLACIER")
        place.client.restore_object(Bucket=place.bucket, Key="cold", RestoreRequest={"Days": 1})
        user.listdir()

        content = user.read_file("cold")

        assert content == b"x" * 5000


def test_tree_with_an_archived_object_is_copied_but_for_that(moto: S3Server, tmp_path: Path) -> None:
    with scene(moto, allow_warnings=True) as place:
        for key in ("d/a", "d/b", "d/c"):
            place.client.put_object(
                Bucket=place.bucket,
                Key=key,
                Body=key.encode() * 1000,
                StorageClass="GLACIER" if key == "d/b" else "STANDARD",
            )

        done = place.mount.run("cp", "-r", "d", str(tmp_path))

        assert done.returncode != 0
        assert [line for line in done.stderr.splitlines() if "d/b" not in line] == []
        assert (tmp_path / "d/a").read_bytes() == b"d/a" * 1000
        assert (tmp_path / "d/c").read_bytes() == b"d/c" * 1000
