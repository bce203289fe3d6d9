"""`ListedBucket`: a bucket in memory that answers through a `FaultProxy`, in a dialect of choice.

For what no server at hand does: pages of a few names, other ways to write keys, any key at all. The server behind the
proxy only sees what is no LIST, HEAD or GET of an object.
"""

import bisect
import hashlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from urllib.parse import quote, quote_plus
from xml.sax.saxutils import escape

from tests.support.faults import Action, Answer, s3_error
from tests.support.http_heads import Kind, Request

MODIFIED = datetime(2024, 2, 29, 23, 30, 0, tzinfo=UTC)
"""When all objects were modified, unless the test says otherwise."""

Encode = Callable[[str], str]

MAX_KEYS = 1000


def with_plus_for_space(text: str) -> str:
    """As AWS and MinIO encode keys."""
    return quote_plus(text, safe="/")


def with_percent_for_space(text: str) -> str:
    """As most others do."""
    return quote(text, safe="/")


def with_bare_plus(text: str) -> str:
    """As Go's ``url.PathEscape`` does: a plus stays."""
    return quote(text, safe="/+")


class ListedBucket:
    """A hook for `FaultProxy.add`. Objects may be changed at any time; every request is answered from one state."""

    def __init__(
        self,
        objects: Mapping[str, bytes],
        *,
        page_size: int = MAX_KEYS,
        encode: Encode | None = with_plus_for_space,
        is_version_1: bool = False,
        modified: datetime = MODIFIED,
    ) -> None:
        """Hold *objects*.

        Args:
            objects: Content by key.
            page_size: Most names on a page, whatever is asked for.
            encode: How ``encoding-type=url`` is understood; None: not at all.
            is_version_1: Answer as a server that knows only the first version of LIST.
            modified: When all objects were modified.
        """
        self.objects = dict(objects)
        self.page_size = page_size
        self.encode = encode
        self.is_version_1 = is_version_1
        self.modified = modified

    def __call__(self, request: Request) -> Action | None:
        """Answer a request."""
        if request.kind is Kind.LIST:
            return self._list(request.query)
        if request.kind in {Kind.HEAD, Kind.GET}:
            return self._object(request)
        return None

    def _list(self, query: Mapping[str, str]) -> Action:
        prefix = query.get("prefix", "")
        if self.is_version_1:
            token = query.get("marker", "")
        else:  # opaque, and without characters that XML does not have
            token = bytes.fromhex(query.get("continuation-token", "")).decode()
        limit = min(int(query.get("max-keys", MAX_KEYS)), self.page_size)
        is_encoded = self.encode is not None and query.get("encoding-type") == "url"
        items, following = self._page(prefix, query.get("delimiter", ""), token, limit)
        write = self.encode if is_encoded and self.encode is not None else escape
        body = [
            '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">',
            f"<Name>b</Name><Prefix>{write(prefix)}</Prefix><MaxKeys>{limit}</MaxKeys>",
            "<EncodingType>url</EncodingType>" if is_encoded else "",
            f"<IsTruncated>{str(following is not None).lower()}</IsTruncated>",
            f"<Marker>{write(token)}</Marker>" if self.is_version_1 else f"<KeyCount>{len(items)}</KeyCount>",
        ]
        if following is not None:
            name = "NextMarker" if self.is_version_1 else "NextContinuationToken"
            body.append(f"<{name}>{write(following) if self.is_version_1 else following.encode().hex()}</{name}>")
        body += [self._contents(name, write) if is_object else _common_prefix(name, write) for name, is_object in items]
        body.append("</ListBucketResult>")
        return Action(answer=Answer(200, {"Content-Type": "application/xml"}, "".join(body).encode()))

    def _page(self, prefix: str, delimiter: str, token: str, limit: int) -> tuple[list[tuple[str, bool]], str | None]:
        """Names of one page in UTF-8 order, each with whether it is an object, and after which one the next begins."""
        keys = sorted(key.encode() for key in list(self.objects))
        items: list[tuple[str, bool]] = []
        # UTF-8 has no byte 0xFF. A directory's own marker is a key, not a common prefix.
        below = b"\xff" if token.endswith("/") and token != prefix else b""
        at = bisect.bisect_right(keys, token.encode() + below) if token else bisect.bisect_left(keys, prefix.encode())
        while at < len(keys) and (key := keys[at].decode()).startswith(prefix):
            if len(items) >= limit:
                return items, items[-1][0]
            head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if found:
                items.append((prefix + head + delimiter, False))
                at = bisect.bisect_left(keys, items[-1][0].encode() + b"\xff")
            else:
                items.append((key, True))
                at += 1
        return items, None

    def _contents(self, key: str, write: Encode) -> str:
        content = self.objects[key]
        return (
            f"<Contents><Key>{write(key)}</Key><LastModified>{self.modified:%Y-%m-%dT%H:%M:%S}.000Z</LastModified>"
            f"<ETag>&quot;{_etag(content)}&quot;</ETag><Size>{len(content)}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )

    def _object(self, request: Request) -> Action:
        content = self.objects.get(request.key)
        if content is None:
            return s3_error(404, "NoSuchKey")
        etag = f'"{_etag(content)}"'
        if request.header("if-match") not in {None, etag}:
            return s3_error(412, "PreconditionFailed")
        headers = {
            "ETag": etag,
            "Last-Modified": f"{self.modified:%a, %d %b %Y %H:%M:%S} GMT",
            "Accept-Ranges": "bytes",
        }
        if request.range_start is None:
            return Action(answer=Answer(200, headers, content))
        stop = min(request.range_stop or len(content), len(content))
        headers["Content-Range"] = f"bytes {request.range_start}-{stop - 1}/{len(content)}"
        return Action(answer=Answer(206, headers, content[request.range_start : stop]))


def _common_prefix(prefix: str, write: Encode) -> str:
    return f"<CommonPrefixes><Prefix>{write(prefix)}</Prefix></CommonPrefixes>"


def _etag(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
