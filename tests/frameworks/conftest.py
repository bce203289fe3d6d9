"""The real libraries, in processes of their own, on real FUSE mounts."""

import importlib.util
import os
from pathlib import Path

import pytest

from tests.support.made import Maker

LIBRARIES = ("pyarrow", "safetensors", "torch")


@pytest.fixture(scope="session", autouse=True)
def _needs_fuse() -> None:
    if not Path("/dev/fuse").exists() or os.geteuid() != 0:
        pytest.skip("needs /dev/fuse and root")


@pytest.fixture(scope="session", autouse=True)
def _needs_libraries() -> None:
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: make test-frameworks installs them")


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return Maker(tmp_path_factory.mktemp("made"))
