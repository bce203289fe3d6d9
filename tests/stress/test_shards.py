"""Asserts: many workers that leave their shards early get the right bytes; soon after a shard is closed nothing of it
is being fetched, no more was fetched than what was read and the readahead, and the memory is bounded.
"""

import hashlib
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.data import coded_bytes
from tests.support.proxy_log import Outcome, bytes_sent
from tests.support.scene import scene
from tests.support.servers import S3Server

KIB = 1024
MIB = 1024 * KIB

WORKERS = 12
SHARDS_EACH = 2
SHARD_SIZE = 16 * MIB

READAHEAD = 4 * MIB
BUDGET = 64 * MIB

KERNEL_READAHEAD = 4 * MIB
"""What the kernel has read ahead of the program, and what it has asked for beyond that."""

CLOSING_SECONDS = 1.0
"""After this, nothing of a closed shard is being fetched."""

SLACK = 32 * MIB
"""What the daemon may have resident more than before, besides the budget."""


@pytest.fixture(autouse=True)
def _needs_fuse() -> None:
    if not Path("/dev/fuse").exists() or os.geteuid() != 0:
        pytest.skip("needs /dev/fuse and root")


READ_PARTS = """
import hashlib, os, sys, time
jobs = [job.split(":") for job in sys.argv[1:]]

def read_part(key, wanted):
    digest, left = hashlib.sha256(), int(wanted)
    with open(key, "rb", buffering=10240) as file:
        while left and (part := file.read(min(left, 10240))):
            digest.update(part)
            left -= len(part)
    os.write(1, f"{key} {digest.hexdigest()} {time.monotonic()}\\n".encode())  # whole, unlike what print writes

children = []
for worker in sorted({worker for worker, _, _ in jobs}):
    child = os.fork()
    if not child:
        for owner, key, wanted in jobs:
            if owner == worker:
                read_part(key, wanted)
        os._exit(0)
    children.append(child)
print(sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))
"""


def test_shards_that_many_workers_leave_early_are_fetched_no_further(seaweed: S3Server) -> None:
    generator = random.Random(12)
    keys = [f"shard-{number:02}.tar" for number in range(WORKERS * SHARDS_EACH)]
    wanted = {key: int(SHARD_SIZE * generator.uniform(0.05, 0.8)) for key in keys}
    jobs = [f"{index % WORKERS}:{key}:{wanted[key]}" for index, key in enumerate(keys)]
    with scene(seaweed, f"--max-readahead={READAHEAD}", f"--memory={BUDGET}") as place:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: place.put(key, SHARD_SIZE), keys))
        place.proxy.bytes_per_second_per_connection = 4 * MIB  # requests are under way when a shard is closed
        rss_before = place.mount.rss_bytes()

        done = place.mount.run_python(READ_PARTS, *jobs, timeout=90)
        place.wait_until_closed()
        exchanges = place.proxy.log.wait_until_idle()

        *lines, failed_workers = done.stdout.splitlines()
        assert failed_workers == "0", done.stderr
        found = {key: (digest, float(closed_at)) for key, digest, closed_at in map(str.split, lines)}
        assert found.keys() == wanted.keys()
        for key, (digest, closed_at) in found.items():
            assert digest == hashlib.sha256(coded_bytes(key, 0, wanted[key])).hexdigest(), key
            gets = place.gets(key)
            late = [exchange for exchange in gets if (exchange.ended_at or 0) > closed_at + CLOSING_SECONDS]
            assert late == [], key
            assert bytes_sent(gets) <= wanted[key] + KERNEL_READAHEAD + READAHEAD, key
        assert Outcome.CLIENT_GONE in {exchange.outcome for exchange in exchanges}, "some were under way"
        assert place.gauges()["memory_bytes"] <= BUDGET
        assert place.mount.rss_bytes() <= rss_before + BUDGET + SLACK
