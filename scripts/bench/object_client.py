"""Starts the object server and asks it: what the measurements hold in their hands."""

import contextlib
import json
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from scripts.bench.jobs import REPOSITORY
from scripts.bench.objects import Made

BUCKET = "bucket"
END_SECONDS = 5.0
QUIET_SECONDS = 0.2
"""Requests are over when nothing was counted for so long."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What the server counted since it was last reset."""

    get: int
    head: int
    list: int
    other: int
    bytes: int
    connections: int
    refused: int
    served_in_storm: int
    stalled: int
    most_in_flight: int

    @property
    def requests(self) -> str:
        """Such as ``get 3 list 1``."""
        kinds = {"get": self.get, "head": self.head, "list": self.list, "other": self.other}
        return " ".join(f"{kind} {count}" for kind, count in kinds.items() if count) or "none"


class ObjectServer:
    """A running object server."""

    def __init__(self, port: int, ca_file: Path | None) -> None:
        self.ca_file = ca_file
        """What clients have to trust, if it speaks TLS."""
        self.endpoint_url = f"{'https' if ca_file else 'http'}://127.0.0.1:{port}"

    @property
    def address(self) -> str:
        """Host and port."""
        return urlsplit(self.endpoint_url).netloc

    def counts(self) -> Counts:
        """What was counted."""
        return self._ask("GET", "counts")

    def reset(self) -> None:
        """Begin to count anew."""
        self._ask("POST", "reset")

    def change(self, **settings: float) -> None:
        """Change how it behaves; the names are those of `object_state.SETTINGS`."""
        self._ask("POST", "settings?" + urlencode(settings))

    def settled_counts(self, *, most_seconds: float = 5.0) -> Counts:
        """What was counted once nothing more comes."""
        deadline = time.monotonic() + most_seconds
        counts = self.counts()
        while time.monotonic() < deadline:
            time.sleep(QUIET_SECONDS)
            before, counts = counts, self.counts()
            if before == counts:
                break
        return counts

    def _ask(self, method: str, path: str) -> Counts:
        request = urllib.request.Request(f"{self.endpoint_url}/-/{path}", method=method)
        context = ssl.create_default_context(cafile=self.ca_file) if self.ca_file else None
        with urllib.request.urlopen(request, timeout=10, context=context) as response:
            return Counts(**json.load(response))


@contextlib.contextmanager
def object_server(*made: Made, root: Path | None = None, tls: bool = False) -> Iterator[ObjectServer]:
    """Run an object server that holds *made*, and the files below *root*."""
    with tempfile.TemporaryDirectory(prefix="s3mount-bench-") as folder:
        command = [sys.executable, "-m", "scripts.bench.object_server"]
        for some in made:
            command += ["--made", some.pattern, str(some.count), str(some.size)]
        if root is not None:
            command += ["--root", str(root)]
        ca_file = Path(folder, "ca.pem") if tls else None
        if ca_file is not None:
            command += ["--tls", str(ca_file)]
        with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                yield ObjectServer(int(process.stdout.readline()), ca_file)
            finally:
                process.stdin.close()
                try:
                    process.wait(END_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
