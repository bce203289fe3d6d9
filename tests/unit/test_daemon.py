import json
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from s3mount import daemon
from s3mount.daemon import Reporter, main, one_line
from s3mount.errors import BucketError, MountError
from s3mount.handover import encode_options
from s3mount.options import LogOptions, MountOptions, MountPointOptions, StoreOptions


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    """What a daemon changes of its process."""
    root = logging.getLogger()
    handlers, level, raises = root.handlers[:], root.level, logging.raiseExceptions
    hooks = sys.excepthook, threading.excepthook
    signals = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    folder, umask = Path.cwd(), os.umask(0)
    os.umask(umask)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    root.handlers = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers, logging.raiseExceptions = handlers, raises
    root.setLevel(level)
    logging.getLogger("s3mount").setLevel(logging.NOTSET)
    logging.captureWarnings(capture=False)
    sys.excepthook, threading.excepthook = hooks
    for number, handler in signals.items():
        signal.signal(number, handler)
    os.chdir(folder)
    os.umask(umask)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture(autouse=True)
def standard_error_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "_leave_standard_error", lambda: None)


class Start:
    """Runs the daemon in this process, with another mount."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.options = MountOptions(
            store=StoreOptions("b"),
            mount_point=MountPointOptions(Path("/mnt"), "s3://b"),
            log=LogOptions(file=self.log),
        )

    def __call__(self, run: Callable[[MountOptions, Callable[[], None]], None]) -> tuple[int, list[dict[str, object]]]:
        reader, writer = os.pipe()
        code = main(["--options-fd", str(self.pipe()), "--report-fd", str(writer)], run=run)
        with os.fdopen(reader) as reports:
            return code, [json.loads(line) for line in reports]

    def pipe(self) -> int:
        reader, writer = os.pipe()
        os.write(writer, encode_options(self.options))
        os.close(writer)
        return reader


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return Start(tmp_path)


def raising(error: BaseException, *, ready: bool = False):
    def run(_options: MountOptions, on_ready: Callable[[], None]) -> None:
        if ready:
            on_ready()
        raise error

    return run


def test_ready_mount_is_reported_once(start: Start) -> None:
    seen = []

    def run(options: MountOptions, on_ready: Callable[[], None]) -> None:
        seen.append(options)
        on_ready()

    assert start(run) == (0, [{"log": str(start.log)}])
    assert seen == [start.options]
    assert "INFO s3mount.daemon: s3://b is mounted at /mnt" in start.log.read_text()


def test_known_failure_is_one_line_with_its_code(start: Start) -> None:
    assert start(raising(BucketError("no bucket\n  b"))) == (5, [{"message": "no bucket b", "exit_code": 5}])
    assert "Traceback" not in start.log.read_text()


def test_failure_within_nurseries_is_found(start: Start) -> None:
    group = ExceptionGroup("outer", [ExceptionGroup("inner", [BucketError("no bucket")])])

    assert start(raising(group)) == (5, [{"message": "no bucket", "exit_code": 5}])


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("x"), ExceptionGroup("mixed", [BucketError("no"), ZeroDivisionError("x")])]
)
def test_defect_is_in_the_log_only(start: Start, error: Exception) -> None:
    code, reports = start(raising(error))

    assert code == 70
    assert reports == [{"message": f"internal error, see the log ({start.log})", "exit_code": 70}]
    assert "ZeroDivisionError: x" in start.log.read_text()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BaseExceptionGroup("g", [KeyboardInterrupt()])])
def test_interrupt_before_readiness_is_a_failure(start: Start, error: BaseException) -> None:
    assert start(raising(error)) == (130, [{"message": "interrupted", "exit_code": 130}])


def test_interrupt_after_readiness_is_an_end(start: Start) -> None:
    code, reports = start(raising(KeyboardInterrupt(), ready=True))

    assert (code, len(reports)) == (0, 1)


def test_failure_after_readiness_is_not_reported_again(start: Start) -> None:
    code, reports = start(raising(MountError("later"), ready=True))

    assert (code, reports) == (1, [{"log": str(start.log)}])
    assert "ERROR s3mount.daemon: later" in start.log.read_text()


def test_log_that_cannot_be_written_is_a_failure(start: Start, tmp_path: Path) -> None:
    start.options = MountOptions(
        store=StoreOptions("b"),
        mount_point=MountPointOptions(Path("/mnt"), "s3://b"),
        log=LogOptions(file=tmp_path / "missing" / "log"),
    )

    code, reports = start(raising(AssertionError()))

    assert code == 2
    assert "cannot write the log file" in reports[0]["message"]


def test_foreground_failure_goes_to_standard_error(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--options-fd", str(start.pipe())], run=raising(BucketError("no bucket")))

    assert code == 5
    assert capsys.readouterr().err == "s3mount: no bucket\n"


def test_command_that_is_gone_ends_the_mount(start: Start) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))

    Reporter(writer).ready(start.options, "log", None)

    assert stopped == [True]


def test_lock_is_released_when_ready(start: Start) -> None:
    reader, writer = os.pipe()

    Reporter(None).ready(start.options, "log", writer)

    assert os.read(reader, 1) == b""
    os.close(reader)


def test_process_lets_go_of_where_it_came_from(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))

    start(lambda _options, on_ready: on_ready())

    assert Path.cwd() == Path("/")
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_message_is_one_line_without_secrets() -> None:
    assert one_line(MountError("a\n b  c")) == "a b c"
    assert one_line(MountError("x-amz-security-token: abc")) == "x-amz-security-token: [redacted]"
    assert one_line(MountError()) == "MountError"
