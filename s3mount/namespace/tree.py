"""The directory tree: answers lookups and listings from what is known, and asks the store for the rest.

A lookup that misses costs one LIST of the name itself, which answers for the file and the directory at once. When a
directory is asked for a third time, it is listed instead. Everybody who waits for the same answer shares one request;
an error reaches all who waited for it and is not remembered.

Runs in trio; state changes only between awaits.
"""

import gc
from collections.abc import Callable, Iterable

import trio
from cachetools import LRUCache

from s3mount.errors import (
    AccessDeniedError,
    FileError,
    IsADirectoryEntryError,
    NameTooLongError,
    NoSuchEntryError,
    NotADirectoryEntryError,
    StaleObjectError,
)
from s3mount.ids import NO_ETAG, InodeNumber, ObjectId
from s3mount.metrics import Metric, Metrics
from s3mount.namespace.attributes import seconds_left
from s3mount.namespace.inodes import DirectoryInode, FileInode, Inode
from s3mount.namespace.keys import MAX_NAME_BYTES, DecodedName, NameKind, decode_name, is_continued
from s3mount.namespace.lister import Lister, Listing
from s3mount.namespace.listing import ListingAssembler
from s3mount.namespace.names import NameCache, is_always_listed
from s3mount.namespace.paging import Paging, has_names_below
from s3mount.namespace.walk import SiblingWalk
from s3mount.options import NamespaceOptions
from s3mount.store.interface import MAX_KEY_BYTES, ObjectStore, ObjectSummary

PROBE_KEYS = 10
"""Names a probe asks for: room for siblings such as ``foo-1`` between ``foo`` and ``foo/``."""

MISSES_BEFORE_LISTING = 2
"""Lookups answered one by one before the directory is listed instead."""

MISSES_AFTER_UNFINISHED = 1000
"""Further misses in a directory too big to be listed on suspicion before that is tried again."""

OPEN_GRACE_SECONDS = 1.0
"""The kernel looks a name up right before it opens it: an open this soon after a check needs none of its own."""

RELEASED_WORTH_COMPACTING = 10_000
"""Names whose memory (about 5 MB) is worth a full garbage collection."""

MAX_WALKS = 64
"""Directories below which walks are followed at a time."""

OnStale = Callable[[InodeNumber, str], None]
"""Told of a directory and a name in it that stands for something else than the kernel thinks."""


class _Flight:
    """One lookup that is being resolved, and what came of it; nothing if it was cancelled."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.inode: Inode | None = None
        self.error: FileError | None = None


class Tree:
    """Names, directories and versions of one mount, for any task of it."""

    def __init__(
        self,
        store: ObjectStore,
        options: NamespaceOptions,
        metrics: Metrics,
        nursery: trio.Nursery,
        *,
        mounted_at_ns: int,
        on_stale: OnStale,
    ) -> None:
        self._store = store
        self._options = options
        self._metrics = metrics
        self._on_stale = on_stale
        self.names = NameCache(options, mounted_at_ns=mounted_at_ns, clock=trio.current_time)
        self._lister = Lister(store, nursery, metrics, adopt=self.names.adopt, complete=self.names.complete_listing)
        self._flights: dict[tuple[InodeNumber, str], _Flight] = {}
        self._walks: LRUCache[InodeNumber, SiblingWalk] = LRUCache(MAX_WALKS)

    # Inodes

    def inode(self, number: InodeNumber) -> Inode:
        """The live inode of that number.

        Raises:
            StaleObjectError: The kernel does not know it any more.
        """
        inode = self.names.inodes.get(number)
        if inode is None:
            raise StaleObjectError(f"inode {number}")
        return inode

    def directory(self, number: InodeNumber) -> DirectoryInode:
        """The live directory of that number.

        Raises:
            NotADirectoryEntryError: It is a file.
            StaleObjectError: The kernel does not know it any more.
        """
        inode = self.inode(number)
        if not isinstance(inode, DirectoryInode):
            raise NotADirectoryEntryError(inode.name)
        return inode

    def file(self, number: InodeNumber) -> FileInode:
        """The live file of that number.

        Raises:
            IsADirectoryEntryError: It is a directory.
            StaleObjectError: The kernel does not know it any more.
        """
        inode = self.inode(number)
        if not isinstance(inode, FileInode):
            raise IsADirectoryEntryError(inode.name)
        return inode

    def seconds_fresh(self, inode: Inode) -> float:
        """How long the kernel may keep what it is told of *inode*."""
        return self.names.seconds_fresh(inode, trio.current_time())

    def remember(self, inode: Inode) -> None:
        """Count a reference that the kernel is about to get."""
        self.names.inodes.remember(inode)

    def forget(self, references: Iterable[tuple[InodeNumber, int]]) -> None:
        """Take back references of the kernel's."""
        self.names.forget(references, trio.current_time())

    async def expire(self) -> None:
        """Give back the memory of names that are out of use, now and then. Runs until cancelled."""
        while True:
            await trio.sleep(max(self._options.ttl_seconds / 2, 1.0))
            self.names.expire(trio.current_time())
            if self.names.released >= RELEASED_WORTH_COMPACTING:
                self.names.compact()
                self._walks.clear()
                # A full collection empties the interpreter's free lists, whose objects keep whole arenas alive.
                gc.collect()

    # Lookups

    async def lookup(self, parent: DirectoryInode, name: str) -> Inode:
        """The inode that *name* stands for; asks the store only if what is known is too old.

        Raises:
            NoSuchEntryError: There is no such name.
            NameTooLongError: No key can have it.
            AccessDeniedError: The store refuses to say.
            StoreUnavailableError: The store does not answer.
        """
        known = self.names.known(parent, name, trio.current_time())
        if known is not None:
            self._metrics.add(Metric.ATTRIBUTE_HITS)
            return known
        self._metrics.add(Metric.ATTRIBUTE_MISSES)
        # With a TTL of 0 nobody may be answered by a request that was sent before he asked.
        while self._options.ttl_seconds and (flight := self._flights.get((parent.number, name))) is not None:
            await flight.done.wait()
            if flight.error is not None:
                raise flight.error
            if flight.inode is not None:
                return flight.inode
        return await self._fly(parent, name)

    async def _fly(self, parent: DirectoryInode, name: str) -> Inode:
        flight = self._flights[parent.number, name] = _Flight()
        try:
            flight.inode = await self._resolve(parent, name)
        except FileError as error:
            flight.error = error
            raise
        finally:
            flight.done.set()
            if self._flights.get((parent.number, name)) is flight:
                del self._flights[parent.number, name]
        return flight.inode

    async def _resolve(self, parent: DirectoryInode, name: str) -> Inode:
        if len(name.encode()) > MAX_NAME_BYTES:
            raise NameTooLongError(name)
        decoded = decode_name(name)
        if decoded is None or (parent.head and not _belongs_into_part(parent.head, decoded)):
            raise NoSuchEntryError(name)
        self.names.require_attached(parent)
        if len((parent.key_prefix + decoded.text).encode()) > MAX_KEY_BYTES:
            raise NameTooLongError(name)
        parent.misses += 1
        try:
            return (
                await self._resolve_by_listing(parent, name)
                or await self._revalidate(parent, name)
                or await self._probe(parent, name, decoded)
            )
        except NoSuchEntryError:
            self.names.note_absent(parent, name)
            raise

    async def _resolve_by_listing(self, parent: DirectoryInode, name: str) -> Inode | None:
        """The inode, if a listing under way or worth beginning tells; None if it has to be asked for by itself.

        Raises:
            NoSuchEntryError: The listing is complete and does not have it.
        """
        if not self._options.ttl_seconds or not is_always_listed(name):
            return None
        listing = self._lister.running(parent)
        if listing is None:
            if parent.misses <= MISSES_BEFORE_LISTING:
                return None
            listing = self._lister.start(parent)
        # Lookups do not keep a pass going: in a huge directory each one asks by itself in the end.
        while True:
            child = parent.children.get(name)
            if child is not None and child.checked_at >= listing.started_at:
                return child
            if listing.is_over:
                break
            await listing.wait_for_more()
        if listing.is_complete:
            raise NoSuchEntryError(name)
        if listing.error is not None and not isinstance(listing.error, AccessDeniedError):
            raise listing.error
        parent.misses = -MISSES_AFTER_UNFINISHED
        return None

    async def _revalidate(self, parent: DirectoryInode, name: str) -> Inode | None:
        """What *name* is known to stand for, if one request confirms it."""
        child = parent.children.get(name)
        asked_at = trio.current_time()
        if isinstance(child, FileInode):
            if not self._options.ttl_seconds:
                # HEAD does not see a directory that has taken the file's name. With a TTL the next listing does; here
                # the directory is never listed for a lookup, and would stay out of reach.
                return None
            try:
                summary = await self._store.head(self.names.key_of(child))
            except (NoSuchEntryError, AccessDeniedError):
                return None
            return self.names.adopt_file(parent, name, summary, asked_at, is_listed=False)
        if (
            isinstance(child, DirectoryInode)
            and not child.head
            and await has_names_below(self._store, child.key_prefix)
        ):
            return self.names.adopt_directory(parent, name, asked_at)
        return None

    async def _probe(self, parent: DirectoryInode, name: str, decoded: DecodedName) -> Inode:
        """Ask for the file and the directory of that name at once, by one LIST if not too much stands between them."""
        key = parent.key_prefix + decoded.text
        assembler = ListingAssembler(parent.key_prefix, parent.head)
        asked_at = trio.current_time()
        paging = Paging(self._store, key, max_keys=PROBE_KEYS)
        while True:
            try:
                page = await paging.next_page()
            except AccessDeniedError:
                # Without the right to list, HEAD still tells of a file; absence it cannot tell.
                summary = await self._head_or_denied(key)
                return self.names.adopt_file(parent, name, summary, asked_at, is_listed=False)
            entries = assembler.feed(page)
            if paging.is_over:
                entries += assembler.finish()
            for entry in entries:
                if entry.name == name:
                    return self.names.adopt(parent, entry, asked_at)
            if decoded.kind is NameKind.SHADOWED_FILE and key in assembler.shadowed:
                summary = await self._store.head(key)
                return self.names.adopt_file(parent, name, summary, asked_at, is_listed=False)
            if paging.is_over:
                if assembler.marker is not None and not decoded.text:
                    return self.names.adopt_file(parent, name, assembler.marker, asked_at, is_listed=True)
                raise NoSuchEntryError(name)
            if decoded.kind is NameKind.COMPONENT:
                return await self._probe_apart(parent, name, key)

    async def _probe_apart(self, parent: DirectoryInode, name: str, key: str) -> Inode:
        """Ask for the directory and the file of that name by a request each."""
        asked_at = trio.current_time()
        if await has_names_below(self._store, key + "/"):
            return self.names.adopt_directory(parent, name, asked_at)
        summary = await self._store.head(key)
        return self.names.adopt_file(parent, name, summary, asked_at, is_listed=False)

    async def _head_or_denied(self, key: str) -> ObjectSummary:
        try:
            return await self._store.head(key)
        except NoSuchEntryError as error:
            raise AccessDeniedError(key) from error

    # Listings

    def list_directory(self, directory: DirectoryInode) -> Listing:
        """A listing that is complete and fresh, or under way; begins one if there is neither.

        Raises:
            NoSuchEntryError: The directory is gone.
        """
        self.names.require_attached(directory)
        if self._options.ttl_seconds:
            self._list_siblings_ahead(directory)
        now = trio.current_time()
        if self.names.is_listing_fresh(directory, now):
            return Listing.of_known(directory)
        return self._lister.start(directory)

    def _list_siblings_ahead(self, directory: DirectoryInode) -> None:
        parent = directory.parent
        if parent is None:
            return
        walk = self._walks.get(parent.number)
        if walk is None or not walk.advance(directory):
            siblings = [child for child in parent.children.values() if isinstance(child, DirectoryInode)]
            self._walks[parent.number] = SiblingWalk(siblings, directory)
            return
        now = trio.current_time()
        for sibling in walk.next_siblings():
            if not self._lister.has_room_ahead():
                return
            if sibling.parent is parent and not self.names.is_listing_fresh(sibling, now):
                self._lister.start(sibling)

    # Versions

    async def pin(self, inode: FileInode) -> ObjectId:
        """Identity of the version to read through a new handle; asks the store only if what is known is too old.

        Raises:
            StaleObjectError: The name stands for another version now; looking it up again finds that.
        """
        ttl = max(self._options.ttl_seconds, OPEN_GRACE_SECONDS)
        is_fresh = seconds_left(inode.checked_at, ttl_seconds=ttl, now=trio.current_time()) > 0
        if inode.etag is None or inode.is_archived or not is_fresh:
            await self.recheck(inode)
        return ObjectId(self.names.key_of(inode), inode.etag or NO_ETAG)

    async def recheck(self, inode: FileInode) -> None:
        """Ask whether *inode* is the version its name stands for; its ETag may change if no byte of it was read yet.

        Raises:
            StaleObjectError: It is not; the kernel is told to look the name up again.
        """
        parent, name = inode.parent, inode.name
        if parent is None:
            raise StaleObjectError(name)
        asked_at = trio.current_time()
        try:
            summary = await self._store.head(self.names.key_of(inode))
        except NoSuchEntryError as error:
            self.names.forget_name(parent, name)
            self._on_stale(parent.number, name)
            raise StaleObjectError(name) from error
        if inode.parent is not parent or (
            self.names.adopt_file(parent, name, summary, asked_at, is_listed=False) is not inode
        ):
            self._on_stale(parent.number, name)
            raise StaleObjectError(name)


def _belongs_into_part(head: str, decoded: DecodedName) -> bool:
    if decoded.kind is NameKind.PART:
        return True
    return is_continued(head, decoded.text, is_shadowed=decoded.kind is NameKind.SHADOWED_FILE)
