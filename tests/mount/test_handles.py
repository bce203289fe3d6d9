"""Open files: shared by dup and fork, closed in any order, released exactly once."""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

KIB = 1024
MIB = 1024 * KIB

SHARDS = 4
SHARD_SIZE = 9 * MIB + 5


@pytest.fixture(scope="module")
def place(seaweed: S3Server) -> Iterator[Scene]:
    with scene(seaweed, life_seconds=300) as built:
        yield built


@pytest.fixture(scope="module")
def shards(place: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files ``shard-0`` and so on in the mount, and the same in the folder returned."""
    folder = tmp_path_factory.mktemp("shards")
    for index in range(SHARDS):
        content = place.put(f"shard-{index}", SHARD_SIZE)
        (folder / f"shard-{index}").write_bytes(content)
    return folder


def operations(place: Scene, name: str) -> int:
    """How often the kernel has asked for an operation."""
    return len(re.findall(rf"s3mount\.fuse: {name}\([^:]*\)$", place.mount.log(), re.MULTILINE))


def descriptors(place: Scene) -> int:
    return len(list(Path(f"/proc/{place.mount.pid}/fd").iterdir()))


MIX = """
import os, random, subprocess, sys, threading
copies, threads, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
wrong = []

def read_right(fd, name, generator):
    offset, size = generator.randrange(9 << 20), generator.randrange(1, 100_000)
    with open(f"{copies}/{name}", "rb") as copy:
        if os.pread(fd, size, offset) != os.pread(copy.fileno(), size, offset):
            wrong.append(f"bytes of {name} at {offset}")

def work(number):
    generator = random.Random(number)
    try:
        for round in range(rounds):
            name = f"shard-{generator.randrange(4)}"
            first = os.open(name, os.O_RDONLY)
            second = os.dup(first)
            third = os.open(name, os.O_RDONLY)
            os.set_inheritable(first, True)
            if round % 3 == 0:
                subprocess.run(["true"], close_fds=False, check=True)
            read_right(first, name, generator)
            closing = threading.Thread(target=os.close, args=(third,))
            closing.start()
            os.close(first)
            read_right(second, name, generator)
            closing.join()
            os.close(second)
    except Exception as error:
        wrong.append(repr(error))

workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
for worker in workers: worker.start()
for worker in workers: worker.join()
print(wrong[:5])
"""


def test_opening_copying_forking_and_closing_at_once_confuses_no_handle(place: Scene, shards: Path) -> None:
    place.mount.run_python(MIX, str(shards), "24", "2", timeout=60)
    place.wait_until_closed()
    descriptors_before = descriptors(place)
    opened_before, released_before = operations(place, "open"), operations(place, "release")

    done = place.mount.run_python(MIX, str(shards), "24", "12", timeout=60)
    place.wait_until_closed()

    assert done.stdout.strip() == "[]", done.stderr
    opened = operations(place, "open") - opened_before
    assert opened == 24 * 12 * 2
    assert operations(place, "release") - released_before == opened
    assert descriptors(place) <= descriptors_before + 32, "connections may come and go"


WORKERS = """
import multiprocessing, os, random, sys
copies, method = sys.argv[1], sys.argv[2]

def check(fd, name, generator):
    offset, size = generator.randrange(9 << 20), generator.randrange(1, 200_000)
    with open(f"{copies}/{name}", "rb") as copy:
        assert os.pread(fd, size, offset) == os.pread(copy.fileno(), size, offset), (name, offset)

def work(number, inherited, results, copies_folder):
    global copies
    copies = copies_folder
    generator = random.Random(number)
    for round in range(15):
        index = generator.randrange(4)
        if inherited:
            check(inherited[index], f"shard-{index}", generator)
        with open(f"shard-{index}", "rb") as own:
            check(own.fileno(), f"shard-{index}", generator)
        if number == 3 and round == 7:
            results.put("dead")
            results.close()
            results.join_thread()
            os.kill(os.getpid(), 9)
    results.put("done")

if __name__ == "__main__":
    context = multiprocessing.get_context(method)
    files = [os.open(f"shard-{index}", os.O_RDONLY) for index in range(4)]
    headers = [os.pread(fd, 512, 0) for fd in files]
    results = context.Queue()
    inherited = files if method == "fork" else None
    workers = [context.Process(target=work, args=(n, inherited, results, copies)) for n in range(8)]
    for worker in workers: worker.start()
    print(sorted(results.get(timeout=50) for _ in workers).count("done"))
    for worker in workers: worker.join()
    print(sorted(worker.exitcode for worker in workers))
    print(headers == [os.pread(fd, 512, 0) for fd in files])
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_what_their_parent_opened_and_what_they_open(
    place: Scene, shards: Path, tmp_path: Path, method: str
) -> None:
    script = tmp_path / "workers.py"
    script.write_text(WORKERS, encoding="utf-8")

    done = place.mount.run(sys.executable, str(script), str(shards), method, timeout=60)
    place.wait_until_closed()

    assert done.stdout.splitlines() == ["7", "[-9, 0, 0, 0, 0, 0, 0, 0]", "True"], done.stderr


def test_handle_of_a_killed_process_is_released(place: Scene, shards: Path) -> None:
    with place.user() as user:
        for _ in range(10):
            user.open("shard-0")
        assert place.gauges()["open_handles"] == 10

    started_at = time.monotonic()
    place.wait_until_closed()

    assert time.monotonic() - started_at < 20
