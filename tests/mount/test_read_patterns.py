"""Reads that look out of order although they are not: what they fetch, counted before the server."""

import hashlib
import os
from collections.abc import Iterator

import pytest

from tests.support.data import check_coded, coded_bytes
from tests.support.file_user import FileUser
from tests.support.proxy_log import bytes_sent
from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

KIB = 1024
MIB = 1024 * KIB

SIZE = 48 * MIB
STEP = 128 * KIB

SLICES = 8
SLICE = SIZE // SLICES

LATENCY_SECONDS = 0.03


@pytest.fixture(scope="module")
def shared(seaweed: S3Server) -> Iterator[Scene]:
    with scene(seaweed, "--ttl=1h", "--negative-ttl=0", life_seconds=300) as built:
        yield built


@pytest.fixture
def key(place: Scene) -> str:
    """An object nobody has read."""
    name = place.folder() + "data"
    place.put(name, SIZE)
    return name


# One reader whose reads arrive in another order

IN_ORDER = [index * STEP for index in range(SIZE // STEP)]


def swapped() -> list[int]:
    """0, 2, 1, 4, 3, ..., as the kernel sends its own readahead."""
    places = list(IN_ORDER)
    for index in range(1, len(places) - 1, 2):
        places[index], places[index + 1] = places[index + 1], places[index]
    return places


def with_steps_back() -> list[int]:
    """After every 16 MiB again the last MiB."""
    places = []
    for offset in IN_ORDER:
        if offset and offset % (16 * MIB) == 0:
            places += range(offset - MIB, offset, STEP)
        places.append(offset)
    return places


def read_places(user: FileUser, key: str, offsets: list[int], *, threads: int = 1) -> None:
    """Read each, by requests that reach the daemon as they are, and check what comes back."""
    fd = user.open(key, flags=os.O_RDONLY | os.O_DIRECT)
    contents = user.pread_many(fd, [(STEP, offset) for offset in offsets], threads=threads, timeout=60)
    for offset, content in zip(offsets, contents, strict=True):
        assert isinstance(content, bytes), content
        check_coded(content, key, offset, offset + STEP)
    user.close_file(fd)


@pytest.mark.parametrize(
    ("offsets", "threads"),
    [
        pytest.param(swapped(), 1, id="swapped"),
        pytest.param(with_steps_back(), 1, id="steps back"),
        pytest.param(IN_ORDER, 8, id="8 at a time"),
    ],
)
def test_reads_in_another_order_cost_about_what_ordered_ones_cost(
    place: Scene, user: FileUser, key: str, offsets: list[int], threads: int
) -> None:
    ordered = place.folder() + "ordered"
    place.put(ordered, SIZE)
    read_places(user, ordered, IN_ORDER)

    read_places(user, key, offsets, threads=threads)

    assert bytes_sent(place.gets(key)) <= 1.25 * SIZE
    assert len(place.gets(key)) <= 2 * len(place.gets(ordered))


def test_readahead_of_the_kernel_itself_costs_each_byte_once(place: Scene, user: FileUser, key: str) -> None:
    content = user.read_all(user.open(key), size=256 * KIB)

    check_coded(content, key, 0, SIZE)
    assert bytes_sent(place.gets(key)) <= 1.05 * SIZE


# Several readers of one file, each in an area of its own

FORKED = """
import hashlib, os, sys
path, slices, size, is_shared = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "shared"
parent = os.open(path, os.O_RDONLY)
children = []
for index in range(slices):
    source, sink = os.pipe()
    child = os.fork()
    if not child:
        fd = parent if is_shared else os.open(path, os.O_RDONLY)
        digest = hashlib.sha256()
        for offset in range(index * size, (index + 1) * size, 256 << 10):
            digest.update(os.pread(fd, 256 << 10, offset))
        os.write(sink, digest.hexdigest().encode())
        os._exit(0)
    os.close(sink)
    children.append((child, source))
for child, source in children:
    print(os.read(source, 100).decode())
    os.waitpid(child, 0)
"""

MAPPED = """
import hashlib, mmap, os, sys
from concurrent.futures import ThreadPoolExecutor
path, slices, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
mapping = mmap.mmap(os.open(path, os.O_RDONLY), 0, prot=mmap.PROT_READ)
def read(index):
    digest = hashlib.sha256()
    for offset in range(index * size, (index + 1) * size, 64 << 10):
        digest.update(mapping[offset : offset + (64 << 10)])
    return digest.hexdigest()
with ThreadPoolExecutor(slices) as pool:
    print("\\n".join(pool.map(read, range(slices))))
"""


def slice_sums(key: str) -> list[str]:
    return [hashlib.sha256(coded_bytes(key, index * SLICE, (index + 1) * SLICE)).hexdigest() for index in range(SLICES)]


def read_slices(place: Scene, key: str, code: str, *arguments: str) -> None:
    place.proxy.latency_seconds = LATENCY_SECONDS
    done = place.mount.run_python(code, key, str(SLICES), str(SLICE), *arguments, timeout=60)
    assert done.stdout.split() == slice_sums(key), done.stderr


def test_forked_readers_of_one_descriptor_cost_what_separate_ones_cost(place: Scene, key: str) -> None:
    other = place.folder() + "separate"
    place.put(other, SIZE)
    read_slices(place, other, FORKED, "separate")

    read_slices(place, key, FORKED, "shared")

    assert bytes_sent(place.gets(key)) <= 1.5 * SIZE
    assert len(place.gets(key)) <= 2 * len(place.gets(other))


def test_threads_in_areas_of_one_mapping_fetch_little_twice(place: Scene, key: str) -> None:
    read_slices(place, key, MAPPED)

    assert bytes_sent(place.gets(key)) <= 1.5 * SIZE
    assert len(place.gets(key)) <= SIZE // MIB * 2, "readahead works in each area"
