"""What all measurements share: a server behind a counting proxy, mounts of ours and of the peers, and a table."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.mounts import S3MOUNT, environment, is_mounted, run_command
from tests.support.proxy import FaultProxy
from tests.support.servers import ACCESS_KEY, REGION, SECRET_KEY, S3Server

READY_SECONDS = 30.0
STEP_SECONDS = 300.0
"""Longest a measured step may take."""

UPLOAD_THREADS = 8
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Row:
    """One measured thing."""

    name: str
    figures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Served:
    """A bucket behind a proxy that counts."""

    server: S3Server
    proxy: FaultProxy
    bucket: str

    def counts(self) -> str:
        """Requests since the log was cleared, such as ``get 3 list 1``."""
        counts = Counter(exchange.kind.value for exchange in self.proxy.log.select())
        return " ".join(f"{kind} {count}" for kind, count in sorted(counts.items())) or "none"


@dataclass(frozen=True, slots=True)
class MountedBy:
    """A mount, ours or a peer's."""

    tool: str
    path: Path
    pid: int

    def cpu_seconds(self) -> float:
        """CPU time its daemon has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS

    def rss_bytes(self) -> int:
        """Resident memory of its daemon."""
        return int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def upload(served: Served, keys: dict[str, bytes]) -> None:
    """Put objects, straight to the server."""
    client = served.server.client()
    with contextlib.closing(client), ThreadPoolExecutor(UPLOAD_THREADS) as pool:
        list(pool.map(lambda item: client.put_object(Bucket=served.bucket, Key=item[0], Body=item[1]), keys.items()))


@contextlib.contextmanager
def served_by(server: S3Server) -> Iterator[Served]:
    """A fresh bucket behind a fresh proxy."""
    with FaultProxy(server.endpoint_url) as proxy:
        yield Served(server, proxy, server.new_bucket())


@contextlib.contextmanager
def mounted_by(tool: str, endpoint_url: str, bucket: str, *options: str) -> Iterator[MountedBy]:
    """Mount with one of `tools`, with a memory of names of ten minutes; unmounts at the end, by force if need be."""
    with tempfile.TemporaryDirectory(prefix="s3mount-bench-") as folder:
        path = Path(folder, "mnt")
        path.mkdir()
        command = _COMMANDS[tool](endpoint_url, bucket, path, Path(folder))
        variables = environment(endpoint_url) | {"AWSACCESSKEYID": ACCESS_KEY, "AWSSECRETACCESSKEY": SECRET_KEY}
        with Path(folder, "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *options], env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            _wait_until_mounted(path, process, Path(folder, "log"))
            yield MountedBy(tool, path, process.pid)
        finally:
            for attempt in (["umount", str(path)], ["umount", "--lazy", str(path)]):
                if is_mounted(path):
                    with contextlib.suppress(TimeoutError):  # or the daemon would stay
                        run_command(attempt, timeout=20)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def tools() -> list[str]:
    """Ours, and the peers that are installed."""
    return [tool for tool in _COMMANDS if tool == "s3mount" or shutil.which(tool)]


def timed(mount: MountedBy, *command: str) -> tuple[float, float, str]:
    """Run a command in the mount: wall seconds, CPU seconds of the daemon, and what it printed."""
    cpu_before, started_at = mount.cpu_seconds(), time.monotonic()
    done = run_command(command, timeout=STEP_SECONDS, cwd=mount.path)
    seconds = time.monotonic() - started_at
    if done.returncode != 0:
        raise RuntimeError(f"{command} in {mount.tool}: {done.stderr}")
    return seconds, mount.cpu_seconds() - cpu_before, done.stdout


def show(title: str, rows: list[Row]) -> None:
    """Print a table."""
    columns = list(dict.fromkeys(column for row in rows for column in row.figures))
    table = [["", *columns], *([row.name, *(row.figures.get(column, "") for column in columns)] for row in rows)]
    widths = [max(len(line[index]) for line in table) for index in range(len(columns) + 1)]
    print(f"\n{title}")
    for line in table:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _wait_until_mounted(path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if is_mounted(path) and run_command(["stat", str(path)], timeout=READY_SECONDS).returncode == 0:
            return
        time.sleep(0.05)
    raise RuntimeError(f"not mounted: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")


def _s3mount(endpoint_url: str, bucket: str, path: Path, _folder: Path) -> list[str]:
    command = [*S3MOUNT, "mount", f"s3://{bucket}", str(path), "--foreground", "--endpoint-url", endpoint_url]
    return [*command, "--ttl", "10m"]


def _s3fs(endpoint_url: str, bucket: str, path: Path, _folder: Path) -> list[str]:
    options = f"url={endpoint_url},use_path_request_style,endpoint={REGION},stat_cache_expire=600"
    options += ",max_stat_cache_size=300000"
    return ["s3fs", bucket, str(path), "-f", "-o", options]


def _rclone(endpoint_url: str, bucket: str, path: Path, folder: Path) -> list[str]:
    config = folder / "rclone.conf"
    config.write_text(
        f"[s3]\ntype = s3\nprovider = Other\nenv_auth = true\nregion = {REGION}\nendpoint = {endpoint_url}\n",
        encoding="utf-8",
    )
    command = ["rclone", "mount", f"s3:{bucket}", str(path), "--config", str(config)]
    return [*command, "--dir-cache-time", "10m", "--read-only"]


_COMMANDS: dict[str, Callable[[str, str, Path, Path], list[str]]] = {
    "s3mount": _s3mount,
    "s3fs": _s3fs,
    "rclone": _rclone,
}
