"""LIST pages as an S3 server would make them."""

from s3mount.ids import ETag
from s3mount.store.interface import ListPage, ObjectSummary


def summary(key: str, *, size: int = 0, etag: str = "etag", mtime_ns: int = 0) -> ObjectSummary:
    """An object as a listing shows it."""
    return ObjectSummary(key=key, size=size, mtime_ns=mtime_ns, etag=ETag(etag))


def pages_of(keys: list[str], *, prefix: str = "", page_size: int) -> list[ListPage]:
    """The pages of ``LIST prefix delimiter=/`` over *keys*, in UTF-8 order; at least one."""
    names: dict[str, ObjectSummary | None] = {}
    for key in sorted(key for key in keys if key.startswith(prefix)):
        head, slash, _ = key[len(prefix) :].partition("/")
        names.setdefault(prefix + head + slash, None if slash else summary(key))
    items = list(names.items())
    starts = range(0, max(1, len(items)), page_size)
    return [
        ListPage(
            objects=tuple(item for _, item in items[start : start + page_size] if item is not None),
            prefixes=tuple(name for name, item in items[start : start + page_size] if item is None),
            next_token=str(start + page_size) if start + page_size < len(items) else None,
        )
        for start in starts
    ]
