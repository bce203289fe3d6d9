"""Judges the head of an answer before a byte of its body counts, and puts a name to every refusal. Pure."""

import hashlib
import re
import zlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from xml.etree import ElementTree as ET

from s3mount.errors import (
    AccessDeniedError,
    ArchivedObjectError,
    CorruptResponseError,
    FileError,
    InvalidRequestError,
    NoSuchEntryError,
    StaleObjectError,
    StoreUnavailableError,
)
from s3mount.ids import ETag, normalise_etag
from s3mount.ranges import MIB, ByteRange
from s3mount.store.retry import Fault, FaultKind

MAX_ERROR_BODY_BYTES = 64 * 1024
"""More of an error document is not read; S3's have a few hundred bytes."""

MAX_SKIPPED_BYTES = MIB
"""Most bytes passed over when a server answers a range with the whole object; beyond it the answer is refused."""

_OK = 200
_PARTIAL_CONTENT = 206
_BAD_REQUEST = 400
_FORBIDDEN = 403
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")

CREDENTIAL_CODES = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidToken",
        "RequestExpired",
        "TokenRefreshRequired",
        "InvalidAccessKeyId",
    }
)
CLOCK_CODES = frozenset({"RequestTimeTooSkewed", "RequestInTheFuture"})
_THROTTLE_CODES = frozenset(
    {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests"}
)
_TRANSIENT_CODES = frozenset({"RequestTimeout", "RequestTimeoutException", "InternalError", "ServiceUnavailable"})
_KMS_PREFIX = "KMS."
"""Before the codes of the key management service, which S3 passes on, mostly with status 400."""
_TRANSIENT_KMS_CODES = frozenset({"KMSInternalException", "DependencyTimeoutException", "KeyUnavailableException"})
"""Those that its API reference says to try again."""
_UNAVAILABLE_CODES = frozenset({"NoSuchBucket", "AllAccessDisabled"})
WRONG_REGION_CODES = frozenset(
    {"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
)


@dataclass(frozen=True, slots=True)
class ExpectedRange:
    """What a range GET was asked for."""

    span: ByteRange
    object_size: int
    etag: ETag
    """Empty where the endpoint gives none."""

    @property
    def is_whole_object(self) -> bool:
        """Asked for without a ``Range`` header."""
        return self.span.size == self.object_size


def bytes_to_skip(status: int, headers: Mapping[str, str], expected: ExpectedRange) -> int:
    """How many bytes of a successful answer's body come before the range that was asked for.

    Args:
        status: 2xx.
        headers: Lower-case names.
        expected: What was asked for.

    Raises:
        StaleObjectError: It is another version of the object.
        CorruptResponseError: It is not the range asked for.
    """
    etag = normalise_etag(headers.get("etag", ""))
    if expected.etag and not etag:
        raise CorruptResponseError("the answer has no ETag: it cannot be told from another version's")
    if etag != expected.etag:
        raise StaleObjectError(f"expected version {expected.etag}, the server sent {etag}")
    if status == _PARTIAL_CONTENT:
        _check_content_range(headers.get("content-range", ""), expected)
        length, skipped = expected.span.size, 0
    elif status == _OK:
        length, skipped = expected.object_size, expected.span.start
    else:
        raise CorruptResponseError(f"status {status} in answer to a GET")
    _check_length(headers, length)
    if skipped > MAX_SKIPPED_BYTES:
        raise CorruptResponseError("the server ignored the range and sent the whole object")
    return skipped


def _check_content_range(value: str, expected: ExpectedRange) -> None:
    match = _CONTENT_RANGE.fullmatch(value.strip())
    if match is None:
        raise CorruptResponseError(f"bad Content-Range {value[:80]!r}")
    first, last, total = map(int, match.groups())
    if (first, last + 1) != expected.span:
        raise CorruptResponseError(f"asked for {expected.span}, the server sent {value[:80]!r}")
    if total != expected.object_size:
        raise StaleObjectError(f"expected {expected.object_size} bytes, the object has {total}")


def _check_length(headers: Mapping[str, str], expected: int) -> None:
    """A body in chunked coding tells its length only at its end; there it is found by counting."""
    value = headers.get("content-length")
    if value is not None and value.strip() != str(expected):
        raise CorruptResponseError(f"expected a body of {expected} bytes, the server sends {value[:40]!r}")


def check_whole_object(headers: Mapping[str, str], body: memoryview) -> None:
    """Compare an object's bytes with its checksum, if the server sent one that takes next to nothing to compute.

    Composite checksums of multipart uploads (with a dash) are of other checksums, not of the bytes.

    Raises:
        CorruptResponseError: They differ.
    """
    for name, compute in _CHECKSUMS.items():
        value = headers.get(name)
        if value is not None and "-" not in value and value != b64encode(compute(body)).decode():
            raise CorruptResponseError(f"the object's bytes do not match its {name}")


_CHECKSUMS: dict[str, Callable[[memoryview], bytes]] = {
    "x-amz-checksum-crc32": lambda body: zlib.crc32(body).to_bytes(4, "big"),
    "x-amz-checksum-sha256": lambda body: hashlib.sha256(body).digest(),
}
"""CRC-32 is what AWS SDKs upload with by default, and takes 50 µs for 100 kB; Python has no CRC-32C and no CRC-64."""


def fault_of_answer(status: int, headers: Mapping[str, str], body: bytes) -> Fault:
    """Name what a refusal means.

    Args:
        status: Not 2xx.
        headers: Lower-case names.
        body: The first `MAX_ERROR_BODY_BYTES` at most; empty for HEAD.
    """
    code, message, region = _parse_error(body)
    text = f"{status} {code or ''}".strip() + (f": {message[:200]}" if message else "")
    request_id = headers.get("x-amz-request-id")
    if request_id:
        text += f" (request {request_id[:64]})"
    kind, error = _judge(status, code, text)
    return Fault(
        kind=kind,
        error=error,
        code=code,
        status=status,
        retry_after_seconds=_retry_after(headers.get("retry-after")),
        server_time=parse_http_date(headers.get("date", "")),
        region=headers.get("x-amz-bucket-region") or region,
    )


def _judge(status: int, code: str | None, text: str) -> tuple[FaultKind, FileError]:
    if code is not None and code.startswith(_KMS_PREFIX):
        return _judge_kms(status, code.removeprefix(_KMS_PREFIX), text)
    by_code = _judge_code(code, text)
    return by_code if by_code is not None else _judge_status(status, text)


def _judge_kms(status: int, code: str, text: str) -> tuple[FaultKind, FileError]:
    """A key that is disabled, missing or about to be deleted denies access: the request itself was in order."""
    if code in _THROTTLE_CODES:
        return FaultKind.THROTTLED, StoreUnavailableError(text)
    if code in _TRANSIENT_KMS_CODES:
        return FaultKind.TRANSIENT, StoreUnavailableError(text)
    return _judge_status(_FORBIDDEN if status == _BAD_REQUEST else status, text)


def _judge_code(code: str | None, text: str) -> tuple[FaultKind, FileError] | None:
    if code is None:
        return None
    table: tuple[tuple[frozenset[str], FaultKind, type[FileError]], ...] = (
        (frozenset({"InvalidObjectState"}), FaultKind.FINAL, ArchivedObjectError),
        (CREDENTIAL_CODES, FaultKind.CREDENTIALS, AccessDeniedError),
        (CLOCK_CODES, FaultKind.CLOCK, AccessDeniedError),
        (_THROTTLE_CODES, FaultKind.THROTTLED, StoreUnavailableError),
        (_TRANSIENT_CODES, FaultKind.TRANSIENT, StoreUnavailableError),
        (_UNAVAILABLE_CODES | WRONG_REGION_CODES, FaultKind.FINAL, StoreUnavailableError),
    )
    for codes, kind, error in table:
        if code in codes:
            return kind, error(text)
    return None


_BY_STATUS: dict[int, tuple[FaultKind, type[FileError]]] = {
    400: (FaultKind.FINAL, InvalidRequestError),
    401: (FaultKind.FINAL, AccessDeniedError),
    403: (FaultKind.FINAL, AccessDeniedError),
    404: (FaultKind.FINAL, NoSuchEntryError),
    405: (FaultKind.FINAL, InvalidRequestError),
    408: (FaultKind.TRANSIENT, StoreUnavailableError),
    410: (FaultKind.FINAL, NoSuchEntryError),
    412: (FaultKind.PRECONDITION, StaleObjectError),
    414: (FaultKind.FINAL, InvalidRequestError),
    416: (FaultKind.FINAL, StaleObjectError),
    425: (FaultKind.TRANSIENT, StoreUnavailableError),
    429: (FaultKind.THROTTLED, StoreUnavailableError),
    501: (FaultKind.FINAL, StoreUnavailableError),
    503: (FaultKind.THROTTLED, StoreUnavailableError),
}

_BY_STATUS_CLASS: dict[int, tuple[FaultKind, type[FileError]]] = {
    3: (FaultKind.FINAL, StoreUnavailableError),
    5: (FaultKind.TRANSIENT, StoreUnavailableError),
}


def _judge_status(status: int, text: str) -> tuple[FaultKind, FileError]:
    by_class = _BY_STATUS_CLASS.get(status // 100, (FaultKind.CORRUPT, CorruptResponseError))
    kind, error = _BY_STATUS.get(status, by_class)
    return kind, error(text)


def _parse_error(body: bytes) -> tuple[str | None, str, str | None]:
    """Code, message and region of an error document; nothing for a body that is none."""
    try:
        root = ET.fromstring(body)  # noqa: S314 - expat limits entity expansion, the size is bounded
    except (ET.ParseError, ValueError, LookupError):
        return None, "", None
    fields = {element.tag.rpartition("}")[2]: element.text or "" for element in root.iter()}
    return fields.get("Code") or None, fields.get("Message", ""), fields.get("Region") or None


def _retry_after(value: str | None) -> float | None:
    """Seconds; the form with a date is rare and too coarse to be worth a clock."""
    return float(value.strip()) if value is not None and re.fullmatch(r"\s*\d{1,4}\s*", value) else None


def parse_http_date(value: str) -> float | None:
    """Seconds since the epoch of a date as HTTP headers write it; absent if it is none."""
    try:
        moment = parsedate_to_datetime(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
