"""The operations of the file system, one short method each, in our own types.

docs/semantics.md says what each promises. Errors are those of `errors.py`; which errno they become stands there too.
"""

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import trio

from s3mount.cache.blocks import BlockCache
from s3mount.errors import (
    AccessDeniedError,
    ArchivedObjectError,
    FileError,
    NoSuchAttributeError,
    ReadOnlyError,
    StaleObjectError,
    UnsupportedOperationError,
)
from s3mount.handles import DirectoryHandle, FileHandle, HandleTable
from s3mount.ids import NO_ETAG, HandleId, InodeNumber, ObjectId
from s3mount.log import KeysNamedOnce
from s3mount.metrics import Gauge, Metrics
from s3mount.namespace.attributes import Attributes, attributes_of
from s3mount.namespace.inodes import DirectoryInode, FileInode, Inode
from s3mount.namespace.tree import Tree
from s3mount.options import NamespaceOptions, ReadOptions
from s3mount.ranges import ByteRange
from s3mount.reading.reader import Readers
from s3mount.upcoming import UpcomingFiles

log = logging.getLogger(__name__)

FIRST_ENTRY = 2
"""Position of the first real entry of a directory, after ``.`` and ``..``."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the kernel is told of a name."""

    attributes: Attributes
    ttl_seconds: float
    """How long it may use that without asking again."""


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """One name of a directory."""

    name: str
    entry: Entry
    next_position: int
    """Where reading goes on after it."""


Emit = Callable[[DirectoryEntry], bool]
"""Takes an entry; False if there was no room for it."""


class FileSystem:
    """All operations of one mount; may be called concurrently."""

    def __init__(
        self,
        tree: Tree,
        cache: BlockCache,
        upcoming: UpcomingFiles,
        metrics: Metrics,
        *,
        namespace_options: NamespaceOptions,
        read_options: ReadOptions,
    ) -> None:
        self._tree = tree
        self._cache = cache
        self._upcoming = upcoming
        self._readers = Readers(cache, metrics, max_readahead=read_options.max_readahead_bytes)
        self._namespace_options = namespace_options
        self._handles = HandleTable()
        self._named_archived = KeysNamedOnce()
        self._named_refused = KeysNamedOnce()
        metrics.watch(Gauge.OPEN_HANDLES, lambda: len(self._handles))
        metrics.watch(Gauge.INODES, lambda: len(tree.names.inodes))
        metrics.watch(Gauge.MEMORY_BYTES, lambda: cache.pool.allocated_bytes)
        metrics.watch(Gauge.MEMORY_LIMIT_BYTES, lambda: cache.pool.limit_bytes)

    # Names

    async def lookup(self, parent: InodeNumber, name: str) -> Entry:
        """What *name* stands for; the kernel gets a reference to it.

        Raises:
            NoSuchEntryError: There is no such name.
        """
        inode = await self._tree.lookup(self._tree.directory(parent), name)
        self._tree.remember(inode)
        return self._entry(inode)

    def forget(self, references: Iterable[tuple[InodeNumber, int]]) -> None:
        """Take back references of the kernel's."""
        self._tree.forget(references)

    def getattr(self, number: InodeNumber) -> Entry:
        """Attributes of an inode. They are those of its version: whether the name still stands for it, lookup tells."""
        return self._entry(self._tree.inode(number))

    def getxattr(self, number: InodeNumber, name: str) -> bytes:
        """Value of an extended attribute, from what is known; never asks the store.

        Raises:
            NoSuchAttributeError: It is none of ours, or not known. UnsupportedOperationError: It is an ACL or a label.
            ``ls -l`` then asks for them once per mount, not per file.
        """
        if not name.startswith("user."):
            raise UnsupportedOperationError(name)
        value = self._xattrs(self._tree.inode(number)).get(name)
        if value is None:
            raise NoSuchAttributeError(name)
        return value.encode()

    def listxattr(self, number: InodeNumber) -> list[str]:
        """Names of the extended attributes: none, so that tools which copy attributes do not copy these."""
        self._tree.inode(number)
        return []

    # Files

    async def open(self, number: InodeNumber, flags: int) -> HandleId:
        """Open a file for reading, pinned to the version it has now."""
        inode = self._tree.file(number)
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC):
            raise ReadOnlyError(inode.name)
        object_id = await self._tree.pin(inode)
        self._upcoming.note_opened(inode)
        reader = self._readers.open(object_id, inode.size)
        return self._handles.add(FileHandle(inode, reader, is_direct=bool(flags & os.O_DIRECT)))

    async def read(self, number: HandleId, offset: int, size: int) -> memoryview | bytes:
        """Bytes of the version that was opened, fewer than *size* only at its end; valid until the next await.

        Raises:
            StaleObjectError: That version is gone and its bytes are not in memory.
        """
        handle = self._handles.file(number)
        span = ByteRange(offset, offset + size)
        repeated = handle.failed.take_error(span, trio.current_time())
        if repeated is not None:
            raise repeated
        try:
            return await self._read(handle, offset, size)
        except FileError as error:
            if not handle.is_direct:
                handle.failed.note(span, error, trio.current_time())
            raise

    def release(self, number: HandleId) -> None:
        """Close a file."""
        self._handles.remove(number)

    # Directories

    def opendir(self, number: InodeNumber) -> HandleId:
        """Open a directory."""
        return self._handles.add(DirectoryHandle(self._tree.directory(number), self._tree))

    async def readdir(self, number: HandleId, position: int, emit: Emit) -> None:
        """Emit entries from *position* on until there is no room, or none that could be had without waiting.

        The kernel gets a reference to each emitted entry but ``.`` and ``..``.
        """
        handle = self._handles.directory(number)
        directory = handle.directory
        if position == 0:
            handle.rewind()
            # A directory that cannot be listed shows an error, not two entries and then an error.
            await handle.entry(0)
        for name, inode in ((".", directory), ("..", directory.parent or directory))[position:]:
            position += 1
            if not emit(DirectoryEntry(name, self._entry(inode), position)):
                return
        has_emitted = False
        while not (has_emitted and handle.is_waiting_needed(position - FIRST_ENTRY)):
            child = await handle.entry(position - FIRST_ENTRY)
            if child is None:
                return
            position += 1
            if not emit(DirectoryEntry(child.name, self._entry(child), position)):
                return
            self._tree.remember(child)
            has_emitted = True

    def check_invariants(self) -> None:
        """Raise `AssertionError` if names, inodes, buffers and handles contradict each other."""
        self._tree.names.check_invariants()
        self._cache.check_invariants()

    def _entry(self, inode: Inode) -> Entry:
        is_root = inode is self._tree.names.inodes.root
        ttl = self._namespace_options.ttl_seconds if is_root else self._tree.seconds_fresh(inode)
        return Entry(attributes_of(inode, self._namespace_options), ttl)

    async def _read(self, handle: FileHandle, offset: int, size: int) -> memoryview | bytes:
        try:
            return await self._read_or_correct(handle, offset, size)
        except ArchivedObjectError:
            self._warn_archived(handle)
            raise
        except AccessDeniedError as error:
            self._warn_refused(handle, error)
            raise

    async def _read_or_correct(self, handle: FileHandle, offset: int, size: int) -> memoryview | bytes:
        if handle.inode.is_archived:
            raise ArchivedObjectError(handle.inode.name)
        refused = handle.reader.object_id
        try:
            return await self._read_version(handle, offset, size)
        except StaleObjectError:
            await self._correct_version(handle, refused)
            return await self._read_version(handle, offset, size)

    async def _read_version(self, handle: FileHandle, offset: int, size: int) -> memoryview | bytes:
        reader, inode = handle.reader, handle.inode
        if not handle.was_read:
            handle.was_read = True
            self._upcoming.note_read(inode)
        content = await reader.read(offset, size)
        # Meanwhile another handle may have found that the inode stands for another version: the kernel keeps pages by
        # inode, so bytes of this one must not reach it any more. From here to the reply nobody else runs.
        if reader.object_id.etag != (inode.etag or NO_ETAG):
            raise StaleObjectError(reader.object_id.key)
        inode.was_read = True
        return content

    async def _correct_version(self, handle: FileHandle, refused: ObjectId) -> None:
        """Let the handle read the version its inode stands for now, which may take over another one until it was read.

        Raises:
            StaleObjectError: It still stands for the refused one, and bytes of that were read.
        """
        inode, reader = handle.inode, handle.reader
        if reader.object_id != refused:
            return  # another read of this handle has seen to it
        if inode.etag == refused.etag:
            if inode.was_read:
                await self._drop_stale(inode)
                raise StaleObjectError(refused.key)
            await self._tree.recheck(inode)
        object_id = await self._tree.pin(inode)
        if object_id == refused:
            raise StaleObjectError(refused.key)
        if handle.reader is reader:
            handle.reader = self._readers.open(object_id, inode.size)
            reader.close()

    async def _drop_stale(self, inode: FileInode) -> None:
        """Make sure that the next open of the name finds the version there is now."""
        try:
            await self._tree.recheck(inode)
        except FileError as error:
            log.debug("%r is stale: %r", inode.name, error)

    def _warn_archived(self, handle: FileHandle) -> None:
        key = handle.reader.object_id.key
        if self._named_archived.add(key):
            log.warning("key %r is archived (InvalidObjectState): restore it before it can be read", key)

    def _warn_refused(self, handle: FileHandle, error: AccessDeniedError) -> None:
        key = handle.reader.object_id.key
        if self._named_refused.add(key):
            # The reason is in the server's words, line breaks and all.
            log.warning("key %r may not be read: %r", key, str(error))

    def _xattrs(self, inode: Inode) -> dict[str, str | None]:
        if isinstance(inode, DirectoryInode):
            return {"user.s3mount.key": inode.key_prefix}
        assert isinstance(inode, FileInode)
        return {
            "user.s3mount.key": self._tree.names.key_of(inode),
            "user.s3mount.etag": inode.etag,
            "user.s3mount.storage_class": inode.storage_class,
            "user.s3mount.content_type": inode.content_type,
            "user.s3mount.version_id": inode.version_id,
        }
