"""Reads what is mounted from /proc/self/mountinfo, without touching the mounts themselves: a hung one would hang us."""

import re
from dataclasses import dataclass
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")

FSTYPE = "fuse.s3mount"
"""Type of our mounts: ``fuse`` and the subtype given when mounting."""

_ESCAPE = re.compile(rb"\\([0-7]{3})")

_FIELDS_BEFORE_OPTIONAL = 6
_FIELDS_AFTER_SEPARATOR = 3


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo (proc(5))."""

    mount_point: Path
    fstype: str
    source: str
    owner: int
    """User who mounted it (``user_id``); 0 for file systems other than FUSE."""

    @property
    def is_ours(self) -> bool:
        """Whether s3mount made it."""
        return self.fstype == FSTYPE

    @property
    def is_fuse(self) -> bool:
        """Whether a daemon is behind it."""
        return self.fstype.partition(".")[0] in {"fuse", "fuseblk"}


def parse_mountinfo(content: bytes) -> list[Mount]:
    """All mounts, in the order they were made; lines that are none are left out. Pure."""
    mounts = []
    for line in content.splitlines():
        before, separator, after = line.partition(b" - ")
        fields, details = before.split(b" "), after.split(b" ")
        if separator and len(fields) >= _FIELDS_BEFORE_OPTIONAL and len(details) >= _FIELDS_AFTER_SEPARATOR:
            mounts.append(
                Mount(
                    mount_point=Path(_unescape(fields[4])),
                    fstype=_unescape(details[0]),
                    source=_unescape(details[1]),
                    owner=_owner(details[2]),
                )
            )
    return mounts


def topmost(mounts: list[Mount], path: Path) -> Mount | None:
    """What is mounted exactly at *path*, the last one if there are several; None if nothing is. Pure."""
    return next((mount for mount in reversed(mounts) if mount.mount_point == path), None)


def find_mount(path: Path, *, mountinfo: Path = MOUNTINFO) -> Mount | None:
    """What is mounted exactly at *path* now."""
    return topmost(parse_mountinfo(mountinfo.read_bytes()), path)


def _unescape(field: bytes) -> str:
    plain = _ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), field)
    return plain.decode(errors="surrogateescape")


def _owner(options: bytes) -> int:
    for option in options.split(b","):
        name, _, value = option.partition(b"=")
        if name == b"user_id" and value.isdigit():
            return int(value)
    return 0
