"""Checks whether a place can be mounted on, clears dead mounts away, and unmounts.

A mount that hangs must not hang the command: whatever may ask a file system runs in a thread with a time limit, which
is left behind when the limit is over.
"""

import ctypes
import os
import queue
import select
import shutil
import stat
import subprocess
import threading
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TypeVar

from s3mount.errors import (
    DaemonError,
    FuseUnavailableError,
    MountError,
    MountPointError,
    NotMountedError,
    is_busy,
    is_disconnected,
    is_no_device,
)
from s3mount.mountinfo import Mount, find_mount

FUSE_DEVICE = Path("/dev/fuse")
FUSE_CONF = Path("/etc/fuse.conf")
PROCESS_STATUS = Path("/proc/self/status")

PROBE_SECONDS = 2.0
"""How long a mount may take to answer before it counts as hung."""

HELPER_SECONDS = 10.0
"""How long fusermount3 may take."""

DAEMON_END_SECONDS = 30.0
"""How long a daemon may take to end after it was unmounted: it finishes requests under way."""

MAX_STACKED = 32
"""Dead mounts on top of each other that are cleared away."""

_CAP_SYS_ADMIN = 21
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8

T = TypeVar("T")


class State(Enum):
    """Of a FUSE mount."""

    LIVE = "live"
    DEAD = "dead"
    """Its daemon is gone."""
    HUNG = "hung"
    """Its daemon does not answer."""


def resolve(path: Path) -> Path:
    """Absolute path without symbolic links, without asking what is mounted there.

    Raises:
        MountPointError: It cannot be found out.
    """
    try:
        return within(PROBE_SECONDS, lambda: _resolve(path))
    except TimeoutError as error:
        raise MountPointError(f"{path} does not answer: something is mounted there or above it that hangs") from error
    except OSError as error:
        raise MountPointError(f"cannot find {path}: {error.strerror}") from error


def check_fuse(*, uid: int, device: Path = FUSE_DEVICE, process_status: Path = PROCESS_STATUS) -> None:
    """Raise `FuseUnavailableError` if this user cannot mount."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError as error:
        raise FuseUnavailableError(
            f"there is no {device}: run 'modprobe fuse' as root; in a container, pass the device in (--device {device})"
        ) from error
    except OSError as error:
        if is_no_device(error):
            raise FuseUnavailableError("the kernel has no FUSE: run 'modprobe fuse' as root") from error
        raise FuseUnavailableError(
            f"cannot open {device} ({error.strerror}): give this user access; in a container, pass the device in "
            f"(--device {device} --cap-add SYS_ADMIN)"
        ) from error
    if uid == 0 and not _may_mount(process_status):
        raise FuseUnavailableError(
            "this container's root may not mount: start the container with --cap-add SYS_ADMIN, or as a user who has "
            "fusermount3"
        )
    if uid != 0 and shutil.which("fusermount3") is None:
        raise FuseUnavailableError(
            "fusermount3 is missing, which users other than root need: install the fuse3 package"
        )


def check_allow_other(*, uid: int, fuse_conf: Path = FUSE_CONF) -> None:
    """Raise `FuseUnavailableError` if this user may not open mounts to other users."""
    if uid == 0:
        return
    try:
        lines = fuse_conf.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    if not any(line.partition("#")[0].strip() == "user_allow_other" for line in lines):
        raise FuseUnavailableError(
            f"--allow-other is not permitted here: root has to write 'user_allow_other' into {fuse_conf}"
        )


def check_place(path: Path, *, uid: int, allow_non_empty: bool) -> str | None:
    """Make sure that *path* can be mounted on, which clears a dead mount of ours away.

    Returns:
        What was done, as a line for the user; None if nothing.

    Raises:
        MountPointError: It cannot; the message says what to do.
    """
    done = _clear_dead(path)
    try:
        within(PROBE_SECONDS, lambda: _check_directory(path, uid=uid, allow_non_empty=allow_non_empty))
    except TimeoutError as error:
        raise MountPointError(f"{path} does not answer: something is mounted there or above it that hangs") from error
    return done


def probe(path: Path) -> State:
    """Ask the file system mounted at *path*. Not by ``stat``: the kernel may answer that by itself."""
    try:
        within(PROBE_SECONDS, lambda: os.statvfs(path))
    except TimeoutError:
        return State.HUNG
    except OSError as error:
        return State.DEAD if is_disconnected(error) else State.LIVE
    return State.LIVE


def find_own_mount(path: Path) -> Mount:
    """The mount of ours at *path*.

    Raises:
        NotMountedError: There is none.
    """
    mount = find_mount(path)
    if mount is None:
        raise NotMountedError(f"nothing is mounted at {path}")
    if not mount.is_ours:
        raise NotMountedError(f"{path} is not a mount of s3mount, but of type {mount.fstype}")
    return mount


def unmount(path: Path, *, lazy: bool, daemon_pid: int | None, wait_seconds: float = DAEMON_END_SECONDS) -> str:
    """Unmount and wait until the daemon has ended, so that a new mount can follow at once.

    Returns:
        What was done, as a line for the user.

    Raises:
        NotMountedError: There is no mount of ours at *path*.
        MountPointError: Files are open, or it belongs to somebody else.
        DaemonError: It is unmounted, but the daemon goes on.
    """
    mount = find_own_mount(path)
    is_dead = daemon_pid is None and probe(path) is State.DEAD
    detach(path, lazy=lazy or is_dead)
    if is_dead:
        return f"{path}: removed the mount of {mount.source}, whose daemon was gone"
    if daemon_pid is not None and not _wait_for_end(daemon_pid, 1.0 if lazy else wait_seconds):
        if lazy:
            return f"{path}: detached; the daemon (pid {daemon_pid}) ends when the last open file is closed"
        raise DaemonError(f"{path} is unmounted, but its daemon (pid {daemon_pid}) has not ended: look at its log")
    return f"{path}: unmounted {mount.source}"


def detach(path: Path, *, lazy: bool) -> None:
    """Take away what is mounted at *path*; *lazy* leaves it to those who have files open there.

    Raises:
        MountPointError: It is in use, or not this user's.
    """
    try:
        if os.geteuid() == 0:
            _umount2(path, _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0))
        else:
            _fusermount(path, lazy=lazy)
    except OSError as error:
        if is_busy(error):
            raise MountPointError(_busy(path)) from error
        raise MountPointError(f"cannot unmount {path}: {error.strerror}") from error


def within(seconds: float, function: Callable[[], T]) -> T:
    """Call *function*, but not for longer.

    Raises:
        TimeoutError: It took longer; its thread is left behind and ends with the process.
    """
    outcome: queue.SimpleQueue[T | Exception] = queue.SimpleQueue()

    def call() -> None:
        try:
            outcome.put(function())
        except (OSError, MountError) as error:
            outcome.put(error)

    threading.Thread(target=call, daemon=True).start()
    try:
        result = outcome.get(timeout=seconds)
    except queue.Empty as error:
        raise TimeoutError from error
    if isinstance(result, Exception):
        raise result
    return result


def _resolve(path: Path) -> Path:
    parent, name = os.path.split(os.path.normpath(path)) if ".." not in path.parts else ("", "")
    if not name:
        return Path(os.path.realpath(path))
    place = Path(os.path.realpath(parent or ".")) / name
    return place if find_mount(place) is not None else Path(os.path.realpath(place))


def _may_mount(process_status: Path) -> bool:
    for line in process_status.read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return bool(int(value, 16) >> _CAP_SYS_ADMIN & 1)
    return True


def _clear_dead(path: Path) -> str | None:
    done = None
    for _ in range(MAX_STACKED):
        mount = find_mount(path)
        if mount is None or not mount.is_fuse:
            return done
        state = probe(path)
        if not mount.is_ours:
            if state is State.LIVE:
                return done
            raise MountPointError(f"a {mount.fstype} mount at {path} does not answer: unmount it first")
        if state is State.LIVE:
            raise MountPointError(f"{mount.source} is already mounted at {path}: s3mount unmount {path}")
        if state is State.HUNG:
            raise MountPointError(
                f"the mount of {mount.source} at {path} does not answer: s3mount unmount --lazy {path}"
            )
        detach(path, lazy=True)
        done = f"detached the mount of {mount.source} that a dead daemon had left at {path}"
    raise MountPointError(f"there are too many dead mounts at {path}: unmount them")


def _check_directory(path: Path, *, uid: int, allow_non_empty: bool) -> None:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISDIR(mode):
            raise MountPointError(f"{path} is not a directory: give another mount point")
        if uid != 0 and not os.access(path, os.W_OK | os.X_OK):
            raise MountPointError(f"{path} may not be written by this user, which mounting needs: chown it")
        if not allow_non_empty and _has_entries(path):
            raise MountPointError(
                f"{path} is not empty: give another mount point, or --allow-non-empty to hide what is there"
            )
    except FileNotFoundError as error:
        raise MountPointError(f"there is no {path}: mkdir -p {path}") from error
    except OSError as error:
        raise MountPointError(f"cannot use {path} as a mount point: {error.strerror}") from error


def _has_entries(path: Path) -> bool:
    with os.scandir(path) as entries:
        return next(entries, None) is not None


def _busy(path: Path) -> str:
    return (
        f"{path} is in use: files are open there, or a process has its working directory there; end it, or detach the "
        f"mount with s3mount unmount --lazy {path}"
    )


def _umount2(path: Path, flags: int) -> None:
    """Unmount by system call, which names the error; the command would only print it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(path), flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))


def _fusermount(path: Path, *, lazy: bool) -> None:
    command = shutil.which("fusermount3")
    if command is None:
        raise FuseUnavailableError("fusermount3 is missing: install the fuse3 package")
    arguments = [command, "-u", *(["-z"] if lazy else []), "--", str(path)]
    try:
        result = subprocess.run(  # noqa: S603 a fixed command; the path is one argument after --
            arguments, stdin=subprocess.DEVNULL, capture_output=True, timeout=HELPER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MountPointError(f"fusermount3 does not come back: s3mount unmount --lazy {path}") from error
    if result.returncode == 0:
        return
    mount = find_mount(path)
    if mount is not None and mount.owner != os.getuid():
        raise MountPointError(f"{path} was mounted by user {mount.owner}: only that user and root can unmount it")
    said = " ".join(result.stderr.decode(errors="replace").split())
    raise MountPointError(f"{_busy(path)} ({said})")


def _wait_for_end(pid: int, seconds: float) -> bool:
    """Whether the process has ended by then."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(descriptor)
