"""`MountOptions`: everything that can be set, frozen, in sections. Built once by `cli.py`. Pure."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from s3mount.ranges import MIB


class AddressingStyle(StrEnum):
    """Where the bucket's name goes in a request."""

    AUTO = "auto"
    """Host name, except for custom endpoints and for names that break TLS certificates (dots)."""
    PATH = "path"
    VIRTUAL = "virtual"


class LogLevel(StrEnum):
    """Least severe message that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How to reach the bucket."""

    bucket: str
    """Name, or an access point ARN or alias."""
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    no_sign_request: bool = False
    requester_pays: bool = False
    expected_bucket_owner: str | None = None
    addressing_style: AddressingStyle = AddressingStyle.AUTO
    ca_bundle: Path | None = None
    connections: int = 32
    """Most connections for data reads at a time."""
    request_deadline_seconds: float = 60.0
    """A request without progress for so long, retries included, is an error; bytes that arrive are progress."""
    connect_timeout_seconds: float = 5.0
    stall_timeout_seconds: float = 10.0
    """Longest wait for the first or the next byte of an answer, before it is asked for anew."""


@dataclass(frozen=True, slots=True)
class NamespaceOptions:
    """What names and attributes look like, and how long they may be used."""

    prefix: str = ""
    """Mounted prefix: empty or ending in ``/``."""
    ttl_seconds: float = 60.0
    negative_ttl_seconds: float = 5.0
    uid: int = 0
    gid: int = 0
    file_mode: int = 0o644
    dir_mode: int = 0o755

    @property
    def absent_ttl_seconds(self) -> float:
        """How long absence may be used: no longer than presence, so that a TTL of 0 asks always."""
        return min(self.negative_ttl_seconds, self.ttl_seconds)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How much is read ahead and kept."""

    memory_bytes: int = 512 * MIB
    """Budget for all buffers of object bytes."""
    max_readahead_bytes: int = 256 * MIB
    """Longest readahead of one stream."""


@dataclass(frozen=True, slots=True)
class MountPointOptions:
    """Where and how the file system is attached."""

    path: Path
    """Absolute."""
    source: str
    """What ``findmnt`` shows, such as ``s3://bucket/prefix``."""
    allow_other: bool = False
    control_socket: Path | None = None
    """Where ``s3mount status`` asks; None for nowhere."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Where messages go."""

    level: LogLevel = LogLevel.INFO
    file: Path | None = None
    foreground: bool = False
    """Log to standard error."""
    state_folder: Path = Path("/var/log/s3mount")
    """Where the log file goes if there is neither a name for it nor a system log."""


@dataclass(frozen=True, slots=True)
class MountOptions:
    """All of them."""

    store: StoreOptions
    mount_point: MountPointOptions
    namespace: NamespaceOptions = field(default_factory=NamespaceOptions)
    read: ReadOptions = field(default_factory=ReadOptions)
    log: LogOptions = field(default_factory=LogOptions)
