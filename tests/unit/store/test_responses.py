import base64
import hashlib
import zlib

import pytest

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
from s3mount.ids import ETag
from s3mount.ranges import MIB, ByteRange
from s3mount.store.responses import (
    ExpectedRange,
    bytes_to_skip,
    check_whole_object,
    fault_of_answer,
    parse_http_date,
)
from s3mount.store.retry import FaultKind

EXPECTED = ExpectedRange(ByteRange(100, 200), 1000, ETag("e"))
RIGHT = {"etag": '"e"', "content-range": "bytes 100-199/1000", "content-length": "100"}


def test_the_right_range_is_taken():
    assert bytes_to_skip(206, RIGHT, EXPECTED) == 0


@pytest.mark.parametrize("etag", ['"e"', "e", 'W/"e"'])
def test_etags_are_compared_without_quotes(etag: str):
    assert bytes_to_skip(206, RIGHT | {"etag": etag}, EXPECTED) == 0


def test_a_length_may_be_missing():
    headers = {name: value for name, value in RIGHT.items() if name != "content-length"}

    assert bytes_to_skip(206, headers, EXPECTED) == 0


def test_an_encoding_does_not_matter():
    assert bytes_to_skip(206, RIGHT | {"content-encoding": "gzip"}, EXPECTED) == 0


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"etag": '"other"'}, StaleObjectError),
        ({"etag": '"E"'}, StaleObjectError),
        ({"etag": ""}, CorruptResponseError),
        ({"content-range": "bytes 100-199/1001"}, StaleObjectError),
        ({"content-range": "bytes 101-200/1000"}, CorruptResponseError),
        ({"content-range": "bytes 100-198/1000"}, CorruptResponseError),
        ({"content-range": "bytes 100-199/*"}, CorruptResponseError),
        ({"content-range": "100-199/1000"}, CorruptResponseError),
        ({"content-range": ""}, CorruptResponseError),
        ({"content-length": "99"}, CorruptResponseError),
        ({"content-length": "-100"}, CorruptResponseError),
    ],
)
def test_a_wrong_range_is_refused(changed: dict[str, str], expected: type[FileError]):
    with pytest.raises(expected):
        bytes_to_skip(206, RIGHT | changed, EXPECTED)


@pytest.mark.parametrize("status", [201, 202, 203, 204])
def test_other_successes_are_refused(status: int):
    with pytest.raises(CorruptResponseError):
        bytes_to_skip(status, RIGHT, EXPECTED)


def test_a_whole_object_for_a_range_is_cut():
    assert bytes_to_skip(200, {"etag": "e", "content-length": "1000"}, EXPECTED) == 100


def test_a_whole_object_is_not_skipped_through():
    expected = ExpectedRange(ByteRange(2 * MIB, 3 * MIB), 4 * MIB, ETag("e"))

    with pytest.raises(CorruptResponseError):
        bytes_to_skip(200, {"etag": "e", "content-length": str(4 * MIB)}, expected)


def test_a_whole_object_of_another_length_is_refused():
    with pytest.raises(CorruptResponseError):
        bytes_to_skip(200, {"etag": "e", "content-length": "100"}, EXPECTED)


def document(code: str) -> bytes:
    return (
        f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>why</Message><Region>r-2</Region></Error>'.encode()
    )


@pytest.mark.parametrize(
    ("status", "code", "kind", "error"),
    [
        (404, "NoSuchKey", FaultKind.FINAL, NoSuchEntryError),
        (404, None, FaultKind.FINAL, NoSuchEntryError),
        (404, "NoSuchBucket", FaultKind.FINAL, StoreUnavailableError),
        (403, "AccessDenied", FaultKind.FINAL, AccessDeniedError),
        (403, "InvalidObjectState", FaultKind.FINAL, ArchivedObjectError),
        (400, "ExpiredToken", FaultKind.CREDENTIALS, AccessDeniedError),
        (403, "InvalidAccessKeyId", FaultKind.CREDENTIALS, AccessDeniedError),
        (403, "RequestTimeTooSkewed", FaultKind.CLOCK, AccessDeniedError),
        (412, "PreconditionFailed", FaultKind.PRECONDITION, StaleObjectError),
        (416, "InvalidRange", FaultKind.FINAL, StaleObjectError),
        (400, "KeyTooLongError", FaultKind.FINAL, InvalidRequestError),
        (400, "RequestTimeout", FaultKind.TRANSIENT, StoreUnavailableError),
        (503, "SlowDown", FaultKind.THROTTLED, StoreUnavailableError),
        (429, None, FaultKind.THROTTLED, StoreUnavailableError),
        (500, "InternalError", FaultKind.TRANSIENT, StoreUnavailableError),
        (502, None, FaultKind.TRANSIENT, StoreUnavailableError),
        (301, "PermanentRedirect", FaultKind.FINAL, StoreUnavailableError),
        (501, "NotImplemented", FaultKind.FINAL, StoreUnavailableError),
        (418, None, FaultKind.CORRUPT, CorruptResponseError),
        (400, "KMS.DisabledException", FaultKind.FINAL, AccessDeniedError),
        (400, "KMS.NotFoundException", FaultKind.FINAL, AccessDeniedError),
        (400, "KMS.KMSInvalidStateException", FaultKind.FINAL, AccessDeniedError),
        (400, "KMS.InvalidStateException", FaultKind.FINAL, AccessDeniedError),
        (400, "KMS.ThrottlingException", FaultKind.THROTTLED, StoreUnavailableError),
        (400, "KMS.KMSInternalException", FaultKind.TRANSIENT, StoreUnavailableError),
        (400, "KMS.KeyUnavailableException", FaultKind.TRANSIENT, StoreUnavailableError),
        (500, "KMS.DependencyTimeoutException", FaultKind.TRANSIENT, StoreUnavailableError),
        (503, "KMS.SomethingNew", FaultKind.THROTTLED, StoreUnavailableError),
        (400, "KMSDisabled", FaultKind.FINAL, InvalidRequestError),
    ],
)
def test_refusals_have_a_meaning(status: int, code: str | None, kind: FaultKind, error: type[FileError]):
    fault = fault_of_answer(status, {}, document(code) if code else b"<html>no</html>")

    assert (fault.kind, type(fault.error), fault.code, fault.status) == (kind, error, code, status)


def test_a_refusal_tells_its_facts():
    headers = {"retry-after": "3", "date": "Wed, 01 May 2024 10:20:30 GMT", "x-amz-request-id": "R1"}

    fault = fault_of_answer(503, headers, document("SlowDown"))

    assert (fault.retry_after_seconds, fault.server_time, fault.region) == (3.0, 1714558830.0, "r-2")
    assert str(fault.error) == "503 SlowDown: why (request R1)"


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"<Error><Code>Slow", b"<a/>", b"<Error><Code/></Error>"])
def test_a_body_that_says_nothing_does_no_harm(body: bytes):
    assert fault_of_answer(500, {"retry-after": "soon", "date": "x"}, body).code is None


@pytest.mark.parametrize("text", ["", "x", "Wed, 99 May 2024 10:20:30 GMT", "1"])
def test_bad_dates_are_none(text: str):
    assert parse_http_date(text) is None


def test_matching_checksums_pass():
    body = b"some bytes"
    headers = {
        "x-amz-checksum-crc32": base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode(),
        "x-amz-checksum-sha256": base64.b64encode(hashlib.sha256(body).digest()).decode(),
        "x-amz-checksum-crc64nvme": "whatever",
    }

    check_whole_object(headers, memoryview(body))


def test_a_wrong_checksum_is_refused():
    with pytest.raises(CorruptResponseError):
        check_whole_object({"x-amz-checksum-crc32": "AAAAAA=="}, memoryview(b"some bytes"))


def test_composite_checksums_say_nothing_about_the_bytes():
    check_whole_object({"x-amz-checksum-crc32": "AAAAAA==-3"}, memoryview(b"some bytes"))
