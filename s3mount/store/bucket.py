"""`S3Store`: one bucket of a real S3 service.

HEAD and LIST go over the asyncio loop, range GETs through the fetch engine; one retry loop serves all three.
"""

import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from s3mount.errors import (
    CorruptResponseError,
    NoSuchEntryError,
    StaleObjectError,
)
from s3mount.ids import ObjectId, normalise_etag
from s3mount.metrics import Metric, Metrics, RequestKind
from s3mount.ranges import KIB, ByteRange
from s3mount.store.attempts import Attempts
from s3mount.store.control import ControlAnswer, ControlClient, ControlRequest
from s3mount.store.exchange import RangeGet, Report
from s3mount.store.fetch import FetchEngine
from s3mount.store.interface import MAX_KEYS_PER_PAGE, Link, ListPage, ObjectSummary
from s3mount.store.lister import Lister
from s3mount.store.pages import ARCHIVED_CLASSES, parse_size
from s3mount.store.requests import RequestWriter
from s3mount.store.responses import ExpectedRange, parse_http_date
from s3mount.store.retry import AttemptError, Fault, FaultKind, Retries, RetryPolicy

T = TypeVar("T")

_SLOWEST_BYTES_PER_SECOND = 64 * KIB
"""A range gets the time it takes at this rate on top of the deadline, since on a slow link many ranges share it."""

_UNEXPLAINED = frozenset({400, 403})
"""Statuses with many reasons, expired credentials and a wrong clock among them."""

_NS_PER_SECOND = 10**9


@dataclass(frozen=True, slots=True)
class Workings:
    """What an `S3Store` sends its requests with."""

    attempts: Attempts
    policy: RetryPolicy
    writer: RequestWriter
    control: ControlClient
    lister: Lister
    engine: FetchEngine
    metrics: Metrics


class S3Store:
    """One bucket of an S3 service; implements `ObjectStore`. May be used from any trio task."""

    def __init__(self, workings: Workings) -> None:
        self._workings = workings
        self._range_policy = workings.policy.where_starts_are_limited()
        self._has_if_match = True
        """False once the server has refused ``If-Match`` although the ETag was right."""

    @property
    def identity(self) -> str:
        """Address of the bucket: names this store in cached data."""
        endpoint = self._workings.writer.endpoint
        return f"{endpoint.origin}{endpoint.base_path}"

    async def head(self, key: str) -> ObjectSummary:
        """See `ObjectStore.head`."""
        return await self._run(lambda _: self._try_head(key))

    async def list_page(
        self, prefix: str, *, delimiter: str = "/", token: str | None = None, max_keys: int = MAX_KEYS_PER_PAGE
    ) -> ListPage:
        """See `ObjectStore.list_page`."""
        return await self._run(lambda _: self._try_list(prefix, delimiter=delimiter, token=token, max_keys=max_keys))

    @property
    def link(self) -> Link:
        """See `ObjectStore.link`."""
        return self._workings.engine.link

    async def get_range(
        self,
        object_id: ObjectId,
        span: ByteRange,
        *,
        object_size: int,
        into: memoryview,
        is_urgent: Callable[[], bool] = lambda: True,
    ) -> None:
        """See `ObjectStore.get_range`."""
        assert into.nbytes == span.size > 0
        fetch = _RangeFetch(
            self._workings,
            object_id,
            span,
            object_size,
            into,
            is_urgent,
            head=self._try_head,
            has_if_match=self._has_if_match,
        )
        await self._run(fetch.attempt, self._range_policy, extra_seconds=span.size / _SLOWEST_BYTES_PER_SECOND)
        # Without If-Match the ETag turned out to be the right one: the refusal was not about the version.
        self._has_if_match = fetch.has_if_match

    async def _run(
        self,
        attempt: Callable[[Retries], Awaitable[T]],
        policy: RetryPolicy | None = None,
        *,
        extra_seconds: float = 0.0,
    ) -> T:
        workings = self._workings
        try:
            return await workings.attempts.run(attempt, policy or workings.policy, extra_seconds=extra_seconds)
        except AttemptError as error:
            raise error.fault.error from error

    async def _try_head(self, key: str) -> ObjectSummary:
        workings = self._workings
        endpoint, path = workings.writer.endpoint, workings.writer.endpoint.object_path(key)
        request = ControlRequest("HEAD", f"{endpoint.origin}{path}", lambda: workings.writer.headers("HEAD", path))
        workings.metrics.add_request(RequestKind.HEAD)
        try:
            answer = await workings.attempts.bridge.run(lambda: workings.control.send(request))
        except AttemptError as error:
            raise AttemptError(await self._find_reason(key, error.fault)) from error
        try:
            return summary_of_head(key, answer)
        except CorruptResponseError as error:
            raise AttemptError(Fault(FaultKind.CORRUPT, error)) from error

    async def _try_list(self, prefix: str, *, delimiter: str, token: str | None, max_keys: int) -> ListPage:
        lister = self._workings.lister
        self._workings.metrics.add_request(RequestKind.LIST)
        return await self._workings.attempts.bridge.run(
            lambda: lister.page(prefix, delimiter=delimiter, token=token, max_keys=max_keys)
        )

    async def _find_reason(self, key: str, fault: Fault) -> Fault:
        """Answers to HEAD have no body that says why. A LIST of the same key has one, if it is refused too."""
        if fault.status not in _UNEXPLAINED or fault.code is not None:
            return fault
        try:
            await self._try_list(key, delimiter="/", token=None, max_keys=1)
        except AttemptError as error:
            return error.fault
        return fault


def summary_of_head(key: str, answer: ControlAnswer) -> ObjectSummary:
    """Attributes as the headers of a HEAD tell them.

    Raises:
        CorruptResponseError: They do not.
    """
    headers = answer.headers
    modified = parse_http_date(headers.get("last-modified", ""))
    if modified is None:
        raise CorruptResponseError(f"bad Last-Modified {headers.get('last-modified', '')[:40]!r}")
    storage_class = headers.get("x-amz-storage-class") or "STANDARD"
    is_restored = 'ongoing-request="false"' in headers.get("x-amz-restore", "")
    return ObjectSummary(
        key=key,
        size=parse_size(headers.get("content-length", "")),
        mtime_ns=int(modified) * _NS_PER_SECOND,
        etag=normalise_etag(headers.get("etag", "")) or None,
        storage_class=storage_class,
        is_archived=(storage_class in ARCHIVED_CLASSES or "x-amz-archive-status" in headers) and not is_restored,
        content_type=headers.get("content-type"),
        version_id=headers.get("x-amz-version-id"),
    )


@dataclass(slots=True)
class _RangeFetch:
    """A range on its way.

    **Invariant:** ``into[:received]`` holds the right bytes.
    """

    workings: Workings
    object_id: ObjectId
    span: ByteRange
    object_size: int
    into: memoryview
    is_urgent: Callable[[], bool]
    head: Callable[[str], Awaitable[ObjectSummary]]
    has_if_match: bool
    received: int = field(default=0)

    async def attempt(self, retries: Retries) -> None:
        """Ask for what is missing."""
        get = self._get()
        try:
            report = await self.workings.engine.fetch(get, is_urgent=self.is_urgent, count=self._count)
        finally:
            get.into.release()  # what still refers to this attempt must not keep the memory
        if report.received:
            self.received += report.received
            retries.note_progress(trio.current_time())
        if report.fault is not None:
            if report.fault.kind is FaultKind.PRECONDITION:
                await self._check_version()
            raise AttemptError(self._as_fault_of_version(report.fault))

    async def _check_version(self) -> None:
        """Find out by HEAD, which brings no bytes in vain, whether a failed ``If-Match`` was about the version.

        Raises:
            AttemptError: It was. Otherwise the next attempt is made without ``If-Match``.
        """
        try:
            summary = await self.head(self.object_id.key)
        except AttemptError as error:
            raise AttemptError(self._as_fault_of_version(error.fault)) from error
        if summary.etag != self.object_id.etag:
            raise AttemptError(Fault(FaultKind.FINAL, StaleObjectError(self.object_id.key)))
        self.has_if_match = False

    def _count(self, report: Report) -> None:
        metrics = self.workings.metrics
        metrics.add_request(RequestKind.GET, report.requests_sent)
        metrics.add(Metric.HEDGES, report.was_hedged)
        metrics.add(Metric.HEDGES_WON, report.was_won_by_second)
        metrics.add(Metric.CONNECTIONS_OPENED, report.connections_opened)
        metrics.add(Metric.FETCHED_BYTES, report.received)

    def _get(self) -> RangeGet:
        missing = ByteRange(self.span.start + self.received, self.span.stop)
        assert missing.size > 0
        expected = ExpectedRange(missing, self.object_size, self.object_id.etag)
        extra: dict[str, str] = {}
        if expected.is_whole_object:
            extra["x-amz-checksum-mode"] = "ENABLED"  # of parts there are none
        else:
            extra["range"] = f"bytes={missing.start}-{missing.stop - 1}"
        if self.has_if_match and self.object_id.etag:
            extra["if-match"] = f'"{self.object_id.etag}"'
        writer = self.workings.writer
        path = writer.endpoint.object_path(self.object_id.key)
        return RangeGet(path, lambda: writer.headers("GET", path, extra=extra), expected, self.into[self.received :])

    @staticmethod
    def _as_fault_of_version(fault: Fault) -> Fault:
        """What a refusal means when this version once was there."""
        if isinstance(fault.error, NoSuchEntryError):
            return dataclasses.replace(fault, error=StaleObjectError(str(fault.error)))
        return fault
