"""The process behind a mount: ``python -m s3mount.daemon``, started by the command and by nobody else.

It reads its options from one descriptor and reports on another: one line, when it is ready or when it has failed. In
the foreground there is no second descriptor; standard error takes its place.
"""

import argparse
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import trio

from s3mount import mount
from s3mount.errors import InternalError, InterruptedStartError, MountError
from s3mount.handover import Failed, Ready, Report, decode_options, encode_report
from s3mount.log import redact, setup
from s3mount.options import MountOptions

log = logging.getLogger("s3mount.daemon")

Run = Callable[[MountOptions, Callable[[], None]], None]
"""Mounts, calls back when ready, and returns when it is over."""


def main(arguments: list[str] | None = None, *, run: Run | None = None) -> int:
    """Serve one mount; returns the exit status."""
    given = _parse(sys.argv[1:] if arguments is None else arguments)
    _become_daemon(is_foreground=given.report_fd is None)
    reporter = Reporter(given.report_fd)
    try:
        with os.fdopen(given.options_fd, "rb") as pipe:
            options = decode_options(pipe.read())
        place = setup(options.log, options.mount_point.path)
    except MountError as error:
        return reporter.failed(error)
    try:
        (run or _run)(options, lambda: reporter.ready(options, place, given.lock_fd))
    except (Exception, BaseExceptionGroup, KeyboardInterrupt) as error:  # noqa: BLE001 the top of the process
        return _ended_by(error, reporter, place)
    return 0


class Reporter:
    """Tells the command, or the log, how the start went. Says at most one thing to the command."""

    def __init__(self, descriptor: int | None) -> None:
        """Report on *descriptor*; None in the foreground."""
        self._descriptor = descriptor
        self.was_ready = False
        if descriptor is not None:
            os.set_inheritable(descriptor, False)  # helper processes must not keep the command waiting

    def ready(self, options: MountOptions, place: str, lock_descriptor: int | None) -> None:
        """The file system answers."""
        self.was_ready = True
        log.info("%s is mounted at %s", options.mount_point.source, options.mount_point.path)
        if lock_descriptor is not None:
            os.close(lock_descriptor)
        if self._descriptor is None:
            return
        _leave_standard_error()
        if not self._send(Ready(place)):
            log.warning("the command that started this mount is gone: stopping")
            os.kill(os.getpid(), signal.SIGTERM)

    def failed(self, error: MountError) -> int:
        """The mount ends with *error*; returns the exit status."""
        log.error("%s", error)
        if self._descriptor is not None:
            self._send(Failed(one_line(error), error.exit_code))
        elif sys.stderr is not None:
            with suppress(OSError):
                sys.stderr.write(f"s3mount: {one_line(error)}\n")
        return error.exit_code

    def _send(self, report: Report) -> bool:
        if self._descriptor is None:
            return True
        descriptor, self._descriptor = self._descriptor, None
        try:
            os.write(descriptor, encode_report(report))
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True


def _ended_by(error: BaseException, reporter: Reporter, place: str) -> int:
    """Report what has left the mount; returns the exit status."""
    if _consists_of(error, KeyboardInterrupt):
        return 0 if reporter.was_ready else reporter.failed(InterruptedStartError("interrupted"))
    known = _mount_error_in(error)
    if known is not None:
        return reporter.failed(known)
    log.critical("internal error", exc_info=error)
    return reporter.failed(InternalError(f"internal error, see the log ({place})"))


def one_line(error: Exception) -> str:
    """Message of *error* without line breaks and secrets."""
    return redact(" ".join(str(error).split())) or type(error).__name__


def _run(options: MountOptions, on_ready: Callable[[], None]) -> None:
    async def serve() -> None:
        await mount.run(options, on_ready=on_ready)

    trio.run(serve)


def _mount_error_in(error: BaseException) -> MountError | None:
    """The failure that ended the mount, also from within a nursery's group; None if anything else is in there."""
    known = [leaf for leaf in _leaves(error) if isinstance(leaf, MountError)]
    return known[0] if _consists_of(error, MountError) else None


def _consists_of(error: BaseException, kind: type[BaseException]) -> bool:
    return all(isinstance(leaf, kind) for leaf in _leaves(error))


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors in a group, or the one that is none."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in _leaves(inner)]


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="s3mount.daemon", description="Started by 's3mount mount'.")
    parser.add_argument("--options-fd", type=int, required=True)
    parser.add_argument("--report-fd", type=int)
    parser.add_argument("--lock-fd", type=int)
    parser.add_argument("label", nargs="*", help="shown by ps")
    return parser.parse_args(arguments)


def _become_daemon(*, is_foreground: bool) -> None:
    """Hold on to nothing of the place it was started from, and take all the descriptors it may have."""
    os.chdir("/")
    os.umask(0o077)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # A closed terminal ends a foreground mount as Ctrl-C does, instead of killing it and leaving the mount behind.
    signal.signal(signal.SIGHUP, _terminate if is_foreground else signal.SIG_IGN)
    # While the mount does not listen to signals yet, or no longer: trio delivers an interrupt where it does no harm.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def _leave_standard_error() -> None:
    """Until now the command could show what a library wrote there before it died."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 2)
    os.close(null)


if __name__ == "__main__":
    sys.exit(main())
