import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio

from s3mount.control import (
    MAX_ADDRESS_BYTES,
    MAX_BODY_BYTES,
    ask,
    find_socket,
    peer_pid,
    prepare_socket,
    runtime_folders,
    socket_name,
    start_lock,
)
from s3mount.control_server import serve, serve_control
from s3mount.errors import DaemonError, MountPointError
from s3mount.metrics import Metric, Metrics
from s3mount.options import MountPointOptions

MOUNT_POINT = Path("/mnt/data")
OWNER = os.geteuid()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    return path


class TestFolders:
    def test_root_uses_run(self) -> None:
        folders = runtime_folders(0, {"XDG_RUNTIME_DIR": "/run/user/0"})

        assert folders == [Path("/run/s3mount"), Path("/tmp/s3mount-0")]

    def test_user_uses_the_runtime_folder(self) -> None:
        folders = runtime_folders(os.getuid() or 1000, {"XDG_RUNTIME_DIR": "/run/mine"})

        assert folders[-2:] == [
            Path(f"/run/user/{os.getuid() or 1000}/s3mount"),
            Path(f"/tmp/s3mount-{os.getuid() or 1000}"),
        ]

    def test_folders_of_another_user_do_not_follow_our_environment(self) -> None:
        assert Path("/run/mine/s3mount") not in runtime_folders(os.getuid() + 1, {"XDG_RUNTIME_DIR": "/run/mine"})

    def test_folder_is_made_private(self, tmp_path: Path) -> None:
        path = prepare_socket(MOUNT_POINT, [tmp_path / "new"])

        assert path.parent == tmp_path / "new"
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    def test_unusable_folder_is_passed_over(self, tmp_path: Path) -> None:
        path = prepare_socket(MOUNT_POINT, [tmp_path / "missing" / "run", tmp_path / "run"])

        assert path.parent == tmp_path / "run"

    def test_too_long_folder_is_passed_over(self, tmp_path: Path) -> None:
        path = prepare_socket(MOUNT_POINT, [tmp_path / ("x" * 100), tmp_path / "run"])

        assert path.parent == tmp_path / "run"

    def test_symbolic_link_is_refused(self, tmp_path: Path, folder: Path) -> None:
        (tmp_path / "link").symlink_to(folder)

        with pytest.raises(MountPointError, match="is not a folder"):
            prepare_socket(MOUNT_POINT, [tmp_path / "link"])

    def test_folder_that_others_can_change_is_refused(self, folder: Path) -> None:
        folder.chmod(0o777)

        with pytest.raises(MountPointError, match="chmod 700"):
            prepare_socket(MOUNT_POINT, [folder])

    def test_folder_of_somebody_else_is_refused(self, folder: Path) -> None:
        if OWNER != 0:
            pytest.skip("only root can give folders away")
        os.chown(folder, 12345, -1)

        with pytest.raises(MountPointError, match="belongs to user 12345"):
            prepare_socket(MOUNT_POINT, [folder])

    def test_name_is_short_whatever_the_mount_point(self) -> None:
        assert len(socket_name(Path("/" + "x" * 4000))) < MAX_ADDRESS_BYTES // 2
        assert socket_name(Path("/a")) != socket_name(Path("/b"))


class TestLock:
    def test_second_start_is_held_off_until_the_first_is_over(self, folder: Path) -> None:
        path = prepare_socket(MOUNT_POINT, [folder])
        with start_lock(path), pytest.raises(MountPointError, match="another"), start_lock(path):
            pass

        with start_lock(path):
            pass


@contextmanager
def stand_in(path: Path, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """A daemon that serves one client in its own way."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve_one() -> None:
            with suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1000)
                    answer(connection)

        thread = threading.Thread(target=serve_one)
        thread.start()
        try:
            yield
        finally:
            with suppress(OSError), socket.socket(socket.AF_UNIX) as waker:
                waker.connect(str(path))
            thread.join()


class TestAsking:
    def test_no_socket_means_no_daemon(self, folder: Path) -> None:
        with pytest.raises(DaemonError, match="s3mount unmount /mnt/data"):
            ask(MOUNT_POINT, [folder], "status", owner=OWNER)

    def test_socket_without_a_listener_means_no_daemon(self, folder: Path) -> None:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(folder / socket_name(MOUNT_POINT)))

        with pytest.raises(DaemonError, match="no daemon answers"):
            ask(MOUNT_POINT, [folder], "status", owner=OWNER)
        assert peer_pid(MOUNT_POINT, [folder], owner=OWNER) is None

    def test_silent_daemon_is_given_up(self, folder: Path) -> None:
        released = threading.Event()
        with stand_in(folder / socket_name(MOUNT_POINT), lambda _: bool(released.wait(5))):
            with pytest.raises(DaemonError, match=r"did not answer within 0\.05 s"):
                ask(MOUNT_POINT, [folder], "status", owner=OWNER, timeout_seconds=0.05)
            released.set()

    @pytest.mark.parametrize("answer", [b"garbage\n", b"[1]\n", b"", b'{"half": '])
    def test_nonsense_is_an_error(self, folder: Path, answer: bytes) -> None:
        with (
            stand_in(folder / socket_name(MOUNT_POINT), lambda connection: connection.sendall(answer)),
            pytest.raises(DaemonError, match="something else"),
        ):
            ask(MOUNT_POINT, [folder], "status", owner=OWNER)

    def test_error_of_the_daemon_is_passed_on(self, folder: Path) -> None:
        with (
            stand_in(folder / socket_name(MOUNT_POINT), lambda connection: connection.sendall(b'{"error": "no"}\n')),
            pytest.raises(DaemonError, match="says: no"),
        ):
            ask(MOUNT_POINT, [folder], "status", owner=OWNER)

    def test_folders_are_tried_in_turn(self, tmp_path: Path, folder: Path) -> None:
        path = folder / socket_name(MOUNT_POINT)
        with stand_in(path, lambda connection: connection.sendall(b"{}\n")):
            assert find_socket(MOUNT_POINT, [tmp_path / "missing", folder], owner=OWNER) == path

    def test_socket_in_a_folder_of_somebody_else_is_not_trusted(self, folder: Path) -> None:
        with (
            stand_in(folder / socket_name(MOUNT_POINT), lambda connection: connection.sendall(b"{}\n")),
            pytest.raises(DaemonError),
        ):
            ask(MOUNT_POINT, [folder], "status", owner=OWNER + 1)


def talk(path: Path, request: bytes) -> bytes:
    """Send *request* and return all that comes back."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        client.connect(str(path))
        with suppress(OSError):
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
        received = b""
        with suppress(OSError):
            while got := client.recv(1 << 16):
                received += got
        return received


class TestServing:
    @pytest.fixture
    async def path(self, folder: Path, nursery: trio.Nursery) -> Path:
        path = folder / socket_name(MOUNT_POINT)

        def fail(_body: bytes) -> object:
            raise ValueError("a defect")

        handlers = {"status": lambda _: {"a": 1}, "fail": fail, "count": lambda body: {"bytes": len(body)}}
        await nursery.start(serve, path, handlers)
        return path

    async def test_command_is_answered(self, path: Path) -> None:
        reply = await trio.to_thread.run_sync(lambda: ask(MOUNT_POINT, [path.parent], "status", owner=OWNER))

        assert reply.body == {"a": 1}
        assert reply.pid == os.getpid()

    async def test_socket_is_private(self, path: Path) -> None:
        assert stat.S_IMODE((await trio.Path(path).stat()).st_mode) == 0o600

    @pytest.mark.parametrize(
        "request_line",
        [b"", b"\n", b"nonsense\n", b"[1, 2]\n", b'{"command": "x"}\n', b'{"command": {}}\n', b"\xff\n", b"[" * 5000],
    )
    async def test_bad_request_gets_an_error_and_does_no_harm(self, path: Path, request_line: bytes) -> None:
        answer = await trio.to_thread.run_sync(talk, path, request_line)
        good = await trio.to_thread.run_sync(talk, path, b'{"command": "status"}\n')

        assert "error" in json.loads(answer)
        assert json.loads(good) == {"a": 1}

    async def test_body_reaches_the_command(self, path: Path) -> None:
        body = b"x\n" * 500_000

        reply = await trio.to_thread.run_sync(lambda: ask(MOUNT_POINT, [path.parent], "count", owner=OWNER, body=body))

        assert reply.body == {"bytes": 1_000_000}

    @pytest.mark.parametrize("size", [-1, MAX_BODY_BYTES + 1, '"many"'])
    async def test_bad_size_of_a_body_is_refused(self, path: Path, size: object) -> None:
        request = f'{{"command": "count", "body_bytes": {size}}}\n'.encode()

        assert "at most" in json.loads(await trio.to_thread.run_sync(talk, path, request))["error"]

    async def test_body_that_ends_early_is_refused(self, path: Path) -> None:
        request = b'{"command": "count", "body_bytes": 10}\n123'

        assert json.loads(await trio.to_thread.run_sync(talk, path, request)) == {"error": "the body ended early"}

    async def test_defect_of_a_handler_does_no_harm(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        answer = await trio.to_thread.run_sync(talk, path, b'{"command": "fail"}\n')
        good = await trio.to_thread.run_sync(talk, path, b'{"command": "status"}\n')

        assert answer == b""
        assert json.loads(good) == {"a": 1}
        assert "a defect" in caplog.text

    async def test_client_that_leaves_does_no_harm(self, path: Path) -> None:
        for _ in range(40):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
            await trio.testing.wait_all_tasks_blocked()

        good = await trio.to_thread.run_sync(talk, path, b'{"command": "status"}\n')

        assert json.loads(good) == {"a": 1}


class TestLifeOfTheSocket:
    async def test_stale_socket_is_replaced(self, folder: Path, nursery: trio.Nursery) -> None:
        path = folder / "s"
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))

        await nursery.start(serve, path, {"status": lambda _: {}})

        assert await trio.to_thread.run_sync(talk, path, b'{"command": "status"}\n') == b"{}\n"

    async def test_socket_is_removed_at_the_end(self, folder: Path) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, folder / "s", {})
            nursery.cancel_scope.cancel()

        assert os.listdir(folder) == []  # noqa: PTH208 pathlib's would count as blocking

    async def test_socket_of_a_successor_stays(self, folder: Path) -> None:
        path = folder / "s"
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, path, {})
            path.unlink()
            path.touch()
            nursery.cancel_scope.cancel()

        assert path.exists()

    async def test_no_place_for_a_socket_is_no_socket(self, nursery: trio.Nursery) -> None:
        await nursery.start(serve_control, MountPointOptions(MOUNT_POINT, "s3://b"), Metrics(), len)

        nursery.cancel_scope.cancel()

    async def test_status_tells_what_is_mounted(self, folder: Path, nursery: trio.Nursery) -> None:
        metrics = Metrics()
        metrics.add(Metric.SERVED_BYTES, 7)
        path = folder / socket_name(MOUNT_POINT)
        mount_point = MountPointOptions(MOUNT_POINT, "s3://b", control_socket=path)
        await nursery.start(serve_control, mount_point, metrics, len)

        reply = await trio.to_thread.run_sync(lambda: ask(MOUNT_POINT, [folder], "status", owner=OWNER))

        assert reply.body["source"] == "s3://b"
        assert reply.body["mount_point"] == "/mnt/data"
        assert reply.body["pid"] == os.getpid()
        assert reply.body["counters"]["served_bytes"] == 7

    async def test_hint_hands_over_the_paths(self, folder: Path, nursery: trio.Nursery) -> None:
        path = folder / socket_name(MOUNT_POINT)
        mount_point = MountPointOptions(MOUNT_POINT, "s3://b", control_socket=path)
        hints: list[bytes] = []

        def add_hint(text: bytes) -> int:
            hints.append(text)
            return 2

        await nursery.start(serve_control, mount_point, Metrics(), add_hint)

        reply = await trio.to_thread.run_sync(lambda: ask(MOUNT_POINT, [folder], "hint", owner=OWNER, body=b"a\nb"))

        assert reply.body == {"paths": 2}
        assert hints == [b"a\nb"]
