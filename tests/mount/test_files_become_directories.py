"""A known file below whose name another client puts something: when it shows as a directory."""

from collections.abc import Iterator

import pytest

from tests.support.data import check_coded
from tests.support.http_heads import Kind
from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

TTL_SECONDS = 2
"""Long enough for a few calls on a busy machine."""


@pytest.fixture(scope="module")
def shared(seaweed: S3Server) -> Iterator[Scene]:
    """Names are believed for a moment."""
    with scene(seaweed, f"--ttl={TTL_SECONDS}s", "--negative-ttl=0", allow_warnings=True, life_seconds=300) as built:
        yield built


@pytest.fixture(scope="module")
def shared_doubting(seaweed: S3Server) -> Iterator[Scene]:
    with scene(seaweed, "--ttl=0", allow_warnings=True, life_seconds=300) as built:
        yield built


@pytest.fixture
def doubting(shared_doubting: Scene) -> Iterator[Scene]:
    """A mount that asks for every name anew."""
    shared_doubting.reset()
    yield shared_doubting
    shared_doubting.reset()
    shared_doubting.wait_until_closed()


def kind_of(place: Scene, path: str) -> str:
    done = place.mount.run("stat", "--format=%F", path)
    return done.stdout.strip() or done.stderr


def kinds_until_asked(place: Scene, key: str) -> list[str]:
    """What the name showed as, again and again until its TTL was over and the store was asked for it by HEAD."""
    kinds = []

    def is_asked() -> bool:
        kinds.append(kind_of(place, key))
        return bool(place.proxy.log.select(Kind.HEAD, key))

    place.wait_until(is_asked)
    return kinds


def test_within_the_ttl_and_beyond_it_a_known_file_stays_one_until_its_directory_is_listed(place: Scene) -> None:
    folder = place.folder()
    key = folder + "name"
    place.put(key, 1000)
    with place.user() as user:
        assert user.listdir(folder) == ["name"]
        check_coded(user.read_file(key), key, 0, 1000)
        place.put(f"{key}/child", 500)
        place.proxy.log.clear()

        kinds = kinds_until_asked(place, key)
        assert set(kinds) == {"regular file"}
        check_coded(user.read_file(key), key, 0, 1000)
        with pytest.raises(NotADirectoryError):
            user.size(f"{key}/child")

        assert user.listdir(folder) == ["name"]
        assert kind_of(place, key) == "directory"
        assert user.listdir(key) == ["child"]
        check_coded(user.read_file(f"{key}/child"), f"{key}/child", 0, 500)
        check_coded(user.read_file(f"{folder}@s3mount-file:name"), key, 0, 1000)


def test_a_file_that_gave_way_to_a_directory_is_one_once_the_ttl_is_over(place: Scene) -> None:
    key = place.folder() + "name"
    place.put(key, 1000)
    with place.user() as user:
        check_coded(user.read_file(key), key, 0, 1000)
        place.delete(key)
        place.put(f"{key}/child", 500)

        kinds = []

        def is_no_file() -> bool:
            kinds.append(kind_of(place, key))
            return kinds[-1] != "regular file"

        place.wait_until(is_no_file)
        assert kinds[-1] == "directory"
        assert user.listdir(key) == ["child"]
        check_coded(user.read_file(f"{key}/child"), f"{key}/child", 0, 500)


def test_without_a_ttl_a_directory_takes_a_known_files_name_at_once(doubting: Scene) -> None:
    folder = doubting.folder()
    key = folder + "name"
    doubting.put(key, 1000)
    with doubting.user() as user:
        check_coded(user.read_file(key), key, 0, 1000)
        fd = user.open(key)
        doubting.put(f"{key}/child", 500)

        check_coded(user.read_file(f"{key}/child"), f"{key}/child", 0, 500)

        assert kind_of(doubting, key) == "directory"
        assert user.listdir(key) == ["child"]
        assert user.listdir(folder) == ["name"]
        check_coded(user.read_all(fd), key, 0, 1000)
        check_coded(user.read_file(f"{folder}@s3mount-file:name"), key, 0, 1000)
        doubting.delete(f"{key}/child")
        assert kind_of(doubting, key) == "regular file"


def test_without_a_ttl_a_file_that_gave_way_to_a_directory_is_one_at_once(doubting: Scene) -> None:
    key = doubting.folder() + "name"
    doubting.put(key, 1000)
    with doubting.user() as user:
        check_coded(user.read_file(key), key, 0, 1000)
        doubting.delete(key)
        doubting.put(f"{key}/child", 500)

        assert kind_of(doubting, key) == "directory"
        check_coded(user.read_file(f"{key}/child"), f"{key}/child", 0, 500)
