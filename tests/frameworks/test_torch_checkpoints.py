"""R1: a checkpoint is loaded for what its bytes cost, and the first tensor comes soon."""

from collections.abc import Iterator

import pytest

from tests.support.made import Maker
from tests.support.proxy_log import bytes_sent
from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

MAX_FETCHED = 1.05
"""Bytes fetched per byte of the file."""

MAX_FIRST_REQUESTS = 12
"""GETs begun before the first tensor of a mapped checkpoint is there; 11 now, which is all of the file. To be 3."""

DIGEST = """
import hashlib, sys, time
import torch
def digest(tensors):
    content = hashlib.sha256()
    for name in sorted(tensors):
        content.update(name.encode())
        content.update(tensors[name].numpy())
    return content.hexdigest()
"""

SAVE = (
    DIGEST
    + """
generator = torch.Generator().manual_seed(1)
tensors = {f"layer{index}": torch.rand(2 << 20, generator=generator) for index in range(8)}
torch.save(tensors, sys.argv[1])
print(digest(tensors))
"""
)

LOAD = (
    DIGEST
    + """
tensors = torch.load(sys.argv[1], mmap=sys.argv[2] == "mapped", weights_only=True)
float(tensors["layer0"][0])
print(time.monotonic(), digest(tensors))
"""
)


@pytest.fixture(scope="module")
def checkpoint(maker: Maker) -> tuple[bytes, str]:
    """A file of 64 MiB, and the digest of its tensors."""
    return maker.make(SAVE)


@pytest.fixture
def place(seaweed: S3Server, checkpoint: tuple[bytes, str]) -> Iterator[Scene]:
    with scene(seaweed) as built:
        built.client.put_object(Bucket=built.bucket, Key="runs/model.pt", Body=checkpoint[0])
        yield built


@pytest.mark.parametrize("way", ["read", "mapped"])
def test_a_checkpoint_costs_its_bytes_and_is_right(place: Scene, checkpoint: tuple[bytes, str], way: str) -> None:
    content, digest = checkpoint

    done = place.mount.run_python(LOAD, "runs/model.pt", way, timeout=60)
    place.proxy.log.wait_until_idle()

    assert done.returncode == 0, done.stderr
    first_at, found = done.stdout.split()
    assert found == digest
    assert bytes_sent(place.gets()) <= MAX_FETCHED * len(content)
    if way == "mapped":  # else the last tensor is there when the first one is
        assert sum(get.started_at < float(first_at) for get in place.gets()) <= MAX_FIRST_REQUESTS
