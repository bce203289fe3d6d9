"""Real FUSE mounts."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.file_user import FileUser
from tests.support.scene import Scene


@pytest.fixture(autouse=True)
def _needs_fuse() -> None:
    if not Path("/dev/fuse").exists() or os.geteuid() != 0:
        pytest.skip("needs /dev/fuse and root")


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
