"""Answers about names that make no sense: the call they belong to fails, and nothing else does."""

import errno
import os
import re
from collections.abc import Callable, Iterator

import pytest

from tests.support.data import check_coded
from tests.support.faults import Action, Answer, Rule, s3_error
from tests.support.file_user import FileUser
from tests.support.http_heads import Kind, Request
from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

MIB = 1024 * 1024

SIZE = 10_000


@pytest.fixture(scope="module")
def shared(seaweed: S3Server) -> Iterator[Scene]:
    """Every use of a name asks, and gives up soon."""
    with scene(seaweed, "--request-deadline=2s", "--ttl=0", life_seconds=300) as built:
        built.put("steady/x", SIZE)
        yield built


def replacing(pattern: bytes, replacement: bytes) -> Action:
    def rewrite(body: bytes) -> bytes:
        return re.sub(pattern, lambda _: replacement, body)

    return Action(rewrite_body=rewrite)


def under(folder: str) -> Callable[[Request], bool]:
    return lambda request: request.query.get("prefix", "").startswith(folder)


def with_headers(**headers: str | None) -> Action:
    return Action(response_headers={name.replace("_", "-"): value for name, value in headers.items()})


MALFORMED_LISTINGS: dict[str, Action] = {
    "XML cut off": Action(rewrite_body=lambda body: body[: len(body) // 2]),
    "empty body": Action(rewrite_body=lambda _: b""),
    "HTML": Action(rewrite_body=lambda _: b"<html><body>Please log in</body></html>"),
    "no XML": Action(rewrite_body=lambda _: b"\x00\xff" * 1000),
    "another document": Action(rewrite_body=lambda _: b"<?xml version='1.0'?><ListAllMyBucketsResult/>"),
    "big body": Action(rewrite_body=lambda _: b"x" * (80 * MIB)),
    "entity bomb": Action(
        rewrite_body=lambda _: (
            b"<!DOCTYPE x [<!ENTITY a 'aaaaaaaaaa'>"
            + b"".join(b"<!ENTITY a%d '%s'>" % (n, b"&a%d;" % (n - 1) * 10 if n else b"&a;" * 10) for n in range(12))
            + b"]><ListBucketResult><Name>&a11;</Name></ListBucketResult>"
        )
    ),
    "no Size": replacing(rb"<Size>.*?</Size>", b""),
    "empty Size": replacing(rb"<Size>.*?</Size>", b"<Size/>"),
    "Size -1": replacing(rb"<Size>.*?</Size>", b"<Size>-1</Size>"),
    "Size 2^63": replacing(rb"<Size>.*?</Size>", b"<Size>9223372036854775808</Size>"),
    "Size of 5,000 digits": replacing(rb"<Size>.*?</Size>", b"<Size>" + b"9" * 5000 + b"</Size>"),
    "no LastModified": replacing(rb"<LastModified>.*?</LastModified>", b""),
    "LastModified that is no date": replacing(
        rb"<LastModified>.*?</LastModified>", b"<LastModified>yesterday</LastModified>"
    ),
    "LastModified of year 0": replacing(
        rb"<LastModified>.*?</LastModified>", b"<LastModified>0000-00-00T00:00:00Z</LastModified>"
    ),
    "no Key": replacing(rb"<Key>.*?</Key>", b""),
    "key of another folder": replacing(rb"<Key>.*?</Key>", b"<Key>elsewhere/x</Key>"),
    "bytes that are not UTF-8": replacing(rb"<Key>.*?</Key>", b"<Key>\xff\xfe</Key>"),
    "encoded key that is not UTF-8": replacing(rb"<Key>", b"<Key>%FF"),
    "does not say whether it goes on": replacing(rb"<IsTruncated>.*?</IsTruncated>", b""),
    "goes on without saying where": replacing(rb"<IsTruncated>.*?</IsTruncated>", b"<IsTruncated>true</IsTruncated>"),
    "error document with status 200": Action(
        answer=Answer(200, {"Content-Type": "application/xml"}, b"<Error><Code>InternalError</Code></Error>")
    ),
    "big error document": Action(answer=Answer(500, {}, b"<Error>" + b"x" * (80 * MIB))),
    "unknown status": Action(answer=Answer(599)),
    "status 204": Action(answer=Answer(204)),
    "redirect to nowhere": Action(answer=Answer(307, {"Location": "http://127.0.0.1:1/"})),
    "wrong Content-Length": Action(response_headers={"Content-Length": "100000"}, close_after=True),
}


def test_malformed_listings_fail_their_own_calls_only(place: Scene, user: FileUser) -> None:
    """All at once, each with a folder of its own: the errors come at the deadline."""
    parent = place.folder()
    folders = {f"{parent}{number}/": name for number, name in enumerate(MALFORMED_LISTINGS)}
    for folder in folders:
        for index in range(3):
            place.put(f"{folder}{index}", SIZE)
    steady = user.open("steady/x")
    opened = {folder: user.open(folder, flags=os.O_RDONLY | os.O_DIRECTORY) for folder in folders}
    for folder, name in folders.items():
        place.proxy.add(Rule(MALFORMED_LISTINGS[name], kind=Kind.LIST, where=under(folder)))

    listings = user.each("listdir", [(fd,) for fd in opened.values()], threads=len(opened))
    stats = user.each("size_below", [(fd, "0") for fd in opened.values()], threads=len(opened))
    check_coded(user.read_all(steady), "steady/x", 0, SIZE)
    place.proxy.heal()
    again = user.each("listdir", [(folder,) for folder in folders], threads=4)

    for found in (listings, stats):
        wrong = {
            name: value
            for name, value in zip(folders.values(), found, strict=True)
            if not isinstance(value, OSError) or value.errno != errno.EIO
        }
        assert wrong == {}
    assert again == [["0", "1", "2"]] * len(folders)
    for folder in folders:
        check_coded(user.read_file(folder + "0"), folder + "0", 0, SIZE)


def as_long_as_asked(_: Request) -> Action:
    return with_headers(Content_Length=None)


MALFORMED_HEADS: dict[str, Action | Callable[[Request], Action]] = {
    "no Content-Length": as_long_as_asked,
    "Content-Length 2^63": with_headers(Content_Length="9223372036854775808"),
    "Content-Length -1": with_headers(Content_Length="-1"),
    "Content-Length that is no number": with_headers(Content_Length="many"),
    "no Last-Modified": with_headers(Last_Modified=None),
    "Last-Modified that is no date": with_headers(Last_Modified="yesterday"),
    "Last-Modified of year 0": with_headers(Last_Modified="Thu, 00 Jan 0000 00:00:00 GMT"),
    "no ETag": with_headers(ETag=None),
    "ETag that is not ASCII": with_headers(ETag='"\xff\xfe\xfd"'),
    "header that is not UTF-8": with_headers(x_amz_version_id="\xff\xfe", Content_Type="\xe4\xff"),
    "status 500": s3_error(500, "InternalError"),
    "status 200 without headers": Action(answer=Answer(200)),
}

SENSIBLE = {"no ETag", "header that is not UTF-8"}
"""What need not fail."""


def test_malformed_heads_fail_their_own_calls_only(place: Scene, user: FileUser) -> None:
    parent = place.folder()
    # Apart, since the kernel looks names of one folder up one after the other.
    keys = {f"{parent}{number}/x": name for number, name in enumerate(MALFORMED_HEADS)}
    for key in keys:
        place.put(key, SIZE)
    steady = user.open("steady/x")
    opened = [user.open(key) for key in keys]
    # Without the right to list, files are confirmed by HEAD.
    denied = s3_error(403, "AccessDenied")
    place.proxy.add(Rule(denied, kind=Kind.LIST, where=lambda request: request.query.get("prefix", "").endswith("/x")))
    rules = {name: place.proxy.add(Rule(MALFORMED_HEADS[name], kind=Kind.HEAD, key=key)) for key, name in keys.items()}

    contents = user.read_files(list(keys), threads=len(keys))
    check_coded(user.read_all(steady), "steady/x", 0, SIZE)
    place.proxy.heal()

    assert all(rule.fired for rule in rules.values())
    for (key, name), content in zip(keys.items(), contents, strict=True):
        if isinstance(content, OSError):
            assert content.errno in {errno.EIO, errno.ESTALE}, name
        else:
            assert name in SENSIBLE, name
            check_coded(content, key, 0, SIZE)
    for key, fd in zip(keys, opened, strict=True):
        check_coded(user.read_file(key), key, 0, SIZE)
        user.close_file(fd)
