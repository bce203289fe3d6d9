"""Objects that other clients replace or delete: a reader gets the bytes of one version, or an error."""

import errno
import os
import re
from collections.abc import Callable, Iterator

import pytest

from tests.support.data import check_coded, find_mismatch
from tests.support.faults import Action, Rule, slow_down
from tests.support.file_user import FileUser
from tests.support.http_heads import Kind
from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

KIB = 1024
MIB = 1024 * KIB

STEP = 1 * MIB

SMALL = 1 * MIB + 7


@pytest.fixture(scope="module")
def shared(seaweed: S3Server) -> Iterator[Scene]:
    """Names are believed for longer than the tests take."""
    with scene(seaweed, "--ttl", "1h", "--negative-ttl", "0", life_seconds=300) as built:
        yield built


@pytest.fixture
def doubting(seaweed: S3Server) -> Iterator[Scene]:
    """Every name is asked for anew."""
    with scene(seaweed, "--ttl", "0") as built:
        yield built


def read_again_if_stale(user: FileUser, path: str) -> bytes:
    """Read a file; open it anew once if its name stood for a version that is gone."""
    try:
        return user.read_file(path)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    return user.read_file(path)


def read_versions(user: FileUser, fd: int, key: str, size: int) -> tuple[bytes, int]:
    """Read from the beginning until the end or an error; returns the bytes and the errno, 0 if there was none."""
    content = b""
    while len(content) < size:
        try:
            part = user.pread(fd, STEP, len(content))
        except OSError as error:
            return content, error.errno or 0
        if not part:
            break
        content += part
    return content, 0


# An open file


@pytest.mark.parametrize("new_size", [40 * MIB, 50 * MIB, 1000])
def test_object_replaced_under_an_open_file_gives_old_bytes_or_estale(
    place: Scene, user: FileUser, new_size: int
) -> None:
    key = place.folder() + "x"
    place.put(key, 40 * MIB, version="A")
    fd = user.open(key)
    check_coded(user.pread(fd, 100 * KIB, 0), key, 0, 100 * KIB)

    place.put(key, new_size, version="B")
    content, number = read_versions(user, fd, key, 40 * MIB)

    check_coded(content, key, 0, version="A")
    assert number == errno.ESTALE
    assert user.size(fd) == 40 * MIB


def test_object_deleted_under_an_open_file_gives_old_bytes_or_estale(place: Scene, user: FileUser) -> None:
    key = place.folder() + "x"
    place.put(key, 40 * MIB)
    fd = user.open(key)
    user.pread(fd, 100 * KIB, 0)

    place.delete(key)
    content, number = read_versions(user, fd, key, 40 * MIB)

    check_coded(content, key, 0)
    assert number == errno.ESTALE
    with pytest.raises(FileNotFoundError):
        user.open(key)


def test_open_after_estale_gives_the_new_version_at_once(place: Scene, user: FileUser) -> None:
    key = place.folder() + "x"
    place.put(key, 40 * MIB, version="A")
    fd = user.open(key)
    user.pread(fd, 100 * KIB, 0)
    place.put(key, 39 * MIB + 5, version="B")
    assert read_versions(user, fd, key, 40 * MIB)[1] == errno.ESTALE

    content = user.read_file(key)

    check_coded(content, key, 0, 39 * MIB + 5, version="B")
    assert user.size(key) == 39 * MIB + 5
    with pytest.raises(OSError, match=re.escape(os.strerror(errno.ESTALE))):
        user.pread(fd, STEP, 39 * MIB)


@pytest.mark.parametrize("new_size", [5000, 1000, 10])
def test_open_of_a_name_that_is_out_of_date_gives_one_version(place: Scene, user: FileUser, new_size: int) -> None:
    folder = place.folder()
    key = folder + "x"
    place.put(key, 1000, version="A")
    user.listdir(folder)
    assert user.size(key) == 1000
    place.put(key, new_size, version="B")

    content = read_again_if_stale(user, key)

    check_coded(content, key, 0, new_size, version="B")
    assert user.size(key) == new_size


def test_bytes_in_the_page_cache_outlive_their_object(place: Scene, user: FileUser) -> None:
    key = place.folder() + "x"
    place.put(key, 1 * MIB)
    fd = user.open(key)
    user.read_all(fd)
    place.delete(key)
    place.proxy.log.clear()

    content = user.read_all(fd)

    check_coded(content, key, 0, 1 * MIB)
    assert place.proxy.counts() == {}


def test_old_handle_and_new_handle_each_read_their_version(place: Scene, user: FileUser) -> None:
    key = place.folder() + "x"
    place.put(key, 4 * MIB, version="A")
    old = user.open(key)
    user.pread(old, 4 * KIB, 0)  # a small object is fetched whole
    place.put(key, 4 * MIB, version="B")
    with place.user() as other:
        other.drop_pages(other.open(key))

    contents = []
    for _ in range(2):
        user.drop_pages(old)
        contents.append(read_versions(user, old, key, 4 * MIB))

    for content, number in contents:
        check_coded(content, key, 0, version="A")
        assert number in {0, errno.ESTALE}


def test_mapping_of_a_replaced_object_shows_no_byte_of_the_new_one(place: Scene, user: FileUser) -> None:
    key = place.folder() + "x"
    place.put(key, 40 * MIB, version="A")
    mapped = user.call("map", user.open(key), True)
    user.call("map_read", mapped, 0, 4 * KIB)
    place.put(key, 1 * MIB, version="B")

    content = user.call("map_read", mapped, 0, 4 * KIB)
    assert isinstance(content, bytes)
    code = (
        "import mmap, sys\n"
        "with open(sys.argv[1], 'rb') as file:\n"
        "    print(len(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[:]))\n"
    )
    fresh = place.mount.run_python(code, key)

    check_coded(content, key, 0, 4 * KIB, version="A")
    # The name still stands for version A within the TTL: its pages are there, or the process gets SIGBUS or ESTALE.
    assert fresh.returncode in {0, 1, -7}
    check_coded(user.read_file(key), key, 0, 1 * MIB, version="B")


# A name that is asked for anew


def test_replaced_object_is_a_new_file_at_its_new_size(doubting: Scene) -> None:
    with doubting.user() as user:
        doubting.put("x", 1000, version="A")
        check_coded(user.read_file("x"), "x", 0, 1000, version="A")
        inode = user.call("inode", "x")
        for version, size in (("B", 5000), ("C", 10), ("D", 10)):
            doubting.put("x", size, version=version)

            content = user.read_file("x")

            check_coded(content, "x", 0, size, version=version)
            assert user.size("x") == size
            assert user.call("inode", "x") != inode
            inode = user.call("inode", "x")


def test_tail_of_a_growing_object_sees_one_version_per_handle(doubting: Scene) -> None:
    with doubting.user() as user:
        doubting.put("log", 1000, version="A")
        fd = user.open("log")
        for size in (5000, 10):
            doubting.put("log", size, version="B")

            content, number = read_versions(user, fd, "log", 5000)

            assert user.size(fd) == 1000
            check_coded(content, "log", 0, version="A")
            assert number == errno.ESTALE or len(content) == 1000


def test_deleted_object_is_gone_and_its_successor_found(doubting: Scene) -> None:
    with doubting.user() as user:
        doubting.put("x", 1000)
        user.read_file("x")
        doubting.delete("x")
        with pytest.raises(FileNotFoundError):
            user.read_file("x")

        doubting.put("x", 2000, version="B")

        check_coded(user.read_file("x"), "x", 0, 2000, version="B")


def test_file_that_becomes_a_directory_and_back(doubting: Scene) -> None:
    with doubting.user() as user:
        doubting.put("x", 1000)
        user.read_file("x")
        doubting.delete("x")
        doubting.put("x/y", 500)
        assert user.listdir("x") == ["y"]

        doubting.delete("x/y")
        doubting.put("x", 700, version="B")

        check_coded(user.read_file("x"), "x", 0, 700, version="B")


# Absence is said only by S3


def test_throttled_lookups_never_say_that_a_file_is_absent(seaweed: S3Server) -> None:
    with scene(seaweed, "--ttl", "0", "--request-deadline", "1500ms") as place, place.user() as user:
        place.put("data/x", 1000)
        rule = Rule(slow_down(), where=lambda request: request.kind in {Kind.HEAD, Kind.LIST}, probability=0.3, seed=5)
        place.proxy.add(rule)
        for _ in range(5):
            assert user.size("data/x") == 1000
        assert rule.fired > 0
        place.proxy.add(Rule(slow_down(), where=lambda request: request.kind in {Kind.HEAD, Kind.LIST}))

        for _ in range(2):
            with pytest.raises(OSError, match="Input/output error") as caught:
                user.size("data/x")
            assert caught.value.errno == errno.EIO
        place.proxy.heal()

        assert user.size("data/x") == 1000


def test_what_a_probe_has_shown_is_not_taken_for_the_whole_directory(place: Scene, user: FileUser) -> None:
    folder = place.folder()
    names = [f"f{index:03}" for index in range(11)]
    for name in names:
        place.put(folder + name, 10)

    user.size(folder.rstrip("/"))
    user.size(folder + "f003")
    with pytest.raises(FileNotFoundError):
        user.size(folder + "f0")
    listed = user.listdir(folder)
    with pytest.raises(FileNotFoundError):
        user.size(folder + "f0035")

    assert listed == names
    assert user.size(folder + "f007") == 10
    assert user.listdir(folder) == names


# ETags in other forms


def without_quotes(body: bytes) -> bytes:
    return body.replace(b"&quot;", b"").replace(b"&#34;", b"")


def weak(body: bytes) -> bytes:
    return re.sub(rb"<ETag>", b"<ETag>W/", body)


def of_another_form(body: bytes) -> bytes:
    return re.sub(rb"<ETag>.*?</ETag>", b"<ETag>&quot;0123456789abcdef0123456789abcdef-7&quot;</ETag>", body)


def upper_case(body: bytes) -> bytes:
    return re.sub(
        rb"<ETag>(.*?)</ETag>",
        lambda match: b"<ETag>" + match[1].upper().replace(b"&QUOT;", b"&quot;") + b"</ETag>",
        body,
    )


def missing(body: bytes) -> bytes:
    return re.sub(rb"<ETag>.*?</ETag>", b"", body)


@pytest.mark.parametrize("rewrite", [without_quotes, weak, of_another_form, upper_case, missing])
def test_etags_listed_in_another_form_do_not_make_files_stale(
    seaweed: S3Server, rewrite: Callable[[bytes], bytes]
) -> None:
    with scene(seaweed, "--ttl", "1h", "--negative-ttl", "0") as place, place.user() as user:
        place.proxy.add(Rule(Action(rewrite_body=rewrite), kind=Kind.LIST))
        for key in ("a", "b", "c"):
            place.put(key, SMALL)
        assert user.listdir() == ["a", "b", "c"]

        mismatches = {key: find_mismatch(user.read_file(key), key, 0, SMALL) for key in ("a", "b", "c")}
        place.proxy.log.clear()
        again = {key: find_mismatch(user.read_file(key), key, 0, SMALL) for key in ("a", "b", "c")}

        assert mismatches == {"a": None, "b": None, "c": None}
        assert again == mismatches
        assert not place.gets(), "what was read once is in the page cache"
        place.put("d", 10 * MIB)
        fd = user.open("d")
        check_coded(user.pread(fd, 4 * KIB, 0), "d", 0, 4 * KIB)
        place.put("d", 10 * MIB, version="B")
        assert read_versions(user, fd, "d", 10 * MIB)[1] == errno.ESTALE
        check_coded(user.read_file("d"), "d", 0, 10 * MIB, version="B")


def test_weak_etags_everywhere_do_not_make_files_stale(seaweed: S3Server) -> None:
    def weaken(etag: str) -> Action:
        return Action(response_headers={"ETag": f"W/{etag}"})

    with scene(seaweed, "--ttl", "1h") as place, place.user() as user:
        place.put("x", 10 * MIB)
        etag = place.client.head_object(Bucket=place.bucket, Key="x")["ETag"]
        place.proxy.add(Rule(weaken(etag), where=lambda request: request.key == "x"))
        place.proxy.add(Rule(Action(rewrite_body=weak), kind=Kind.LIST))
        user.listdir()

        content = user.read_file("x")

        check_coded(content, "x", 0, 10 * MIB)
