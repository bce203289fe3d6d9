"""The command's side of the status socket: where it is, and how to ask.

A request is one line of JSON, ``{"command": "status"}``, and so is the reply. A request with a body tells its size,
``{"command": "hint", "body_bytes": 123}``. The socket lies in a folder of the
mount's owner that nobody else may enter; its name is a hash of the mount point, since a path may be longer than a
socket's address.
"""

import fcntl
import hashlib
import json
import os
import socket
import stat
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from s3mount.errors import DaemonError, MountError, MountPointError

MAX_ADDRESS_BYTES = 107
"""Longest path of a socket: ``sun_path`` has 108 bytes, the last one NUL (unix(7))."""

MAX_REPLY_BYTES = 1 << 20

MAX_BODY_BYTES = 64 << 20
"""Largest body of a request."""

SHARED_FOLDER = Path("/tmp")  # noqa: S108 only a folder of the user's own in it is used
"""Last resort. Not ``$TMPDIR``: batch systems set that per job, and the next shell would not find the socket."""

REPLY_SECONDS = 5.0
"""How long a daemon may take to answer."""

_PEER_CREDENTIALS = struct.Struct("3i")
"""pid, uid, gid (unix(7), SO_PEERCRED)."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a daemon answered, and who it is."""

    body: dict[str, object]
    pid: int
    """0 if it is in another pid namespace."""


def runtime_folders(uid: int, environment: Mapping[str, str]) -> list[Path]:
    """Folders where the sockets of a user's mounts may be, the one to use first.

    All are looked at when asking: a mount made by cron has no ``XDG_RUNTIME_DIR``, the shell that asks has one.
    """
    folders = []
    if uid == 0:
        folders.append(Path("/run/s3mount"))
    elif environment.get("XDG_RUNTIME_DIR", "").startswith("/") and uid == os.getuid():
        folders.append(Path(environment["XDG_RUNTIME_DIR"]) / "s3mount")
    if uid != 0:
        folders.append(Path(f"/run/user/{uid}/s3mount"))
    folders.append(SHARED_FOLDER / f"s3mount-{uid}")
    return list(dict.fromkeys(folders))


def socket_name(mount_point: Path) -> str:
    """Name of the socket of one mount point."""
    return f"{hashlib.sha256(os.fsencode(mount_point)).hexdigest()[:24]}.sock"


def prepare_socket(mount_point: Path, folders: Iterable[Path]) -> Path:
    """Make the first usable folder and return where the socket goes. Nothing is made if a folder is usable.

    Raises:
        MountPointError: None is usable.
    """
    reasons = []
    for folder in folders:
        path = folder / socket_name(mount_point)
        if len(os.fsencode(path)) + len(".new") > MAX_ADDRESS_BYTES:
            reasons.append(f"{folder} is too long a path")
            continue
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
            continue
        reason = _distrust(folder, os.geteuid())
        if reason is None:
            return path
        reasons.append(reason)
    raise MountPointError(f"no folder for the status socket: {'; '.join(reasons)}")


@contextmanager
def start_lock(socket_path: Path) -> Iterator[int]:
    """Hold off every other start at this mount point, as long as the descriptor is open, also in another process.

    Raises:
        MountPointError: Another start is under way.
    """
    descriptor = os.open(socket_path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise MountPointError("another 's3mount mount' is at work on this mount point: wait for it") from error
        yield descriptor
    finally:
        os.close(descriptor)


def ask(
    mount_point: Path,
    folders: Iterable[Path],
    command: str,
    *,
    owner: int,
    body: bytes = b"",
    timeout_seconds: float = REPLY_SECONDS,
) -> Reply:
    """Send *command*, with *body*, to the daemon of a mount.

    Raises:
        DaemonError: There is none, or it does not answer.
        MountError: It belongs to somebody else.
    """
    path = find_socket(mount_point, folders, owner=owner)
    try:
        with _connect(path, timeout_seconds) as connection:
            pid = _peer_pid(connection)
            line = _exchange(connection, command, body, timeout_seconds)
    except TimeoutError as error:
        raise DaemonError(
            f"the daemon of {mount_point} did not answer within {timeout_seconds:g} s: look at its log"
        ) from error
    except OSError as error:
        raise _gone(mount_point) from error
    return Reply(_parse(line, mount_point), pid)


def peer_pid(mount_point: Path, folders: Iterable[Path], *, owner: int) -> int | None:
    """Process id of the daemon of a mount, also when it hangs; None if there is none or it cannot be told."""
    try:
        with _connect(find_socket(mount_point, folders, owner=owner), REPLY_SECONDS) as connection:
            return _peer_pid(connection) or None
    except (OSError, MountError):
        return None


def find_socket(mount_point: Path, folders: Iterable[Path], *, owner: int) -> Path:
    """Where the socket of a live mount is.

    Raises:
        DaemonError: There is none.
        MountError: It may not be used by this user.
    """
    for folder in folders:
        path = folder / socket_name(mount_point)
        try:
            path.lstat()
        except PermissionError as error:
            raise MountError(
                f"{mount_point} was mounted by user {owner}: only that user and root may do this"
            ) from error
        except OSError:
            continue
        if _distrust(folder, owner) is None:
            return path
    raise _gone(mount_point)


def _gone(mount_point: Path) -> DaemonError:
    return DaemonError(f"no daemon answers for {mount_point}: s3mount unmount {mount_point}")


def _distrust(folder: Path, owner: int) -> str | None:
    """Why *folder* must not be used: somebody else could stand in for the daemon. None if it may."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is not a folder"
    if found.st_uid != owner:
        return f"{folder} belongs to user {found.st_uid}"
    if stat.S_IMODE(found.st_mode) & 0o022:
        return f"{folder} can be changed by others: chmod 700 {folder}"
    return None


def _connect(path: Path, timeout_seconds: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_seconds)
        connection.connect(str(path))
    except BaseException:
        connection.close()
        raise
    return connection


def _peer_pid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    pid: int = _PEER_CREDENTIALS.unpack(credentials)[0]
    return pid


def _exchange(connection: socket.socket, command: str, body: bytes, timeout_seconds: float) -> bytes:
    """Send a request and return the reply's line; the time limit is for all of it."""
    deadline = time.monotonic() + timeout_seconds
    connection.sendall(json.dumps({"command": command, "body_bytes": len(body)}).encode() + b"\n" + body)
    received = bytearray()
    while not received.endswith(b"\n") and len(received) <= MAX_REPLY_BYTES:
        remaining_seconds = deadline - time.monotonic()
        if remaining_seconds <= 0:
            raise TimeoutError
        connection.settimeout(remaining_seconds)
        got = connection.recv(1 << 16)
        if not got:
            break
        received += got
    return bytes(received)


def _parse(line: bytes, mount_point: Path) -> dict[str, object]:
    try:
        body = json.loads(line)
    except ValueError as error:
        raise DaemonError(f"the daemon of {mount_point} answered with something else than a status") from error
    if not isinstance(body, dict):
        raise DaemonError(f"the daemon of {mount_point} answered with something else than a status")
    if "error" in body:
        raise DaemonError(f"the daemon of {mount_point} says: {body['error']}")
    return body
