"""Checksums that a server leaves out, or that do not fit: the right bytes, or an error; never other bytes."""

import errno
from base64 import b64encode
from collections.abc import Iterator
from typing import Literal

import pytest

from tests.support.data import check_coded, coded_bytes
from tests.support.faults import Action, Rule
from tests.support.file_user import FileUser
from tests.support.http_heads import Kind
from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

KIB = 1024
MIB = 1024 * KIB

SMALL = 100 * KIB
"""Fetched whole."""

LARGE = 9 * MIB
"""Fetched in ranges."""

ALGORITHMS = {"crc32": 4, "crc32c": 4, "crc64nvme": 8, "sha1": 20, "sha256": 32}
"""All of S3's, and how many bytes each has."""

Checked = Literal["crc32", "sha256"]

CHECKED: tuple[Checked, ...] = ("crc32", "sha256")
"""Those that are compared."""


@pytest.fixture(scope="module")
def shared(moto: S3Server) -> Iterator[Scene]:
    """A server that keeps checksums and sends them when asked."""
    with scene(moto, "--ttl", "1h", "--negative-ttl", "0", "--request-deadline=5s", life_seconds=300) as built:
        yield built


def put_checked(place: Scene, key: str, size: int, algorithm: Checked = "sha256") -> str:
    """Store position-coded bytes with a checksum, and return what the server says of it."""
    content = coded_bytes(key, 0, size)
    name: Literal["CRC32", "SHA256"] = "CRC32" if algorithm == "crc32" else "SHA256"
    place.client.put_object(Bucket=place.bucket, Key=key, Body=content, ChecksumAlgorithm=name)
    told = place.client.head_object(Bucket=place.bucket, Key=key, ChecksumMode="ENABLED")
    return told["ChecksumCRC32"] if algorithm == "crc32" else told["ChecksumSHA256"]


WRONG = {f"x-amz-checksum-{name}": b64encode(bytes(size)).decode() for name, size in ALGORITHMS.items()}
"""Every checksum header, of zeros."""


def flip_in_the_middle(body: bytes) -> bytes:
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("algorithm", CHECKED)
def test_answers_with_checksums_are_read(place: Scene, user: FileUser, algorithm: Checked, size: int) -> None:
    key = place.folder() + "x"
    assert put_checked(place, key, size, algorithm)

    content = user.read_file(key)

    check_coded(content, key, 0, size)
    modes = {exchange.request.header("x-amz-checksum-mode") for exchange in place.gets(key)}
    assert ("ENABLED" in modes) == (size == SMALL)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_answers_without_checksums_are_read(place: Scene, user: FileUser, size: int) -> None:
    key = place.folder() + "x"
    put_checked(place, key, size)
    taken = dict.fromkeys([*WRONG, "x-amz-checksum-type"])
    rule = place.proxy.add(Rule(Action(response_headers=taken), kind=Kind.GET))

    content = user.read_file(key)

    check_coded(content, key, 0, size)
    assert rule.fired


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_checksum_that_does_not_fit_gives_right_bytes_or_an_error_that_does_not_stay(
    place: Scene, user: FileUser, name: str
) -> None:
    key = place.folder() + "x"
    place.put(key, SMALL)
    header = f"x-amz-checksum-{name}"
    place.proxy.add(Rule(Action(response_headers={header: WRONG[header]}), kind=Kind.GET, key=key))
    fd = user.open(key)

    (content,) = user.pread_many(fd, [(SMALL, 0)], threads=1)

    if name in CHECKED:
        assert isinstance(content, OSError)
        assert content.errno == errno.EIO
    else:
        assert isinstance(content, bytes)
        check_coded(content, key, 0, SMALL)
    assert 1 <= len(place.gets(key)) <= 10
    place.proxy.heal()

    check_coded(user.read_all(fd), key, 0, SMALL)
    check_coded(user.read_file(key), key, 0, SMALL)


@pytest.mark.parametrize("algorithm", CHECKED)
def test_bytes_that_were_changed_on_the_way_are_fetched_anew(place: Scene, user: FileUser, algorithm: Checked) -> None:
    key = place.folder() + "x"
    put_checked(place, key, SMALL, algorithm)
    changed = place.proxy.add(Rule(Action(rewrite_body=flip_in_the_middle), kind=Kind.GET, key=key, times=2))

    content = user.read_file(key)

    check_coded(content, key, 0, SMALL)
    assert (changed.fired, len(place.gets(key))) == (2, 3)


@pytest.mark.parametrize("algorithm", CHECKED)
def test_bytes_that_are_changed_every_time_are_an_error_and_never_shown(
    place: Scene, user: FileUser, algorithm: Checked
) -> None:
    key = place.folder() + "x"
    put_checked(place, key, SMALL, algorithm)
    place.proxy.add(Rule(Action(rewrite_body=flip_in_the_middle), kind=Kind.GET, key=key))
    fd = user.open(key)

    # Nothing of such an answer can be believed, whichever byte was changed.
    found = user.pread_many(fd, [(4 * KIB, 0), (4 * KIB, SMALL // 2), (4 * KIB, SMALL - KIB)], threads=3)
    copied = place.mount.run("cat", key)
    place.proxy.heal()

    assert [getattr(content, "errno", None) for content in found] == [errno.EIO] * 3
    assert copied.returncode != 0
    assert copied.stdout == ""
    check_coded(user.read_all(fd), key, 0, SMALL)


@pytest.mark.parametrize("form", ["whole", "composite"])
def test_a_checksum_of_the_whole_object_is_not_taken_for_that_of_a_range(
    place: Scene, user: FileUser, form: str
) -> None:
    key = place.folder() + "x"
    told = put_checked(place, key, LARGE)
    sent = told if form == "whole" else f"{told}-2"
    rule = place.proxy.add(Rule(Action(response_headers={"x-amz-checksum-sha256": sent}), kind=Kind.GET, key=key))

    content = user.read_file(key)

    check_coded(content, key, 0, LARGE)
    assert rule.fired
    assert all(exchange.request.range_header for exchange in place.gets(key))


def test_a_checksum_of_parts_is_not_taken_for_that_of_the_bytes(place: Scene, user: FileUser) -> None:
    key = place.folder() + "x"
    place.put(key, SMALL)
    composite = {name: f"{value}-3" for name, value in WRONG.items()}
    rule = place.proxy.add(Rule(Action(response_headers=composite), kind=Kind.GET, key=key))

    content = user.read_file(key)

    check_coded(content, key, 0, SMALL)
    assert rule.fired == 1
