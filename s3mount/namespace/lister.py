"""Lists directories: one LIST pass per directory at a time, shared by everybody who wants to know.

Entries become available page by page, so a reader of a big directory starts after the first page. A pass goes on while
somebody waits for it; one that was begun on suspicion (priming, listing ahead of a walk) ends after a few pages if
nobody does. A pass is complete or it is an error: only a complete one says that a name is absent.

Runs in trio. Between two awaits a pass has all state to itself; entries are installed by `Adopt` without awaiting.
"""

import logging
from collections.abc import Callable

import trio

from s3mount.errors import FileError
from s3mount.log import KeysNamedOnce
from s3mount.metrics import Metric, Metrics
from s3mount.namespace.inodes import DirectoryInode, FileInode, Inode
from s3mount.namespace.keys import is_hidden_file
from s3mount.namespace.listing import ListedEntry, ListingAssembler
from s3mount.namespace.paging import Paging
from s3mount.store.interface import ObjectStore

log = logging.getLogger(__name__)

Adopt = Callable[[DirectoryInode, ListedEntry, float], Inode]
"""Installs an entry of a directory as of a time and returns its inode."""

Complete = Callable[[DirectoryInode, float, list[Inode]], None]
"""Called after a complete pass that was begun at that time and has shown these entries: other names are absent."""

UNASKED_PAGES = 3
"""Pages a pass nobody waits for may cost: 3,000 names cover nearly all directories."""

MAX_LISTINGS_AHEAD = 16
"""Passes at a time up to which another one may be begun that nobody waits for."""


class Listing:
    """One pass over a directory.

    **Invariant:** `entries` only grows; after `is_over` nothing changes.
    """

    def __init__(self, directory: DirectoryInode, started_at: float) -> None:
        self.directory = directory
        self.started_at = started_at
        self.entries: list[Inode] = []
        """In the order of the store; positions are what readers' cookies mean."""
        self.is_over = False
        self.is_complete = False
        self.error: FileError | None = None
        self.waiting = 0
        """Open directories that want all pages."""
        self._progress = trio.Event()

    @classmethod
    def of_known(cls, directory: DirectoryInode) -> "Listing":
        """The pass that a fresh, complete listing made unnecessary."""
        listing = cls(directory, directory.listed_at)
        listing.entries = [
            child
            for name, child in directory.children.items()
            if not (isinstance(child, FileInode) and is_hidden_file(name))
        ]
        listing.is_over = listing.is_complete = True
        return listing

    async def wait_for_more(self) -> None:
        """Return after the next page, or when the pass is over."""
        if not self.is_over:
            await self._progress.wait()

    def advance(self) -> None:
        """Wake all who wait for the next page."""
        self._progress.set()
        self._progress = trio.Event()


class Lister:
    """All passes of one mount. **Invariant:** at most one pass per directory is under way."""

    def __init__(
        self, store: ObjectStore, nursery: trio.Nursery, metrics: Metrics, *, adopt: Adopt, complete: Complete
    ) -> None:
        self._store = store
        self._nursery = nursery
        self._metrics = metrics
        self._adopt = adopt
        self._complete = complete
        self._running: dict[DirectoryInode, Listing] = {}
        self._named_shadows = KeysNamedOnce()

    def running(self, directory: DirectoryInode) -> Listing | None:
        """The pass that is under way, if any."""
        return self._running.get(directory)

    def start(self, directory: DirectoryInode) -> Listing:
        """The pass under way, or a new one; without waiting."""
        listing = self._running.get(directory)
        if listing is None:
            listing = Listing(directory, trio.current_time())
            self._running[directory] = listing
            self._nursery.start_soon(self._run, listing, name=f"list {directory.number}")
        return listing

    def has_room_ahead(self) -> bool:
        """Whether another pass may be begun that nobody waits for."""
        return len(self._running) < MAX_LISTINGS_AHEAD

    async def _run(self, listing: Listing) -> None:
        try:
            await self._list_pages(listing)
        except FileError as error:
            log.debug("listing of %r failed: %r", listing.directory.name, error)
            listing.error = error
        finally:
            listing.is_over = True
            del self._running[listing.directory]
            listing.advance()

    async def _list_pages(self, listing: Listing) -> None:
        directory = listing.directory
        key_prefix = directory.key_prefix
        assembler = ListingAssembler(key_prefix, directory.head)
        paging = Paging(self._store, key_prefix)
        pages = 0
        # A lookup or a reader may come between two pages: ask again each time.
        while pages < UNASKED_PAGES or listing.waiting:
            asked_at = trio.current_time()
            page = await paging.next_page()
            pages += 1
            self._install(listing, assembler.feed(page), asked_at)
            if paging.is_over:
                self._install(listing, assembler.finish(), asked_at)
                listing.is_complete = True
                self._complete(directory, listing.started_at, listing.entries)
                self._report_shadowed(assembler.shadowed)
                return
            listing.advance()

    def _install(self, listing: Listing, entries: list[ListedEntry], asked_at: float) -> None:
        adopt, directory = self._adopt, listing.directory
        listing.entries += [adopt(directory, entry, asked_at) for entry in entries]

    def _report_shadowed(self, keys: list[str]) -> None:
        self._metrics.add(Metric.SKIPPED_KEYS, len(keys))
        for key in keys:
            if self._named_shadows.add(key):
                log.warning("key %r is not listed: a directory has its name; see docs/semantics.md for its path", key)
