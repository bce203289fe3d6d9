import ctypes
import os
import threading
from pathlib import Path

import pytest

from s3mount import mountpoint
from s3mount.errors import FuseUnavailableError, MountPointError, NotMountedError
from s3mount.mountinfo import Mount, parse_mountinfo, topmost
from s3mount.mountpoint import (
    check_allow_other,
    check_fuse,
    check_place,
    detach,
    find_own_mount,
    resolve,
    within,
)

USER = 1000


class TestMountinfo:
    def test_our_mount_is_read(self) -> None:
        line = (
            b"99 27 0:50 / /mnt/a\\040b\\134c ro,nosuid shared:7 - fuse.s3mount s3://b/p ro,user_id=1000,group_id=5\n"
        )

        (mount,) = parse_mountinfo(line)

        assert mount == Mount(Path("/mnt/a b\\c"), "fuse.s3mount", "s3://b/p", 1000)
        assert mount.is_ours
        assert mount.is_fuse

    @pytest.mark.parametrize(
        "line",
        [
            b"22 27 0:21 / /proc rw,relatime - proc proc rw",
            b"22 27 0:21 / /proc rw,relatime shared:1 master:2 propagate_from:3 - proc proc rw",
        ],
    )
    def test_number_of_optional_fields_varies(self, line: bytes) -> None:
        (mount,) = parse_mountinfo(line)

        assert mount == Mount(Path("/proc"), "proc", "proc", 0)
        assert not mount.is_fuse

    @pytest.mark.parametrize("line", [b"", b"nonsense", b"1 2 3 4 5 6 7 8", b"1 2 3 4 5 6 - x"])
    def test_other_lines_are_left_out(self, line: bytes) -> None:
        assert parse_mountinfo(line) == []

    def test_names_that_are_not_utf_8_survive(self) -> None:
        (mount,) = parse_mountinfo(b"1 2 0:1 / /\xff rw - tmpfs none rw")

        assert os.fsencode(mount.mount_point) == b"/\xff"

    def test_last_mount_at_a_path_is_on_top(self) -> None:
        lower, upper = (Mount(Path("/a"), kind, "x", 0) for kind in ("ext4", "fuse.s3mount"))

        assert topmost([lower, upper, Mount(Path("/a/b"), "tmpfs", "x", 0)], Path("/a")) == upper
        assert topmost([lower], Path("/b")) is None


class TestResolving:
    def test_relative_and_linked_paths(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to("real")
        monkeypatch.chdir(tmp_path)

        for path in ("link", "link/", "./link", "real/../link", str(tmp_path / "link")):
            assert resolve(Path(path)) == tmp_path / "real"

    def test_missing_path_is_made_absolute(self, tmp_path: Path) -> None:
        assert resolve(tmp_path / "a" / "b") == tmp_path / "a" / "b"

    def test_slow_file_system_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        released = threading.Event()
        monkeypatch.setattr(mountpoint, "PROBE_SECONDS", 0.01)
        monkeypatch.setattr(mountpoint, "_resolve", lambda _: released.wait(5))

        with pytest.raises(MountPointError, match="does not answer"):
            resolve(Path("/slow"))
        released.set()


class TestWithin:
    def test_result_and_error_come_back(self) -> None:
        assert within(5, lambda: 42) == 42
        with pytest.raises(FileNotFoundError):
            within(5, lambda: Path("/no/such/file").stat())

    def test_call_that_takes_longer_is_left_behind(self) -> None:
        released = threading.Event()

        with pytest.raises(TimeoutError):
            within(0.01, lambda: released.wait(5))
        released.set()


class TestFuse:
    @pytest.fixture
    def capabilities(self, tmp_path: Path) -> Path:
        path = tmp_path / "status"
        path.write_text("Name:\tx\nCapEff:\t000001ffffffffff\n")
        return path

    def test_missing_device(self, tmp_path: Path) -> None:
        with pytest.raises(FuseUnavailableError, match="modprobe fuse"):
            check_fuse(uid=0, device=tmp_path / "fuse")

    def test_device_that_cannot_be_opened(self, tmp_path: Path) -> None:
        with pytest.raises(FuseUnavailableError, match="--device"):
            check_fuse(uid=0, device=tmp_path)

    def test_root_of_a_container_without_the_capability(self, tmp_path: Path, capabilities: Path) -> None:
        capabilities.write_text("Name:\tx\nCapEff:\t00000000a80425fb\n")
        (tmp_path / "fuse").touch()

        with pytest.raises(FuseUnavailableError, match="--cap-add SYS_ADMIN"):
            check_fuse(uid=0, device=tmp_path / "fuse", process_status=capabilities)

    def test_root_needs_no_helper(self, tmp_path: Path, capabilities: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "fuse").touch()
        monkeypatch.setenv("PATH", str(tmp_path))

        check_fuse(uid=0, device=tmp_path / "fuse", process_status=capabilities)

    def test_user_needs_the_helper(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "fuse").touch()
        monkeypatch.setenv("PATH", str(tmp_path))

        with pytest.raises(FuseUnavailableError, match="fuse3 package"):
            check_fuse(uid=USER, device=tmp_path / "fuse")


class TestAllowOther:
    @pytest.mark.parametrize("text", ["", "#user_allow_other\n", "mount_max = 10\n", "user_allow_others\n"])
    def test_user_is_refused_without_permission(self, tmp_path: Path, text: str) -> None:
        conf = tmp_path / "fuse.conf"
        conf.write_text(text)

        with pytest.raises(FuseUnavailableError, match="write 'user_allow_other' into"):
            check_allow_other(uid=USER, fuse_conf=conf)

    def test_missing_file_gives_no_permission(self, tmp_path: Path) -> None:
        with pytest.raises(FuseUnavailableError):
            check_allow_other(uid=USER, fuse_conf=tmp_path / "fuse.conf")

    def test_user_with_permission(self, tmp_path: Path) -> None:
        conf = tmp_path / "fuse.conf"
        conf.write_text("# comment\n  user_allow_other  # yes\n")

        check_allow_other(uid=USER, fuse_conf=conf)

    def test_root_needs_none(self, tmp_path: Path) -> None:
        check_allow_other(uid=0, fuse_conf=tmp_path / "fuse.conf")


class TestPlace:
    def test_empty_directory_is_fine(self, tmp_path: Path) -> None:
        assert check_place(tmp_path, uid=0, allow_non_empty=False) is None

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(MountPointError, match=f"mkdir -p {tmp_path}/a"):
            check_place(tmp_path / "a", uid=0, allow_non_empty=False)

    def test_file(self, tmp_path: Path) -> None:
        (tmp_path / "a").touch()

        with pytest.raises(MountPointError, match="not a directory"):
            check_place(tmp_path / "a", uid=0, allow_non_empty=False)

    def test_below_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "a").touch()

        with pytest.raises(MountPointError, match="cannot use"):
            check_place(tmp_path / "a" / "b", uid=0, allow_non_empty=False)

    def test_not_empty(self, tmp_path: Path) -> None:
        (tmp_path / "a").touch()

        with pytest.raises(MountPointError, match="--allow-non-empty"):
            check_place(tmp_path, uid=0, allow_non_empty=False)
        assert check_place(tmp_path, uid=0, allow_non_empty=True) is None


class TestDetaching:
    def test_nothing_of_ours_is_there(self, tmp_path: Path) -> None:
        with pytest.raises(NotMountedError, match="nothing is mounted"):
            find_own_mount(tmp_path)
        with pytest.raises(NotMountedError, match="of type proc"):
            find_own_mount(Path("/proc"))

    def test_error_of_the_kernel_is_told(self, tmp_path: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root unmounts by system call")

        with pytest.raises(MountPointError, match=r"cannot unmount .*: Invalid argument"):
            detach(tmp_path, lazy=False)

    def test_system_call_is_there(self) -> None:
        assert ctypes.CDLL(None).umount2
