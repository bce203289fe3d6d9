"""The real libraries, in processes of their own, on real FUSE mounts."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from tests.support.mounts import run_command

LIBRARIES = ("pyarrow", "safetensors", "torch")


@pytest.fixture(autouse=True)
def _needs_fuse() -> None:
    if not Path("/dev/fuse").exists() or os.geteuid() != 0:
        pytest.skip("needs /dev/fuse and root")


@pytest.fixture(autouse=True)
def _needs_libraries() -> None:
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: make test-frameworks installs them")


class Maker:
    """Makes files on the local disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make(self, code: str) -> tuple[bytes, str]:
        """Run code that writes a file to its first argument; returns the file, and what was printed."""
        path = self._folder / "made"
        done = run_command([sys.executable, "-P", "-c", code, str(path)], timeout=60)
        assert done.returncode == 0, done.stderr
        content = path.read_bytes()
        path.unlink()
        return content, done.stdout.strip()


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return Maker(tmp_path_factory.mktemp("made"))
