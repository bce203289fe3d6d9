"""Reads sizes, durations and modes as people write them. Pure."""

import math
import re

from s3mount.ranges import GIB, KIB, MIB

_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")

_SECONDS_OF = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_TIB = 1024 * GIB
_KB, _MB, _GB, _TB = 1000, 1000**2, 1000**3, 1000**4

_BYTES_OF = (
    {"": 1, "b": 1}
    | {"k": KIB, "m": MIB, "g": GIB, "t": _TIB}
    | {"kib": KIB, "mib": MIB, "gib": GIB, "tib": _TIB}
    | {"kb": _KB, "mb": _MB, "gb": _GB, "tb": _TB}
)

MAX_DURATION_SECONDS = 366 * 86400.0

MAX_SIZE = 1 << 62

MAX_MODE = 0o7777


def parse_duration(text: str) -> float:
    """``30``, ``30s``, ``500ms``, ``5m``, ``1.5h``, ``1d`` in seconds.

    Raises:
        ValueError: It is none of them, or longer than a year.
    """
    match = _NUMBER_AND_UNIT.fullmatch(text)
    unit = _SECONDS_OF.get(match[2]) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a duration such as 30, 30s, 5m or 1h")
    seconds = float(match[1]) * unit
    if seconds > MAX_DURATION_SECONDS:
        raise ValueError(f"{text!r} is longer than a year")
    return seconds


def parse_size(text: str) -> int:
    """``1048576``, ``512MiB``, ``1G`` (both binary), ``1GB`` (decimal) in bytes.

    Raises:
        ValueError: It is none of them.
    """
    match = _NUMBER_AND_UNIT.fullmatch(text)
    unit = _BYTES_OF.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a size such as 512MiB, 1G or 1073741824")
    size = math.floor(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
    if size > MAX_SIZE:
        raise ValueError(f"{text!r} is too large")
    return size


def parse_mode(text: str) -> int:
    """``0644``, ``644`` or ``0o644``: permissions, always octal.

    Raises:
        ValueError: It is not octal, or more than permissions.
    """
    try:
        mode = int(text, 8)
    except ValueError as error:
        raise ValueError(f"{text!r} is not an octal mode such as 0644") from error
    if not 0 <= mode <= MAX_MODE:
        raise ValueError(f"{text!r} is not a mode of four octal digits at most")
    return mode


def write_size(size: int) -> str:
    """A size that `parse_size` reads back, in the largest unit that gives a whole number."""
    for unit, length in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size and size % length == 0:
            return f"{size // length}{unit}"
    return str(size)
