"""How many small files many processes read per second: in an order that nothing shows, in listing order, hinted."""

import random
import tempfile
from collections.abc import Callable
from pathlib import Path

from scripts.bench.harness import MountedBy, Row, mounted_by, show, timed, tools
from scripts.bench.jobs import Result, run_job
from scripts.bench.measured import Measured, measure
from scripts.bench.object_client import BUCKET, ObjectServer, object_server
from scripts.bench.objects import Made
from tests.support.mounts import S3MOUNT, run_command

FILES = 2_000
FILE_BYTES = 115_000
PROCESSES = 8
LATENCY_SECONDS = 0.030
DIRECTORY = "train"
NEVER_SLOWER = PROCESSES / LATENCY_SECONDS
"""Files per second of processes that do nothing but wait for one file after the other."""


def bench_small(shrink: int) -> None:
    """Read small files of a listed directory, each once, in 8 processes; then again."""
    made = Made(DIRECTORY + "/{:05}.jpg", FILES // shrink, FILE_BYTES)
    listed = made.names()
    shuffled = random.Random(1).sample(listed, len(listed))
    with object_server(made) as server:
        server.change(latency_seconds=LATENCY_SECONDS)
        rows = [_row("bare loop, shuffled", measure(server, lambda: _bare(server, shuffled)))]
        first = None
        for tool in tools():
            epochs = _read_in(tool, server, shuffled, epochs=2)
            first = first or epochs[0]
            rows += [_row(f"{tool}, shuffled", epochs[0], first), _row(f"{tool}, again", epochs[1], first)]
        rows.append(_row("s3mount, listing order", _read_in("s3mount", server, listed)[0], first))
        if run_command([*S3MOUNT, "hint", "--help"], timeout=30).returncode == 0:
            hinted = _read_in("s3mount", server, shuffled, before=lambda mount: _hint(mount, shuffled))[0]
            rows.append(_row("s3mount, shuffled, hinted", hinted, first))
    show(f"{len(listed)} files of {FILE_BYTES} bytes, listed before, {PROCESSES} processes, 30 ms latency", rows)


def _read_in(
    tool: str,
    server: ObjectServer,
    keys: list[str],
    *,
    epochs: int = 1,
    before: Callable[[MountedBy], None] | None = None,
) -> list[Measured]:
    """Read them in a fresh mount; *before* is called within the time that is measured."""
    with mounted_by(tool, server.endpoint_url, BUCKET) as mount:
        timed(mount, "ls", "-l", DIRECTORY)
        paths = [str(mount.path / key) for key in keys]

        def read() -> Result:
            if before is not None:
                before(mount)
            return run_job("readers", "files", paths=paths, processes=PROCESSES)

        return [measure(server, read, mount) for _ in range(epochs)]


def _hint(mount: MountedBy, keys: list[str]) -> None:
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as order:
        order.write("".join(f"{key}\n" for key in keys))
        order.flush()
        done = run_command([*S3MOUNT, "hint", str(mount.path), "--from-file", str(Path(order.name))], timeout=30)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)


def _bare(server: ObjectServer, keys: list[str]) -> Result:
    paths = [f"/{BUCKET}/{key}" for key in keys]
    return run_job("bare", "files", address=server.address, paths=paths, size=FILE_BYTES, processes=PROCESSES)


def _row(name: str, measured: Measured, first: Measured | None = None) -> Row:
    files = len(measured.result.waits)
    rate = files / measured.result.seconds
    figures = measured.figures() | {"CPU ms/file": f"{measured.cpu_seconds / files * 1000:.2f}"}
    figures |= {f"of {PROCESSES}/latency": f"{rate / NEVER_SLOWER:.2f}"}
    if first is not None:
        figures["of ours, shuffled"] = f"{rate / (len(first.result.waits) / first.result.seconds):.2f}"
    figures["p50 ms"] = f"{measured.result.wait_seconds(0.5) * 1000:.1f}"
    return Row(name, figures | {"files/s": f"{rate:.0f}"})
