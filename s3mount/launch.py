"""Starts the daemon and waits until the file system answers.

The daemon is a new process, not a fork: threads and event loops do not survive a fork. It gets its options through a
pipe, since everybody can read its arguments, and none of our descriptors, so that ``ssh host s3mount mount …`` returns.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from s3mount.errors import DaemonError, InterruptedStartError, MountError, StartTimeoutError
from s3mount.handover import Failed, Ready, Report, decode_report, encode_options
from s3mount.mountinfo import find_mount
from s3mount.mountpoint import State, detach, probe
from s3mount.options import MountOptions

START_SECONDS = 30.0
"""Limit for the whole start. The clean-up after it takes up to 4 s more; service managers wait for 90 s by default."""

END_SECONDS = 2.0
"""How long a daemon may take to end by itself before it is killed."""

MAX_SAID_CHARACTERS = 300


class StartFailedError(MountError):
    """The daemon says why it could not mount."""

    def __init__(self, failure: Failed) -> None:
        super().__init__(failure.message)
        self.exit_code = failure.exit_code


def start(options: MountOptions, *, start_seconds: float = START_SECONDS) -> Ready:
    """Start a daemon and return when the file system answers.

    Whatever goes wrong, an interrupt included, no process and no mount is left.

    Raises:
        MountError: It could not be mounted, or a signal to end came.
    """
    deadline = time.monotonic() + start_seconds
    said = os.memfd_create("s3mount-stderr")
    reader, writer = os.pipe()
    try:
        with _signals_to_end() as interrupted:
            try:
                daemon = _spawn(options, writer, said)
            finally:
                os.close(writer)
            try:
                return _outcome(daemon, _wait_for_report(reader, interrupted, deadline), said)
            except BaseException:
                _end(daemon)
                _clear_away(options.mount_point.path)
                raise
    finally:
        os.close(reader)
        os.close(said)


def become_daemon(options: MountOptions, *, lock_descriptor: int) -> NoReturn:
    """Turn this process into the daemon, for the foreground. The lock is held until the file system answers."""
    os.set_inheritable(lock_descriptor, True)
    descriptor = _options_pipe(options)
    os.set_inheritable(descriptor, True)
    arguments = _command(options, "--options-fd", str(descriptor), "--lock-fd", str(lock_descriptor))
    os.execve(arguments[0], arguments, _environment())  # noqa: S606 our own interpreter and module


def _spawn(options: MountOptions, report: int, said: int) -> subprocess.Popen[bytes]:
    descriptor = _options_pipe(options)
    try:
        return subprocess.Popen(  # noqa: S603 our own interpreter and module
            _command(options, "--options-fd", str(descriptor), "--report-fd", str(report)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            pass_fds=(descriptor, report),
            start_new_session=True,
            cwd="/",
            env=_environment(),
        )
    finally:
        os.close(descriptor)


def _command(options: MountOptions, *arguments: str) -> list[str]:
    """Command line of the daemon. ``-P``: no module may come from the working directory. Ends in a label for ps."""
    label = (options.mount_point.source, str(options.mount_point.path))
    return [sys.executable, "-P", "-m", "s3mount.daemon", *arguments, "--", *label]


def _environment() -> dict[str, str]:
    """Ours, and where this very package is if the interpreter would not find it (a source checkout)."""
    environment = dict(os.environ)
    home = Path(__file__).resolve().parent.parent
    if home.name not in {"site-packages", "dist-packages"}:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(home), environment.get("PYTHONPATH"))))
    return environment


def _options_pipe(options: MountOptions) -> int:
    """A descriptor to read the options from. They fit a pipe (64 KiB), so nobody has to wait for the reader."""
    reader, writer = os.pipe()
    try:
        os.write(writer, encode_options(options))
    finally:
        os.close(writer)
    return reader


@contextmanager
def _signals_to_end() -> Iterator[int]:
    """A descriptor that can be read once Ctrl-C or SIGTERM has come.

    Nothing is raised: in the middle of starting a process, an exception would leave that process to itself.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    handlers = {number: signal.signal(number, _take_note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield reader
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(reader)
        os.close(writer)


def _take_note(_number: int, _frame: FrameType | None) -> None:
    """Leave it to the wakeup descriptor."""


def _wait_for_report(reports: int, interrupted: int, deadline: float) -> Report | None:
    """What the daemon reports; None if it is gone without a word.

    Raises:
        StartTimeoutError: Nothing until *deadline*.
        InterruptedStartError: *interrupted* can be read.
    """
    poll = select.poll()
    for descriptor in (reports, interrupted):
        poll.register(descriptor, select.POLLIN)
    received = b""
    while not received.endswith(b"\n"):
        readable = [descriptor for descriptor, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000)]
        if interrupted in readable:
            raise InterruptedStartError("interrupted")
        if not readable:
            raise StartTimeoutError(
                "the file system was not ready in time and was given up: the endpoint or the network may be slow; look "
                "at the log"
            )
        got = os.read(reports, 1 << 16)
        if not got:
            return None
        received += got
    return decode_report(received)


def _outcome(daemon: subprocess.Popen[bytes], report: Report | None, said: int) -> Ready:
    """Raise what the report, or its absence, means, unless the file system is ready."""
    match report:
        case Ready():
            daemon.returncode = 0  # it goes on without us; nobody is to wait for it
            return report
        case Failed():
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(END_SECONDS)  # it takes its mount away
            raise StartFailedError(report)
    how = "it closed its report"
    with suppress(subprocess.TimeoutExpired):
        status = daemon.wait(END_SECONDS)
        how = f"exit status {status}" if status >= 0 else signal.Signals(-status).name
    raise DaemonError(f"the daemon ended before the file system was ready ({how}){_last_line(said)}")


def _last_line(descriptor: int) -> str:
    """What the daemon, or a library in it, has said last, as the end of a message."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    lines = os.read(descriptor, 1 << 16).decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {last[:MAX_SAID_CHARACTERS]}" if last else ""


def _end(daemon: subprocess.Popen[bytes]) -> None:
    """End the daemon we started, and what it has started: it leads a session of its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if daemon.poll() is None:
            os.killpg(daemon.pid, number)
        with suppress(subprocess.TimeoutExpired):
            daemon.wait(END_SECONDS)


def _clear_away(path: Path) -> None:
    """Detach what the daemon has left at *path*: nothing of ours was there before."""
    mount = find_mount(path)
    if mount is not None and mount.is_ours and probe(path) is State.DEAD:
        with suppress(MountError):
            detach(path, lazy=True)
