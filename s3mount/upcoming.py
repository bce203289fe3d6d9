"""Fetches small files before they are opened: the next ones of a directory read in order, or of a hinted order.

What is fetched ahead is bounded by its share of the memory budget and by a number of files; reads that somebody waits
for go first. A shuffled order without a hint costs nothing extra.
"""

import logging

import trio
from cachetools import LRUCache

from s3mount.cache.blocks import BlockCache
from s3mount.errors import FileError, UsageError
from s3mount.ids import ObjectId
from s3mount.namespace.inodes import DirectoryInode, FileInode, Inode
from s3mount.namespace.tree import Tree
from s3mount.ranges import MIB, ByteRange
from s3mount.reading.order import HintedOrder, ListedOrder
from s3mount.reading.window import RANGE_SIZE

log = logging.getLogger(__name__)

MAX_HINTS = 64
"""Orders followed at a time, such as one per training process of a host; the oldest goes first."""

MAX_HINT_BYTES = 64 * MIB
"""Memory for the paths of all orders that are followed; the oldest goes first."""

LOOKUPS_AHEAD = 16
"""Names of one hinted order that are looked up at a time: its directories may not have been listed yet."""

MAX_DIRECTORIES = 64
"""Directories whose order of reading is watched."""

RETRY_SECONDS = 1.0
"""How soon memory is looked for again when no file is opened meanwhile."""

LOST_FILES_AHEAD = 32
"""Files read before that are fetched anew when it shows that the kernel's page cache has lost such files."""


class UpcomingFiles:
    """What one mount fetches ahead of reads."""

    def __init__(self, tree: Tree, cache: BlockCache, nursery: trio.Nursery, *, ttl_seconds: float) -> None:
        """Fetch ahead unless *ttl_seconds* is 0: names that may not be used again cannot be known ahead."""
        self._is_enabled = ttl_seconds > 0
        self._tree = tree
        self._cache = cache
        self._nursery = nursery
        self._hints: list[HintedOrder] = []
        self._opened = trio.lowlevel.ParkingLot()
        """Waits for the next file of a hinted order to be opened."""
        self._listed: LRUCache[DirectoryInode, ListedOrder] = LRUCache(MAX_DIRECTORIES)
        self._last_read_in: DirectoryInode | None = None

    def add_hint(self, text: bytes) -> int:
        """Follow an order in which files will be read.

        Args:
            text: Paths below the mounted directory, one per line.

        Returns:
            Number of lines.

        Raises:
            UsageError: Nothing is fetched ahead here.
        """
        if not self._is_enabled:
            raise UsageError("with --ttl 0 every name is asked for anew: nothing can be fetched ahead")
        hint = HintedOrder(text)
        self._hints.append(hint)
        while len(self._hints) > MAX_HINTS or sum(hint.text_bytes for hint in self._hints) > MAX_HINT_BYTES:
            del self._hints[0]
        self._nursery.start_soon(self._follow, hint)
        return len(text.splitlines())

    def note_opened(self, inode: FileInode) -> None:
        """A file is opened."""
        if not self._hints:
            return
        path = _path_of(inode)
        if sum(hint.note_opened(path) for hint in self._hints):
            self._hints = [hint for hint in self._hints if not hint.is_read]
            self._opened.unpark_all()

    def note_read(self, inode: FileInode) -> None:
        """A file is read for the first time since it was opened, and not from the kernel's page cache."""
        directory = inode.parent
        if not self._is_enabled:
            return
        if self._hints:
            if inode.was_read:
                self._fetch_lost()
        elif directory is not None and inode.size <= RANGE_SIZE:
            if directory is self._last_read_in:
                self._fetch_siblings(directory, inode)
            self._last_read_in = directory

    def _fetch_lost(self) -> None:
        """Fetch the next hinted files also if they were read before."""
        for hint in self._hints:
            for path in hint.upcoming(LOST_FILES_AHEAD):
                inode = self._known(path)
                if inode is not None and not self._fetch(inode, hint, although_read=True):
                    return

    def _fetch_siblings(self, directory: DirectoryInode, inode: FileInode) -> None:
        """Fetch what comes after *inode* if its directory is read in order."""
        order = self._listed.get(directory)
        if order is None or len(order) != len(directory.children):
            order = self._listed[directory] = ListedOrder(list(directory.children))
        for position in order.note_read(inode.name):
            sibling = directory.children.get(order[position])
            if (
                isinstance(sibling, FileInode)
                and sibling.size <= RANGE_SIZE
                and not self._fetch(sibling, order, although_read=inode.was_read)
            ):
                order.give_back(position)
                return

    async def _follow(self, hint: HintedOrder) -> None:
        """Fetch what *hint* names, as far ahead as it says, until it is over or given up."""
        limit = trio.Semaphore(LOOKUPS_AHEAD)
        async with trio.open_nursery() as nursery:
            while hint in self._hints and not hint.is_over:
                path = hint.take()
                if path is None:
                    await self._opened.park()
                elif (inode := self._known(path)) is not None:
                    await self._fetch_hinted(inode, hint)
                else:
                    await limit.acquire()
                    nursery.start_soon(self._find_and_fetch, path, hint, limit)

    async def _find_and_fetch(self, path: str, hint: HintedOrder, limit: trio.Semaphore) -> None:
        try:
            inode: Inode = self._tree.names.inodes.root
            for name in path.split("/"):
                if not isinstance(inode, DirectoryInode):
                    return
                inode = await self._tree.lookup(inode, name)
            if isinstance(inode, FileInode):
                await self._fetch_hinted(inode, hint)
        except FileError as error:
            log.debug("hinted %r: %r", path, error)
        finally:
            limit.release()

    async def _fetch_hinted(self, inode: FileInode, hint: HintedOrder) -> None:
        """Begin to fetch a file as soon as there is memory."""
        while hint in self._hints and not self._fetch(inode, hint):
            with trio.move_on_after(RETRY_SECONDS):
                await self._opened.park()

    def _known(self, path: str) -> FileInode | None:
        """The file at *path*, if it is known without asking."""
        inode: Inode | None = self._tree.names.inodes.root
        for name in path.split("/"):
            inode = inode.children.get(name) if isinstance(inode, DirectoryInode) else None
        return inode if isinstance(inode, FileInode) and self._tree.seconds_fresh(inode) > 0 else None

    def _fetch(self, inode: FileInode, owner: object, *, although_read: bool = False) -> bool:
        """Begin to fetch the start of a file, all of it if it is small; false if there is no memory for it now.

        One that was read before is left out, since the kernel's page cache probably has it, unless *although_read*.
        """
        if not inode.size or inode.etag is None or inode.is_archived or inode.parent is None:
            return True
        if inode.was_read and not although_read:
            return True
        object_id = ObjectId(self._tree.names.key_of(inode), inode.etag)
        return self._cache.fetch_ahead(object_id, inode.size, ByteRange(0, RANGE_SIZE).clamp(inode.size), owner)


def _path_of(inode: Inode) -> str:
    """Path below the mounted directory."""
    names = [inode.name]
    directory = inode.parent
    while directory is not None and directory.parent is not None:
        names.append(directory.name)
        directory = directory.parent
    return "/".join(reversed(names))
