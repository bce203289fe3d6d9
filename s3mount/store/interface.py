"""What s3mount asks of an object store: the port that `S3Store` and `MemoryStore` implement. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from s3mount.ids import ETag, ObjectId
from s3mount.ranges import ByteRange

MAX_KEYS_PER_PAGE = 1000
"""Entries of one LIST answer (S3 limit of ListObjectsV2)."""

MAX_KEY_BYTES = 1024
"""Longest key in UTF-8 bytes (S3 limit)."""


@dataclass(frozen=True, slots=True)
class ObjectSummary:
    """One object as a LIST page or a HEAD shows it."""

    key: str
    """Full key, mounted prefix included."""
    size: int
    """Stored bytes; never those of a decoded content encoding."""
    mtime_ns: int
    """LastModified, in nanoseconds since the epoch, UTC."""
    etag: ETag | None
    """Normalised; absent where the endpoint lists none."""
    storage_class: str = "STANDARD"
    is_archived: bool = False
    """Known not to be readable without a restore."""
    content_type: str | None = None
    """Only HEAD tells it."""
    version_id: str | None = None
    """Only HEAD on a versioned bucket tells it."""


@dataclass(frozen=True, slots=True)
class ListPage:
    """One answer to LIST, in the order of the store."""

    objects: tuple[ObjectSummary, ...]
    prefixes: tuple[str, ...]
    """Common prefixes, full, each ending in the delimiter."""
    next_token: str | None
    """Continues the listing; absent on the last page."""


@dataclass(frozen=True, slots=True)
class Link:
    """What a range GET costs, as measured so far."""

    round_trip_seconds: float
    """From sending the request to the first byte of the answer, typically."""
    bytes_per_second: float
    """Of one connection, once bytes come."""

    @property
    def round_trip_bytes(self) -> float:
        """What one connection brings in the time of a round trip."""
        return self.round_trip_seconds * self.bytes_per_second


UNMEASURED_LINK = Link(round_trip_seconds=0.03, bytes_per_second=90e6)
"""Assumed until something was measured: Amazon S3 from a host in the same region."""


class ObjectStore(Protocol):
    """One bucket. May be used from any trio task; every call returns or raises within the request deadline."""

    @property
    def identity(self) -> str:
        """Endpoint and bucket: names this store in cached data."""
        ...

    async def head(self, key: str) -> ObjectSummary:
        """Attributes of one object, by one HEAD.

        Raises:
            NoSuchEntryError: There is no such object.
            AccessDeniedError: Not permitted; where listing is not permitted either, S3 says this of absent keys too.
            StoreUnavailableError: No useful answer before the deadline.
        """
        ...

    async def list_page(
        self, prefix: str, *, delimiter: str = "/", token: str | None = None, max_keys: int = MAX_KEYS_PER_PAGE
    ) -> ListPage:
        """One page of the keys that start with *prefix*, by one LIST.

        Args:
            prefix: Full prefix; need not end in the delimiter.
            delimiter: Keys that contain it after the prefix are grouped into `ListPage.prefixes`; empty: no grouping.
            token: `ListPage.next_token` of the page before.
            max_keys: At most this many objects and prefixes together; the server may return fewer.

        Raises:
            AccessDeniedError: Not permitted.
            CorruptResponseError: The answer is not a listing, or is truncated without a way to go on.
            StoreUnavailableError: No useful answer before the deadline.
        """
        ...

    @property
    def link(self) -> Link:
        """What a range GET costs at present."""
        ...

    async def get_range(
        self,
        object_id: ObjectId,
        span: ByteRange,
        *,
        object_size: int,
        into: memoryview,
        is_urgent: Callable[[], bool] = lambda: True,
    ) -> None:
        """Fill *into* with the bytes *span* of this very version of the object.

        One GET, unless a part of it has to be asked for again. A cancelled call no longer touches *into* once it has
        returned. When it raises, the content of *into* is undefined.

        Args:
            object_id: Key and the ETag the object must still have (``If-Match``).
            span: Range to read, not empty, inside the object.
            object_size: Size of that version; a *span* of all of it is asked for without a ``Range`` header.
            into: Writable buffer of exactly ``span.size`` bytes.
            is_urgent: Whether somebody waits for the bytes; asked, on the trio thread, when a connection becomes free:
                such requests go first.

        Raises:
            StaleObjectError: The object has another ETag or size now, or is gone.
            AccessDeniedError: Not permitted.
            ArchivedObjectError: The object has to be restored first.
            CorruptResponseError: The server kept answering with something else than the range asked for.
            StoreUnavailableError: No useful answer before the deadline.
        """
        ...
