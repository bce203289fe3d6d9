"""Counters and gauges of one mount, declared once; docs/metrics.md lists them.

The names are an interface: scripts read them from ``s3mount status --json``. All of them are changed from the trio
thread only; the fetch threads report what they counted with their result.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum


class Metric(StrEnum):
    """Name of every counter without a label."""

    FETCHED_BYTES = "fetched_bytes"
    """Object bytes received from the store."""
    SERVED_BYTES = "served_bytes"
    """Object bytes handed to the kernel."""
    MEMORY_HITS = "memory_hits_total"
    """Reads answered without waiting: the bytes were in memory."""
    MEMORY_MISSES = "memory_misses_total"
    """Reads that had to wait for the store."""
    ATTRIBUTE_HITS = "attribute_hits_total"
    """Lookups answered from cached attributes or cached absence."""
    ATTRIBUTE_MISSES = "attribute_misses_total"
    """Lookups that had to ask the store."""
    RETRIES = "retries_total"
    """Requests sent again after a fault."""
    HEDGES = "hedges_total"
    """Requests for object bytes sent a second time, as the first had not answered in time; no fault, so no retry."""
    HEDGES_WON = "hedges_won_total"
    """Those of them whose bytes were used, since they came first."""
    CONNECTIONS_OPENED = "connections_opened_total"
    """Connections for data reads opened since start."""
    READAHEAD_BYTES = "readahead_bytes"
    """Bytes fetched before anything asked for them; part of fetched_bytes."""
    SKIPPED_KEYS = "skipped_keys_total"
    """Keys a listing could not show as a path."""


class Gauge(StrEnum):
    """Name of every value that is asked for when it is shown."""

    MEMORY_BYTES = "memory_bytes"
    """Bytes of buffers in existence, free ones included."""
    MEMORY_LIMIT_BYTES = "memory_limit_bytes"
    OPEN_HANDLES = "open_handles"
    INODES = "inodes"
    """Inodes the kernel holds a reference to."""
    CACHED_ENTRIES = "cached_entries"
    """Names whose attributes are known."""
    UPTIME_SECONDS = "uptime_seconds"


class RequestKind(StrEnum):
    """Kinds of S3 request."""

    LIST = "list"
    HEAD = "head"
    GET = "get"
    PUT = "put"
    COPY = "copy"
    DELETE = "delete"


@dataclass(slots=True)
class Metrics:
    """The counters of one mount."""

    requests: dict[RequestKind, int] = field(default_factory=lambda: dict.fromkeys(RequestKind, 0))
    counters: dict[Metric, int] = field(default_factory=lambda: dict.fromkeys(Metric, 0))
    errors: dict[str, int] = field(default_factory=dict)
    """Failed operations by errno name."""
    gauges: dict[Gauge, Callable[[], float]] = field(default_factory=dict)

    def add(self, metric: Metric, amount: int = 1) -> None:
        """Count *amount* more."""
        self.counters[metric] += amount

    def add_request(self, kind: RequestKind, count: int = 1) -> None:
        """Count requests sent to the store, retries included."""
        self.requests[kind] += count

    def add_error(self, errno_name: str) -> None:
        """Count an operation that failed with this errno."""
        self.errors[errno_name] = self.errors.get(errno_name, 0) + 1

    def watch(self, gauge: Gauge, read: Callable[[], float]) -> None:
        """Show what *read* returns as *gauge*."""
        self.gauges[gauge] = read

    def snapshot(self) -> dict[str, dict[str, float]]:
        """All values now, as ``status --json`` prints them."""
        return {
            "requests": {kind.value: count for kind, count in self.requests.items()},
            "counters": {metric.value: count for metric, count in self.counters.items()},
            "gauges": {gauge.value: read() for gauge, read in self.gauges.items()},
            "errors": dict(sorted(self.errors.items())),
        }
