"""Open files and directories by the numbers the kernel knows them by."""

from dataclasses import dataclass, field

from s3mount.errors import BadHandleError
from s3mount.ids import HandleId
from s3mount.namespace.inodes import DirectoryInode, FileInode, Inode
from s3mount.namespace.lister import Listing
from s3mount.namespace.tree import Tree
from s3mount.reading.reader import Reader
from s3mount.reading.repeat import FailedRead


@dataclass(slots=True)
class FileHandle:
    """An open file: the version it was opened on, for as long as it is open."""

    inode: FileInode
    reader: Reader
    is_direct: bool = False
    """Whether reads pass by the kernel's page cache."""
    was_read: bool = False
    failed: FailedRead = field(default_factory=FailedRead)


class DirectoryHandle:
    """An open directory: one pass over its entries, in an order that does not change while it is read.

    A position stays valid until the handle is closed or rewound, whatever comes and goes meanwhile.
    """

    def __init__(self, directory: DirectoryInode, tree: Tree) -> None:
        self.directory = directory
        self._tree = tree
        self._listing: Listing | None = None

    def rewind(self) -> None:
        """Begin anew: the next entries are those the directory has then."""
        self.close()
        self._listing = self._tree.list_directory(self.directory)
        self._listing.waiting += 1

    def close(self) -> None:
        """End the interest in further pages."""
        if self._listing is not None:
            self._listing.waiting -= 1
            self._listing = None

    def is_waiting_needed(self, position: int) -> bool:
        """Whether the entry at *position* would have to be waited for."""
        return self._listing is None or (position >= len(self._listing.entries) and not self._listing.is_over)

    async def entry(self, position: int) -> Inode | None:
        """The entry at *position*; None at the end.

        Raises:
            FileError: The directory could not be listed to its end.
        """
        if self._listing is None:
            self.rewind()
        listing = self._listing
        assert listing is not None
        while position >= len(listing.entries) and not listing.is_over:
            await listing.wait_for_more()
        if position < len(listing.entries):
            listed = listing.entries[position]
            # The name may stand for a newer version by now.
            return self.directory.children.get(listed.name, listed)
        if listing.error is not None:
            raise listing.error
        assert listing.is_complete, "a pass that is waited for goes on to the end"
        return None


class HandleTable:
    """All open handles of one mount. **Invariant:** a number is never used again."""

    def __init__(self) -> None:
        self._next = 1
        self._handles: dict[HandleId, FileHandle | DirectoryHandle] = {}

    def __len__(self) -> int:
        return len(self._handles)

    def add(self, handle: FileHandle | DirectoryHandle) -> HandleId:
        """Number a new handle."""
        number = HandleId(self._next)
        self._next += 1
        self._handles[number] = handle
        return number

    def file(self, number: HandleId) -> FileHandle:
        """The open file of that number.

        Raises:
            BadHandleError: There is none.
        """
        handle = self._handles.get(number)
        if not isinstance(handle, FileHandle):
            raise BadHandleError(number)
        return handle

    def directory(self, number: HandleId) -> DirectoryHandle:
        """The open directory of that number.

        Raises:
            BadHandleError: There is none.
        """
        handle = self._handles.get(number)
        if not isinstance(handle, DirectoryHandle):
            raise BadHandleError(number)
        return handle

    def remove(self, number: HandleId) -> None:
        """Close a handle; the kernel does so exactly once."""
        handle = self._handles.pop(number, None)
        if handle is None:
            raise BadHandleError(number)
        if isinstance(handle, FileHandle):
            handle.reader.close()
        else:
            handle.close()
