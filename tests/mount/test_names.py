"""Every key has exactly one path, whichever way it is met first and however the server writes it."""

import errno
import os
from collections.abc import Iterator

import pytest

from tests.support.file_user import FileUser
from tests.support.listed_bucket import (
    Encode,
    ListedBucket,
    with_bare_plus,
    with_percent_for_space,
    with_plus_for_space,
)
from tests.support.mounts import Mount
from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

READ_ALL = """
import os, sys
for folder, folders, files in os.walk(b".", onerror=print):
    for name in files:
        path = os.path.join(folder, name)
        sys.stdout.buffer.write(path[2:].hex().encode() + b" " + open(path, "rb").read().hex().encode() + b"\\n")
"""

PLAIN = [
    *(
        "a b",
        "a+b c",
        "100%",
        "%41",
        "%",
        "a%2Fb",
        "+",
        " ",
        " lead",
        "trail ",
        "-lead",
        "~,=&?#;'*",
        '"quoted"',
        "b\\c",
    ),
    *("<&>]]>", "$(x)`y`", "{a,b}", "!:|@", "...", ".hidden", "caf\u00e9", "cafe\u0301", "\U0001f600", "\u202e\u200b"),
    *("\u00e9" * 127 + "x", "x" * 255, "A", "a", "@", "@s3moun", "s3mount:x"),
]
"""Used as they are."""

CONTROLS = ["line\nfeed", "\x01\x1b[31m", "tab\t", "return\r", "\x7f"]
"""Used as they are, too; but XML cannot hold them as they are."""

TELLING = (with_plus_for_space, with_percent_for_space)
"""Ways to encode keys that need no comparison with a listing that is not encoded."""

ESCAPED = {
    "/b": "@s3mount:/b",
    "//b": "@s3mount:/@s3mount:/b",
    "q//b": "q/@s3mount:/b",
    "./q": "@s3mount:%2E/q",
    "../q": "@s3mount:%2E%2E/q",
    "p/.": "p/@s3mount:%2E",
    "p/..": "p/@s3mount:%2E%2E",
    "nul\0%": "@s3mount:nul%00%25",
    "nul\0/x": "@s3mount:nul%00/x",
    "@s3mount": "@s3mount:@s3mount",
    "@s3mount:%2E": "@s3mount:@s3mount:%252E",
    "@s3mount-file:x": "@s3mount:@s3mount-file:x",
    "@s3mounted/x": "@s3mount:@s3mounted/x",
    "y" * 290 + "1": f"@s3mount-part:{'y' * 241}/{'y' * 49}1",
    "y" * 290 + "2": f"@s3mount-part:{'y' * 241}/{'y' * 49}2",
    "y" * 300 + "/z": f"@s3mount-part:{'y' * 241}/{'y' * 59}/z",
    "\u00e9" * 200: "@s3mount-part:" + "\u00e9" * 120 + "/" + "\u00e9" * 80,
    "z" * 1000: f"@s3mount-part:{'z' * 241}/" * 4 + "z" * 36,
}
"""Path by key; the table of docs/semantics.md."""


@pytest.fixture(scope="module")
def shared(moto: S3Server) -> Iterator[Scene]:
    with scene(moto, "--ttl", "1h", "--negative-ttl", "0", life_seconds=300) as built:
        yield built


def read_all(mount: Mount) -> dict[str, bytes]:
    """Content of every file that a walk finds, by path."""
    done = mount.run_python(READ_ALL, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "Errno" not in done.stdout, done.stdout
    lines = [line.split(" ") for line in done.stdout.splitlines()]
    found = {bytes.fromhex(path).decode(): bytes.fromhex(content) for path, content in lines}
    assert len(found) == len(lines), "a path came twice"
    return found


def content_of(key: str) -> bytes:
    """What the object *key* holds in these tests."""
    return b"content of " + key.encode()


@pytest.mark.parametrize("encode", [with_plus_for_space, with_percent_for_space, with_bare_plus, None])
def test_listed_names_are_the_keys_and_read_their_bytes(moto: S3Server, encode: Encode | None) -> None:
    keys = [*PLAIN, *CONTROLS] if encode in TELLING else PLAIN
    bucket = ListedBucket({key: content_of(key) for key in keys}, encode=encode, page_size=10)
    with scene(moto) as place:
        place.proxy.add(bucket)

        assert read_all(place.mount) == {key: content_of(key) for key in keys}


@pytest.mark.parametrize("encode", [with_plus_for_space, with_bare_plus, None])
def test_names_that_were_not_listed_are_found_and_read(moto: S3Server, encode: Encode | None) -> None:
    folders = {key: f"{number}/" for number, key in enumerate([*PLAIN, *CONTROLS] if encode in TELLING else PLAIN)}
    objects = {folder + key: content_of(key) for key, folder in folders.items()}
    with scene(moto) as place, place.user() as user:
        place.proxy.add(ListedBucket(objects, encode=encode))

        found = user.read_files([folder + key for key, folder in folders.items()], threads=4)

        assert found == [content_of(key) for key in folders]
        assert {key: user.listdir(folder) for key, folder in folders.items()} == {key: [key] for key in folders}


def test_escaped_names_are_listed_and_read_their_bytes(moto: S3Server) -> None:
    with scene(moto) as place:
        place.proxy.add(ListedBucket({key: content_of(key) for key in ESCAPED}, page_size=3))

        assert read_all(place.mount) == {path: content_of(key) for key, path in ESCAPED.items()}


def test_escaped_names_that_were_not_listed_are_found_and_read(place: Scene, user: FileUser) -> None:
    folders = {key: place.folder() for key in ESCAPED}
    objects = {folder + key: content_of(key) for key, folder in folders.items()}
    # Neighbours that a probe meets as well.
    objects |= {folder + key + suffix: b"" for key, folder in folders.items() for suffix in ("-1", "!")}
    place.proxy.add(ListedBucket(objects))

    found = user.read_files([folders[key] + path for key, path in ESCAPED.items()], threads=4)

    assert found == [content_of(key) for key in ESCAPED]
    for key, path in ESCAPED.items():
        at = folders[key].removesuffix("/")
        for name in path.split("/"):
            assert name in user.listdir(at), path
            at += f"/{name}"


@pytest.mark.parametrize("is_listed_first", [False, True])
def test_names_that_are_no_keys_do_not_exist(place: Scene, user: FileUser, *, is_listed_first: bool) -> None:
    folder = place.folder()
    place.proxy.add(ListedBucket({folder + key: b"" for key in ["A", "..", "@s3mount", "x\0", "p/y", "y" * 290]}))
    if is_listed_first:
        assert len(user.listdir(folder)) == 6
    part = f"@s3mount-part:{'y' * 241}"

    for name in [
        *("@s3mount", "@s3mount:", "@s3mount:A", "@s3mount:%41", "@s3mount:%2E", "@s3mount:x%0", "@s3mount:%2e%2e"),
        *("@s3mount-file:A", "@s3mount-part:A", f"@s3mount-part:{'y' * 240}", f"{part}/y", f"{part}/{'y' * 48}"),
        *("a", "%41", "p/@s3mount:", "p/@s3mount-file:y", "@s3mount-other:x", f"{part}/{part}"),
    ]:
        with pytest.raises(FileNotFoundError):
            user.size(folder + name)
    assert user.size(f"{folder}{part}/{'y' * 49}") == 0
    assert user.size(f"{folder}@s3mount:%2E%2E") == 0


def test_a_name_that_is_not_utf8_is_absent_and_costs_no_request(place: Scene, user: FileUser) -> None:
    place.proxy.add(ListedBucket({"x": b""}))
    user.listdir()
    place.proxy.log.clear()

    for name in (b"caf\xe9", b"\xff", b"\xed\xa0\x80"):
        with pytest.raises(FileNotFoundError):
            user.call("open", name, os.O_RDONLY)
        with pytest.raises(FileNotFoundError):
            user.call("listdir", name + b"/x")
        with pytest.raises(OSError, match="Read-only") as caught:
            user.call("open", name, os.O_CREAT | os.O_WRONLY)
        assert caught.value.errno == errno.EROFS

    assert place.proxy.log.select() == []


def test_composed_and_decomposed_spellings_are_two_files(place: Scene, user: FileUser) -> None:
    folder = place.folder()
    place.proxy.add(ListedBucket({f"{folder}caf\u00e9": b"composed", f"{folder}cafe\u0301": b"decomposed"}))

    assert user.read_file(f"{folder}cafe\u0301") == b"decomposed"
    assert user.listdir(folder) == ["cafe\u0301", "caf\u00e9"]
    assert user.read_file(f"{folder}caf\u00e9") == b"composed"


def test_names_too_long_are_an_error_and_longest_ones_work(place: Scene, user: FileUser) -> None:
    folder = place.folder()
    longest = folder + "/".join(["k" * 220] * 4) + "/"
    longest += "k" * (1024 - len(longest))
    names = ["\u00e9" * 127 + "x", "x" * 255]
    place.proxy.add(ListedBucket({longest: b"1024", **{folder + name: name.encode() for name in names}}))

    assert user.read_file(longest) == b"1024"
    assert [user.read_file(folder + name) for name in names] == [name.encode() for name in names]
    for path in (longest + "k", folder + "x" * 256, folder + "\u00e9" * 128):
        with pytest.raises(OSError, match="too long") as caught:
            user.size(path)
        assert caught.value.errno == errno.ENAMETOOLONG


def test_two_long_names_that_differ_at_their_end_are_two_files(place: Scene, user: FileUser) -> None:
    folder = place.folder()
    names = ["d" * 289 + end for end in ("1", "2", "/1", "/2/3")]
    place.proxy.add(ListedBucket({folder + name: content_of(name) for name in names}, page_size=1))
    part = f"{folder}@s3mount-part:{'d' * 241}"

    assert user.listdir(folder) == [f"@s3mount-part:{'d' * 241}"]
    # A directory of 289 letters comes before the files that are one longer.
    assert sorted(user.listdir(part)) == ["d" * 48, "d" * 48 + "1", "d" * 48 + "2"]
    assert [user.read_file(f"{part}/{name[241:]}") for name in names] == [content_of(name) for name in names]


class TestSlashes:
    """Keys with empty components."""

    KEYS = ("a//b", "/lead", "/", "//", "a/", "a/ok", "z///", "z")

    def test_a_walk_is_finite_and_shows_every_key(self, moto: S3Server) -> None:
        objects = {key: content_of(key) for key in self.KEYS}
        with scene(moto, allow_warnings=True) as place, place.user() as user:
            place.proxy.add(ListedBucket(objects))

            shown = {"a/@s3mount:/b": "a//b", "a/ok": "a/ok", "@s3mount:/lead": "/lead"}
            assert read_all(place.mount) == {path: content_of(key) for path, key in shown.items()}
            for command in (["ls", "-R"], ["find", "."], ["du", "-a"]):
                assert place.mount.run(*command, timeout=10).returncode == 0
            assert user.read_file("@s3mount-file:z") == content_of("z")

    def test_content_of_markers_is_read_as_the_empty_name(self, moto: S3Server) -> None:
        objects = {key: content_of(key) for key in self.KEYS}
        with scene(moto) as place, place.user() as user:
            place.proxy.add(ListedBucket(objects))

            assert user.read_file("z/@s3mount:/@s3mount:/@s3mount:") == content_of("z///")
            assert user.read_file("@s3mount:/@s3mount:/@s3mount:") == content_of("//")
            assert user.read_file("@s3mount:/@s3mount-file:") == content_of("/")


class TestFileAndDirectory:
    """A key that is also a prefix."""

    KEYS = ("foo", "foo!", "foo-1", "foo.txt", "foo/x", "foo0")

    @pytest.mark.parametrize("page_size", [1, 2, 1000])
    @pytest.mark.parametrize("is_listed_first", [False, True])
    def test_the_directory_has_the_name(self, moto: S3Server, page_size: int, *, is_listed_first: bool) -> None:
        names = ["foo!", "foo-1", "foo.txt", "foo", "foo0"]
        with scene(moto, allow_warnings=True) as place, place.user() as user:
            place.proxy.add(ListedBucket({key: content_of(key) for key in self.KEYS}, page_size=page_size))
            if is_listed_first:
                assert user.listdir() == names

            assert place.mount.run("stat", "--format=%F", "foo").stdout == "directory\n"
            assert user.read_file("foo/x") == content_of("foo/x")
            assert user.read_file("@s3mount-file:foo") == content_of("foo")
            assert user.listdir() == names
            assert user.listdir("foo") == ["x"]
            with pytest.raises(IsADirectoryError):
                user.read_file("foo")
            assert [user.read_file(name) for name in names if name != "foo"] == [
                content_of(name) for name in names if name != "foo"
            ]
            assert place.mount.log().count("is not listed: a directory has its name") == 1

    def test_many_neighbours_in_between_do_not_hide_either(self, place: Scene, user: FileUser) -> None:
        folder = place.folder()
        between = [f"{folder}foo-{index:02}" for index in range(30)]
        place.proxy.add(ListedBucket(dict.fromkeys([f"{folder}foo/x", *between], b"")))

        assert user.listdir(f"{folder}foo") == ["x"]
        with pytest.raises(FileNotFoundError):
            user.size(f"{folder}foo-")

    def test_one_appears_and_goes(self, moto: S3Server) -> None:
        with scene(moto, "--ttl", "0", allow_warnings=True) as place, place.user() as user:
            bucket = place.proxy.add(ListedBucket({"foo": b"file"}))
            assert user.read_file("foo") == b"file"

            bucket.objects["foo/x"] = b"below"
            assert user.listdir("foo") == ["x"]
            assert user.listdir() == ["foo"]
            assert user.read_file("@s3mount-file:foo") == b"file"

            del bucket.objects["foo/x"]
            assert user.read_file("foo") == b"file"
            with pytest.raises(FileNotFoundError):
                user.size("@s3mount-file:foo")


class TestMarkers:
    """Keys that end in a slash."""

    @pytest.mark.parametrize("is_listed_first", [False, True])
    @pytest.mark.parametrize("page_size", [1, 1000])
    def test_they_are_directories_and_not_inside_themselves(
        self, place: Scene, user: FileUser, page_size: int, *, is_listed_first: bool
    ) -> None:
        folder = place.folder()
        keys = {"d/": b"", "e/": b"hello", "g/": b"", "g/x": b"x", "h": b"", "n/m/": b""}
        place.proxy.add(ListedBucket({folder + key: body for key, body in keys.items()}, page_size=page_size))
        if is_listed_first:
            assert user.listdir(folder) == ["d", "e", "g", "h", "n"]

        kinds = place.mount.run("stat", "--format=%F", *(f"{folder}{name}" for name in "deghn")).stdout
        assert kinds == "directory\n" * 3 + "regular empty file\n" + "directory\n"
        assert [user.listdir(folder + name) for name in "degn"] == [[], [], ["x"], ["m"]]
        assert user.listdir(f"{folder}n/m") == []
        assert user.read_file(f"{folder}e/@s3mount:") == b"hello"
        assert user.listdir(folder) == ["d", "e", "g", "h", "n"]

    def test_a_directory_without_marker_has_no_content(self, place: Scene, user: FileUser) -> None:
        folder = place.folder()
        place.proxy.add(ListedBucket({f"{folder}d/x": b""}))

        with pytest.raises(FileNotFoundError):
            user.size(f"{folder}d/@s3mount:")


def test_names_are_kept_by_a_server_that_stores_them(moto: S3Server) -> None:
    """The same against a server that was written by others."""
    keys = [key for key in PLAIN if key.strip()] + [key for key in ESCAPED if "\0" not in key]
    with scene(moto, allow_warnings=True) as place:
        for key in keys:
            place.client.put_object(Bucket=place.bucket, Key=key, Body=content_of(key))

        assert read_all(place.mount) == {ESCAPED.get(key, key): content_of(key) for key in keys}
