"""`FileUser`: a process of its own that uses files for a test, one call at a time, each with a time limit.

A test must not touch a mount itself: should the mount block, nothing could end the test any more. A user can hold files
and mappings open from one call to the next, and its errors are raised in the test with their errno.
"""

import contextlib
import ctypes
import ctypes.util
import fcntl
import mmap
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Self, cast

ROOT = Path(__file__).resolve().parents[2]

CALL_SECONDS = 30.0
"""Longest time a call may take unless the test says otherwise."""

Value = object
"""Anything that can be pickled."""


class UserEndedError(Exception):
    """The process has ended instead of answering; `returncode` is negative if a signal ended it."""

    def __init__(self, returncode: int) -> None:
        super().__init__(f"the process ended with {returncode}")
        self.returncode = returncode


class FileUser:
    """A process whose working directory is *folder*. Must be closed, which kills it."""

    def __init__(self, folder: Path) -> None:
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.support.file_user"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def start(self, call: str, *arguments: Value) -> None:
        """Have it begin a call; `result` must follow before the next."""
        assert self._process.stdin is not None
        pickle.dump((call, arguments), self._process.stdin)
        self._process.stdin.flush()

    def result(self, *, timeout: float = CALL_SECONDS) -> Value:
        """What the call that was started returns.

        Raises:
            OSError: The call failed.
            UserEndedError: The process has ended.
            TimeoutError: It does not answer. It is killed, but need not die while a mount blocks it.
        """
        assert self._process.stdout is not None
        overdue = threading.Event()

        def kill() -> None:
            overdue.set()
            self._process.kill()

        timer = threading.Timer(timeout, kill)
        timer.start()
        try:
            value = pickle.load(self._process.stdout)
        except EOFError as error:
            if overdue.is_set():
                raise TimeoutError(f"no answer within {timeout:g} s") from error
            raise UserEndedError(self._process.wait(timeout)) from error
        finally:
            timer.cancel()
            timer.join()
        if isinstance(value, OSError):
            raise value
        return cast(Value, value)  # pickle does not know

    def call(self, call: str, *arguments: Value, timeout: float = CALL_SECONDS) -> Value:
        """Make a call and wait for what it returns."""
        self.start(call, *arguments)
        return self.result(timeout=timeout)

    # What it can do: open files are numbers, as in `os`.

    def open(self, path: str, *, flags: int = os.O_RDONLY) -> int:
        """Open a file."""
        return _int(self.call("open", path, flags))

    def pread(self, fd: int, size: int, offset: int, *, timeout: float = CALL_SECONDS) -> bytes:
        """Read at a place, by one system call."""
        return _bytes(self.call("pread", fd, size, offset, timeout=timeout))

    def each(
        self, call: str, arguments: Sequence[tuple[Value, ...]], *, threads: int, timeout: float = CALL_SECONDS
    ) -> list[Value]:
        """Make a call with each of many arguments, by several threads at once; results and errors in their order."""
        found = self.call("each", call, list(arguments), threads, timeout=timeout)
        assert isinstance(found, list)
        return found

    def pread_many(
        self, fd: int, places: Sequence[tuple[int, int]], *, threads: int, timeout: float = CALL_SECONDS
    ) -> list[bytes | OSError]:
        """Read many places, given as size and offset."""
        found = self.each("pread", [(fd, *place) for place in places], threads=threads, timeout=timeout)
        return [content if isinstance(content, OSError) else _bytes(content) for content in found]

    def read_files(self, paths: Sequence[str], *, threads: int, timeout: float = CALL_SECONDS) -> list[bytes | OSError]:
        """Open, read and close many files."""
        found = self.each("read_file", [(path,) for path in paths], threads=threads, timeout=timeout)
        return [content if isinstance(content, OSError) else _bytes(content) for content in found]

    def read_all(self, fd: int, *, size: int = 1 << 20, timeout: float = CALL_SECONDS) -> bytes:
        """Read from the beginning to the end, *size* bytes at a time."""
        return _bytes(self.call("read_all", fd, size, timeout=timeout))

    def read_file(self, path: str, *, timeout: float = CALL_SECONDS) -> bytes:
        """Open, read, close."""
        return _bytes(self.call("read_file", path, timeout=timeout))

    def map(self, fd: int, *, is_shared: bool) -> int:
        """Map a file for reading; returns a number for it."""
        return _int(self.call("map", fd, is_shared))

    def map_read(self, mapping: int, start: int, stop: int, *, timeout: float = CALL_SECONDS) -> bytes:
        """Copy bytes out of a mapping."""
        return _bytes(self.call("map_read", mapping, start, stop, timeout=timeout))

    def close_file(self, fd: int) -> None:
        """Close a file."""
        self.call("close", fd)

    def size(self, file: int | str) -> int:
        """Size of a file, by path or open."""
        return _int(self.call("size", file))

    def listdir(self, path: str = ".") -> list[str]:
        """Names in a directory."""
        found = self.call("listdir", path)
        assert isinstance(found, list)
        return found

    def drop_pages(self, fd: int) -> None:
        """Have the kernel forget the bytes of an open file."""
        self.call("drop_pages", fd)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._process.wait(CALL_SECONDS)


@contextlib.contextmanager
def file_users(folder: Path, count: int) -> Iterator[list[FileUser]]:
    """Several at once."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(FileUser(folder)) for _ in range(count)]


def _int(value: Value) -> int:
    assert isinstance(value, int)
    return value


def _bytes(value: Value) -> bytes:
    assert isinstance(value, bytes)
    return value


# The process itself

_maps: dict[int, mmap.mmap] = {}


def _read_all(fd: int, size: int) -> bytes:
    parts = bytearray()
    while part := os.pread(fd, size, len(parts)):
        parts += part
    return bytes(parts)


def _read_file(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return _read_all(fd, 1 << 20)
    finally:
        os.close(fd)


def _size(file: int | str) -> int:
    return (os.fstat(file) if isinstance(file, int) else Path(file).stat()).st_size


def _read_at(path: str, size: int, offset: int) -> bytes:
    """Open, read at a place, close."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.pread(fd, size, offset)
    finally:
        os.close(fd)


def _each(call: str, places: list[tuple[Value, ...]], threads: int) -> list[Value | OSError]:
    """Make a call with each of many arguments, by several threads at once; results and errors in their order."""

    def make(arguments: tuple[Value, ...]) -> Value | OSError:
        try:
            return CALLS[call](*arguments)
        except OSError as error:
            return error

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(make, places))


def _lock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _drop_pages(fd: int) -> None:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _map(fd: int, is_shared: bool) -> int:  # noqa: FBT001 comes over the pipe by place
    """Map a file; returns a number for it."""
    flags = mmap.MAP_SHARED if is_shared else mmap.MAP_PRIVATE
    _maps[len(_maps)] = mmap.mmap(fd, 0, flags=flags, prot=mmap.PROT_READ)
    return len(_maps) - 1


def _map_read(number: int, start: int, stop: int) -> bytes:
    return _maps[number][start:stop]


def _size_below(directory: int, name: str) -> int:
    """Size of a file in an open directory, whose own name is not asked for."""
    return os.stat(name, dir_fd=directory).st_size


def _inode(path: str) -> int:
    return Path(path).stat().st_ino


def _die_with_parent() -> None:
    """Leave nothing behind if the test itself is killed."""
    library = ctypes.CDLL(ctypes.util.find_library("c"))
    library.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


CALLS: dict[str, Callable[..., Value]] = {
    "open": os.open,
    "close": os.close,
    "pread": os.pread,
    "read_all": _read_all,
    "read_file": _read_file,
    "read_at": _read_at,
    "each": _each,
    "lock": _lock,
    "size": _size,
    "size_below": _size_below,
    "inode": _inode,
    "listdir": os.listdir,
    "drop_pages": _drop_pages,
    "map": _map,
    "map_read": _map_read,
}


def _serve(source: IO[bytes], target: IO[bytes]) -> None:
    while True:
        try:
            call, arguments = pickle.load(source)
        except EOFError:
            return
        try:
            reply: Value = CALLS[call](*arguments)
        except OSError as error:
            reply = error
        pickle.dump(reply, target)
        target.flush()


if __name__ == "__main__":
    _die_with_parent()
    _serve(sys.stdin.buffer, sys.stdout.buffer)
