"""What stat, statfs, access and extended attributes say, and that nothing can be changed."""

import os
import re
from collections.abc import Iterator

import pytest

from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

NOBODY = 65534


@pytest.fixture(scope="module")
def shared(seaweed: S3Server) -> Iterator[Scene]:
    with scene(seaweed, "--ttl", "1h", extra_environment={"TZ": "Asia/Tokyo"}) as built:
        built.put("f", 1000)
        built.put("pkg/__init__.py", 0)
        built.client.put_object(Bucket=built.bucket, Key="pkg/part.py", Body=b"VALUE = 42\n")
        built.put("tree/s1/f", 1)
        built.put("tree/s2/t/g", 1)
        built.reset()
        yield built


@pytest.fixture
def place(shared: Scene) -> Scene:
    shared.reset()
    return shared


def test_stat_shows_size_time_and_owner(place: Scene) -> None:
    modified = place.client.head_object(Bucket=place.bucket, Key="f")["LastModified"]

    shown = place.mount.run("stat", "--format=%s %Y %u %g %a %h %b %B %F", "f").stdout

    assert shown == f"1000 {int(modified.timestamp())} {os.getuid()} {os.getgid()} 644 1 2 512 regular file\n"


def test_a_directory_has_one_stable_time_and_one_link(place: Scene) -> None:
    first = place.mount.run("stat", "--format=%Y %h %a %F", "pkg").stdout
    place.mount.run("ls", "-lR")

    assert place.mount.run("stat", "--format=%Y %h %a %F", "pkg").stdout == first
    assert re.fullmatch(r"\d{10} 1 755 directory\n", first)


def test_readdir_and_stat_agree_on_inode_numbers(place: Scene) -> None:
    code = (
        "import os\nfor e in os.scandir('.'): assert e.inode() == os.stat(e.name).st_ino == os.lstat(e.name).st_ino > 0"
    )

    assert place.mount.run_python(code).returncode == 0
    numbers = [place.mount.run("stat", "--format=%i", "f").stdout for _ in range(2)]
    assert numbers[0] == numbers[1]


def test_find_descends_into_every_directory(place: Scene) -> None:
    assert place.mount.run("find", "tree", "-type", "f").stdout.split() == ["tree/s1/f", "tree/s2/t/g"]


def test_python_imports_a_package_from_the_mount(place: Scene) -> None:
    code = "import sys; sys.path.insert(0, '.'); sys.dont_write_bytecode = True; import pkg.part; print(pkg.part.VALUE)"

    assert place.mount.run_python(code).stdout == "42\n"


@pytest.mark.parametrize(
    "change",
    [
        "open('new', 'w')",
        "open('f', 'r+b')",
        "open('f', 'ab')",
        "os.mkdir('new')",
        "os.unlink('f')",
        "os.rmdir('pkg')",
        "os.rename('f', 'g')",
        "os.chmod('f', 0o600)",
        "os.chown('f', 1, 1)",
        "os.utime('f')",
        "os.truncate('f', 0)",
        "os.symlink('f', 'new')",
        "os.link('f', 'new')",
        "os.mkfifo('new')",
        "os.setxattr('f', 'user.x', b'1')",
        "os.removexattr('f', 'user.x')",
    ],
)
def test_every_change_is_refused(place: Scene, change: str) -> None:
    done = place.mount.run_python(f"import os\ntry: {change}\nexcept OSError as error: print(error.errno)")

    assert done.stdout == "30\n"


def test_extended_attributes_cost_no_request_and_are_not_copied(place: Scene, tmp_path) -> None:
    etag = place.client.head_object(Bucket=place.bucket, Key="f")["ETag"].strip('"')
    place.mount.run("stat", "f", "pkg")
    place.proxy.log.clear()
    code = (
        "import os\nfor name in ('etag', 'key'): print(os.getxattr('f', f'user.s3mount.{name}').decode(), end=' ')\n"
        "print(os.getxattr('pkg', 'user.s3mount.key').decode(), os.listxattr('f'))\n"
        "for name in ('user.none', 'security.capability'):\n"
        "    try: os.getxattr('f', name)\n    except OSError as error: print(error.errno)"
    )

    assert place.mount.run_python(code).stdout == f"{etag} f pkg/ []\n61\n95\n"
    assert place.proxy.log.select() == []
    copied = place.mount.run("cp", "-a", "f", str(tmp_path / "copy"))
    assert (copied.returncode, copied.stderr) == (0, "")
    copy = "import shutil, sys; shutil.copy2('f', sys.argv[1])"
    assert place.mount.run_python(copy, str(tmp_path / "copy2")).returncode == 0
    assert (tmp_path / "copy").stat().st_size == 1000


def test_statfs_shows_room_without_asking_even_while_the_server_is_gone(place: Scene) -> None:
    place.proxy.refuse()
    code = (
        "import os, shutil\ns = os.statvfs('.')\n"
        "assert 0 < s.f_bavail <= s.f_bfree <= s.f_blocks and s.f_blocks * s.f_frsize < 2 ** 63\n"
        "assert s.f_files > 0 and s.f_ffree > 0 and s.f_namemax == 255 and 4096 <= s.f_bsize <= 2 ** 20\n"
        "assert shutil.disk_usage('.').free > 2 ** 50"
    )

    assert place.mount.run_python(code).returncode == 0
    assert place.mount.run("df", "-h", ".").returncode == 0
    place.proxy.heal()
    assert place.proxy.log.select() == []


class TestOtherUsers:
    """What a process of another user may do."""

    LOOK = f"""
import os, sys
os.setgid({NOBODY}); os.setuid({NOBODY})
for name in sys.argv[1:]:
    try:
        with open(name, 'rb') as file: print(name, len(file.read()), os.access(name, os.R_OK))
    except OSError as error: print(name, error.errno, os.access(name, os.R_OK))
"""

    def look(self, place: Scene, *names: str) -> list[str]:
        done = place.mount.run_python(self.LOOK, *(str(place.mount.path / name) for name in names))
        return [line.rpartition("/")[2] for line in done.stdout.splitlines()]

    def test_without_allow_other_they_are_kept_out(self, place: Scene) -> None:
        place.mount.path.parent.chmod(0o755)

        assert self.look(place, "f") == ["f 13 False"]

    @pytest.mark.parametrize(
        ("options", "expected", "modes"),
        [
            ((), "f 1000 True", "644 755"),
            (("--umask", "077"), "f 13 False", "600 700"),
            (("--file-mode", "0400"), "f 13 False", "400 755"),
            (("--file-mode", "0400", "--uid", str(NOBODY)), "f 1000 True", "400 755"),
            (("--file-mode", "0440", "--gid", str(NOBODY)), "f 1000 True", "440 755"),
        ],
    )
    def test_modes_decide_with_allow_other(
        self, seaweed: S3Server, options: tuple[str, ...], expected: str, modes: str
    ) -> None:
        with scene(seaweed, "--allow-other", *options) as place:
            place.put("f", 1000)
            place.mount.path.parent.chmod(0o755)

            assert self.look(place, "f") == [expected]
            assert place.mount.run("stat", "--format=%a", "f", ".").stdout.split() == modes.split()


def test_requester_pays_reaches_every_request(seaweed: S3Server) -> None:
    with scene(seaweed, "--requester-pays", "--ttl", "1ms") as place:
        place.put("d/f", 10)
        assert place.mount.run("cksum", "d/f").returncode == 0
        assert place.mount.run("cksum", "d/f").returncode == 0

        kinds = {exchange.kind.value for exchange in place.proxy.log.select()}
        assert kinds == {"list", "head", "get"}
        for exchange in place.proxy.log.select():
            assert exchange.request.header("x-amz-request-payer") == "requester"
            assert exchange.request.header("x-amz-checksum-mode") in {None, "ENABLED"}


def test_unsigned_requests_carry_no_credentials(moto: S3Server) -> None:
    with scene(moto, "--no-sign-request", expected_warning="may not be read") as place:
        place.put("f", 10)
        assert place.mount.run("ls").stdout == "f\n"
        place.mount.run("cksum", "f")

        assert all(exchange.request.header("authorization") is None for exchange in place.proxy.log.select())
