"""Identifiers that must not be mixed up. Pure."""

from typing import NamedTuple, NewType

InodeNumber = NewType("InodeNumber", int)
"""Number by which the kernel knows a file or directory; below 2^63, never used twice by one mount."""

HandleId = NewType("HandleId", int)
"""Number of one open file or directory; never an inode number."""

ETag = NewType("ETag", str)
"""Opaque version tag of an object, without quotes and without a weakness prefix."""

NO_ETAG = ETag("")
"""Stands for the version of an object on an endpoint that shows no ETags: it cannot be told from another."""

ROOT_INODE = InodeNumber(1)
"""The mounted directory; fixed by the FUSE protocol."""


class ObjectId(NamedTuple):
    """The only identity that may name cached bytes: two equal ids have equal bytes."""

    key: str
    """Full key, mounted prefix included."""
    etag: ETag


def normalise_etag(raw: str) -> ETag:
    """Strip quotes and ``W/`` of an ETag as sent; nothing else, since ETags are opaque (RFC 9110, 8.8.3)."""
    return ETag(raw.removeprefix("W/").strip('"'))
