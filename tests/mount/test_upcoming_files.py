"""Files that are fetched before they are read: in the order of their listing, and in one that was handed over."""

import hashlib
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.data import coded_bytes
from tests.support.mounts import S3MOUNT, Outcome, run_command
from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

FILES = 200
SIZE = 115_000
PATHS = [f"d{index % 4}/f{index:03}" for index in range(FILES)]

READ_ALL = """
import hashlib, sys
from concurrent.futures import ProcessPoolExecutor
def read(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
if __name__ == "__main__":
    with ProcessPoolExecutor(4) as pool:
        print("\\n".join(pool.map(read, sys.argv[1:], chunksize=4)))
"""


@pytest.fixture
def place(seaweed: S3Server) -> Iterator[Scene]:
    with scene(seaweed, "--ttl", "1h") as built:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda path: built.put(path, SIZE), PATHS))
        assert built.mount.run("ls", "-lR").returncode == 0
        built.proxy.log.clear()
        yield built


def hint(place: Scene, order: str, folder: Path) -> Outcome:
    file = folder / "order"
    file.write_text(order)
    return run_command([*S3MOUNT, "hint", str(place.mount.path), "--from-file", str(file)], timeout=30)


def sums(paths: list[str]) -> list[str]:
    return [hashlib.sha256(coded_bytes(path, 0, SIZE)).hexdigest() for path in paths]


def read_all(place: Scene, paths: list[str], tmp_path: Path) -> list[str]:
    script = tmp_path / "read.py"
    script.write_text(READ_ALL)
    done = place.mount.run("python3", str(script), *paths)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_shuffled_epoch_that_was_handed_over_is_there_before_it_is_read(place: Scene, tmp_path: Path) -> None:
    epoch = random.Random(1).sample(PATHS, FILES)

    done = hint(place, "\n".join(epoch), tmp_path)
    place.wait_for_gets(FILES)
    place.wait_until(lambda: all(not exchange.is_pending for exchange in place.gets()))

    assert done.stdout == f"s3mount: {place.mount.path} fetches {FILES} files in that order\n"
    first_gets = list(dict.fromkeys(exchange.key for exchange in place.gets()))
    assert max(abs(epoch.index(key) - turn) for turn, key in enumerate(first_gets)) < FILES // 2, "not back to front"
    place.proxy.refuse()
    assert read_all(place, epoch, tmp_path) == sums(epoch)


def test_paths_may_be_absolute(place: Scene, tmp_path: Path) -> None:
    done = hint(place, "\n".join(str(place.mount.path / path) for path in PATHS[:10]), tmp_path)

    assert done.returncode == 0
    place.wait_for_gets(10)
    assert {exchange.key for exchange in place.gets()} == set(PATHS[:10])


def test_a_shuffled_epoch_costs_one_get_per_file_with_and_without_a_hint(place: Scene, tmp_path: Path) -> None:
    epoch = random.Random(2).sample(PATHS, FILES)
    hint(place, "\n".join(epoch[: FILES // 2]), tmp_path)

    assert read_all(place, epoch, tmp_path) == sums(epoch)

    assert len(place.gets()) == FILES + place.gets_sent_twice()
    assert len(place.proxy.log.select()) == len(place.gets())


def test_files_read_in_listing_order_are_fetched_before_they_are_read(place: Scene, tmp_path: Path) -> None:
    in_order = sorted(PATHS)

    assert read_all(place, in_order[:30], tmp_path) == sums(in_order[:30])

    place.wait_for_gets(31)


@pytest.mark.parametrize("order", ["", "\n\n"])
def test_an_empty_order_is_refused_in_one_line(place: Scene, tmp_path: Path, order: str) -> None:
    done = hint(place, order, tmp_path)

    assert done.returncode == 2
    assert done.stderr == f"s3mount: {tmp_path}/order names no files\n"


def test_a_hint_for_a_mount_that_asks_for_every_name_anew_is_refused(seaweed: S3Server, tmp_path: Path) -> None:
    with scene(seaweed, "--ttl", "0") as place:
        done = hint(place, "a\nb", tmp_path)

        assert done.returncode != 0
        assert "with --ttl 0" in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_hint_for_what_is_no_mount_is_refused_in_one_line(tmp_path: Path) -> None:
    done = run_command([*S3MOUNT, "hint", str(tmp_path), "--from-file", "/etc/hostname"], timeout=30)

    assert done.returncode != 0
    assert done.stderr.count("\n") == 1
    assert str(tmp_path) in done.stderr


def test_an_order_that_cannot_be_read_is_refused_in_one_line(place: Scene, tmp_path: Path) -> None:
    done = run_command([*S3MOUNT, "hint", str(place.mount.path), "--from-file", str(tmp_path / "no")], timeout=30)

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "No such file" in done.stderr
