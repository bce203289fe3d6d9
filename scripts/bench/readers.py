"""Applications that read files: whole ones, at random offsets, mapped, small ones and tar shards.

They know nothing of mounts, so that a local file shows what they take themselves.
"""

import mmap
import os
import random
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from scripts.bench.jobs import Result, in_processes, in_threads, serve_job

MAPPED_STEP = 1024 * 1024
PAGE_BYTES = mmap.PAGESIZE
"""One byte of each page of a mapping is touched, a step at a time."""


def sequential(paths: list[str], read_size: int) -> Result:
    """Read files from beginning to end, all at once, by ``readinto`` of *read_size*."""

    def read(index: int, result: Result) -> None:
        buffer = bytearray(read_size)
        with Path(paths[index]).open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                result.bytes += count

    return in_threads(len(paths), read)


def tar(path: str, read_size: int) -> Result:
    """Read all members of a tar file as a stream, by reads of *read_size*."""

    def read(_: int, result: Result) -> None:
        with tarfile.open(path, "r|*", bufsize=read_size) as archive:
            for member in archive:
                content = archive.extractfile(member)
                if content is not None:
                    result.bytes += len(content.read())

    return in_threads(1, read)


def offsets_of(*, seed: int, size: int, read_size: int, count: int) -> Iterator[int]:
    """Where a thread with that *seed* reads."""
    choose = random.Random(seed)
    return (choose.randrange(size - read_size) for _ in range(count))


def scattered(
    path: str, *, read_size: int, threads: int, reads: int, seconds: float, block_size: int, seed: int = 0
) -> Result:
    """Read at random offsets, through one descriptor; each thread ends after so many *reads* or *seconds*.

    Notes: ``blocks``, how many blocks of *block_size* were touched.
    """
    descriptor = os.open(path, os.O_RDONLY)
    size = os.fstat(descriptor).st_size
    touched: set[int] = set()

    def read(index: int, result: Result) -> None:
        ends_at = time.monotonic() + seconds
        for offset in offsets_of(seed=seed + index, size=size, read_size=read_size, count=reads):
            started_at = time.monotonic()
            if started_at > ends_at:
                break
            try:
                count = len(os.pread(descriptor, read_size, offset))
            except OSError as error:
                result.errors.append(str(error))
                continue
            if count != read_size:
                result.errors.append(f"{count} bytes instead of {read_size}")
            result.waits.append(time.monotonic() - started_at)
            result.bytes += count
            touched.update(range(offset // block_size, (offset + read_size - 1) // block_size + 1))

    result = in_threads(threads, read)
    os.close(descriptor)
    result.notes = {"blocks": len(touched)}
    return result


def mapped(path: str, processes: int) -> Result:
    """Map one file in several processes: each reads the beginning, then touches every page in order."""

    def read(_: int, result: Result) -> None:
        with Path(path).open("rb", buffering=0) as file:
            file.read(8)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
                for offset in range(0, len(mapping), MAPPED_STEP):
                    end = min(offset + MAPPED_STEP, len(mapping))
                    sum(mapping[offset:end:PAGE_BYTES])
                    result.bytes += end - offset

    return in_processes(processes, read)


def files(paths: list[str], processes: int) -> Result:
    """Open, read and close files; each process takes every so manieth."""

    def read(index: int, result: Result) -> None:
        for path in paths[index::processes]:
            started_at = time.monotonic()
            try:
                with Path(path).open("rb") as file:
                    result.bytes += len(file.read())
            except OSError as error:
                result.errors.append(str(error))
            result.waits.append(time.monotonic() - started_at)

    return in_processes(processes, read)


JOBS: dict[str, Callable[..., Result]] = {
    "sequential": sequential,
    "tar": tar,
    "scattered": scattered,
    "mapped": mapped,
    "files": files,
}

if __name__ == "__main__":
    serve_job(JOBS)
