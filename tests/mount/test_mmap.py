"""Mappings: the right bytes for everybody, and SIGBUS where a read would fail, in that process only."""

import signal
from collections.abc import Iterator

import pytest

from tests.support.data import check_coded
from tests.support.faults import Action, Answer, Rule, s3_error
from tests.support.file_user import FileUser, UserEndedError, file_users
from tests.support.http_heads import Kind
from tests.support.proxy_log import bytes_sent
from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

KIB = 1024
MIB = 1024 * KIB

SIZE = 20 * MIB + 777


@pytest.fixture(scope="module")
def shared(seaweed: S3Server) -> Iterator[Scene]:
    with scene(seaweed, "--request-deadline=1s", "--negative-ttl=0", "--ttl=1h", life_seconds=300) as built:
        yield built


@pytest.mark.parametrize("is_shared", [False, True])
def test_mapping_shows_the_whole_file(place: Scene, user: FileUser, *, is_shared: bool) -> None:
    key = place.folder() + "data"
    place.put(key, SIZE)

    mapping = user.map(user.open(key), is_shared=is_shared)

    check_coded(user.map_read(mapping, 0, SIZE), key, 0, SIZE)
    assert bytes_sent(place.gets(key)) <= 1.05 * SIZE


def test_numpy_maps_a_file(place: Scene) -> None:
    key = place.folder() + "data"
    content = place.put(key, 1_000_000)
    code = (
        "import hashlib, sys, numpy\n"
        "array = numpy.memmap(sys.argv[1], dtype=numpy.uint8, mode='r')\n"
        "print(len(array), int(array.sum(dtype=numpy.int64)), array[123456])\n"
    )

    done = place.mount.run_python(code, key)

    assert done.stdout.split() == ["1000000", str(sum(content)), str(content[123456])], done.stderr


def test_many_processes_map_one_file_at_once(place: Scene) -> None:
    key = place.folder() + "data"
    place.put(key, SIZE)
    with file_users(place.mount.path, 8) as users:
        mappings = [user.map(user.open(key), is_shared=index % 2 == 0) for index, user in enumerate(users)]

        for index, (user, mapping) in enumerate(zip(users, mappings, strict=True)):
            user.start("map_read", mapping, index * 2 * MIB, index * 2 * MIB + 6 * MIB)
        contents = [user.result() for user in users]

    for index, content in enumerate(contents):
        assert isinstance(content, bytes)
        check_coded(content, key, index * 2 * MIB, min(SIZE, index * 2 * MIB + 6 * MIB))
    assert bytes_sent(place.gets(key)) <= 1.5 * SIZE


FAULTS = {
    "status 500": s3_error(500, "InternalError"),
    "status 206 with other content": Action(answer=Answer(206, {}, b"<html>Please log in</html>")),
    "connection reset": Action(reset=True),
}


@pytest.mark.parametrize("name", FAULTS)
def test_page_that_cannot_be_read_is_sigbus_in_that_process_only(place: Scene, name: str) -> None:
    key = place.folder() + "data"
    place.put(key, SIZE)
    with file_users(place.mount.path, 2) as (victim, other):
        mappings = [user.map(user.open(key), is_shared=True) for user in (victim, other)]
        check_coded(victim.map_read(mappings[0], 0, 4 * KIB), key, 0, 4 * KIB)
        place.proxy.add(Rule(FAULTS[name], kind=Kind.GET, key=key))

        with pytest.raises(UserEndedError) as caught:
            victim.map_read(mappings[0], 15 * MIB, 15 * MIB + 10)
        still_there = other.map_read(mappings[1], 0, 4 * KIB)
        place.proxy.heal()
        afterwards = other.map_read(mappings[1], 14 * MIB, 16 * MIB)

    assert caught.value.returncode == -signal.SIGBUS
    check_coded(still_there, key, 0, 4 * KIB)
    check_coded(afterwards, key, 14 * MIB, 16 * MIB)


def test_mapping_of_an_object_that_shrank_is_its_old_version_or_sigbus(place: Scene) -> None:
    key = place.folder() + "data"
    place.put(key, SIZE, version="A")
    with file_users(place.mount.path, 2) as (victim, other):
        mapping = victim.map(victim.open(key), is_shared=True)
        check_coded(victim.map_read(mapping, 0, 8 * KIB), key, 0, 8 * KIB, version="A")

        place.put(key, MIB, version="B")
        check_coded(victim.map_read(mapping, 0, 8 * KIB), key, 0, 8 * KIB, version="A")
        with pytest.raises(UserEndedError) as caught:
            victim.map_read(mapping, 15 * MIB, 15 * MIB + 10)
        fresh = other.read_file(key)

    assert caught.value.returncode == -signal.SIGBUS
    check_coded(fresh, key, 0, MIB, version="B")
