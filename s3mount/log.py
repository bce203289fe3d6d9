"""Sets up logging: where messages go, what never gets into them, and how often one may repeat.

Only our own loggers go below WARNING: botocore's DEBUG messages hold credentials. Every line is also searched for what
looks like a secret, as a second line of defence.
"""

import logging
import logging.handlers
import os
import re
import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType

from s3mount.errors import UsageError
from s3mount.options import LogOptions

SYSTEM_LOG = Path("/dev/log")

MESSAGES_PER_WINDOW = 10
"""WARNINGs and worse with one wording that are logged per window."""

WINDOW_SECONDS = 60.0

MAX_WORDINGS = 1000
"""Wordings kept track of; ours are a few dozen, a library's may hold values."""

MAX_NAMED_KEYS = 1000
"""Keys that one wording names, each once; in memory they take 1 MB at most, since a key has up to 1,024 bytes."""

MAX_SYSTEM_LOG_BYTES = 32 * 1024
"""Longest message for the system log; longer ones are cut. A datagram has to fit the socket's buffer (208 KiB)."""

_FACILITY_DAEMON = 3
_SEVERITY_OF = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}

_LIBRARIES = ("aiobotocore", "aiohttp", "asyncio", "botocore", "pyfuse3", "trio", "urllib3")

log = logging.getLogger(__name__)


def setup(options: LogOptions, mount_point: Path, *, system_log: Path = SYSTEM_LOG) -> str:
    """Send the process's messages where the options say, and return in words where that is.

    Without a log file they go to standard error in the foreground, else to the system log, and where there is none to
    a file in the state folder.

    Raises:
        UsageError: The log file cannot be written.
    """
    handler, place = _open_handler(options, mount_point, system_log)
    time_of = "" if isinstance(handler, SystemLogHandler) else "%(asctime)s "
    handler.setFormatter(RedactingFormatter(f"{time_of}%(levelname)s %(name)s: %(message)s"))
    handler.addFilter(RepetitionFilter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    for library in _LIBRARIES:
        logging.getLogger(library).setLevel(logging.WARNING)
    logging.getLogger("s3mount").setLevel(options.level.value.upper())
    logging.raiseExceptions = False  # a full disk or a closed terminal is no reason to fail
    logging.captureWarnings(capture=True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread
    return place


def file_name_of(mount_point: Path) -> str:
    """Name of the log file of one mount point: ``/mnt/a b`` → ``mnt-a b.log``."""
    return f"{str(mount_point).strip('/').replace('/', '-')[-200:] or 'root'}.log"


def redact(text: str) -> str:
    """Replace what looks like a secret; access key ids are shortened."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


_REDACTED = "[redacted]"

_SEPARATOR = r"""(?:\\?["']?\s*[:=]|\\?["']\s*,)\s*b?(?:\\?["'])?"""
"""Between a name and its value in headers, URLs, JSON and Python's ``repr`` of dictionaries and pairs."""

_REDACTED_NAMES = (
    r"x-amz-(?:security-token|signature|s3session-token)"
    r"|x-amz-(?:copy-source-)?server-side-encryption-customer-key(?:-md5)?"
    r"|aws_?secret_?access_?key|aws_?session_?token|secret_?access_?key|secret_?key"
    r"|session_?token|security_?token|signature|password"
)

_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(rf"(?i)\b((?:proxy-)?authorization{_SEPARATOR})[^\s\"'][^\"'\r\n]*"), rf"\1{_REDACTED}"),
    (re.compile(r"(?i)\bAWS4-(?:HMAC|ECDSA-P256)-SHA256[^\S\r\n]+Credential=[^\"'\r\n]*"), _REDACTED),
    (re.compile(rf"(?i)\b((?:{_REDACTED_NAMES}){_SEPARATOR})[^\s\"'&,;<>)}}\]]+"), rf"\1{_REDACTED}"),
    (re.compile(r"(?i)(<(SecretAccessKey|SessionToken)>)[^<]*"), rf"\1{_REDACTED}"),
    (re.compile(r"\b((?:AKIA|ASIA)[A-Z0-9]{2})[A-Z0-9]{8,}([A-Z0-9]{2})\b"), r"\1…\2"),
    (re.compile(r"(?i)(\bhttps?://)[^\s/@:]+:[^\s/@]+@"), rf"\1{_REDACTED}@"),
)


class RedactingFormatter(logging.Formatter):
    """Formats a whole record, traceback included, without what looks like a secret."""

    def format(self, record: logging.LogRecord) -> str:
        """Format *record*."""
        return redact(super().format(record))


class RepetitionFilter(logging.Filter):
    """Lets at most so many messages of one wording through in a window, from WARNING up.

    The last one before the others are held back says so; the first one afterwards tells how many were.
    """

    def __init__(
        self,
        *,
        limit: int = MESSAGES_PER_WINDOW,
        window_seconds: float = WINDOW_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._limit = limit
        self._window_seconds = window_seconds
        self._now = now
        self._windows: OrderedDict[tuple[str, int, str], _Window] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log *record*."""
        if record.levelno < logging.WARNING:
            return True
        window, suppressed = self._window_of((record.name, record.levelno, str(record.msg)))
        window.count += 1
        if window.count > self._limit:
            return False
        if suppressed:
            _append(record, f" (suppressed {suppressed} like this)")
        if window.count == self._limit:
            _append(record, f" (more like this are suppressed for up to {self._window_seconds:g} s)")
        return True

    def _window_of(self, wording: tuple[str, int, str]) -> "tuple[_Window, int]":
        """Current window, and how many messages were suppressed in the one that has just ended."""
        now = self._now()
        window = self._windows.get(wording)
        if window is not None and now - window.started_at < self._window_seconds:
            return window, 0
        suppressed = max(0, window.count - self._limit) if window else 0
        window = self._windows[wording] = _Window(now)
        if len(self._windows) > MAX_WORDINGS:
            self._windows.popitem(last=False)
        return window, suppressed


class KeysNamedOnce:
    """The keys that messages of one wording have named, so that each is named once.

    **Invariant:** there are never more than `MAX_NAMED_KEYS`; what comes after them is not named.
    """

    def __init__(self) -> None:
        self._keys: set[str] = set()

    def add(self, key: str) -> bool:
        """Whether *key* is to be named now."""
        if key in self._keys or len(self._keys) >= MAX_NAMED_KEYS:
            return False
        self._keys.add(key)
        return True


@dataclass(slots=True)
class _Window:
    """Messages of one wording since a moment."""

    started_at: float
    count: int = 0


class SystemLogHandler(logging.Handler):
    """Sends messages to the system log (syslog or the journal), and never waits for it.

    The standard library's handler blocks when the log's reader is stuck, and with it the whole mount.
    """

    def __init__(self, address: Path, identifier: str) -> None:
        """Connect.

        Raises:
            OSError: There is no system log at *address*.
        """
        super().__init__()
        self._address = str(address)
        self._identifier = identifier
        self._socket = self._connect()

    def emit(self, record: logging.LogRecord) -> None:
        """Send *record*, after a new connection if need be; it is dropped when the log does not take it at once."""
        priority = _FACILITY_DAEMON * 8 + _SEVERITY_OF.get(record.levelno, 5)
        text = f"<{priority}>{self._identifier}: {self.format(record)}"
        message = text.encode(errors="backslashreplace")[:MAX_SYSTEM_LOG_BYTES]
        with suppress(OSError):
            try:
                self._socket.send(message)
            except BlockingIOError:
                return
            except OSError:  # it was restarted
                self._socket.close()
                self._socket = self._connect()
                self._socket.send(message)

    def close(self) -> None:
        """Disconnect."""
        self._socket.close()
        super().close()

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        connection.setblocking(False)
        try:
            connection.connect(self._address)
        except OSError:
            connection.close()
            raise
        return connection


class _PrivateFileHandler(logging.handlers.WatchedFileHandler):
    """Appends to a file only its owner may read, and opens it again after it was rotated."""

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return TextIOWrapper(os.fdopen(descriptor, "ab"), encoding=self.encoding, errors=self.errors)


def _open_handler(options: LogOptions, mount_point: Path, system_log: Path) -> tuple[logging.Handler, str]:
    if options.file is not None:
        return _open_file(options.file)
    if options.foreground:
        return logging.StreamHandler(sys.stderr), "standard error"
    identifier = f"s3mount[{os.getpid()}]"
    with suppress(OSError):
        return SystemLogHandler(system_log, identifier), f"system log, {identifier}"
    try:
        options.state_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make the log folder {options.state_folder}: {error.strerror}; give --log-file"
        ) from error
    return _open_file(options.state_folder / file_name_of(mount_point))


def _open_file(path: Path) -> tuple[logging.Handler, str]:
    try:
        return _PrivateFileHandler(path, encoding="utf-8", errors="backslashreplace"), str(path)
    except OSError as error:
        raise UsageError(f"cannot write the log file {path}: {error.strerror}; give another --log-file") from error


def _append(record: logging.LogRecord, text: str) -> None:
    """Add *text*, which has no per cent sign, without formatting the message: a mistake in it would be raised here."""
    record.msg = f"{record.msg}{text}"


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    log.critical("uncaught exception", exc_info=(kind, error, traceback))


def _log_uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None:
        _log_uncaught(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
