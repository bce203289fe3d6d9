"""What ``stat`` shows of an inode, and how long it may be used.

Pure.
"""

import stat
from dataclasses import dataclass

from s3mount.ids import InodeNumber
from s3mount.namespace.inodes import DirectoryInode, FileInode, Inode
from s3mount.options import NamespaceOptions

BLOCK_SIZE = 512
"""Unit of ``st_blocks`` (POSIX)."""

PREFERRED_IO_SIZE = 128 * 1024
"""``st_blksize``: what buffered readers (Python's ``open``, C's ``fopen``) fetch for a few bytes at a random offset. As
large as the block of a random read; the kernel's readahead makes large requests of reads in sequence all the same."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """The stat of one inode."""

    number: InodeNumber
    mode: int
    """Type and permissions."""
    link_count: int
    """1 also for directories: tools must not derive the number of subdirectories from it."""
    uid: int
    gid: int
    size: int
    blocks: int
    mtime_ns: int


def attributes_of(inode: Inode, options: NamespaceOptions) -> Attributes:
    """Stat of *inode*.

    An archived object occupies no blocks: ``du`` and tools that read sparse files see that there is nothing to read.
    """
    if isinstance(inode, FileInode):
        mode, size, mtime_ns = stat.S_IFREG | options.file_mode, inode.size, inode.mtime_ns
        blocks = 0 if inode.is_archived else -(-size // BLOCK_SIZE)
    else:
        assert isinstance(inode, DirectoryInode)
        mode, size, mtime_ns, blocks = stat.S_IFDIR | options.dir_mode, 0, inode.mtime_ns, 0
    is_detached = inode.parent is None and isinstance(inode, FileInode)
    return Attributes(
        number=inode.number,
        mode=mode,
        link_count=0 if is_detached else 1,
        uid=options.uid,
        gid=options.gid,
        size=size,
        blocks=blocks,
        mtime_ns=mtime_ns,
    )


def seconds_left(checked_at: float, *, ttl_seconds: float, now: float) -> float:
    """How long what was true at *checked_at* may still be used; 0 if no longer."""
    return max(0.0, checked_at + ttl_seconds - now)
