"""The objects of the object server: made-up ones of any size and number, and files of a directory.

A made-up object repeats one backing file, so that it takes no room and its bytes can be sent from the page cache.
Every bucket holds all of them. Their ETags are those of multipart uploads: others would be taken for MD5 sums.
"""

import bisect
import os
import random
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

PERIOD = 64 * 1024 * 1024
"""Size of the backing file: more than the processors' caches hold, little enough to stay in the page cache."""

MADE_AT = 1_767_225_600.0
"""When made-up objects were last changed."""

_LAST = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class Made:
    """Made-up objects that are all of one size."""

    pattern: str
    """Of their keys, with one replacement field for the number."""
    count: int
    size: int

    def names(self) -> list[str]:
        """Their keys, in order."""
        return [self.pattern.format(number) for number in range(self.count)]


@dataclass(frozen=True, slots=True)
class Found:
    """An object as it is now."""

    key: str
    size: int
    etag: str
    changed_at: float
    path: Path | None
    """Where its bytes are; None if it repeats the backing file."""


def make_backing() -> int:
    """A descriptor of the file that made-up objects repeat; it has no name."""
    with tempfile.TemporaryFile() as file:
        file.write(random.Random(0).randbytes(PERIOD))
        file.flush()
        return os.dup(file.fileno())


class Objects:
    """Finds and lists *made* ones and files below *root*; the bytes of the former are those of *backing*."""

    def __init__(self, made: list[Made], root: Path | None, backing: int) -> None:
        self._sizes = {key: some.size for some in made for key in some.names()}
        self._made_keys = sorted(self._sizes)
        self._root = root
        self._backing = backing

    def find(self, key: str) -> Found | None:
        """The object of that key."""
        size = self._sizes.get(key)
        if size is not None:
            return Found(key, size, f'"{zlib.crc32(key.encode()):08x}{size:024x}-2"', MADE_AT, None)
        if self._root is None or not key or key.endswith("/") or ".." in key:
            return None
        path = self._root / key
        try:
            status = path.stat()
        except OSError:
            return None
        etag = f'"{status.st_ino & 0xFFFFFFFF:08x}{status.st_mtime_ns:016x}{status.st_size & 0xFFFFFFFF:08x}-2"'
        return Found(key, status.st_size, etag, status.st_mtime, path) if path.is_file() else None

    def open(self, found: Found) -> int:
        """A descriptor with the object's bytes, to be closed; those of made-up objects are at ``offset % PERIOD``."""
        return os.dup(self._backing) if found.path is None else os.open(found.path, os.O_RDONLY)

    def list_page(self, query: dict[str, str]) -> str:
        """Answer to ListObjectsV2 or, without ``list-type``, to its predecessor."""
        delimiter = query.get("delimiter", "")
        is_v2 = query.get("list-type") == "2"
        after = query.get("continuation-token") or query.get("start-after", "") if is_v2 else query.get("marker", "")
        most = min(1000, int(query.get("max-keys", "1000")))
        items = self._items(query.get("prefix", ""), delimiter, after)
        page = [item for item, _ in zip(items, range(most), strict=False)]
        rest = bool(page) and next(self._items(query.get("prefix", ""), delimiter, _name(page[-1])), None) is not None
        lines = [f"<Prefix>{escape(query.get('prefix', ''))}</Prefix><KeyCount>{len(page)}</KeyCount>"]
        lines.append(f"<MaxKeys>{most}</MaxKeys><IsTruncated>{str(rest).lower()}</IsTruncated>")
        if delimiter:
            lines.append(f"<Delimiter>{escape(delimiter)}</Delimiter>")
        if rest:
            tag = "NextContinuationToken" if is_v2 else "NextMarker"
            lines.append(f"<{tag}>{escape(_name(page[-1]))}</{tag}>")
        lines += [_described(item) for item in page]
        head = (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        )
        return f"{head}{''.join(lines)}</ListBucketResult>"

    def _items(self, prefix: str, delimiter: str, after: str) -> Iterator[Found | str]:
        """Objects, and common prefixes as text, in the order of their names, beyond *after*."""
        keys = self._keys()
        if after and delimiter and after.endswith(delimiter):
            after += _LAST
        at = max(bisect.bisect_left(keys, prefix), bisect.bisect_right(keys, after))
        while at < len(keys) and keys[at].startswith(prefix):
            cut = keys[at].find(delimiter, len(prefix)) if delimiter else -1
            if cut >= 0:
                common = keys[at][: cut + len(delimiter)]
                yield common
                at = bisect.bisect_left(keys, common + _LAST)
                continue
            found = self.find(keys[at])
            if found is not None:
                yield found
            at += 1

    def _keys(self) -> list[str]:
        if self._root is None:
            return self._made_keys
        files = [str(path.relative_to(self._root)) for path in self._root.rglob("*") if path.is_file()]
        return sorted([*self._made_keys, *files])


def _name(item: Found | str) -> str:
    return item if isinstance(item, str) else item.key


def _described(item: Found | str) -> str:
    if isinstance(item, str):
        return f"<CommonPrefixes><Prefix>{escape(item)}</Prefix></CommonPrefixes>"
    changed = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(item.changed_at))
    return (
        f"<Contents><Key>{escape(item.key)}</Key><LastModified>{changed}</LastModified>"
        f"<ETag>{escape(item.etag)}</ETag><Size>{item.size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )
