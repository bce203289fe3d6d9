"""What the command hands to the daemon it starts, and what it hears back: one line of JSON each. Pure."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from s3mount.options import (
    AddressingStyle,
    LogLevel,
    LogOptions,
    MountOptions,
    MountPointOptions,
    NamespaceOptions,
    ReadOptions,
    StoreOptions,
)


@dataclass(frozen=True, slots=True)
class Ready:
    """The file system answers."""

    log: str
    """Where the daemon logs to, in words."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The daemon ends without having been ready."""

    message: str
    """One line."""
    exit_code: int


Report = Ready | Failed


def encode_options(options: MountOptions) -> bytes:
    """Write options down."""
    return json.dumps(asdict(options), default=str).encode()


def decode_options(encoded: bytes) -> MountOptions:
    """Read options that `encode_options` has written."""
    sections = json.loads(encoded)
    store, mount_point, log = sections["store"], sections["mount_point"], sections["log"]
    return MountOptions(
        store=StoreOptions(
            **{
                **store,
                "addressing_style": AddressingStyle(store["addressing_style"]),
                "ca_bundle": _path(store["ca_bundle"]),
            }
        ),
        mount_point=MountPointOptions(
            **{**mount_point, "path": Path(mount_point["path"]), "control_socket": _path(mount_point["control_socket"])}
        ),
        namespace=NamespaceOptions(**sections["namespace"]),
        read=ReadOptions(**sections["read"]),
        log=LogOptions(
            **{
                **log,
                "level": LogLevel(log["level"]),
                "file": _path(log["file"]),
                "state_folder": Path(log["state_folder"]),
            }
        ),
    )


def encode_report(report: Report) -> bytes:
    """Write a report as one line."""
    return json.dumps(asdict(report)).encode() + b"\n"


def decode_report(line: bytes) -> Report | None:
    """Read a report; None if *line* is not a whole one."""
    try:
        fields: Mapping[str, object] = json.loads(line)
    except ValueError:
        return None
    match fields:
        case {"log": str(log)}:
            return Ready(log)
        case {"message": str(message), "exit_code": int(exit_code)}:
            return Failed(message, exit_code)
        case _:
            return None


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
