"""How much memory the daemon takes while it reads many streams."""

import threading
from functools import partial
from typing import Self

from scripts.bench.harness import MountedBy, Row, mounted_by, show, tools
from scripts.bench.jobs import Result, run_job
from scripts.bench.measured import GIB, MIB, measure
from scripts.bench.object_client import BUCKET, object_server
from scripts.bench.objects import Made

STREAMS = 32
TOTAL_BYTES = 20 * GIB
READ_BYTES = MIB
BUDGET_BYTES = 512 * MIB
SAMPLE_SECONDS = 0.1


class MemoryWatch:
    """Samples a daemon's resident memory from its own thread, as a context manager."""

    def __init__(self, mount: MountedBy) -> None:
        self._mount = mount
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.samples = [mount.rss_bytes()]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self.samples.append(self._mount.rss_bytes())


def bench_resident(shrink: int) -> None:
    """Read 32 streams at once, 20 GiB in all, and watch the daemon's resident memory."""
    size = TOTAL_BYTES // shrink // STREAMS
    rows = []
    with object_server(Made("big-{:02}.bin", STREAMS, size)) as server:
        for tool in tools():
            options = ("--memory", str(BUDGET_BYTES)) if tool == "s3mount" else ()
            with mounted_by(tool, server.endpoint_url, BUCKET, *options) as mount, MemoryWatch(mount) as watch:
                measured = measure(server, partial(_read, mount), mount)
                last = mount.rss_bytes()
            most = max(watch.samples)
            memory = {"RSS MB": f"{watch.samples[0] / 1e6:.0f} -> {most / 1e6:.0f} -> {last / 1e6:.0f}"}
            if tool == "s3mount":
                memory["most/budget"] = f"{most / BUDGET_BYTES:.2f}"
            speed = {"CPU s/GiB": measured.cpu_per_gib(), "MB/s": f"{measured.bytes_per_second / 1e6:.0f}"}
            rows.append(Row(tool, measured.figures() | memory | speed))
    show(f"{STREAMS} streams, {size * STREAMS >> 30} GiB in all, budget {BUDGET_BYTES >> 20} MiB", rows)


def _read(mount: MountedBy) -> Result:
    paths = [str(mount.path / f"big-{index:02}.bin") for index in range(STREAMS)]
    return run_job("readers", "sequential", paths=paths, read_size=READ_BYTES)
