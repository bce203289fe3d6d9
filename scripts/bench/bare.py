"""Bare loops: the same bytes by ``http.client`` and nothing else, to compare with."""

import http.client
import ssl
import threading
import time
from collections.abc import Callable

from scripts.bench.jobs import Result, in_processes, in_threads, serve_job
from scripts.bench.readers import offsets_of


class BareConnection:
    """A connection that fetches into a buffer which is used again and again."""

    def __init__(self, address: str, ca_file: str | None, most_bytes: int) -> None:
        if ca_file is None:
            self._connection = http.client.HTTPConnection(address)
        else:
            self._connection = http.client.HTTPSConnection(address, context=ssl.create_default_context(cafile=ca_file))
        self._buffer = memoryview(bytearray(most_bytes))

    def fetch(self, path: str, *, start: int, size: int) -> int:
        """Fetch bytes of an object; returns how many."""
        self._connection.request("GET", path, headers={"Range": f"bytes={start}-{start + size - 1}"})
        response = self._connection.getresponse()
        done = 0
        while done < size and (count := response.readinto(self._buffer[done:size])):
            done += count
        response.read()
        return done if response.status == http.client.PARTIAL_CONTENT else 0

    def close(self) -> None:
        """End it."""
        self._connection.close()


def sequential(
    address: str, paths: list[str], *, size: int, range_size: int, connections: int, ca_file: str | None = None
) -> Result:
    """Fetch objects of *size* in ranges, by so many threads with a connection each."""
    wanted = iter([(path, start) for path in paths for start in range(0, size, range_size)])
    lock = threading.Lock()

    def fetch(_: int, result: Result) -> None:
        connection = BareConnection(address, ca_file, range_size)
        while True:
            with lock:
                path, start = next(wanted, ("", 0))
            if not path:
                connection.close()
                return
            result.bytes += connection.fetch(path, start=start, size=min(range_size, size - start))

    return in_threads(connections, fetch)


def scattered(
    address: str, path: str, *, size: int, read_size: int, connections: int, reads: int, seconds: float = 60.0
) -> Result:
    """Fetch exactly what `readers.scattered` reads, for at most so many *seconds*."""

    def fetch(index: int, result: Result) -> None:
        connection = BareConnection(address, None, read_size)
        ends_at = time.monotonic() + seconds
        for offset in offsets_of(seed=index, size=size, read_size=read_size, count=reads):
            started_at = time.monotonic()
            if started_at > ends_at:
                break
            count = connection.fetch(path, start=offset, size=read_size)
            if count != read_size:
                result.errors.append(f"{count} bytes instead of {read_size}")
            result.waits.append(time.monotonic() - started_at)
            result.bytes += count
        connection.close()

    return in_threads(connections, fetch)


def files(address: str, paths: list[str], *, size: int, processes: int) -> Result:
    """Fetch whole objects of *size*; each process has one connection and takes every so manieth."""

    def fetch(index: int, result: Result) -> None:
        connection = BareConnection(address, None, size)
        for path in paths[index::processes]:
            started_at = time.monotonic()
            result.bytes += connection.fetch(path, start=0, size=size)
            result.waits.append(time.monotonic() - started_at)
        connection.close()

    return in_processes(processes, fetch)


JOBS: dict[str, Callable[..., Result]] = {"sequential": sequential, "scattered": scattered, "files": files}

if __name__ == "__main__":
    serve_job(JOBS)
