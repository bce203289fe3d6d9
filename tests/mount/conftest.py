"""Real FUSE mounts."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from types_boto3_s3 import S3Client

from tests.support.file_user import FileUser
from tests.support.proxy import FaultProxy
from tests.support.scene import Scene
from tests.support.servers import S3Server


@pytest.fixture(autouse=True)
def _needs_fuse() -> None:
    if not Path("/dev/fuse").exists() or os.geteuid() != 0:
        pytest.skip("needs /dev/fuse and root")


@pytest.fixture
def bucket(seaweed: S3Server) -> str:
    """A fresh bucket on the real server."""
    return seaweed.new_bucket()


@pytest.fixture
def client(seaweed: S3Server) -> Iterator[S3Client]:
    """Another client of the real server, which knows nothing of the mount."""
    s3 = seaweed.client()
    yield s3
    s3.close()


@pytest.fixture
def proxy(seaweed: S3Server) -> Iterator[FaultProxy]:
    """A proxy before the real server, which counts and disturbs requests."""
    with FaultProxy(seaweed.endpoint_url) as running:
        yield running


@pytest.fixture
def place(shared: Scene) -> Iterator[Scene]:
    """The scene that a module's tests share, as new, without faults and counted from here."""
    shared.reset()
    yield shared
    shared.reset()
    shared.wait_until_closed()


@pytest.fixture
def user(place: Scene) -> Iterator[FileUser]:
    """A process that works in the mounted directory."""
    with place.user() as process:
        yield process
