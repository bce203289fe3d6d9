"""`Maker`: files that a library writes, in a process of its own."""

import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.mounts import run_command

MAKE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes files on the local disk."""

    folder: Path
    """Where they are for a moment."""

    def make(self, code: str) -> tuple[bytes, str]:
        """Run code that writes a file to its first argument; returns the file, and what was printed."""
        path = self.folder / "made"
        done = run_command([sys.executable, "-P", "-c", code, str(path)], timeout=MAKE_SECONDS)
        assert done.returncode == 0, done.stderr
        content = path.read_bytes()
        path.unlink()
        return content, done.stdout.strip()
