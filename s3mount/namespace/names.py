"""What is known of names: installs what listings and requests tell, and answers while that is fresh.

What a name stands for may be used for the TTL; that it is absent, for the negative TTL, and only after a complete
listing or a true 404. What was learned later wins over what was asked for earlier: a listing that was under way while a
name was looked up does not undo that lookup.

`NameCache.adopt` is where a listing becomes attributes.

Pure: every method is handed the time, in seconds of the mount's clock.
"""

from collections.abc import Callable, Iterable, Sequence

from cachetools import TTLCache

from s3mount.errors import NoSuchEntryError, StaleObjectError
from s3mount.ids import InodeNumber
from s3mount.namespace.attributes import seconds_left
from s3mount.namespace.inodes import NEVER, DirectoryInode, FileInode, Inode, InodeTable
from s3mount.namespace.keys import PART, RESERVED, decode_name
from s3mount.namespace.listing import ListedEntry
from s3mount.options import NamespaceOptions
from s3mount.store.interface import ObjectSummary

MAX_ABSENT_NAMES = 100_000
"""Bound of the memory for absent names (about 200 bytes each)."""


class NameCache:
    """All names of one mount.

    **Invariant:** ``parent.children[name]`` is the inode whose `parent` and `name` these are; a detached inode has no
    parent; an inode is kept while the kernel refers to it.
    """

    def __init__(self, options: NamespaceOptions, *, mounted_at_ns: int, clock: Callable[[], float]) -> None:
        self._options = options
        self._mounted_at_ns = mounted_at_ns
        self.inodes = InodeTable(root_text=options.prefix, mtime_ns=mounted_at_ns)
        self._absent: TTLCache[tuple[InodeNumber, str], bool] = TTLCache(
            MAX_ABSENT_NAMES, options.absent_ttl_seconds, timer=clock
        )
        self._expiring: dict[DirectoryInode, float] = {}
        """Directories with names to look through at that time; times only grow along the dict."""
        self.released = 0
        """Names dropped since `compact`."""
        self._list_etags_differ = False
        """Whether this endpoint lists ETags in another form than HEAD and GET show."""

    # What is known

    def seconds_fresh(self, inode: Inode, now: float) -> float:
        """How long it may still be used that the name stands for *inode*."""
        return seconds_left(inode.checked_at, ttl_seconds=self._options.ttl_seconds, now=now)

    def known(self, parent: DirectoryInode, name: str, now: float) -> Inode | None:
        """What *name* stands for, if that is known and fresh.

        Raises:
            NoSuchEntryError: It is known to be absent.
        """
        child = parent.children.get(name)
        if child is not None:
            return child if self.seconds_fresh(child, now) else None
        absent_ttl = self._options.absent_ttl_seconds
        is_listed_absent = seconds_left(parent.listed_at, ttl_seconds=absent_ttl, now=now) > 0
        if (is_listed_absent and is_always_listed(name)) or (parent.number, name) in self._absent:
            raise NoSuchEntryError(name)
        return None

    def is_listing_fresh(self, directory: DirectoryInode, now: float) -> bool:
        """Whether the known children of *directory* are all that it has."""
        return seconds_left(directory.listed_at, ttl_seconds=self._options.ttl_seconds, now=now) > 0

    def require_attached(self, directory: DirectoryInode) -> None:
        """Make sure that *directory* still has a path.

        Raises:
            NoSuchEntryError: It, or one above it, is gone.
        """
        top = directory
        while top.parent is not None:
            top = top.parent
        if top is not self.inodes.root:
            raise NoSuchEntryError(directory.name)

    def key_of(self, inode: FileInode) -> str:
        """Full key of the object.

        Raises:
            StaleObjectError: The inode is detached.
        """
        parent = inode.parent
        decoded = decode_name(inode.name)
        if parent is None or decoded is None:
            raise StaleObjectError(inode.name)
        self.require_attached(parent)
        return parent.key_prefix + decoded.text

    # What is learned

    def adopt(self, parent: DirectoryInode, entry: ListedEntry, asked_at: float) -> Inode:
        """Install what a listing asked for at *asked_at* shows; what is known from later than that stays."""
        name, summary = entry
        child = parent.children.get(name)
        if child is not None and child.checked_at > asked_at:
            return child
        if summary is None:
            return self.adopt_directory(parent, name, asked_at)
        return self.adopt_file(parent, name, summary, asked_at, is_listed=True)

    def adopt_file(
        self, parent: DirectoryInode, name: str, summary: ObjectSummary, asked_at: float, *, is_listed: bool
    ) -> FileInode:
        """Install an object; another version than the known one gets a new inode.

        Args:
            parent: Its directory.
            name: Its name there.
            summary: What the store shows.
            asked_at: When the store was asked.
            is_listed: Whether a LIST shows it; otherwise a HEAD, whose ETag rules.
        """
        child = parent.children.get(name)
        if isinstance(child, FileInode):
            tells_no_version = is_listed and (summary.etag is None or self._list_etags_differ)
            is_other_form = tells_no_version and _looks_same(child, summary)
            if is_other_form or child.is_same_version(summary):
                child.refresh(summary, asked_at)
                return child
            if not is_listed and not child.was_read and child.size == summary.size:
                # No byte of the listed version is out, so the inode may stand for what HEAD shows: either the endpoint
                # lists ETags in another form, or the object was replaced by one of the same size.
                self._list_etags_differ |= child.etag is not None and _looks_same(child, summary)
                child.etag = summary.etag
                child.refresh(summary, asked_at)
                return child
        inode = FileInode(
            number=self.inodes.new_number(), parent=parent, name=name, checked_at=asked_at, summary=summary
        )
        if is_listed and self._list_etags_differ:
            inode.etag = None
        self._attach(parent, inode)
        return inode

    def adopt_directory(self, parent: DirectoryInode, name: str, asked_at: float) -> DirectoryInode:
        """Install a directory, or confirm the known one."""
        child = parent.children.get(name)
        if isinstance(child, DirectoryInode):
            child.checked_at = asked_at
            return child
        decoded = decode_name(name)
        assert decoded is not None
        is_part = name.startswith(PART)
        inode = DirectoryInode(
            number=self.inodes.new_number(),
            parent=parent,
            name=name,
            text=decoded.text if is_part else decoded.text + "/",
            head=decoded.text if is_part else "",
            checked_at=asked_at,
            mtime_ns=self._mounted_at_ns,
        )
        self._attach(parent, inode)
        return inode

    def complete_listing(self, directory: DirectoryInode, started_at: float, entries: Sequence[Inode]) -> None:
        """Names not seen since *started_at* are gone: a listing begun then is complete, and has shown *entries*."""
        directory.listed_at = started_at
        directory.misses = 0
        for child in list(directory.children.values()):
            if child.checked_at < started_at and is_always_listed(child.name):
                self.forget_name(directory, child.name)
        _put_in_order(directory, entries)
        self._expiring.setdefault(directory, started_at + self._options.ttl_seconds)

    def note_absent(self, parent: DirectoryInode, name: str) -> None:
        """A true 404 or a complete listing says that there is no such name."""
        self.forget_name(parent, name)
        if self._options.absent_ttl_seconds:
            self._absent[parent.number, name] = True

    def forget_name(self, parent: DirectoryInode, name: str) -> None:
        """Detach what *name* stands for, if it is known."""
        child = parent.children.pop(name, None)
        if child is not None:
            child.parent = None

    # What is given back

    def forget(self, references: Iterable[tuple[InodeNumber, int]], now: float) -> None:
        """Take back references of the kernel's."""
        for inode in self.inodes.forget(references):
            if not self.seconds_fresh(inode, now):
                self._release(inode)
            elif inode.parent is not None:
                self._expiring.setdefault(inode.parent, now + self._options.ttl_seconds)

    def expire(self, now: float) -> None:
        """Give back the memory of names that are too old to be used and that the kernel does not hold."""
        due = []
        for directory, expires_at in self._expiring.items():
            if expires_at > now:
                break
            due.append(directory)
        for directory in due:
            del self._expiring[directory]
            for child in list(directory.children.values()):
                if not self.seconds_fresh(child, now):
                    self._release(child)
            directory.children = dict(directory.children)
            if any(not child.lookup_count for child in directory.children.values()):
                self._expiring[directory] = now + self._options.ttl_seconds

    def compact(self) -> None:
        """Give back the room of released names: a dict does not shrink by itself."""
        self.inodes.compact()
        self.released = 0

    def check_invariants(self) -> None:
        """Raise `AssertionError` if names and inodes contradict each other."""
        self.inodes.check_invariants()
        pending: list[DirectoryInode] = [self.inodes.root]
        while pending:
            directory = pending.pop()
            for name, child in directory.children.items():
                assert child.parent is directory
                assert child.name == name
                if isinstance(child, DirectoryInode):
                    pending.append(child)

    def _attach(self, parent: DirectoryInode, inode: Inode) -> None:
        """Give *inode* its name, in the place of what had it."""
        replaced = parent.children.get(inode.name)
        if replaced is not None:
            replaced.parent = None
        parent.children[inode.name] = inode
        self._absent.pop((parent.number, inode.name), None)

    def _release(self, inode: Inode) -> None:
        """Drop a name the kernel does not hold; directories only when nothing is known below them."""
        if inode.lookup_count or inode.parent is None or (isinstance(inode, DirectoryInode) and inode.children):
            return
        # Absence must no longer be concluded from a listing whose names are being dropped.
        inode.parent.listed_at = NEVER
        self.released += 1
        self.forget_name(inode.parent, inode.name)


def _put_in_order(directory: DirectoryInode, entries: Sequence[Inode]) -> None:
    """Have the children in the order of *entries*; those that are never listed come last.

    They mostly are: only names that were looked up before the directory was listed have other places.
    """
    children = directory.children
    if all(entry.name == name for entry, name in zip(entries, children, strict=False)):
        return
    directory.children = {entry.name: children[entry.name] for entry in entries if entry.name in children}
    for name, child in children.items():
        directory.children.setdefault(name, child)


def is_always_listed(name: str) -> bool:
    """Whether a listing that does not show *name* proves it absent; hidden files have reserved names."""
    return not name.startswith(RESERVED)


def _looks_same(child: FileInode, summary: ObjectSummary) -> bool:
    return child.size == summary.size and child.is_same_time(summary)
