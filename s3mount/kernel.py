"""Raises what the kernel allows one FUSE mount, where we may: pyfuse3 cannot set it when mounting."""

import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

READAHEAD_KIB = 1024
"""Kernel readahead of the mount: requests are as large as FUSE allows (1 MiB). Twice as much is no faster (0.94 to 1.23
against 0.96 to 1.21 CPU-s/GiB, ten reads each in turn, 2 cores, kernel 6.18), but of a Parquet file of which 2 of 8
columns are read it has 1.75 instead of 1.49 times what is needed fetched, 1.49 instead of 1.29 through a mapping."""

MAX_BACKGROUND = 256
"""Readahead requests in flight before the kernel holds back; 12 by default, fewer than reads that may wait for S3."""


def raise_limits(device: int) -> None:
    """Raise readahead and background requests of the mount with that device number; if it may not, it logs that."""
    minor = os.minor(device)
    _write(Path(f"/sys/class/bdi/0:{minor}/read_ahead_kb"), READAHEAD_KIB)
    for name, value in (("max_background", MAX_BACKGROUND), ("congestion_threshold", MAX_BACKGROUND * 3 // 4)):
        _write(Path(f"/sys/fs/fuse/connections/{minor}/{name}"), value)


def _write(path: Path, value: int) -> None:
    try:
        path.write_text(str(value), encoding="ascii")
    except OSError as error:
        log.info("%s stays as it is: %s", path, error.strerror)
