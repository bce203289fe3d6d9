"""Asserts: readers that fill the memory budget, fail or die in it, or use up the descriptors leave enough for others,
who read the right bytes to the end; the daemon's memory stays bounded.
"""

import os
import random
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.data import check_coded, find_mismatch
from tests.support.faults import Action, Rule, cut_after, s3_error
from tests.support.file_user import file_users
from tests.support.http_heads import Kind
from tests.support.mounts import Mount
from tests.support.proxy_log import bytes_sent, most_at_once
from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

KIB = 1024
MIB = 1024 * KIB


@pytest.fixture(autouse=True)
def _needs_fuse() -> None:
    if not Path("/dev/fuse").exists() or os.geteuid() != 0:
        pytest.skip("needs /dev/fuse and root")


def most_rss_bytes(mount: Mount) -> int:
    """The most the daemon has had resident."""
    status = Path(f"/proc/{mount.pid}/status").read_text(encoding="ascii")
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * KIB


def put_all(place: Scene, keys: list[str], size: int) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: place.put(key, size), keys))


# Readers that hold all there is

IDLE_READERS = 8
IDLE_SIZE = 16 * MIB
WHOLE_SIZE = 60 * MIB


def test_readers_that_rest_do_not_keep_another_from_reading(seaweed: S3Server) -> None:
    """Each of them has read enough for its readahead to fill the budget alone."""
    with scene(seaweed, f"--memory={32 * MIB}") as place, file_users(place.mount.path, 2) as (resting, reading):
        keys = [f"idle-{index}" for index in range(IDLE_READERS)]
        put_all(place, keys, IDLE_SIZE)
        place.put("whole", WHOLE_SIZE)
        descriptors = {key: resting.open(key, flags=os.O_RDONLY | os.O_DIRECT) for key in keys}
        for offset in range(0, 4 * MIB, MIB):
            for key, fd in descriptors.items():
                check_coded(resting.pread(fd, MIB, offset), key, offset, offset + MIB)

        content = reading.read_file("whole", timeout=30)

        check_coded(content, "whole", 0, WHOLE_SIZE)
        assert place.gauges()["memory_bytes"] <= 32 * MIB
        for key, fd in descriptors.items():
            rest = resting.pread_many(fd, [(MIB, at) for at in range(4 * MIB, IDLE_SIZE, MIB)], threads=1)
            check_coded(b"".join(part for part in rest if isinstance(part, bytes)), key, 4 * MIB, IDLE_SIZE)


# More streams than the budget has room for

OBJECTS = 10
STREAMS_PER_OBJECT = 20
STREAM_BYTES = 2 * MIB
STREAM_STEP = 64 * KIB
BUDGET = 64 * MIB

MOST_BUDGETS = 4
"""Memory that the daemon may have resident beyond what it has when it is idle: much less than passes through it. That
is more than the budget, since buffers given up go back to the system only once the garbage collector has seen them."""


def test_200_open_streams_on_a_budget_of_64_mib_are_read_to_their_end(seaweed: S3Server) -> None:
    size = STREAMS_PER_OBJECT * STREAM_BYTES
    with scene(seaweed, f"--memory={BUDGET}") as place, file_users(place.mount.path, 2) as users:
        keys = [f"shard-{index}" for index in range(OBJECTS)]
        put_all(place, keys, size)
        at_rest = place.mount.rss_bytes()
        place.proxy.log.clear()

        halves = [keys[: OBJECTS // 2], keys[OBJECTS // 2 :]]
        opened = [
            [(user.open(key), key, number * STREAM_BYTES) for key in half for number in range(STREAMS_PER_OBJECT)]
            for user, half in zip(users, halves, strict=True)
        ]
        assert place.gauges()["open_handles"] == OBJECTS * STREAMS_PER_OBJECT
        for step in range(0, STREAM_BYTES, 4 * STREAM_STEP):
            # All streams in turn, a few reads each: none is done before the others are under way.
            plans = [
                [
                    (fd, key, first + at)
                    for at in range(step, step + 4 * STREAM_STEP, STREAM_STEP)
                    for fd, key, first in streams
                ]
                for streams in opened
            ]
            for user, plan in zip(users, plans, strict=True):
                user.start("each", "pread", [(fd, STREAM_STEP, at) for fd, _, at in plan], 8)
            for user, plan in zip(users, plans, strict=True):
                contents = user.result(timeout=60)
                assert isinstance(contents, list)
                for (_, key, at), content in zip(plan, contents, strict=True):
                    assert isinstance(content, bytes), content
                    check_coded(content, key, at, at + STREAM_STEP)
            assert place.gauges()["memory_bytes"] <= BUDGET

        assert bytes_sent(place.gets()) <= 2 * OBJECTS * size
        assert most_rss_bytes(place.mount) <= at_rest + MOST_BUDGETS * BUDGET


# Reads that fail half-way, and readers that die

FAILING_BUDGET = 32 * MIB
MIN_FAILURES = FAILING_BUDGET // (128 * KIB)
FAILING_SIZES = {"small": 300 * KIB, "medium": 7 * MIB + 3, "large": 24 * MIB, "replaced": 10 * MIB}
READERS = 8
ROUNDS = 14
READS_PER_ROUND = 25
VERSIONS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def fail_half_way(place: Scene) -> None:
    """Of five GETs two are cut off, and what asks for their rest is refused for good."""
    place.proxy.add(Rule(cut_after(70_001), kind=Kind.GET, probability=0.4, seed=5))
    rest = Rule(s3_error(400, "InvalidRequest"), kind=Kind.GET, where=lambda r: (r.range_start or 0) % (4 * KIB) != 0)
    place.proxy.add(rest)


def kill_readers_that_wait(place: Scene) -> None:
    """The server does not answer them until they are dead."""
    place.put("waiting", 20 * MIB)
    release = threading.Event()
    hold = place.proxy.add(Rule(Action(hold=release), kind=Kind.GET, key="waiting"))
    with file_users(place.mount.path, 4) as victims:
        for index, victim in enumerate(victims):
            victim.start("read_at", "waiting", 100 * KIB, index * 5 * MIB)
        place.wait_for_gets(4, pending=True)
        for victim in victims:
            os.kill(victim.pid, 9)
        release.set()
    place.proxy.remove(hold)


def test_reads_that_fail_half_way_and_readers_that_die_give_back_all_they_had(seaweed: S3Server) -> None:
    generator = random.Random(8)
    wrong: list[str] = []
    failures = 0
    with scene(seaweed, f"--memory={FAILING_BUDGET}", "--request-deadline=5s", "--negative-ttl=0") as place:
        for key, size in FAILING_SIZES.items():
            place.put(key, size)
        fail_half_way(place)
        with file_users(place.mount.path, READERS) as users:
            for version in VERSIONS[1 : ROUNDS + 1]:
                plans = []
                for user in users:
                    key = generator.choice(list(FAILING_SIZES))
                    reads = [
                        (key, generator.randrange(1, 300 * KIB), generator.randrange(FAILING_SIZES[key]))
                        for _ in range(READS_PER_ROUND)
                    ]
                    user.start("each", "read_at", reads, 4)
                    plans.append((user, reads))
                place.put("replaced", FAILING_SIZES["replaced"], version=version)
                for user, reads in plans:
                    contents = user.result(timeout=60)
                    assert isinstance(contents, list)
                    failures += sum(isinstance(content, OSError) for content in contents)
                    wrong += [
                        f"{key} at {start}"
                        for content, (key, _, start) in zip(contents, reads, strict=True)
                        if isinstance(content, bytes) and not is_of_one_version(content, key, start)
                    ]
                assert place.gauges()["memory_bytes"] <= FAILING_BUDGET
            kill_readers_that_wait(place)
        place.wait_until_closed()
        place.proxy.heal()

        assert wrong == []
        # Each has had 128 KiB at least: had they kept it, the budget would be used up, and nothing could be read.
        assert failures >= MIN_FAILURES
        with place.user() as user:
            for key in ("small", "medium", "large"):
                check_coded(user.read_file(key), key, 0, FAILING_SIZES[key])
        place.wait_until_closed()
        assert place.gauges()["memory_bytes"] <= FAILING_BUDGET


STORM_READS = 400
WHOLE_READ = 48 * MIB


def test_after_a_storm_of_failures_a_file_is_read_as_well_as_before(seaweed: S3Server) -> None:
    """Memory or connections that failures had kept would leave it fewer requests at a time."""
    with scene(seaweed, f"--memory={FAILING_BUDGET}", "--connections=8", "--request-deadline=2s") as place:
        for key in ("before", "after"):
            place.put(key, WHOLE_READ)
        place.put("failing", 24 * MIB)
        place.proxy.latency_seconds = 0.05
        with place.user() as user:
            check_coded(user.read_file("before"), "before", 0, WHOLE_READ)
        generator = random.Random(3)
        places = [(100 * KIB, generator.randrange(24 * MIB)) for _ in range(STORM_READS)]
        fail_half_way(place)
        with place.user() as user:
            fd = user.open("failing", flags=os.O_RDONLY | os.O_DIRECT)
            found = user.pread_many(fd, places, threads=16, timeout=60)
        place.wait_until_closed()
        place.proxy.heal()
        place.proxy.latency_seconds = 0.05
        with place.user() as user:
            check_coded(user.read_file("after"), "after", 0, WHOLE_READ)

        assert sum(isinstance(content, OSError) for content in found) > STORM_READS // 10
        before, after = place.gets("before"), place.gets("after")
        # The ranges that readahead begins with depend on what the link was measured to be: some more or fewer.
        assert len(after) <= 2 * len(before)
        assert most_at_once(after) >= most_at_once(before) // 2


def is_of_one_version(content: bytes, key: str, start: int) -> bool:
    versions = VERSIONS if key == "replaced" else "A"
    return any(find_mismatch(content, key, start, version=version) is None for version in versions)


# Few descriptors

FEW_DESCRIPTORS = 256
FILES = 300
FILE_SIZE = 100 * KIB


@pytest.mark.parametrize("spare", [None, 10], ids=["256 in all", "10 to spare"])
def test_a_daemon_with_few_descriptors_serves_many_readers(seaweed: S3Server, spare: int | None) -> None:
    with scene(seaweed, "--connections=512") as place, file_users(place.mount.path, 2) as users:
        in_use = len(list(Path(f"/proc/{place.mount.pid}/fd").iterdir()))
        limit = FEW_DESCRIPTORS if spare is None else in_use + spare
        resource.prlimit(place.mount.pid, resource.RLIMIT_NOFILE, (limit, limit))
        keys = [f"f{index:03}" for index in range(FILES)]
        put_all(place, keys, FILE_SIZE)
        assert len(users[0].listdir()) == FILES
        place.proxy.latency_seconds = 0.5 if spare is None else 0.1

        for user, mine in zip(users, (keys[: FILES // 2], keys[FILES // 2 :]), strict=True):
            user.start("each", "read_file", [(key,) for key in mine], len(mine))
        contents = [content for user in users for content in as_list(user.result(timeout=90))]

        for key, content in zip(keys, contents, strict=True):
            assert isinstance(content, bytes), (key, content)
            check_coded(content, key, 0, FILE_SIZE)
        assert most_at_once(place.gets()) < limit


def as_list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value
