"""Every key has one path: odd keys are listed, looked up and read under the names the documentation gives."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.mounts import mounted
from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

READ_TREE = """
import os, sys
for folder, folders, files in os.walk("."):
    for name in files:
        path = os.path.join(folder, name)
        sys.stdout.buffer.write(path[2:].encode() + b"\\0" + open(path, "rb").read() + b"\\0")
"""

PLAIN = [
    "a b",
    "a+b c",
    "100%",
    "%41",
    "a%2Fb",
    "-lead",
    "trailing ",
    "~,=&?#;'*",
    '"quoted"',
    "caf\u00e9",
    "cafe\u0301",
    "\U0001f600",
    "...",
    "\u00e9" * 127,
    "x" * 255,
]

ESCAPED = {
    "a//b": "a/@s3mount:/b",
    "/lead": "@s3mount:/lead",
    "p/./q": "p/@s3mount:%2E/q",
    "p/../q": "p/@s3mount:%2E%2E/q",
    "@s3mount": "@s3mount:@s3mount",
    "@s3mount:x%": "@s3mount:@s3mount:x%25",
    "y" * 290 + "1": f"@s3mount-part:{'y' * 241}/{'y' * 49}1",
    "y" * 290 + "2": f"@s3mount-part:{'y' * 241}/{'y' * 49}2",
}


@pytest.fixture(scope="module")
def odd(moto: S3Server) -> Iterator[Scene]:
    with scene(moto, "--ttl", "1h", allow_warnings=True) as built:
        for key in [*PLAIN, *ESCAPED]:
            built.client.put_object(Bucket=built.bucket, Key=key, Body=key.encode())
        built.reset()
        yield built


def read_tree(place: Scene) -> dict[str, str]:
    done = place.mount.run_python(READ_TREE)
    assert done.returncode == 0, done.stderr
    items = done.stdout.split("\0")
    return dict(zip(items[::2], items[1::2], strict=False))


def read(place: Scene, path: str) -> str | int:
    """Content of a file, or the errno of opening it."""
    code = "import sys\ntry: print(open(sys.argv[1]).read(), end='')\nexcept OSError as e: sys.exit(e.errno)"
    done = place.mount.run_python(code, path)
    return done.returncode or done.stdout


def test_a_walk_shows_every_key_once_and_reads_it_right(odd: Scene) -> None:
    expected = {key: key for key in PLAIN} | {path: key for key, path in ESCAPED.items()}

    assert read_tree(odd) == expected


@pytest.mark.parametrize("key", ESCAPED)
def test_an_escaped_path_is_found_without_a_listing(moto: S3Server, key: str) -> None:
    with scene(moto, allow_warnings=True) as place:
        place.client.put_object(Bucket=place.bucket, Key=key, Body=b"content")

        assert read(place, ESCAPED[key]) == "content"


def test_names_no_key_has_do_not_exist(odd: Scene) -> None:
    assert read(odd, "@s3mount:%41") == 2
    assert read(odd, "A") == 2
    assert odd.mount.run_python("import os; print(os.path.exists(b'caf\\xe9'))").stdout == "False\n"


def test_names_over_255_bytes_are_too_long(odd: Scene) -> None:
    assert read(odd, "\u00e9" * 128) == 36


@pytest.mark.parametrize("is_listed_first", [True, False])
def test_a_key_that_is_also_a_prefix_is_a_directory(moto: S3Server, is_listed_first: bool) -> None:  # noqa: FBT001
    with scene(moto, allow_warnings=True) as place:
        for key in ("foo", "foo/x", "foo-1", "foo.txt"):
            place.client.put_object(Bucket=place.bucket, Key=key, Body=key.encode())
        if is_listed_first:
            assert place.mount.run("ls").stdout.split() == ["foo", "foo-1", "foo.txt"]

        assert place.mount.run("stat", "--format=%F", "foo").stdout == "directory\n"
        assert read(place, "foo/x") == "foo/x"
        assert read(place, "@s3mount-file:foo") == "foo"
        assert place.mount.run("ls").stdout.split() == ["foo", "foo-1", "foo.txt"]
        assert place.mount.log().count("is not listed: a directory has its name") == 1


def test_directory_markers_are_directories_whatever_they_hold(moto: S3Server) -> None:
    with scene(moto) as place:
        client, bucket = place.client, place.bucket
        client.put_object(Bucket=bucket, Key="d/", Body=b"")
        client.put_object(Bucket=bucket, Key="e/", Body=b"hello")
        client.put_object(Bucket=bucket, Key="f/", Body=b"", ContentType="application/x-directory")
        client.put_object(Bucket=bucket, Key="g/", Body=b"")
        client.put_object(Bucket=bucket, Key="g/x", Body=b"")
        client.put_object(Bucket=bucket, Key="h", Body=b"", ContentType="application/x-directory")

        kinds = place.mount.run("stat", "--format=%n %F", "d", "e", "f", "g", "h").stdout

        assert kinds == "d directory\ne directory\nf directory\ng directory\nh regular empty file\n"
        for name, shown in (("d", ""), ("e", ""), ("f", ""), ("g", "x\n")):
            assert place.mount.run("ls", name).stdout == shown
        assert read(place, "e/@s3mount:") == "hello"


def test_names_that_sort_around_a_directory_come_out_once(moto: S3Server) -> None:
    with scene(moto) as place:
        for key in ["dir-1", "dir.x", "dir0", *(f"dir/{letter}" for letter in "abcdefgh")]:
            place.client.put_object(Bucket=place.bucket, Key=key, Body=b"")

        assert place.mount.run("ls").stdout.split() == ["dir", "dir-1", "dir.x", "dir0"]
        assert place.mount.run("ls", "dir").stdout.split() == list("abcdefgh")


@pytest.mark.parametrize(
    ("given", "shown"),
    [("data", ["a"]), ("data/", ["a"]), ("/data/", ["a"]), ("v1.2", ["m"]), ("none", [])],
)
def test_a_prefix_shows_only_what_is_below_it(moto: S3Server, given: str, shown: list[str]) -> None:
    bucket = moto.new_bucket()
    with contextlib.closing(moto.client()) as client:
        for key in ("data/a", "data2/b", "data-old/c", "v1.2/m"):
            client.put_object(Bucket=bucket, Key=key, Body=key.encode())

    with mounted(f"s3://{bucket}/{given}", moto.endpoint_url) as mount:
        listed = mount.run("ls")

    assert (listed.returncode, listed.stdout.split()) == (0, shown)
