"""`MemoryStore`: an object store in this process, for tests. It passes the same contract test as `S3Store`.

Faults are injected here, not patched in: `inject` makes the next matching calls fail, wait, or find another version.
"""

import bisect
import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from s3mount.errors import ArchivedObjectError, FileError, NoSuchEntryError, StaleObjectError
from s3mount.ids import ETag, ObjectId
from s3mount.metrics import RequestKind
from s3mount.ranges import ByteRange
from s3mount.store.interface import MAX_KEYS_PER_PAGE, Link, ListPage, ObjectSummary
from s3mount.store.pages import ARCHIVED_CLASSES

_FIRST_MTIME_NS = 1_700_000_000 * 10**9
"""Times are made up, so that tests see the same ones every day: each change comes one second after the one before."""

_NS_PER_SECOND = 10**9

_BYTES_PER_SECOND = 1e9
"""Told as the rate of a connection."""

_AFTER_KEY = "k"
_AFTER_PREFIX = "p"
"""First letters of tokens, by the last entry of the page before."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request as it arrived."""

    kind: RequestKind
    key: str
    """Key, or prefix of a LIST."""
    span: ByteRange | None = None
    """Range of a GET."""


@dataclass(eq=False, slots=True)
class Injection:
    """A fault that waits for its calls."""

    kind: RequestKind
    key: str | None
    error: FileError | None
    replacement: bytes | None
    is_stalled: bool
    calls_left: int | None
    """Absent: all of them, until `lift`."""
    lifted: trio.Event = field(default_factory=trio.Event)

    def lift(self) -> None:
        """End the fault, and let go the calls it stalls."""
        self.calls_left = 0
        self.lifted.set()

    def takes(self, call: Call) -> bool:
        """Whether this call fails; counts it if so."""
        if self.calls_left == 0 or self.kind is not call.kind or self.key not in {None, call.key}:
            return False
        if self.calls_left is not None:
            self.calls_left -= 1
        return True


@dataclass(frozen=True, slots=True)
class _Stored:
    summary: ObjectSummary
    body: bytes


class MemoryStore:
    """One bucket in memory; implements `ObjectStore`.

    **Invariant:** `_order` holds the keys of `_objects`, sorted by their UTF-8 bytes.
    """

    def __init__(
        self, *, latency_seconds: float = 0.0, page_size: int = MAX_KEYS_PER_PAGE, name: str = "bucket"
    ) -> None:
        self.latency_seconds = latency_seconds
        """How long every call takes."""
        self.page_size = page_size
        """Most entries of a page, whatever is asked for."""
        self.calls: list[Call] = []
        """All requests so far."""
        self._name = name
        self._objects: dict[str, _Stored] = {}
        self._order: list[bytes] = []
        self._injections: list[Injection] = []
        self._changes = 0

    @property
    def identity(self) -> str:
        """Names this store in cached data."""
        return f"memory://{self._name}"

    def put(
        self,
        key: str,
        body: bytes = b"",
        *,
        storage_class: str = "STANDARD",
        content_type: str | None = "binary/octet-stream",
        mtime_ns: int | None = None,
    ) -> ObjectId:
        """Create or replace an object, at once."""
        self._changes += 1
        etag = ETag(hashlib.md5(body, usedforsecurity=False).hexdigest())
        summary = ObjectSummary(
            key=key,
            size=len(body),
            mtime_ns=_FIRST_MTIME_NS + self._changes * _NS_PER_SECOND if mtime_ns is None else mtime_ns,
            etag=etag,
            storage_class=storage_class,
            is_archived=storage_class in ARCHIVED_CLASSES,
            content_type=content_type,
        )
        if key not in self._objects:
            bisect.insort(self._order, key.encode())
        self._objects[key] = _Stored(summary, body)
        return ObjectId(key, etag)

    def delete(self, key: str) -> None:
        """Remove an object, at once; one that is not there is no error."""
        if self._objects.pop(key, None) is not None:
            del self._order[bisect.bisect_left(self._order, key.encode())]

    def inject(
        self,
        kind: RequestKind,
        key: str | None = None,
        *,
        error: FileError | None = None,
        replacement: bytes | None = None,
        stall: bool = False,
        times: int | None = 1,
    ) -> Injection:
        """Disturb the next calls that match.

        Args:
            kind: Of request.
            key: Its key or prefix; absent: any.
            error: What it raises, after it has waited.
            replacement: What another client puts under the key just before the call is served.
            stall: Whether it waits until `Injection.lift`.
            times: How many calls; absent: all until `Injection.lift`.
        """
        injection = Injection(kind, key, error, replacement, stall, times)
        self._injections.append(injection)
        return injection

    async def head(self, key: str) -> ObjectSummary:
        """See `ObjectStore.head`."""
        await self._arrive(Call(RequestKind.HEAD, key))
        if key not in self._objects:
            raise NoSuchEntryError(key)
        return self._objects[key].summary

    async def list_page(
        self, prefix: str, *, delimiter: str = "/", token: str | None = None, max_keys: int = MAX_KEYS_PER_PAGE
    ) -> ListPage:
        """See `ObjectStore.list_page`."""
        await self._arrive(Call(RequestKind.LIST, prefix))
        limit = min(max_keys, self.page_size)
        objects: list[ObjectSummary] = []
        prefixes: list[str] = []
        position = self._start(prefix, token)
        last = ""
        while position < len(self._order) and (key := self._order[position].decode()).startswith(prefix):
            if len(objects) + len(prefixes) >= limit:
                return ListPage(tuple(objects), tuple(prefixes), last)
            head, found, _ = key.removeprefix(prefix).partition(delimiter) if delimiter else (key, "", "")
            if found:
                prefixes.append(prefix + head + delimiter)
                position = self._after_prefix(prefixes[-1])
                last = _AFTER_PREFIX + prefixes[-1]
            else:
                objects.append(dataclasses.replace(self._objects[key].summary, content_type=None))
                position += 1
                last = _AFTER_KEY + key
        return ListPage(tuple(objects), tuple(prefixes), None)

    @property
    def link(self) -> Link:
        """See `ObjectStore.link`."""
        return Link(self.latency_seconds, _BYTES_PER_SECOND)

    async def get_range(
        self,
        object_id: ObjectId,
        span: ByteRange,
        *,
        object_size: int,
        into: memoryview,
        is_urgent: Callable[[], bool] = lambda: True,  # noqa: ARG002 - there are always connections
    ) -> None:
        """See `ObjectStore.get_range`."""
        assert into.nbytes == span.size > 0
        await self._arrive(Call(RequestKind.GET, object_id.key, span))
        stored = self._objects.get(object_id.key)
        if stored is None or stored.summary.etag != object_id.etag or len(stored.body) != object_size:
            raise StaleObjectError(object_id.key)
        if stored.summary.is_archived:
            raise ArchivedObjectError(object_id.key)
        into[:] = stored.body[span.start : span.stop]

    def _start(self, prefix: str, token: str | None) -> int:
        """Index in `_order` where a page begins."""
        if token is None:
            return bisect.bisect_left(self._order, prefix.encode())
        if token.startswith(_AFTER_PREFIX):
            return self._after_prefix(token.removeprefix(_AFTER_PREFIX))
        return bisect.bisect_right(self._order, token.removeprefix(_AFTER_KEY).encode())

    def _after_prefix(self, prefix: str) -> int:
        """Index in `_order` of the first key past all that start with *prefix*; UTF-8 has no byte 0xFF."""
        return bisect.bisect_left(self._order, prefix.encode() + b"\xff")

    async def _arrive(self, call: Call) -> None:
        self.calls.append(call)
        injection = next((injection for injection in self._injections if injection.takes(call)), None)
        await trio.sleep(self.latency_seconds)
        if injection is None:
            return
        if injection.is_stalled:
            await injection.lifted.wait()
        if injection.replacement is not None:
            self.put(call.key, injection.replacement)
        if injection.error is not None:
            raise injection.error
