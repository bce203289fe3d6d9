"""How training programs read: what comes back, and what it costs, counted before the server."""

import errno
import hashlib
import io
import random
import tarfile
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.data import check_coded, coded_bytes, find_mismatch
from tests.support.file_user import FileUser
from tests.support.http_heads import Kind
from tests.support.proxy_log import Outcome, bytes_sent
from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

KIB = 1024
MIB = 1024 * KIB


@pytest.fixture(scope="module")
def shared(seaweed: S3Server) -> Iterator[Scene]:
    with scene(seaweed, "--ttl=1h", "--negative-ttl=0", life_seconds=300) as built:
        yield built


# Memory maps opened anew for each batch

TOKENS_SIZE = 24 * MIB
BATCHES = 500

RANDOM_BATCHES = """
import hashlib, random, sys
import numpy as np
path, batches = sys.argv[1], int(sys.argv[2])
generator, digest = random.Random(5), hashlib.sha256()
for _ in range(batches):
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    for _ in range(8):
        start = generator.randrange(len(tokens) - 1024)
        digest.update(tokens[start : start + 1024].tobytes())
print(digest.hexdigest())
"""


def test_random_batches_of_a_map_opened_for_each_cost_nothing_the_second_time(place: Scene) -> None:
    key = place.folder() + "train.bin"
    tokens = np.frombuffer(place.put(key, TOKENS_SIZE), dtype=np.uint16)
    generator, digest = random.Random(5), hashlib.sha256()
    for _ in range(8 * BATCHES):
        start = generator.randrange(len(tokens) - 1024)
        digest.update(tokens[start : start + 1024].tobytes())

    first = place.mount.run_python(RANDOM_BATCHES, key, str(BATCHES), timeout=60)
    gets_of_first, bytes_of_first = len(place.gets(key)), bytes_sent(place.gets(key))
    second = place.mount.run_python(RANDOM_BATCHES, key, str(BATCHES), timeout=60)

    assert first.stdout.strip() == digest.hexdigest(), first.stderr
    assert second.stdout == first.stdout, second.stderr
    assert bytes_of_first <= 1.05 * TOKENS_SIZE
    assert len(place.gets(key)) == gets_of_first


# Shards of samples

SHARD_MEMBER = 100_000

READ_SHARD = """
import hashlib, sys, tarfile
digest = hashlib.sha256()
with open(sys.argv[1], "rb", buffering=0) as file, tarfile.open(fileobj=file, mode="r|*", bufsize=4096) as shard:
    for member in shard:
        digest.update(hashlib.sha256(shard.extractfile(member).read()).digest())
print(digest.hexdigest())
"""


def make_shard(place: Scene, key: str, members: int) -> tuple[bytes, str]:
    """Store a tar file of samples; returns it, and the hash of its members' hashes."""
    content, digest = io.BytesIO(), hashlib.sha256()
    with tarfile.open(fileobj=content, mode="w") as shard:
        for index in range(members):
            sample = coded_bytes(f"{key}-{index}", 0, SHARD_MEMBER)
            digest.update(hashlib.sha256(sample).digest())
            entry = tarfile.TarInfo(f"{index:05}.bin")
            entry.size = len(sample)
            shard.addfile(entry, io.BytesIO(sample))
    place.client.put_object(Bucket=place.bucket, Key=key, Body=content.getvalue())
    return content.getvalue(), digest.hexdigest()


def test_a_shard_of_150_mb_read_by_4_kib_takes_20_requests(seaweed: S3Server) -> None:
    with scene(seaweed) as place:
        content, digest = make_shard(place, "shard.tar", 1500)
        assert len(content) > 150_000_000

        done = place.mount.run_python(READ_SHARD, "shard.tar", timeout=60)

        assert done.stdout.strip() == digest, done.stderr
        assert len(place.first_gets()) <= 20
        assert bytes_sent(place.gets()) <= 1.01 * len(content)


MAX_WINDOW = 32 * MIB
"""Readahead of a stream that has read no more than that, and at most four times what it has read."""

KERNEL_READAHEAD = 4 * MIB
"""What the kernel has read ahead of the program, and what it has asked for beyond that."""

READ_PART = """
import hashlib, sys
digest, left = hashlib.sha256(), int(sys.argv[2])
with open(sys.argv[1], "rb", buffering=10240) as file:
    while left and (part := file.read(min(left, 10240))):
        digest.update(part)
        left -= len(part)
print(digest.hexdigest())
"""


@pytest.mark.parametrize("part", [0.05, 0.3, 0.8])
def test_a_shard_that_is_left_early_is_fetched_no_further(place: Scene, part: float) -> None:
    key = place.folder() + "shard.tar"
    size, wanted = 48 * MIB, int(part * 48) * MIB
    place.put(key, size)
    place.proxy.bytes_per_second_per_connection = 8 * MIB  # requests are under way when the file is closed

    done = place.mount.run_python(READ_PART, key, str(wanted), timeout=60)
    exchanges = [exchange for exchange in place.proxy.log.wait_until_idle() if exchange.kind is Kind.GET]

    assert done.stdout.strip() == hashlib.sha256(coded_bytes(key, 0, wanted)).hexdigest(), done.stderr
    asked = wanted + KERNEL_READAHEAD
    assert bytes_sent(exchanges) <= asked + min(4 * asked, MAX_WINDOW)
    if wanted < size // 2:
        assert Outcome.CLIENT_GONE in {exchange.outcome for exchange in exchanges}
    place.wait_until_closed()


def test_a_pipe_that_is_closed_early_ends_the_reading(place: Scene) -> None:
    key = place.folder() + "shard.tar"
    place.put(key, 48 * MIB)

    done = place.mount.run("bash", "-c", f"cat {key} | head -c 1000000 | sha256sum; echo ${{PIPESTATUS[0]}}")
    exchanges = [exchange for exchange in place.proxy.log.wait_until_idle() if exchange.kind is Kind.GET]

    digest = hashlib.sha256(coded_bytes(key, 0, 1_000_000)).hexdigest()
    assert done.stdout.split() == [digest, "-", "141"], "cat was ended by SIGPIPE"
    assert bytes_sent(exchanges) <= 1_000_000 + MAX_WINDOW
    place.wait_until_closed()


# Small files

FOLDERS, FILES_EACH = 8, 25


def test_shuffled_small_files_cost_a_request_each_and_none_in_the_next_epoch(place: Scene, user: FileUser) -> None:
    folder = place.folder()
    paths = [f"{folder}c{index % FOLDERS}/f{index}" for index in range(FOLDERS * FILES_EACH)]
    for path in paths:
        place.put(path, 115_000)
    place.proxy.log.clear()
    sent_twice_before = place.gets_sent_twice()
    epochs = [random.Random(seed).sample(paths, len(paths)) for seed in (1, 2)]

    counts = []
    for epoch in epochs:
        contents = user.read_files(epoch, threads=8)
        for path, content in zip(epoch, contents, strict=True):
            assert isinstance(content, bytes), content
            check_coded(content, path, 0, 115_000)
        counts.append(place.proxy.counts())
        place.proxy.log.clear()

    cold, warm = counts
    assert cold[Kind.GET] == len(paths) + place.gets_sent_twice() - sent_twice_before
    assert sum(cold.values()) <= 1.25 * len(paths)
    assert Kind.HEAD not in cold
    assert warm == {}


def test_without_a_ttl_opening_costs_one_lookup_per_part_of_the_path(seaweed: S3Server) -> None:
    paths = [f"a/b{index % 2}/f{index}" for index in range(20)]
    with scene(seaweed, "--ttl=0") as place, place.user() as user:
        for path in paths:
            place.put(path, 10_000)
        place.proxy.log.clear()

        for path in paths:
            check_coded(user.read_file(path), path, 0, 10_000)

        counts = place.proxy.counts()
        assert counts.pop(Kind.GET) == len(paths)
        assert sum(counts.values()) <= 3 * len(paths)


# Objects that another client replaces


def read_if_not_stale(user: FileUser, key: str, size: int, start: int, *, fd: int | None = None) -> bytes | None:
    """Bytes of an open file, or of the one there is now; None if S3 has no longer what was opened."""
    try:
        return user.pread(fd, size, start) if fd is not None else bytes(user.call("read_at", key, size, start))
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return None


def test_a_file_replaced_while_it_is_read_shows_its_old_version_or_estale(place: Scene, user: FileUser) -> None:
    key = place.folder() + "data"
    size, piece = 40 * MIB, 64 * KIB
    place.put(key, size, version="A")
    generator = random.Random(9)
    fd = user.open(key)
    stale = 0
    for turn in range(60):
        if turn == 20:
            place.put(key, size, version="B")
        start = generator.randrange(size - piece)
        content = read_if_not_stale(user, key, piece, start, fd=fd)
        stale += content is None
        if content is not None:  # the kernel may have had only the first pages, and then it is short
            check_coded(content, key, start, start + piece if turn < 20 else None, version="A")
    user.close_file(fd)

    assert stale, "it was read where nothing had been fetched"
    check_coded(user.read_file(key), key, 0, size, version="B")


def test_batches_of_a_file_replaced_between_them_are_of_one_version_each(place: Scene, user: FileUser) -> None:
    """Each batch is a read of its own open; none goes back to the old version."""
    key = place.folder() + "data"
    size, batch = 24 * MIB, 300 * KIB
    place.put(key, size, version="A")
    generator = random.Random(10)
    seen = []
    for turn in range(60):
        if turn in {20, 40}:
            place.put(key, size, version="AABBC"[turn // 10])
        start = generator.randrange(size - batch)
        content = read_if_not_stale(user, key, batch, start)
        if content is None:
            continue
        [version] = [known for known in "ABC" if find_mismatch(content, key, start, version=known) is None]
        seen.append(version)

    assert seen == sorted(seen)
    assert set(seen) == {"A", "B", "C"}


def test_a_map_of_a_replaced_file_shows_its_old_version_or_ends_its_process(place: Scene) -> None:
    key = place.folder() + "data.npy"
    before, after = (np.full(5_000_000, number, dtype=np.uint32) for number in (1, 2))
    for array in (before, after):
        content = io.BytesIO()
        np.save(content, array)
        if array is before:
            place.client.put_object(Bucket=place.bucket, Key=key, Body=content.getvalue())
    code = (
        "import sys, numpy as np\n"
        "array = np.load(sys.argv[1], mmap_mode='r')\n"
        "print(np.unique(array[:1000]), flush=True)\n"
        "input()\n"
        "for start in range(0, len(array), 100_000):\n"
        "    print(np.unique(array[start : start + 100_000]), flush=True)\n"
    )
    process = place.mount.start_python(code, key)
    assert process.stdout is not None
    first = process.stdout.readline()
    place.client.put_object(Bucket=place.bucket, Key=key, Body=content.getvalue())

    stdout, stderr = process.communicate("\n", timeout=30)

    assert {first.strip(), *stdout.splitlines()} == {"[1]"}, stderr
    fresh = place.mount.run_python("import sys, numpy as np; print(np.unique(np.load(sys.argv[1])))", key)
    assert fresh.stdout in {"[1]\n", "[2]\n"}
    assert fresh.stdout == "[2]\n" or process.returncode == 0
