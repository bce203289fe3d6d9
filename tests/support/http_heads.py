"""Heads of HTTP/1.1 messages as the proxy needs them: read, told apart, written."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from urllib.parse import parse_qsl, unquote

MAX_HEAD = 1 << 20
"""Longer heads are a fault of the sender."""

HEAD_END = b"\r\n\r\n"

_NO_SUBRESOURCE = {"list-type", "prefix", "delimiter", "marker", "max-keys", "encoding-type", "continuation-token"}
_OBJECT_PARAMETERS = {"versionId", "partNumber", "uploadId"}


class Kind(StrEnum):
    """What a request wants from S3."""

    LIST = "list"
    HEAD = "head"
    GET = "get"
    PUT = "put"
    COPY = "copy"
    DELETE = "delete"
    OTHER = "other"


@dataclass(frozen=True)
class Head:
    """First line and headers. Names are kept as sent; `get` finds them in any case."""

    first_line: str
    headers: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, raw: bytes) -> "Head":
        """Read a head, its empty last line included."""
        first, *lines = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        fields = (line.partition(":") for line in lines)
        return cls(first, tuple((name, value.strip()) for name, _, value in fields))

    def get(self, name: str) -> str | None:
        """Value of the first header called *name*."""
        return self._first.get(name.lower())

    def changed(self, changes: Mapping[str, str | None]) -> "Head":
        """A copy with the headers replaced or added; None removes one."""
        names = {name.lower() for name in changes}
        if self._first.keys().isdisjoint(names) and not any(changes.values()):
            return self
        kept = [(name, value) for name, value in self.headers if name.lower() not in names]
        added = [(name, value) for name, value in changes.items() if value is not None]
        return Head(self.first_line, (*kept, *added))

    def encode(self) -> bytes:
        """The head as it goes over the wire."""
        lines = [self.first_line, *(f"{name}: {value}" for name, value in self.headers)]
        return "\r\n".join(lines).encode("latin-1") + HEAD_END

    @cached_property
    def content_length(self) -> int | None:
        """Declared length; None without one, and when chunked."""
        value = self.get("content-length")
        return None if value is None or self.is_chunked else int(value)

    @cached_property
    def is_chunked(self) -> bool:
        """Whether the body comes in HTTP chunks."""
        return "chunked" in (self.get("transfer-encoding") or "").lower()

    @cached_property
    def _first(self) -> Mapping[str, str]:
        """Value of the first header of each name, in lower case."""
        return {name.lower(): value for name, value in reversed(self.headers)}

    @property
    def wants_close(self) -> bool:
        """Whether its sender will close the connection."""
        return "close" in (self.get("connection") or "").lower()


@dataclass(frozen=True, slots=True)
class Request:
    """A request as the proxy received it."""

    head: Head
    number: int
    """Counts all requests of the proxy, from 1."""
    connection_id: int
    """Counts the connections that clients made, from 1."""
    method: str
    target: str
    """Path and query as sent."""
    query: Mapping[str, str]
    bucket: str
    key: str
    """Decoded; empty for requests on a bucket."""
    kind: Kind

    @classmethod
    def parse(cls, raw: bytes, *, number: int, connection_id: int) -> "Request":
        """Understand a request in path style (``/bucket/key``)."""
        head = Head.parse(raw)
        method, target, _ = head.first_line.split(" ", 2)
        raw_path, _, raw_query = target.partition("?")
        query = dict(parse_qsl(raw_query, keep_blank_values=True)) if raw_query else {}
        bucket, _, key = raw_path.removeprefix("/").partition("/")
        bucket, key = unquote(bucket), unquote(key)
        kind = _kind_of(method, bucket, key, query, is_copy=head.get("x-amz-copy-source") is not None)
        return cls(head, number, connection_id, method, target, query, bucket, key, kind)

    def header(self, name: str) -> str | None:
        """Value of a header, in any case."""
        return self.head.get(name)

    @property
    def range_header(self) -> str | None:
        """The Range header."""
        return self.header("range")

    @property
    def range_start(self) -> int | None:
        """First byte asked for; None without a range, and for a range counted from the end."""
        first = (self.range_header or "").removeprefix("bytes=").partition("-")[0]
        return int(first) if first.isdigit() else None

    @property
    def range_stop(self) -> int | None:
        """Byte after the last one asked for; None if the range has no end."""
        last = (self.range_header or "").removeprefix("bytes=").partition("-")[2]
        return int(last) + 1 if last.isdigit() else None


_IRRELEVANT = re.compile(r"x-id$|fetch-owner$|expected-bucket-owner$|response-|x-amz-", re.IGNORECASE)
"""Parameters that say nothing about the kind of a request: names of operations, answers' headers, signatures."""


def _kind_of(method: str, bucket: str, key: str, query: Mapping[str, str], *, is_copy: bool) -> Kind:
    if not bucket:
        return Kind.OTHER
    query = {name: value for name, value in query.items() if not _IRRELEVANT.match(name)}
    if not key:
        if method == "POST" and "delete" in query:
            return Kind.DELETE
        return Kind.LIST if method == "GET" and query.keys() <= _NO_SUBRESOURCE | {"start-after"} else Kind.OTHER
    if not query.keys() <= _OBJECT_PARAMETERS or (method in {"GET", "DELETE"} and "uploadId" in query):
        return Kind.OTHER
    if method == "PUT" and is_copy:
        return Kind.COPY
    return {"GET": Kind.GET, "HEAD": Kind.HEAD, "PUT": Kind.PUT, "DELETE": Kind.DELETE}.get(method, Kind.OTHER)
