import logging
import os
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3mount.errors import UsageError
from s3mount.log import MAX_NAMED_KEYS, KeysNamedOnce, RepetitionFilter, SystemLogHandler, file_name_of, redact, setup
from s3mount.options import LogLevel, LogOptions

MOUNT_POINT = Path("/mnt/data")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.raiseExceptions, sys.excepthook, threading.excepthook
    root.handlers = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers, level, logging.raiseExceptions, sys.excepthook, threading.excepthook = before
    root.setLevel(level)
    logging.getLogger("s3mount").setLevel(logging.NOTSET)
    logging.captureWarnings(capture=False)


def record(message: str, *arguments: object, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("s3mount.store", level, __file__, 1, message, arguments, None)


class TestPlace:
    def test_log_file_is_private_and_appended_to(self, tmp_path: Path) -> None:
        path = tmp_path / "log"

        for message in ("first", "second"):
            place = setup(LogOptions(file=path), MOUNT_POINT)
            logging.getLogger("s3mount.x").info(message)

        assert place == str(path)
        assert [line.rpartition(" ")[2] for line in path.read_text().splitlines()] == ["first", "second"]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_rotated_log_file_is_opened_again(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        setup(LogOptions(file=path), MOUNT_POINT)
        logging.getLogger("s3mount.x").info("old")

        path.rename(tmp_path / "log.1")
        logging.getLogger("s3mount.x").info("new")

        assert "new" in path.read_text()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_log_file_that_cannot_be_written_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="--log-file"):
            setup(LogOptions(file=tmp_path / "missing" / "log"), MOUNT_POINT)

    def test_foreground_logs_to_standard_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        place = setup(LogOptions(foreground=True), MOUNT_POINT)
        logging.getLogger("s3mount.x").info("hello")

        assert place == "standard error"
        assert capsys.readouterr().err.endswith("INFO s3mount.x: hello\n")

    def test_without_a_system_log_there_is_a_file(self, tmp_path: Path) -> None:
        options = LogOptions(state_folder=tmp_path / "state")

        place = setup(options, MOUNT_POINT, system_log=tmp_path / "missing")

        assert place == str(tmp_path / "state" / "mnt-data.log")

    def test_state_folder_that_cannot_be_made_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()

        with pytest.raises(UsageError, match="--log-file"):
            setup(LogOptions(state_folder=tmp_path / "file" / "x"), MOUNT_POINT, system_log=tmp_path / "missing")

    @pytest.mark.parametrize(("path", "name"), [("/", "root.log"), ("/a", "a.log"), ("/mnt/a b", "mnt-a b.log")])
    def test_file_is_named_after_the_mount_point(self, path: str, name: str) -> None:
        assert file_name_of(Path(path)) == name


class TestSystemLog:
    def test_message_has_priority_and_identifier(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reader:
            reader.bind(str(tmp_path / "log"))
            place = setup(LogOptions(), MOUNT_POINT, system_log=tmp_path / "log")
            logging.getLogger("s3mount.x").error("broken")

            assert reader.recv(1000) == f"<27>s3mount[{os.getpid()}]: ERROR s3mount.x: broken".encode()
            assert place == f"system log, s3mount[{os.getpid()}]"

    def test_stuck_log_does_not_block(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reader:
            reader.bind(str(tmp_path / "log"))
            handler = SystemLogHandler(tmp_path / "log", "test")

            for _ in range(2000):
                handler.emit(record("x" * 1000))

            handler.close()

    def test_restarted_log_is_connected_again(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reader:
            reader.bind(str(path))
            handler = SystemLogHandler(path, "test")
        path.unlink()
        handler.emit(record("lost"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reader:
            reader.bind(str(path))

            handler.emit(record("found"))

            assert reader.recv(1000).endswith(b"found")
        handler.close()


class TestLevels:
    def test_libraries_stay_at_warning(self, tmp_path: Path) -> None:
        setup(LogOptions(level=LogLevel.DEBUG, file=tmp_path / "log"), MOUNT_POINT)

        for name in (
            "botocore.auth",
            "aiobotocore",
            "urllib3.connectionpool",
            "asyncio",
            "aiohttp",
            "pyfuse3",
            "other",
        ):
            assert not logging.getLogger(name).isEnabledFor(logging.INFO), name
        assert logging.getLogger("s3mount.fuse").isEnabledFor(logging.DEBUG)

    def test_uncaught_errors_of_threads_are_logged(self, tmp_path: Path) -> None:
        setup(LogOptions(file=tmp_path / "log"), MOUNT_POINT)

        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()

        assert "ZeroDivisionError" in (tmp_path / "log").read_text()


SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY="


class TestRedaction:
    @pytest.mark.parametrize(
        "text",
        [
            f"Authorization: AWS4-HMAC-SHA256 Credential=AKIDX/20260101, SignedHeaders=host, Signature={SECRET}",
            f"{{'Authorization': 'AWS4-HMAC-SHA256 Credential=x, Signature={SECRET}', 'Host': 'h'}}",
            f'{{"authorization": "Bearer {SECRET}"}}',
            f"(b'Authorization', b'AWS4-HMAC-SHA256 Credential=x, Signature={SECRET}')",
            f"https://h/k?X-Amz-Signature={SECRET}&X-Amz-Date=1",
            f"https://h/k?X-Amz-Security-Token={SECRET}",
            f"x-amz-security-token: {SECRET}",
            f"'X-Amz-Security-Token': b'{SECRET}'",
            f"x-amz-server-side-encryption-customer-key: {SECRET}",
            f"aws_secret_access_key = {SECRET}",
            f"AWS_SESSION_TOKEN={SECRET}",
            f"Credentials(access_key='x', secret_key='{SECRET}', token=None)",
            f"<SecretAccessKey>{SECRET}</SecretAccessKey>",
            f"<SessionToken>{SECRET}</SessionToken>",
            f"http://user:{SECRET.replace('/', '')}@proxy:8080",
        ],
    )
    def test_secret_is_gone(self, text: str) -> None:
        clean = redact(text)

        assert SECRET not in clean
        assert SECRET.replace("/", "") not in clean
        assert "[redacted]" in clean

    def test_the_rest_stays(self) -> None:
        clean = redact(f"GET /k X-Amz-Security-Token: {SECRET} x-amz-request-id: 42")

        assert clean == "GET /k X-Amz-Security-Token: [redacted] x-amz-request-id: 42"

    def test_access_key_id_is_shortened(self) -> None:
        assert redact("key AKIAIOSFODNN7EXAMPLE is wrong") == "key AKIAIO…LE is wrong"

    @pytest.mark.parametrize(
        "text",
        [
            "read(4, 0, 131072)",
            "bad signature, asking again",
            "SignatureDoesNotMatch: the signature we calculated does not match",
            "lookup(1, b'password.txt')",
            "https://host:9000/bucket",
        ],
    )
    def test_harmless_text_stays(self, text: str) -> None:
        assert redact(text) == text

    def test_tracebacks_are_searched_too(self, tmp_path: Path) -> None:
        setup(LogOptions(file=tmp_path / "log"), MOUNT_POINT)

        try:
            int(f"x-amz-security-token={SECRET}")
        except ValueError:
            logging.getLogger("s3mount.x").exception("failed")

        assert "Traceback" in (tmp_path / "log").read_text()
        assert SECRET not in (tmp_path / "log").read_text()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TestRepetition:
    def test_messages_beyond_the_limit_are_held_back(self) -> None:
        wanted = RepetitionFilter(limit=3, now=Clock())

        passed = [wanted.filter(record("%s failed", number)) for number in range(5)]

        assert passed == [True, True, True, False, False]

    def test_last_message_announces_it(self) -> None:
        wanted = RepetitionFilter(limit=2, now=Clock())
        records = [record("%s failed", number) for number in range(2)]

        for one in records:
            wanted.filter(one)

        assert [one.getMessage() for one in records] == [
            "0 failed",
            "1 failed (more like this are suppressed for up to 60 s)",
        ]

    def test_next_window_tells_how_many_were_suppressed(self) -> None:
        clock = Clock()
        wanted = RepetitionFilter(limit=2, now=clock)
        for number in range(10):
            wanted.filter(record("%s failed", number))
        clock.now = 60.0

        later = record("%s failed", "x")

        assert wanted.filter(later)
        assert later.getMessage() == "x failed (suppressed 8 like this)"

    def test_quiet_window_has_nothing_to_tell(self) -> None:
        clock = Clock()
        wanted = RepetitionFilter(limit=2, now=clock)
        wanted.filter(record("failed"))
        clock.now = 61.0

        later = record("failed")

        assert wanted.filter(later)
        assert later.getMessage() == "failed"

    def test_wordings_are_counted_apart(self) -> None:
        wanted = RepetitionFilter(limit=1, now=Clock())

        assert wanted.filter(record("a"))
        assert wanted.filter(record("b"))
        assert not wanted.filter(record("a"))

    def test_milder_messages_always_pass(self) -> None:
        wanted = RepetitionFilter(limit=1, now=Clock())

        assert all(wanted.filter(record("x", level=logging.INFO)) for _ in range(5))

    def test_percent_signs_survive(self) -> None:
        wanted = RepetitionFilter(limit=1, now=Clock())
        one = record("100%% of %s", "a%b")

        wanted.filter(one)

        assert one.getMessage().startswith("100% of a%b (more")


class TestKeysNamedOnce:
    def test_each_key_is_named_once(self) -> None:
        keys = KeysNamedOnce()

        assert [keys.add(key) for key in ("a", "b", "a", "b", "c")] == [True, True, False, False, True]

    def test_no_more_keys_are_named_or_remembered_than_there_may_be(self) -> None:
        keys = KeysNamedOnce()

        named = [key for key in map(str, range(2 * MAX_NAMED_KEYS)) if keys.add(key)]

        assert named == [str(number) for number in range(MAX_NAMED_KEYS)]
        assert not keys.add("0")
