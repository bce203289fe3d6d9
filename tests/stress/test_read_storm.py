"""Asserts: many processes that read, map, open and close while the server fails, throttles and has objects replaced get
the bytes of one version at the right place, or an error they may get; afterwards nothing is held and all can be read.
"""

import errno
import itertools
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.data import find_mismatch
from tests.support.faults import Action, End, Rule, cut_after, s3_error, slow_down
from tests.support.file_user import FileUser, file_users
from tests.support.http_heads import Kind
from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

KIB = 1024
MIB = 1024 * KIB

PROCESSES = 6
ROUNDS = 12
READS_PER_ROUND = 24
REPLACEMENTS = 20

SIZES = {"small": 100 * KIB, "medium": 7 * MIB + 3, "large": 30 * MIB + 1, "replaced": 12 * MIB}
VERSIONS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

MEMORY = 32 * MIB

MAY_FAIL_WITH = {errno.EIO, errno.ESTALE}


@pytest.fixture(autouse=True)
def _needs_fuse() -> None:
    if not Path("/dev/fuse").exists() or os.geteuid() != 0:
        pytest.skip("needs /dev/fuse and root")


@pytest.fixture
def place(seaweed: S3Server) -> Iterator[Scene]:
    with scene(seaweed, "--request-deadline=5s", f"--memory={MEMORY}", "--ttl=1s", "--negative-ttl=0") as built:
        for key, size in SIZES.items():
            built.put(key, size)
        yield built


def disturb(place: Scene) -> None:
    """One GET in three goes wrong, each in its own way."""
    faults: list[Action] = [
        s3_error(500, "InternalError"),
        slow_down(),
        Action(reset=True),
        cut_after(70_000),
        cut_after(70_000, End.CLOSE),
        cut_after(10, End.TERMINATE),
        Action(response_headers={"Content-Range": None}),
        Action(delay_seconds=0.05),
    ]
    for seed, fault in enumerate(faults):
        place.proxy.add(Rule(fault, kind=Kind.GET, probability=0.05, seed=seed))
    place.proxy.add(Rule(slow_down(), where=lambda request: request.kind is not Kind.GET, probability=0.1, seed=99))


def replace_now_and_then(place: Scene, ended: threading.Event) -> None:
    for version in itertools.islice(VERSIONS, 1, REPLACEMENTS):
        if ended.wait(0.3):
            return
        place.put("replaced", SIZES["replaced"], version=version)


def wrong_with(content: object, key: str, start: int) -> str | None:
    """What is wrong with the answer to a read, if anything."""
    if isinstance(content, OSError):
        return None if content.errno in MAY_FAIL_WITH else f"{key}: {content}"
    assert isinstance(content, bytes)
    versions = VERSIONS if key == "replaced" else "A"
    mismatches = [find_mismatch(content, key, start, version=version) for version in versions]
    return None if None in mismatches else f"{key} at {start}: {mismatches[0]}"


def read_anew(user: FileUser, key: str) -> bytes:
    """Read a file whose name may stand for a version that is gone, for the last time."""
    try:
        return user.read_file(key)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    return user.read_file(key)


def test_storm_of_reads_over_a_failing_server(place: Scene) -> None:
    generator = random.Random(7)
    ended = threading.Event()
    writer = threading.Thread(target=replace_now_and_then, args=(place, ended))
    wrong: list[str] = []
    with file_users(place.mount.path, PROCESSES) as users:
        disturb(place)
        writer.start()
        try:
            for _ in range(ROUNDS):
                plans = []
                for user in users:
                    key = generator.choice(list(SIZES))
                    spans = [
                        (key, generator.randrange(1, 200 * KIB), generator.randrange(SIZES[key]))
                        for _ in range(READS_PER_ROUND)
                    ]
                    user.start("each", "read_at", spans, 8)
                    plans.append((user, spans))
                for user, spans in plans:
                    contents = user.result(timeout=60)
                    assert isinstance(contents, list)
                    found = (
                        wrong_with(content, key, start)
                        for content, (key, _, start) in zip(contents, spans, strict=True)
                    )
                    wrong += [text for text in found if text is not None]
                assert place.gauges()["memory_bytes"] <= MEMORY
        finally:
            ended.set()
            writer.join()
        place.proxy.heal()
        for key in SIZES:
            wrong += [text for user in users[:2] if (text := wrong_with(read_anew(user, key), key, 0)) is not None]
    place.wait_until_closed()

    assert wrong == []
    assert place.gauges()["memory_bytes"] <= MEMORY
