"""Servers that are slow, silent, throttling or gone: who waits gets the bytes or an error, and nobody else is kept."""

import errno
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.data import check_coded
from tests.support.faults import Action, Rule, slow_down, stall_after
from tests.support.file_user import FileUser, UserEndedError, file_users
from tests.support.http_heads import Kind, Request
from tests.support.mounts import S3MOUNT, run_command
from tests.support.proxy import RateLimiter
from tests.support.proxy_log import bytes_sent
from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

KIB = 1024
MIB = 1024 * KIB

STALLED_READS = 100


@pytest.fixture(scope="module")
def shared(seaweed: S3Server) -> Iterator[Scene]:
    """A mount with the deadline of the defaults."""
    with scene(seaweed, "--negative-ttl=0", "--ttl=1h", life_seconds=300) as built:
        yield built


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """What holds answers back; set at the end at the latest."""
    event = threading.Event()
    yield event
    event.set()


# Throttling


def test_storm_of_refusals_is_waited_for(place: Scene, user: FileUser, released: threading.Event) -> None:
    folder = place.folder()
    keys = [f"{folder}{index}" for index in range(24)]
    for key in keys:
        place.put(key, 10 * KIB)
    storm = Rule(slow_down(), where=lambda _: not released.is_set())
    place.proxy.add(storm)
    timer = threading.Timer(3.0, released.set)
    timer.start()

    contents = user.read_files(keys, threads=24, timeout=60)
    timer.join()

    for key, content in zip(keys, contents, strict=True):
        assert isinstance(content, bytes), content
        check_coded(content, key, 0, 10 * KIB)
    assert storm.fired <= 12 * len(keys), "retries come at growing distances"


def test_throttled_readers_all_succeed_with_few_requests_too_many(place: Scene, user: FileUser) -> None:
    folder = place.folder()
    keys = [f"{folder}{index}" for index in range(40)]
    for key in keys:
        place.put(key, 10 * KIB)
    user.listdir(folder)
    place.proxy.log.clear()
    place.proxy.limiter = RateLimiter(requests_per_second=20.0, burst=5)

    contents = user.read_files(keys, threads=32, timeout=60)

    for key, content in zip(keys, contents, strict=True):
        assert isinstance(content, bytes), content
        check_coded(content, key, 0, 10 * KIB)
    assert len(place.gets()) <= 5 * len(keys)


# Silence


def test_silent_connections_are_given_up_and_asked_anew(place: Scene, released: threading.Event) -> None:
    folder = place.folder()
    place.put(folder + "stalled", 9 * MIB)
    place.put(folder + "lost", 100 * KIB)
    with file_users(place.mount.path, 2) as users:
        descriptors = [user.open(folder + name) for user, name in zip(users, ("stalled", "lost"), strict=True)]
        place.proxy.blackhole_connections()
        place.proxy.add(
            Rule(stall_after(50 * KIB, released), kind=Kind.GET, key=folder + "stalled", range_start=4 * MIB, times=1)
        )

        users[0].start("pread", descriptors[0], 100 * KIB, 4 * MIB)
        users[1].start("pread", descriptors[1], 100 * KIB, 0)
        contents = [user.result(timeout=50) for user in users]

    assert isinstance(contents[0], bytes)
    assert isinstance(contents[1], bytes)
    check_coded(contents[0], folder + "stalled", 4 * MIB, 4 * MIB + 100 * KIB)
    check_coded(contents[1], folder + "lost", 0, 100 * KIB)


def hedges(place: Scene) -> tuple[float, float, float]:
    counters = place.mount.status()["counters"]
    return counters["hedges_total"], counters["hedges_won_total"], counters["retries_total"]


def test_a_request_sent_a_second_time_that_helped_is_shown(seaweed: S3Server, released: threading.Event) -> None:
    with scene(seaweed, "--ttl=1h") as place, place.user() as user:
        place.put("usual", 100 * KIB)
        place.put("slow", 100 * KIB)
        place.proxy.add(Rule(Action(hold=released), kind=Kind.GET, key="slow", times=1))

        user.read_file("usual")
        before = hedges(place)
        check_coded(user.read_file("slow"), "slow", 0, 100 * KIB)
        shown = run_command([*S3MOUNT, "status", str(place.mount.path)], timeout=10).stdout

        assert before == (0, 0, 0)
        assert hedges(place) == (1, 1, 0)
        assert place.mount.status()["requests"]["get"] == 3
        lines = [line.split() for line in shown.splitlines()]
        assert ["hedges", "1"] in lines
        assert ["hedges", "won", "1"] in lines


def test_a_request_sent_a_second_time_in_vain_is_shown(seaweed: S3Server) -> None:
    second_was_sent = threading.Event()

    def ignored(_: Request) -> Action:
        second_was_sent.set()
        return Action(drop=True)

    with scene(seaweed, "--ttl=1h") as place, place.user() as user:
        place.put("slow", 100 * KIB)
        place.proxy.add(Rule(ignored, kind=Kind.GET, key="slow"))
        place.proxy.add(Rule(Action(hold=second_was_sent), kind=Kind.GET, key="slow", times=1))

        check_coded(user.read_file("slow"), "slow", 0, 100 * KIB)

        assert hedges(place) == (1, 0, 0)
        assert place.mount.status()["requests"]["get"] == 2


@pytest.mark.parametrize("is_reset", [False, True])
def test_idle_connections_that_the_server_closes_do_no_harm(place: Scene, user: FileUser, *, is_reset: bool) -> None:
    folder = place.folder()
    for index in range(5):
        place.put(f"{folder}{index}", 10 * KIB)
    place.proxy.cut_connections()
    place.proxy.idle_seconds, place.proxy.idle_reset = 0.1, is_reset

    for index in range(5):
        content = user.read_file(f"{folder}{index}")
        place.wait_until(lambda: place.proxy.open_connections == 0)

        check_coded(content, f"{folder}{index}", 0, 10 * KIB)


# Nobody else is kept


def test_names_are_answered_while_many_reads_are_stalled(place: Scene, released: threading.Event) -> None:
    folder = place.folder()
    place.put(folder + "data", 40 * MIB)
    place.put(folder + "other", 10 * KIB)
    place.put(folder + "below/x", 10 * KIB)
    with file_users(place.mount.path, 2) as (reader, other):
        assert other.listdir(folder) == ["below", "data", "other"]
        other.read_file(folder + "other")
        fd = reader.open(folder + "data")
        spans = [(4 * KIB, index * 400 * KIB) for index in range(STALLED_READS)]
        place.proxy.add(Rule(Action(hold=released), kind=Kind.GET))
        reads_before = place.mount.log().count("s3mount.fuse: read(")
        reader.start("each", "pread", [(fd, *span) for span in spans], STALLED_READS)
        place.wait_until(lambda: place.mount.log().count("s3mount.fuse: read(") >= reads_before + STALLED_READS)
        place.wait_for_gets(1, pending=True)

        size = other.size(folder + "other")
        names = other.listdir(folder)
        unseen = other.listdir(folder + "below")
        known = other.read_file(folder + "other")
        status = place.gauges()
        assert not released.is_set()
        assert all(exchange.is_pending for exchange in place.gets(folder + "data"))
        released.set()
        contents = reader.result(timeout=60)

    assert size == 10 * KIB
    assert names == ["below", "data", "other"]
    assert unseen == ["x"]
    check_coded(known, folder + "other", 0, 10 * KIB)
    assert status["open_handles"] >= 1
    assert isinstance(contents, list)
    for (length, offset), content in zip(spans, contents, strict=True):
        check_coded(content, folder + "data", offset, offset + length)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDONLY | os.O_DIRECT])
def test_reader_that_is_killed_while_it_waits_harms_nobody(
    place: Scene, released: threading.Event, number: signal.Signals, flags: int
) -> None:
    folder = place.folder()
    place.put(folder + "data", 20 * MIB)
    place.put(folder + "other", 10 * KIB)
    with file_users(place.mount.path, 3) as (victim, fellow, other):
        descriptors = [user.open(folder + "data", flags=flags) for user in (victim, fellow)]
        rule = Rule(Action(hold=released), kind=Kind.GET, key=folder + "data")
        place.proxy.add(rule)
        victim.start("pread", descriptors[0], 4 * KIB, 10 * MIB)
        fellow.start("pread", descriptors[1], 4 * KIB, 10 * MIB)
        place.wait_for_gets(1, pending=True)

        os.kill(victim.pid, number)
        content = other.read_file(folder + "other")
        released.set()
        fellows = fellow.result()
        with pytest.raises(UserEndedError):
            victim.result()

    check_coded(content, folder + "other", 0, 10 * KIB)
    assert isinstance(fellows, bytes)
    check_coded(fellows, folder + "data", 10 * MIB, 10 * MIB + 4 * KIB)


# Gone


def test_server_that_comes_back_before_the_deadline_is_waited_for(place: Scene, user: FileUser) -> None:
    key = place.folder() + "data"
    place.put(key, 20 * MIB)
    fd = user.open(key)
    check_coded(user.pread(fd, 100 * KIB, 0), key, 0, 100 * KIB)
    place.proxy.refuse()
    timer = threading.Timer(1.5, place.proxy.listen)
    timer.start()

    content = user.read_all(fd, timeout=50)
    timer.join()

    check_coded(content, key, 0, 20 * MIB)


def test_server_gone_for_longer_is_an_error_until_it_is_back(seaweed: S3Server) -> None:
    with scene(seaweed, "--request-deadline=1s", "--ttl=2s", "--negative-ttl=0") as place, place.user() as user:
        place.put("data", 20 * MIB)
        place.put("other", 10 * KIB)
        fd = user.open("data")
        check_coded(user.pread(fd, 100 * KIB, 0), "data", 0, 100 * KIB)
        place.proxy.refuse()

        with pytest.raises(OSError, match="Input/output error"):
            user.pread(fd, 100 * KIB, 15 * MIB)
        with pytest.raises(OSError, match="Input/output error") as caught:
            user.read_file("other")
        assert caught.value.errno == errno.EIO
        check_coded(user.pread(fd, 100 * KIB, 0), "data", 0, 100 * KIB)
        place.proxy.listen()

        check_coded(user.pread(fd, 100 * KIB, 15 * MIB), "data", 15 * MIB, 15 * MIB + 100 * KIB)
        check_coded(user.read_file("other"), "other", 0, 10 * KIB)


def test_copy_from_a_server_that_is_gone_for_good_fails_with_a_right_beginning(
    seaweed: S3Server, tmp_path: Path
) -> None:
    with scene(seaweed, "--request-deadline=2s") as place:
        place.put("data", 60 * MIB)
        place.proxy.bytes_per_second_per_connection = 4 * MIB

        def leave() -> None:
            place.wait_until(lambda: bytes_sent(place.gets()) >= 10 * MIB)
            place.proxy.refuse()

        with ThreadPoolExecutor(1) as pool:
            leaving = pool.submit(leave)
            done = place.mount.run("cp", "data", str(tmp_path / "out"), timeout=30)
            leaving.result()

        assert done.returncode != 0
        assert "Input/output error" in done.stderr
        copied = (tmp_path / "out").read_bytes()
        assert len(copied) < 60 * MIB
        check_coded(copied, "data", 0)


# Files that are closed while the server is silent


def test_closing_a_file_does_not_wait_for_its_readahead(seaweed: S3Server, released: threading.Event) -> None:
    with scene(seaweed, "--connections=4") as place, file_users(place.mount.path, 2) as (leaving, other):
        place.put("data", 40 * MIB)
        place.put("other", 9 * MIB)
        fd = leaving.open("data", flags=os.O_RDONLY | os.O_DIRECT)  # without reads of the kernel's own
        place.proxy.add(Rule(Action(hold=released), kind=Kind.GET, key="data", where=lambda r: bool(r.range_start)))
        check_coded(leaving.pread(fd, MIB, 0), "data", 0, MIB)
        place.wait_for_gets(2, pending=True)

        leaving.close_file(fd)
        place.wait_until_closed()
        content = other.read_file("other")

        check_coded(content, "other", 0, 9 * MIB)
        assert not released.is_set()
