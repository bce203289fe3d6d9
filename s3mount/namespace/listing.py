"""Turns the pages of one directory's LIST into its entries.

A page holds the objects and the common prefixes of up to 1,000 names in UTF-8 order. Between the object ``foo`` and the
prefix ``foo/`` there may be any number of names such as ``foo-1``: a file is only shown once the listing has passed the
place where a directory of its name would stand. So every name comes out once, and is decided the same way however the
pages fall. Endpoints that list in another order (directory buckets) get their files shown at the end.

Pure.
"""

from typing import NamedTuple

from s3mount.namespace.keys import first_name, is_continued
from s3mount.store.interface import ListPage, ObjectSummary


class ListedEntry(NamedTuple):
    """A name in a directory and the object it stands for; directories have none."""

    name: str
    summary: ObjectSummary | None


class ListingAssembler:
    """Entries of one directory, page by page.

    **Invariant:** no name is emitted twice; a pending file's place for a directory of its name lies ahead.
    """

    def __init__(self, key_prefix: str, head: str = "") -> None:
        """Expect the pages of ``LIST prefix=key_prefix delimiter=/``.

        Args:
            key_prefix: Full prefix of the directory's children.
            head: Start of the component that this directory continues (`keys.PART`), or empty.
        """
        self._prefix_length = len(key_prefix)
        self._head = head
        self._pending: dict[str, ObjectSummary] = {}
        self._directories: set[str] = set()
        self._position = ""
        self._is_ordered = True
        self.shadowed: list[str] = []
        """Keys that are not listed since a directory has their name, in the order they were met."""
        self.marker: ObjectSummary | None = None
        """The directory's own object, if it has one."""

    def feed(self, page: ListPage) -> list[ListedEntry]:
        """Entries that *page* decides, in the order of the store."""
        self._note_position(page)
        found = [entry for prefix in page.prefixes if (entry := self._directory(prefix[self._prefix_length : -1]))]
        found += [entry for summary in page.objects if (entry := self._object(summary))]
        if self._is_ordered:
            decided = [name for name, summary in self._pending.items() if summary.key + "/" < self._position]
            found += [ListedEntry(name, self._pending.pop(name)) for name in decided]
            found.sort(key=_store_order)
        return found

    def finish(self) -> list[ListedEntry]:
        """The rest, once the last page was fed."""
        rest = [ListedEntry(name, summary) for name, summary in self._pending.items()]
        self._pending.clear()
        return rest

    def _note_position(self, page: ListPage) -> None:
        for keys in ([summary.key for summary in page.objects], page.prefixes):
            if keys:
                self._is_ordered = self._is_ordered and all(map(str.__le__, keys, keys[1:]))
        if not page.objects and not page.prefixes:
            return
        last = max(page.objects[-1].key if page.objects else "", page.prefixes[-1] if page.prefixes else "")
        first = min([summary.key for summary in page.objects[:1]] + list(page.prefixes[:1]))
        self._is_ordered = self._is_ordered and first >= self._position
        self._position = max(self._position, last)

    def _directory(self, component: str) -> ListedEntry | None:
        if self._head and not is_continued(self._head, component):
            return None
        name, _ = first_name(component)
        if name in self._directories:
            return None
        self._directories.add(name)
        hidden = self._pending.pop(name, None)
        if hidden is not None:
            self.shadowed.append(hidden.key)
        return ListedEntry(name, None)

    def _object(self, summary: ObjectSummary) -> ListedEntry | None:
        component = summary.key[self._prefix_length :]
        if not component:
            if not self._head:
                self.marker = summary
            return None
        if self._head and not is_continued(self._head, component):
            return None
        name, rest = first_name(component)
        if rest:
            return self._directory(component)
        if name in self._directories:
            self.shadowed.append(summary.key)
        else:
            self._pending[name] = summary
        return None


def _store_order(entry: ListedEntry) -> str:
    return entry.name if entry.summary else entry.name + "/"
