"""Reading a directory while others add and remove entries, in pieces, and from the start again."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

FILES = 400

READ_IN_PIECES = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(512)
fd = os.open("d", os.O_RDONLY | os.O_DIRECTORY)

def piece():
    size = libc.getdents64(fd, buffer, len(buffer))
    assert size >= 0, ctypes.get_errno()
    names, at = [], 0
    while at < size:
        number, offset, length, kind = struct.unpack_from("<QqHB", buffer, at)
        names.append((buffer.raw[at + 19 : at + length].split(b"\\0")[0].decode(), offset))
        at += length
    return names

seen = []
while len(seen) < 100:
    seen += piece()
print("half", flush=True)
sys.stdin.readline()
while more := piece():
    seen += more
print(*[name for name, _ in seen], flush=True)

# Back to a position that was handed out before: the same names follow it as did then.
name, offset = seen[50]
os.lseek(fd, offset, os.SEEK_SET)
again = piece()
print(*[name for name, _ in again])
print(*[name for name, _ in seen[51 : 51 + len(again)]])

# From the start: what there is now.
os.lseek(fd, 0, os.SEEK_SET)
fresh = []
while more := piece():
    fresh += more
print(*[name for name, _ in fresh])
"""


@pytest.fixture
def place(seaweed: S3Server) -> Iterator[Scene]:
    with scene(seaweed, "--ttl", "0", "--negative-ttl", "0") as built:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda index: built.put(f"d/f{index:03}", 1), range(FILES)))
        yield built


def test_positions_stay_valid_while_entries_come_and_go(place: Scene) -> None:
    reader = place.mount.start_python(READ_IN_PIECES)
    assert reader.stdout is not None
    assert reader.stdin is not None
    assert reader.stdout.readline() == "half\n"

    for index in range(0, FILES, 10):
        place.delete(f"d/f{index:03}")
        place.put(f"d/g{index:03}", 1)
    reader.stdin.write("\n")
    reader.stdin.flush()

    seen, again, as_before, fresh = (reader.stdout.readline().split() for _ in range(4))
    reader.communicate(timeout=20)
    kept = {f"f{index:03}" for index in range(FILES) if index % 10}
    assert len(seen) == len(set(seen))
    assert kept <= set(seen)
    assert again == as_before
    assert set(fresh) == {".", "..", *kept, *(f"g{index:03}" for index in range(0, FILES, 10))}


def test_a_directory_shows_itself_and_its_parent(place: Scene) -> None:
    assert place.mount.run("ls", "-a", "d").stdout.split()[:2] == [".", ".."]
    numbers = place.mount.run("sh", "-c", "stat --format=%i d . && cd d && stat --format=%i . ..").stdout.split()
    assert numbers[:2] == numbers[2:]
