"""The FUSE transport: translates between pyfuse3 and `FileSystem`; its one boundary turns errors into errnos.

Nothing but `FUSEError` and cancellation may leave an operation: anything else would end pyfuse3's main loop, and the
mount. Names are bytes here and `str` everywhere else; a name that is not UTF-8 can be no key's.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyfuse3

from s3mount.errors import (
    NEVER_NEEDED,
    FileError,
    FuseUnavailableError,
    InvalidNameError,
    NoSuchEntryError,
    errno_name,
    errno_of,
)
from s3mount.filesystem import DirectoryEntry, Entry, FileSystem
from s3mount.ids import HandleId, InodeNumber
from s3mount.metrics import Metrics
from s3mount.namespace.attributes import PREFERRED_IO_SIZE
from s3mount.options import MountPointOptions

log = logging.getLogger(__name__)

MAX_TASKS = 1000
"""Requests handled at a time. pyfuse3's 99 would let 99 reads that wait for S3 block a cached stat."""

IDLE_TASKS = 16
"""Tasks kept waiting for requests: making one costs more than a small request."""

FREE_BYTES = 1 << 60
"""Space that ``df`` shows: S3 has no limit; programs compute with it in signed 64 bits."""

STATFS_BLOCK_SIZE = 4096
STATFS_INODES = 1 << 40
MAX_NAME = 255

P = ParamSpec("P")
R = TypeVar("R")


def _boundary(
    operation: Callable[Concatenate["FuseOperations", P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate["FuseOperations", P], Coroutine[Any, Any, R]]:
    """Turn whatever *operation* raises into the errno an application sees. The only place where that happens."""
    name = operation.__name__

    @functools.wraps(operation)
    async def guarded(self: "FuseOperations", /, *args: P.args, **kwargs: P.kwargs) -> R:
        log.debug("%s%s", name, args)
        try:
            return await operation(self, *args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        except FileError as error:
            number = errno_of(error)
            log.debug("%s%s: %s: %r", name, args, errno_name(number), error)
        except Exception as error:
            number = errno_of(error)
            log.exception("internal error in %s", name)
        self.metrics.add_error(errno_name(number))
        raise pyfuse3.FUSEError(number)

    return guarded


class FuseOperations(pyfuse3.Operations):
    """pyfuse3's view of one `FileSystem`."""

    enable_writeback_cache = False
    supports_dot_lookup = False

    def __init__(self, filesystem: FileSystem, metrics: Metrics, *, absent_ttl_seconds: float) -> None:
        super().__init__()
        self._filesystem = filesystem
        self.metrics = metrics
        self._absent_ttl_seconds = absent_ttl_seconds

    @_boundary
    async def lookup(
        self, parent_inode: pyfuse3.InodeT, name: bytes, _ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Find a name; its absence is told with a lifetime of its own."""
        try:
            return _to_pyfuse3(await self._filesystem.lookup(InodeNumber(parent_inode), _decode(name)))
        except (NoSuchEntryError, InvalidNameError) as error:
            if not self._absent_ttl_seconds:
                raise NoSuchEntryError(name) from error
            absent = pyfuse3.EntryAttributes()
            absent.st_ino = pyfuse3.InodeT(0)
            absent.entry_timeout = self._absent_ttl_seconds
            return absent

    async def forget(self, inode_list: Sequence[tuple[pyfuse3.InodeT, int]]) -> None:
        """Take back references. It has no reply, so not even an errno may leave it."""
        with contextlib.suppress(pyfuse3.FUSEError):
            await self._forget(inode_list)

    @_boundary
    async def _forget(self, inode_list: Sequence[tuple[pyfuse3.InodeT, int]]) -> None:
        self._filesystem.forget([(InodeNumber(number), count) for number, count in inode_list])

    @_boundary
    async def getattr(self, inode: pyfuse3.InodeT, _ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """Stat an inode."""
        return _to_pyfuse3(self._filesystem.getattr(InodeNumber(inode)))

    @_boundary
    async def open(self, inode: pyfuse3.InodeT, flags: int, _ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        """Open a file. Its pages stay valid: an inode is one version."""
        handle = await self._filesystem.open(InodeNumber(inode), flags)
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(handle), keep_cache=True)

    @_boundary
    async def read(self, fh: pyfuse3.FileHandleT, off: int, size: int) -> bytes:
        """Read; pyfuse3 replies from the returned buffer before any other task runs."""
        return await self._filesystem.read(HandleId(fh), off, size)  # type: ignore[return-value]  # any buffer will do

    @_boundary
    async def flush(self, fh: pyfuse3.FileHandleT) -> None:  # noqa: ARG002 pyfuse3's signature
        """Nothing to do for a file that was only read; the kernel asks once, and closes files without asking then."""
        raise pyfuse3.FUSEError(NEVER_NEEDED)

    @_boundary
    async def release(self, fh: pyfuse3.FileHandleT) -> None:
        """Close a file."""
        self._filesystem.release(HandleId(fh))

    @_boundary
    async def fsync(self, fh: pyfuse3.FileHandleT, datasync: bool) -> None:  # noqa: FBT001 pyfuse3's signature
        """Nothing to do for a file that was only read."""

    @_boundary
    async def opendir(self, inode: pyfuse3.InodeT, _ctx: pyfuse3.RequestContext) -> pyfuse3.FileHandleT:
        """Open a directory."""
        return pyfuse3.FileHandleT(self._filesystem.opendir(InodeNumber(inode)))

    @_boundary
    async def readdir(self, fh: pyfuse3.FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """List a directory, from a position on."""

        def emit(entry: DirectoryEntry) -> bool:
            attributes = _to_pyfuse3(entry.entry)
            return pyfuse3.readdir_reply(token, entry.name.encode(), attributes, entry.next_position)

        await self._filesystem.readdir(HandleId(fh), start_id, emit)

    @_boundary
    async def releasedir(self, fh: pyfuse3.FileHandleT) -> None:
        """Close a directory."""
        self._filesystem.release(HandleId(fh))

    @_boundary
    async def fsyncdir(self, fh: pyfuse3.FileHandleT, datasync: bool) -> None:  # noqa: FBT001 pyfuse3's signature
        """Nothing to do."""

    @_boundary
    async def statfs(self, _ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """Show room without end; asks nobody."""
        stat = pyfuse3.StatvfsData()
        stat.f_bsize = stat.f_frsize = STATFS_BLOCK_SIZE
        stat.f_blocks = stat.f_bfree = stat.f_bavail = FREE_BYTES // STATFS_BLOCK_SIZE
        stat.f_files = stat.f_ffree = stat.f_favail = STATFS_INODES
        stat.f_namemax = MAX_NAME
        return stat

    @_boundary
    async def getxattr(self, inode: pyfuse3.InodeT, name: bytes, _ctx: pyfuse3.RequestContext) -> bytes:
        """Read an extended attribute."""
        return self._filesystem.getxattr(InodeNumber(inode), _decode(name))

    @_boundary
    async def listxattr(self, inode: pyfuse3.InodeT, _ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        """List extended attributes."""
        return [name.encode() for name in self._filesystem.listxattr(InodeNumber(inode))]


def invalidate_name(parent: InodeNumber, name: str) -> None:
    """Have the kernel look *name* up again; returns at once, since that may block while a request is answered."""
    pyfuse3.invalidate_entry_async(pyfuse3.InodeT(parent), name.encode(), ignore_enoent=True)


class FuseMount:
    """The attached file system. Must be closed."""

    def __init__(self, operations: FuseOperations, options: MountPointOptions) -> None:
        """Attach it; requests wait until `serve` runs.

        Raises:
            FuseUnavailableError: The kernel or ``fusermount3`` refused.
        """
        fuse_options = {*pyfuse3.default_options, "ro", "nosuid", "nodev", f"fsname={_escaped(options.source)}"}
        fuse_options.add("subtype=s3mount")
        if options.allow_other:
            fuse_options.add("allow_other")
        try:
            pyfuse3.init(operations, str(options.path), fuse_options)
        except RuntimeError as error:
            raise FuseUnavailableError(
                f"cannot attach a file system to {options.path}: check that /dev/fuse exists and may be used"
            ) from error

    async def serve(self) -> None:
        """Answer requests until the file system is unmounted or `stop` is called."""
        await pyfuse3.main(min_tasks=IDLE_TASKS, max_tasks=MAX_TASKS)

    def stop(self) -> None:
        """Take no more requests; `serve` returns once those under way are answered."""
        pyfuse3.terminate()

    def close(self) -> None:
        """Detach the file system, if it still is attached."""
        pyfuse3.close(unmount=True)


def _decode(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise InvalidNameError(name) from error


def _to_pyfuse3(entry: Entry) -> pyfuse3.EntryAttributes:
    source = entry.attributes
    attributes = pyfuse3.EntryAttributes()
    attributes.st_ino = pyfuse3.InodeT(source.number)
    attributes.st_mode = pyfuse3.ModeT(source.mode)
    attributes.st_nlink = source.link_count
    attributes.st_uid = source.uid
    attributes.st_gid = source.gid
    attributes.st_size = source.size
    attributes.st_blocks = source.blocks
    attributes.st_blksize = PREFERRED_IO_SIZE
    attributes.st_atime_ns = attributes.st_mtime_ns = attributes.st_ctime_ns = source.mtime_ns
    attributes.attr_timeout = attributes.entry_timeout = entry.ttl_seconds
    return attributes


def _escaped(option: str) -> str:
    """An option's value as libfuse and pyfuse3 take it: the one splits options at commas, the other wants ASCII."""
    ascii_only = option.encode("ascii", "backslashreplace").decode()
    return ascii_only.replace("\\", "\\\\").replace(",", "\\,")
