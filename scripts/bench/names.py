"""How fast names are listed and looked up, how many requests that costs, and how much memory a name takes."""

import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scripts.bench.harness import MountedBy, Row, Served, mounted_by, served_by, show, timed, tools, upload
from scripts.bench.listing_server import ListingServer
from tests.support.mounts import S3MOUNT, environment, run_command
from tests.support.servers import S3Server

TREE_DIRECTORIES = 200
TREE_FILES = 20_000
STAT_FILES = 5_000
MEMORY_DIRECTORIES = 200
MEMORY_FILES = 200_000
FORGET_SECONDS = 30.0
"""How long names may take to be given back after the kernel forgot them; the TTL of that mount is 5 s."""

READY_RUNS = 5


def bench_listing(server: S3Server) -> None:
    """``ls -lR`` of 20,000 keys in 200 directories, then again, then a stat of 5,000 known names."""
    with served_by(server) as served:
        upload(served, {f"d{index % TREE_DIRECTORIES:03}/f{index:05}": b"x" for index in range(TREE_FILES)})
        rows = []
        for tool in tools():
            with mounted_by(tool, served.proxy.endpoint_url, served.bucket) as mount:
                rows += [
                    _list(served, mount, f"{tool}: ls -lR, cold"),
                    _list(served, mount, f"{tool}: ls -lR, warm"),
                    _stat(served, mount, tool),
                ]
        show(f"listing of {TREE_FILES} keys in {TREE_DIRECTORIES} directories", rows)


def bench_small_files(server: S3Server) -> None:
    """Open, read and close small files after their directory was listed."""
    count = 500
    with served_by(server) as served:
        upload(served, {f"f{index:04}": bytes(1000) for index in range(count)})
        rows = []
        for tool in tools():
            with mounted_by(tool, served.proxy.endpoint_url, served.bucket) as mount:
                timed(mount, "ls", "-l")
                served.proxy.log.clear()
                code = "import os\nfor name in sorted(os.listdir()):\n    with open(name, 'rb') as f: f.read()"
                seconds, cpu, _ = timed(mount, sys.executable, "-c", code)
                figures = {"requests": served.counts(), "CPU ms/file": f"{cpu / count * 1000:.2f}"}
                rows.append(Row(tool, {**figures, "files/s": f"{count / seconds:.0f}"}))
        show(f"open + read + close of {count} files of 1,000 bytes, directory listed before", rows)


def bench_memory(_server: S3Server) -> None:
    """Resident memory per inode, and what is left after the kernel has forgotten them."""
    with (
        ListingServer(directories=MEMORY_DIRECTORIES, files=MEMORY_FILES) as listing,
        mounted_by("s3mount", listing.endpoint_url, "bucket", "--ttl", "5s") as mount,
    ):
        timed(mount, "ls", "-l", "d000")
        before = mount.rss_bytes()
        seconds, cpu, _ = timed(mount, "ls", "-lR")
        listed = mount.rss_bytes()
        with contextlib.suppress(OSError):
            Path("/proc/sys/vm/drop_caches").write_text("2", encoding="ascii")
        time.sleep(FORGET_SECONDS)
        forgotten = mount.rss_bytes()
        figures = {
            "bytes/inode": f"{(listed - before) / MEMORY_FILES:.0f}",
            "left after FORGET": f"{(forgotten - before) / (listed - before):.0%}",
            "RSS MB": f"{before / 1e6:.0f} -> {listed / 1e6:.0f} -> {forgotten / 1e6:.0f}",
            "CPU us/entry": f"{cpu / MEMORY_FILES * 1e6:.0f}",
            "entries/s": f"{MEMORY_FILES / seconds:.0f}",
        }
        show(f"memory of {MEMORY_FILES} inodes", [Row("s3mount", figures)])


def bench_ready(server: S3Server) -> None:
    """Time from the start of ``s3mount mount`` until it returns, which is when the file system answers."""
    with served_by(server) as served, contextlib.ExitStack() as stack:
        times = []
        for _ in range(READY_RUNS):
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="s3mount-bench-")))
            command = [*S3MOUNT, "mount", f"s3://{served.bucket}", str(path), "--log-file", f"{path}.log"]
            started_at = time.monotonic()
            done = subprocess.run(
                command, env=environment(server.endpoint_url), capture_output=True, timeout=60, text=True, check=False
            )
            times.append(time.monotonic() - started_at)
            if done.returncode != 0:
                raise RuntimeError(done.stderr)
            run_command([*S3MOUNT, "unmount", str(path)], timeout=60)
        figures = {"min s": f"{min(times):.2f}", "median s": f"{sorted(times)[READY_RUNS // 2]:.2f}"}
        show(f"ready after `s3mount mount`, {READY_RUNS} runs", [Row("s3mount", figures)])


def _list(served: Served, mount: MountedBy, name: str) -> Row:
    served.proxy.log.clear()
    seconds, cpu, printed = timed(mount, "ls", "-lR")
    files = sum(line.startswith("-") for line in printed.splitlines())
    figures = {"requests": served.counts(), "CPU us/entry": f"{cpu / files * 1e6:.0f}"}
    return Row(name, {**figures, "entries/s": f"{files / seconds:.0f}", "files": str(files)})


def _stat(served: Served, mount: MountedBy, tool: str) -> Row:
    served.proxy.log.clear()
    names = [f"d{index % TREE_DIRECTORIES:03}/f{index:05}" for index in range(STAT_FILES)]
    code = "import os, sys\nfor name in sys.stdin.read().split():\n    os.stat(name)"
    seconds, cpu, _ = timed(mount, "sh", "-c", f"echo '{' '.join(names)}' | {sys.executable} -c '{code}'")
    figures = {"requests": served.counts(), "CPU us/entry": f"{cpu / STAT_FILES * 1e6:.0f}"}
    return Row(f"{tool}: stat of {STAT_FILES}", {**figures, "entries/s": f"{STAT_FILES / seconds:.0f}"})
