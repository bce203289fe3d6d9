"""One GET of a range on one connection: the request, and the answer as it is judged and received.

No I/O and no clock: threads and tasks drive `receive`, which yields memory to receive into (`answer.Reads`).
"""

import http.client
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from s3mount.errors import CorruptResponseError, FileError, StaleObjectError, StoreUnavailableError
from s3mount.store.answer import AnswerReader, Reads
from s3mount.store.connection import Route
from s3mount.store.responses import (
    MAX_ERROR_BODY_BYTES,
    ExpectedRange,
    bytes_to_skip,
    check_whole_object,
    fault_of_answer,
)
from s3mount.store.retry import AttemptError, Fault, FaultKind

log = logging.getLogger(__name__)

_FIRST_REFUSAL = 300
"""Statuses from here on carry no object bytes."""


@dataclass(frozen=True, slots=True)
class RangeGet:
    """One attempt at a range."""

    path: str
    """As `Endpoint.object_path` writes it."""
    sign: Callable[[], dict[str, str]]
    """Makes the headers; called when the request is sent, on the thread that sends it."""
    expected: ExpectedRange
    into: memoryview
    """Writable, of exactly the expected range's size."""

    def request(self, route: Route) -> bytes:
        """What to send, signed now."""
        headers = self.sign() | route.hop_headers()
        lines = [f"GET {route.target(self.path)} HTTP/1.1", *(f"{name}: {headers[name]}" for name in headers), "", ""]
        return "\r\n".join(lines).encode("latin-1")


@dataclass(slots=True)
class Report:
    """How an attempt went."""

    received: int = 0
    """Bytes at the start of the buffer that are right."""
    requests_sent: int = 0
    connections_opened: int = 0
    was_hedged: bool = False
    """Whether a second request for the same bytes was sent, as the first had not answered in time."""
    was_won_by_second: bool = False
    """Whether the bytes are those of the second one."""
    first_byte_seconds: float | None = None
    """From sending the request to the first byte of its answer; known if nothing is missing."""
    body_seconds: float | None = None
    """From the first byte to the last; known if nothing is missing."""
    fault: Fault | None = None
    """Present if and only if bytes are missing."""


def receive(get: RangeGet, buffer: bytearray, report: Report, begin_filling: Callable[[], None]) -> Reads[bool]:
    """Receive the answer to *get*; counts in *report* as it goes.

    Args:
        get: What was asked for.
        buffer: For the head, of `answer.BUFFER_BYTES`.
        report: Of this attempt.
        begin_filling: Called before the first byte goes into ``get.into``; may raise.

    Returns:
        Whether the connection may carry another request.

    Raises:
        AttemptError: The server refused.
        CorruptResponseError: The answer is not the range asked for, or ends early.
        StaleObjectError: It is another version of the object.
        ConnectionError: The connection ended in the middle.
        ValueError: It is not HTTP.
    """
    answer = AnswerReader(buffer)
    yield from answer.receive_head()
    if answer.status >= _FIRST_REFUSAL:
        body = yield from answer.read_upto(MAX_ERROR_BODY_BYTES)
        raise AttemptError(fault_of_answer(answer.status, answer.headers, body))
    skipped = bytes_to_skip(answer.status, answer.headers, get.expected)
    into = get.into
    if not skipped or (yield from answer.skip(skipped)) == skipped:
        begin_filling()
        while report.received < len(into) and (count := (yield from answer.readinto(into[report.received :]))):
            report.received += count
    if report.received < len(into):
        raise CorruptResponseError(f"the body ended after {report.received} of {len(into)} bytes")
    try:
        yield from _check_end(get, answer, ends_with_range=skipped == 0)
    except (CorruptResponseError, OSError, ValueError):
        report.received = 0  # then none of it can be trusted
        raise
    return answer.is_keeping_alive and answer.is_complete


def _check_end(get: RangeGet, answer: AnswerReader, *, ends_with_range: bool) -> Reads[None]:
    """Refuse a body that goes on after the range, or does not match the object's checksum."""
    expected = get.expected
    is_last = ends_with_range or expected.span.stop == expected.object_size
    if is_last and not answer.has_length and (yield from answer.skip(1)):
        raise CorruptResponseError(f"the body is longer than {len(get.into)} bytes")
    if expected.is_whole_object:
        check_whole_object(answer.headers, get.into)


def fault_of_exception(error: Exception) -> Fault:
    """What an exception that ended an attempt means for its caller."""
    failure: FileError = StoreUnavailableError(str(error) or type(error).__name__)
    kind = FaultKind.TRANSIENT
    match error:
        case AttemptError():
            return error.fault
        case FileError():
            return Fault(FaultKind.FINAL if isinstance(error, StaleObjectError) else FaultKind.CORRUPT, error)
        case ssl.SSLCertVerificationError():
            kind = FaultKind.FINAL
        case OSError():
            pass
        case ValueError() | http.client.HTTPException():
            kind, failure = FaultKind.CORRUPT, CorruptResponseError(str(error))
        case _:
            log.error("a fetch failed unexpectedly", exc_info=error)
            kind = FaultKind.FINAL
    failure.__cause__ = error
    return Fault(kind, failure)
