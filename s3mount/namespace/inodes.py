"""Inodes: what the kernel holds references to, and the names known below each directory.

An inode stands for one version of one object, or for one directory. When another client replaces the object, its name
gets a new inode; the old one is *detached*: it has no name any more, but keeps its attributes for as long as the kernel
or a handle refers to it. So the kernel's pages of two versions can never mix.

An inode exists as soon as its name is known (usually from a listing); it is *live* while the kernel's lookup count is
above zero. Memory per inode is what bounds the size of a directory that can be listed, hence the slots and the shared
values.

Pure.
"""

from collections.abc import Iterable, Iterator

from s3mount.ids import ROOT_INODE, ETag, InodeNumber
from s3mount.store.interface import ObjectSummary

NANOSECONDS = 1_000_000_000

NEVER = float("-inf")
"""Time of a check that has not been made."""


class Inode:
    """What files and directories have in common."""

    __slots__ = ("checked_at", "lookup_count", "name", "number", "parent")

    def __init__(self, *, number: InodeNumber, parent: "DirectoryInode | None", name: str, checked_at: float) -> None:
        self.number = number
        self.parent = parent
        """None when detached, and for the root."""
        self.name = name
        self.lookup_count = 0
        """References the kernel holds."""
        self.checked_at = checked_at
        """When the store last said that this is what the name stands for (seconds of the mount's clock)."""


class FileInode(Inode):
    """One version of one object."""

    __slots__ = ("content_type", "etag", "is_archived", "mtime_ns", "size", "storage_class", "version_id", "was_read")

    def __init__(
        self,
        *,
        number: InodeNumber,
        parent: "DirectoryInode | None",
        name: str,
        checked_at: float,
        summary: ObjectSummary,
    ) -> None:
        super().__init__(number=number, parent=parent, name=name, checked_at=checked_at)
        self.size = summary.size
        self.mtime_ns = summary.mtime_ns
        self.etag: ETag | None = summary.etag
        self.storage_class = summary.storage_class
        self.is_archived = summary.is_archived
        self.content_type = summary.content_type
        self.version_id = summary.version_id
        self.was_read = False
        """Whether bytes of this version may be in the kernel's pages; until then its ETag may still be corrected."""

    def is_same_version(self, summary: ObjectSummary) -> bool:
        """Whether *summary* shows the version this inode stands for."""
        return (
            self.size == summary.size
            and self.etag == summary.etag
            and (self.etag is not None or self.is_same_time(summary))
        )

    def is_same_time(self, summary: ObjectSummary) -> bool:
        """Whether both were modified in the same second, the resolution of HEAD."""
        return self.mtime_ns // NANOSECONDS == summary.mtime_ns // NANOSECONDS

    def refresh(self, summary: ObjectSummary, now: float) -> None:
        """Take over what the store says again of the same version."""
        self.checked_at = now
        self.is_archived = summary.is_archived
        self.storage_class = summary.storage_class
        self.content_type = summary.content_type or self.content_type
        self.version_id = summary.version_id or self.version_id


class DirectoryInode(Inode):
    """A prefix and the names known below it."""

    __slots__ = ("children", "head", "listed_at", "misses", "mtime_ns", "text")

    def __init__(
        self,
        *,
        number: InodeNumber,
        parent: "DirectoryInode | None",
        name: str,
        text: str,
        head: str,
        checked_at: float,
        mtime_ns: int,
    ) -> None:
        super().__init__(number=number, parent=parent, name=name, checked_at=checked_at)
        self.text = text
        """What its name adds to a key; with the ``/``, unless it is a part (`keys.PART`)."""
        self.head = head
        """`text` of a part, otherwise empty."""
        self.mtime_ns = mtime_ns
        self.children: dict[str, Inode] = {}
        self.listed_at = NEVER
        """When the newest complete listing was begun: absent names were absent then."""
        self.misses = 0
        """Lookups below it that had to ask the store since the last listing."""

    @property
    def key_prefix(self) -> str:
        """Full prefix of the keys below this directory."""
        texts = []
        directory: DirectoryInode | None = self
        while directory is not None:
            texts.append(directory.text)
            directory = directory.parent
        return "".join(reversed(texts))


class InodeTable:
    """All inodes that the kernel may ask for by number.

    **Invariant:** an inode is in the table exactly while its lookup count is above zero; the root always is.
    """

    def __init__(self, *, root_text: str, mtime_ns: int) -> None:
        self._next_number = ROOT_INODE + 1
        self.root = DirectoryInode(
            number=ROOT_INODE, parent=None, name="", text=root_text, head="", checked_at=NEVER, mtime_ns=mtime_ns
        )
        self.root.lookup_count = 1
        self._live: dict[InodeNumber, Inode] = {ROOT_INODE: self.root}

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Inode]:
        return iter(self._live.values())

    def new_number(self) -> InodeNumber:
        """A number no inode ever had."""
        number = InodeNumber(self._next_number)
        self._next_number += 1
        return number

    def get(self, number: InodeNumber) -> Inode | None:
        """The live inode of that number."""
        return self._live.get(number)

    def remember(self, inode: Inode) -> None:
        """Count one more reference of the kernel's."""
        if inode.lookup_count == 0:
            self._live[inode.number] = inode
        inode.lookup_count += 1

    def forget(self, references: Iterable[tuple[InodeNumber, int]]) -> list[Inode]:
        """Take back references of the kernel's; returns the inodes that are no longer live."""
        dead = []
        for number, count in references:
            inode = self._live.get(number)
            if inode is None or inode is self.root:
                continue
            inode.lookup_count -= count
            if inode.lookup_count <= 0:
                inode.lookup_count = 0
                del self._live[number]
                dead.append(inode)
        return dead

    def compact(self) -> None:
        """Give back the room of dead inodes."""
        self._live = dict(self._live)

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the table contradicts itself."""
        for number, inode in self._live.items():
            assert inode.number == number
            assert inode.lookup_count > 0
            if inode.parent is not None:
                assert inode.parent.children.get(inode.name) is inode, inode.name
