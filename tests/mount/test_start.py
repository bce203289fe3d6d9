"""Before and after the mount: how it starts, how it fails, how it ends."""

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from s3mount.control import socket_name
from tests.support.mounts import Outcome, environment, is_mounted, run_command
from tests.support.servers import SECRET_KEY, S3Server

LIFE_SECONDS = 90.0
START_LIMIT_SECONDS = 35.0

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="needs root and /dev/fuse")


@dataclass
class Place:
    """A mount point, and the command for it."""

    path: Path
    endpoint_url: str
    bucket: str
    variables: dict[str, str] = field(default_factory=dict)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "s3mount.cli", *arguments]

    def environment(self, **variables: str) -> dict[str, str]:
        return environment(self.endpoint_url) | self.variables | variables

    def s3mount(self, *arguments: str, **variables: str) -> Outcome:
        started_at = time.monotonic()
        done = subprocess.run(
            self.command(*arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            env=self.environment(**variables),
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr, time.monotonic() - started_at)

    def mount(self, *options: str, **variables: str) -> Outcome:
        log = self.path.parent / "log"
        return self.s3mount("mount", f"s3://{self.bucket}", str(self.path), f"--log-file={log}", *options, **variables)

    def log(self) -> str:
        return (self.path.parent / "log").read_text(encoding="utf-8")

    def unmount(self, *options: str) -> Outcome:
        return self.s3mount("unmount", str(self.path), *options)

    def daemons(self) -> list[int]:
        """Daemons of this very path, which their command lines end in."""
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                with contextlib.suppress(OSError):
                    words = (process / "cmdline").read_bytes().split(b"\0")
                    if b"s3mount.daemon" in words and os.fsencode(self.path) in words:
                        found.append(int(process.name))
        return found

    def daemon(self) -> int:
        (pid,) = self.daemons()
        return pid

    def wait_until_gone(self, seconds: float = 15.0) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and (is_mounted(self.path) or self._running()):
            time.sleep(0.05)
        assert not is_mounted(self.path)
        assert not self._running()

    def _running(self) -> list[int]:
        return [pid for pid in self.daemons() if not _is_zombie(pid)]

    def clear_away(self) -> None:
        """End whatever is left; a stopped daemon as well."""
        for pid in self.daemons():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while is_mounted(self.path):
            run_command(["umount", "--lazy", str(self.path)], timeout=10)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@contextlib.contextmanager
def watched(place: Place) -> Iterator[Place]:
    watchdog = threading.Timer(LIFE_SECONDS, place.clear_away)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield place
    finally:
        watchdog.cancel()
        watchdog.join()
        place.clear_away()


@pytest.fixture(scope="module")
def bucket(seaweed: S3Server) -> str:
    name = seaweed.new_bucket()
    client = seaweed.client()
    client.put_object(Bucket=name, Key="hello.txt", Body=b"hello")
    client.put_object(Bucket=name, Key="data/inner.txt", Body=b"inner")
    client.close()
    return name


@pytest.fixture
def place(seaweed: S3Server, bucket: str, tmp_path: Path) -> Iterator[Place]:
    path = tmp_path / "mnt"
    path.mkdir()
    with watched(Place(path, seaweed.endpoint_url, bucket)) as watched_place:
        yield watched_place


@pytest.fixture
def silent_endpoint() -> Iterator[str]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def closed_endpoint() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def assert_failed(place: Place, outcome: Outcome, exit_code: int, *fragments: str) -> None:
    """One line, the documented exit status, in time, and nothing left."""
    assert outcome.returncode == exit_code, outcome
    lines = outcome.stderr.splitlines()
    assert len(lines) == 1, outcome.stderr
    assert lines[0].startswith("s3mount: ")
    for fragment in fragments:
        assert fragment in lines[0]
    assert outcome.stdout == ""
    assert outcome.seconds < START_LIMIT_SECONDS
    assert not is_mounted(place.path)
    assert not place.daemons()


def read(path: Path) -> Outcome:
    return run_command(["cat", str(path)], timeout=20)


class TestReady:
    def test_mounted_directory_can_be_used_at_once(self, place: Place) -> None:
        for _ in range(10):
            mounted = place.mount()
            listed = run_command(["ls", str(place.path)], timeout=20)
            seen = read(place.path / "hello.txt")
            unmounted = place.unmount()

            assert (mounted.returncode, mounted.stderr) == (0, "")
            assert listed.stdout.split() == ["data", "hello.txt"]
            assert seen.stdout == "hello"
            assert (unmounted.returncode, unmounted.stderr) == (0, "")
            assert not is_mounted(place.path)
            assert not place.daemons()

    def test_line_of_success_names_source_place_and_log(self, place: Place) -> None:
        mounted = place.mount()

        assert mounted.stdout.startswith(f"s3mount: s3://{place.bucket} is mounted at {place.path} (log: ")

    def test_only_the_prefix_is_seen(self, place: Place) -> None:
        mounted = place.s3mount("mount", f"s3://{place.bucket}//data/", str(place.path))

        assert mounted.returncode == 0
        assert run_command(["ls", str(place.path)], timeout=20).stdout.split() == ["inner.txt"]

    def test_findmnt_shows_source_and_type(self, place: Place) -> None:
        place.mount()

        shown = run_command(["findmnt", "-n", "-o", "SOURCE,FSTYPE,OPTIONS", str(place.path)], timeout=10).stdout

        assert shown.split()[:2] == [f"s3://{place.bucket}", "fuse.s3mount"]
        assert shown.split()[2].startswith("ro,")

    def test_path_with_spaces_and_backslash(self, place: Place) -> None:
        path = place.path / "a b\\c"
        path.mkdir()
        with watched(Place(path, place.endpoint_url, place.bucket)) as spaced:
            mounted = spaced.mount()
            second = spaced.mount()
            unmounted = spaced.unmount()

        assert mounted.returncode == 0
        assert second.returncode == 3
        assert unmounted.returncode == 0

    def test_symbolic_link_and_relative_path_lead_to_the_mount(self, place: Place) -> None:
        link = place.path.parent / "link"
        link.symlink_to(place.path)

        mounted = place.s3mount("mount", f"s3://{place.bucket}", f"{link}/")
        status = place.s3mount("status", str(link), "--json")

        assert mounted.returncode == 0
        assert json.loads(status.stdout)["mount_point"] == str(place.path)

    def test_works_without_standard_descriptors(self, place: Place) -> None:
        command = " ".join(place.command("mount", f"s3://{place.bucket}", str(place.path)))
        done = subprocess.run(
            ["sh", "-c", f"exec {command} <&- >&- 2>&-"], timeout=60, env=place.environment(), check=False
        )

        assert done.returncode == 0
        assert read(place.path / "hello.txt").stdout == "hello"

    def test_daemon_holds_nothing_of_its_parent(self, place: Place) -> None:
        place.mount()

        pid = place.daemon()
        targets = {number: str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in ("0", "1", "2")}
        assert set(targets.values()) == {"/dev/null"}
        assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")
        assert os.getsid(pid) == pid

    def test_daemon_may_open_as_many_files_as_the_host_allows(self, place: Place) -> None:
        place.mount()

        limits = Path(f"/proc/{place.daemon()}/limits").read_text(encoding="ascii")
        soft, hard = re.search(r"Max open files\s+(\d+)\s+(\d+)", limits).groups()
        assert soft == hard

    def test_changes_are_refused(self, place: Place) -> None:
        place.mount("--read-only")

        touched = run_command(["touch", str(place.path / "new")], timeout=10)

        assert touched.returncode != 0
        assert "Read-only file system" in touched.stderr

    def test_modes_and_owner_are_as_given(self, place: Place) -> None:
        place.mount("--uid=1234", "--gid=2345", "--umask=027", "--file-mode=0664")

        shown = run_command(["stat", "-c", "%a %u %g", "hello.txt", "data"], timeout=10, cwd=place.path)

        assert shown.stdout.splitlines() == ["640 1234 2345", "750 1234 2345"]

    def test_options_come_from_a_file_and_the_environment(self, place: Place) -> None:
        config = place.path.parent / "config.toml"
        config.write_text('[mount]\nuid = 11\ngid = 12\nfile-mode = "0600"\n', encoding="utf-8")

        place.mount(f"--config={config}", "--gid=30", S3MOUNT_FILE_MODE="0640")

        shown = run_command(["stat", "-c", "%a %u %g", "hello.txt"], timeout=10, cwd=place.path)
        assert shown.stdout.split() == ["640", "11", "30"]


class TestFailure:
    def test_bucket_does_not_exist(self, place: Place) -> None:
        outcome = place.s3mount("mount", "s3://no-such-bucket-here", str(place.path))

        assert_failed(place, outcome, 5, "no-such-bucket-here")

    def test_secret_is_wrong(self, place: Place) -> None:
        outcome = place.mount(AWS_SECRET_ACCESS_KEY="wrong")

        assert outcome.returncode in {5, 6}
        assert_failed(place, outcome, outcome.returncode)

    def test_key_id_is_unknown(self, place: Place) -> None:
        outcome = place.mount(AWS_ACCESS_KEY_ID="AKIAUNKNOWNUNKNOWN12")

        assert outcome.returncode in {5, 6}
        assert_failed(place, outcome, outcome.returncode)

    def test_there_are_no_credentials(self, place: Place) -> None:
        outcome = place.mount(AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")

        assert_failed(place, outcome, 6, "AWS_ACCESS_KEY_ID")

    def test_profile_does_not_exist(self, place: Place) -> None:
        outcome = place.mount("--profile=nobody")

        assert_failed(place, outcome, 6, "nobody")

    def test_nobody_listens_at_the_endpoint(self, place: Place, closed_endpoint: str) -> None:
        outcome = place.mount(f"--endpoint-url={closed_endpoint}")

        assert_failed(place, outcome, 7, closed_endpoint.removeprefix("http://"))

    def test_endpoint_never_answers(self, place: Place, silent_endpoint: str) -> None:
        outcome = place.mount(f"--endpoint-url={silent_endpoint}")

        assert_failed(place, outcome, 7, silent_endpoint.removeprefix("http://"))

    def test_mount_point_is_missing(self, place: Place) -> None:
        place.path.rmdir()

        assert_failed(place, place.mount(), 3, f"mkdir -p {place.path}")

    def test_mount_point_is_a_file(self, place: Place) -> None:
        place.path.rmdir()
        place.path.touch()

        assert_failed(place, place.mount(), 3, "not a directory")

    def test_mount_point_is_not_empty(self, place: Place) -> None:
        (place.path / "mine").touch()

        refused = place.mount()
        assert_failed(place, refused, 3, "not empty", "--allow-non-empty")
        assert place.mount("--allow-non-empty").returncode == 0

    def test_it_is_mounted_already(self, place: Place) -> None:
        place.mount()

        second = place.mount()

        assert second.returncode == 3
        assert second.stderr == (
            f"s3mount: s3://{place.bucket} is already mounted at {place.path}: s3mount unmount {place.path}\n"
        )
        assert read(place.path / "hello.txt").stdout == "hello"

    def test_two_starts_at_once_make_one_mount(self, place: Place) -> None:
        starts = [
            subprocess.Popen(
                place.command("mount", f"s3://{place.bucket}", str(place.path)),
                env=place.environment(),
                stderr=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            for _ in range(4)
        ]

        codes = sorted(start.wait(timeout=60) for start in starts)

        assert codes == [0, 3, 3, 3]
        assert len(place.daemons()) == 1

    def test_existing_mount_hangs(self, place: Place) -> None:
        place.mount("--ttl=0")  # so that whoever asks for the root's attributes hangs
        os.kill(place.daemon(), signal.SIGSTOP)

        refused = place.mount()
        status = place.s3mount("status", str(place.path))
        unmounted = place.unmount("--lazy")

        assert refused.returncode == 3
        assert "s3mount unmount --lazy" in refused.stderr
        assert refused.seconds < 10
        assert status.returncode == 10
        assert "did not answer within 5 s" in status.stderr
        assert unmounted.returncode == 0
        assert not is_mounted(place.path)

    def test_kernel_has_no_fuse(self, place: Place) -> None:
        if shutil.which("unshare") is None:
            pytest.skip("needs unshare")
        command = " ".join(place.command("mount", f"s3://{place.bucket}", str(place.path)))
        setup = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9"
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", f"{setup} && exec {command}"],
            capture_output=True,
            text=True,
            timeout=30,
            env=place.environment(),
            check=False,
        )

        assert_failed(place, Outcome(done.returncode, done.stdout, done.stderr, 0), 4, "modprobe fuse")

    def test_mount_is_not_permitted(self, place: Place) -> None:
        if shutil.which("setpriv") is None:
            pytest.skip("needs setpriv")
        mount = place.command("mount", f"s3://{place.bucket}", str(place.path))
        done = subprocess.run(
            ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", *mount],
            capture_output=True,
            text=True,
            timeout=30,
            env=place.environment(),
            check=False,
        )

        assert_failed(place, Outcome(done.returncode, done.stdout, done.stderr, 0), 4, "--cap-add SYS_ADMIN")

    @pytest.mark.parametrize(
        ("arguments", "fragment"),
        [
            (("--ttl=soon",), "--ttl: 'soon' is not a duration"),
            (("--memory=lots",), "--memory: 'lots' is not a size"),
            (("--ttll=3",), "No such option"),
            (("--log-file=/no/such/folder/log",), "/no/such/folder/log"),
            (("--config=/no/such/file",), "/no/such/file"),
            (("--ca-bundle=/no/such/file",), "/no/such/file"),
        ],
    )
    def test_option_is_wrong(self, place: Place, arguments: tuple[str, ...], fragment: str) -> None:
        outcome = place.s3mount("mount", f"s3://{place.bucket}", str(place.path), *arguments)

        assert_failed(place, outcome, 2, fragment)

    def test_foreground_fails_the_same_way(self, place: Place) -> None:
        outcome = place.s3mount("mount", "s3://no-such-bucket-here", str(place.path), "--foreground")

        assert outcome.returncode == 5
        assert outcome.stderr.splitlines()[-1].startswith("s3mount: ")
        assert "Traceback" not in outcome.stderr

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_interrupted_start_leaves_nothing(self, place: Place, silent_endpoint: str, number: signal.Signals) -> None:
        start = subprocess.Popen(
            place.command("mount", f"s3://{place.bucket}", str(place.path)),
            env=place.environment(AWS_ENDPOINT_URL=silent_endpoint),
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 10
        while not place.daemons() and time.monotonic() < deadline:
            time.sleep(0.02)

        start.send_signal(number)
        _, said = start.communicate(timeout=20)

        assert start.returncode == 130
        assert said == "s3mount: interrupted\n"
        place.wait_until_gone()


class TestDeadDaemon:
    def test_next_mount_takes_its_place(self, place: Place) -> None:
        place.mount()
        os.kill(place.daemon(), signal.SIGKILL)
        place_is_dead(place)

        again = place.mount()

        assert again.returncode == 0
        assert again.seconds < 10
        assert again.stderr == (
            f"s3mount: detached the mount of s3://{place.bucket} that a dead daemon had left at {place.path}\n"
        )
        assert read(place.path / "hello.txt").stdout == "hello"

    def test_next_mount_takes_its_place_while_files_are_open(self, place: Place) -> None:
        place.mount()
        held = os.open(place.path / "hello.txt", os.O_RDONLY)
        try:
            os.kill(place.daemon(), signal.SIGKILL)
            place_is_dead(place)

            again = place.mount()

            assert again.returncode == 0
            with pytest.raises(OSError, match="Transport endpoint"):
                os.fstatvfs(held)
            assert read(place.path / "hello.txt").stdout == "hello"
        finally:
            close_dead(held)

    def test_unmount_clears_it_away_once(self, place: Place) -> None:
        place.mount()
        os.kill(place.daemon(), signal.SIGKILL)
        place_is_dead(place)

        first, second = place.unmount(), place.unmount()

        assert first.returncode == 0
        assert "whose daemon was gone" in first.stdout
        assert second.returncode == 8
        assert second.stderr == f"s3mount: nothing is mounted at {place.path}\n"

    def test_status_names_the_way_out(self, place: Place) -> None:
        place.mount()
        os.kill(place.daemon(), signal.SIGKILL)
        place_is_dead(place)

        status = place.s3mount("status", str(place.path))

        assert status.returncode == 10
        assert status.stderr == f"s3mount: no daemon answers for {place.path}: s3mount unmount {place.path}\n"


def place_is_dead(place: Place) -> None:
    deadline = time.monotonic() + 10
    while any(not _is_zombie(pid) for pid in place.daemons()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert is_mounted(place.path)


def close_dead(descriptor: int) -> None:
    """Close a file of a mount that is gone, which says so."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


class TestEnd:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_signal_unmounts(self, place: Place, number: signal.Signals) -> None:
        place.mount()

        os.kill(place.daemon(), number)

        place.wait_until_gone()

    def test_signal_unmounts_while_files_are_open(self, place: Place) -> None:
        place.mount()
        held = os.open(place.path / "hello.txt", os.O_RDONLY)
        try:
            os.kill(place.daemon(), signal.SIGTERM)

            place.wait_until_gone()
        finally:
            close_dead(held)

    def test_closed_terminal_does_not_end_a_daemon(self, place: Place) -> None:
        place.mount()

        os.kill(place.daemon(), signal.SIGHUP)

        assert read(place.path / "hello.txt").stdout == "hello"
        assert place.unmount().returncode == 0

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_signal_ends_a_mount_in_the_foreground(self, place: Place, number: signal.Signals) -> None:
        process = subprocess.Popen(
            place.command("mount", f"s3://{place.bucket}", str(place.path), "--foreground"),
            env=place.environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        said = ""
        while "is mounted at" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line

        process.send_signal(number)
        _, rest = process.communicate(timeout=20)

        assert process.returncode == 0, said + rest
        assert not is_mounted(place.path)

    def test_busy_mount_is_not_unmounted(self, place: Place) -> None:
        place.mount()
        held = os.open(place.path / "hello.txt", os.O_RDONLY)
        try:
            refused = place.unmount()
            still = read(place.path / "hello.txt").stdout
            detached = place.unmount("--lazy")
            held_bytes = os.read(held, 100)
        finally:
            os.close(held)

        assert refused.returncode == 3
        assert "files are open" in refused.stderr
        assert "--lazy" in refused.stderr
        assert still == "hello"
        assert detached.returncode == 0
        assert held_bytes == b"hello"
        place.wait_until_gone()

    def test_unmounting_twice_says_so(self, place: Place) -> None:
        place.mount()

        first, second = place.unmount(), place.unmount()

        assert first.stdout == f"s3mount: {place.path}: unmounted s3://{place.bucket}\n"
        assert second.returncode == 8
        assert second.stderr == f"s3mount: nothing is mounted at {place.path}\n"

    def test_foreign_mounts_are_left_alone(self) -> None:
        outcome = Place(Path("/proc"), "http://unused", "unused").unmount()

        assert outcome.returncode == 8
        assert "not a mount of s3mount" in outcome.stderr

    def test_plain_umount_ends_the_daemon(self, place: Place) -> None:
        place.mount()

        run_command(["umount", str(place.path)], timeout=10)

        place.wait_until_gone()


class TestStatus:
    def test_json_and_text(self, place: Place) -> None:
        place.mount()
        read(place.path / "hello.txt")

        status = json.loads(place.s3mount("status", str(place.path), "--json").stdout)
        text = place.s3mount("status", str(place.path)).stdout

        assert status["source"] == f"s3://{place.bucket}"
        assert status["mount_point"] == str(place.path)
        assert status["pid"] == place.daemon()
        assert status["counters"]["served_bytes"] == 5
        assert text.startswith(f"s3://{place.bucket} on {place.path}\n")
        assert re.search(r"^  served +5 B$", text, re.MULTILINE)

    def test_socket_is_private(self, place: Place) -> None:
        place.mount()

        path = Path("/run/s3mount") / socket_name(place.path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        place.unmount()
        assert not path.exists()

    def test_bad_clients_do_no_harm(self, place: Place) -> None:
        place.mount()
        path = Path("/run/s3mount") / socket_name(place.path)

        for garbage in (b"", b"\n", b"[" * 100_000, b"\xff\xfe\n", b'{"command": "explode"}\n', b'{"command": 3}\n'):
            with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
                client.connect(str(path))
                client.sendall(garbage)

        assert place.s3mount("status", str(place.path)).returncode == 0
        assert "Traceback" not in place.log()

    def test_nothing_is_mounted(self, place: Place) -> None:
        outcome = place.s3mount("status", str(place.path))

        assert_failed(place, outcome, 8, "nothing is mounted")


class TestUser:
    """A user other than root, with the device that most hosts have, in a mount namespace with its own /dev."""

    UID = 1000

    @pytest.fixture
    def place(self, seaweed: S3Server, bucket: str) -> Iterator[Place]:
        """Where that user may go; pytest's folders are private."""
        with tempfile.TemporaryDirectory(prefix="s3mount-test-") as folder:
            path = Path(folder, "mnt")
            path.mkdir()
            for directory in (path.parent, path):
                os.chown(directory, self.UID, self.UID)
            with watched(Place(path, seaweed.endpoint_url, bucket)) as watched_place:
                yield watched_place

    @pytest.fixture
    def as_user(self, place: Place):
        if not all(map(shutil.which, ("unshare", "setpriv", "fusermount3"))):
            pytest.skip("needs unshare, setpriv and fusermount3")
        devices = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9"
        # The interpreter and this checkout may be where only root can read.
        user = f"setpriv --reuid {self.UID} --regid {self.UID} --clear-groups"
        reading = "--inh-caps +dac_read_search --ambient-caps +dac_read_search"

        def run(script: str) -> Outcome:
            command = f'{devices} && mknod -m 666 /dev/fuse c 10 229 && exec {user} {reading} sh -c "$SCRIPT"'
            home = str(place.path.parent)
            done = subprocess.run(
                ["unshare", "--mount", "sh", "-c", command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
                env=place.environment(
                    SCRIPT=script,
                    HOME=home,
                    S3MOUNT=" ".join(place.command()),
                ),
                check=False,
            )
            return Outcome(done.returncode, done.stdout, done.stderr, 0)

        return run

    def test_mounts_reads_and_unmounts(self, place: Place, as_user) -> None:
        outcome = as_user(
            f"set -e; $S3MOUNT mount s3://{place.bucket} {place.path}; cat {place.path}/hello.txt; echo; "
            f"stat -c %u:%g {place.path}/hello.txt; $S3MOUNT status {place.path} >&2; $S3MOUNT unmount {place.path}"
        )

        assert outcome.returncode == 0, outcome
        assert outcome.stdout.splitlines()[1:3] == ["hello", f"{self.UID}:{self.UID}"]
        assert outcome.stdout.endswith(f"{place.path}: unmounted s3://{place.bucket}\n")
        assert not place.daemons()

    def test_busy_mount_is_not_unmounted(self, place: Place, as_user) -> None:
        outcome = as_user(
            f"$S3MOUNT mount s3://{place.bucket} {place.path} >&2; exec 3<{place.path}/hello.txt; "
            f"$S3MOUNT unmount {place.path}; echo $?; $S3MOUNT unmount --lazy {place.path} >&2; echo $?; cat <&3"
        )

        assert outcome.stdout == "3\n0\nhello", outcome
        assert "files are open" in outcome.stderr

    def test_mount_of_a_dead_daemon_is_replaced(self, place: Place, as_user) -> None:
        outcome = as_user(
            f"$S3MOUNT mount s3://{place.bucket} {place.path} >&2; "
            f"kill -9 $($S3MOUNT status --json {place.path} | sed -n 's/.*\"pid\": *\\([0-9]*\\).*/\\1/p'); sleep 0.3; "
            f"$S3MOUNT mount s3://{place.bucket} {place.path} >&2; echo $?; cat {place.path}/hello.txt; "
            f"$S3MOUNT unmount {place.path} >&2"
        )

        assert outcome.stdout == "0\nhello", outcome
        assert "detached the mount of" in outcome.stderr

    def test_allow_other_needs_permission(self, place: Place, as_user) -> None:
        if "\nuser_allow_other" in Path("/etc/fuse.conf").read_text(encoding="utf-8"):
            pytest.skip("it is permitted here")

        outcome = as_user(f"$S3MOUNT mount s3://{place.bucket} {place.path} --allow-other")

        assert_failed(place, outcome, 4, "root has to write 'user_allow_other' into /etc/fuse.conf")


class TestSecrets:
    def test_no_secret_appears_anywhere(self, place: Place) -> None:
        token = f"token{secrets.token_hex(20)}"
        good = place.mount("--log-level=debug")
        read(place.path / "hello.txt")
        read(place.path / "missing")
        arguments = Path(f"/proc/{place.daemon()}/cmdline").read_bytes().decode()
        place.unmount()
        refused = place.mount("--log-level=debug", AWS_SECRET_ACCESS_KEY="not-the-right-one")
        tokened = place.mount("--log-level=debug", AWS_SESSION_TOKEN=token)
        read(place.path / "hello.txt")

        everything = place.log() + arguments
        for outcome in (good, refused, tokened):
            everything += outcome.stdout + outcome.stderr
        assert "lookup" in everything
        for secret in (SECRET_KEY, "not-the-right-one", token):
            assert secret not in everything
        assert "AWS4-HMAC" not in everything
        assert not re.search(r"[Ss]ignature=[0-9a-f]{16}", everything)

    def test_log_file_is_private(self, place: Place) -> None:
        place.mount()

        assert stat.S_IMODE((place.path.parent / "log").stat().st_mode) == 0o600
