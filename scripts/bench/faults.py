"""What becomes of reads when S3 stalls or throttles."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from scripts.bench.harness import MountedBy, Row, show, tools
from scripts.bench.jobs import Result, run_job
from scripts.bench.measured import GIB, KIB, Measured, measure, measure_in
from scripts.bench.object_client import BUCKET, ObjectServer, object_server
from scripts.bench.objects import Made

OBJECT_BYTES = 2 * GIB
READ_BYTES = 64 * KIB
BLOCK_BYTES = 128 * KIB
LATENCY_SECONDS = 0.005

STALL_EVERY = 100
STALL_SECONDS = 5.0
STALL_THREADS = 8
STALL_READS = 500
"""By each thread."""

STALL_TEST_SECONDS = 30.0

STORM_THREADS = 32
STORM_READS = 1_000_000  # time ends it
STORM_RATE = 100.0
STORM_SECONDS = 3.0
STORM_TEST_SECONDS = 10.0
STORM_AFTER_SECONDS = 2.0
"""Into the test; the job needs a moment to start."""


def bench_stalls(shrink: int) -> None:
    """Read at random offsets while one request of a hundred stalls for 5 s, and through a storm of SlowDown."""
    with object_server(Made("big-{}.bin", 1, OBJECT_BYTES)) as server:
        server.change(latency_seconds=LATENCY_SECONDS, stall_every=STALL_EVERY, stall_seconds=STALL_SECONDS)
        reads = STALL_READS // shrink
        rows = [_row_of_stalls("bare loop", measure(server, lambda: _bare(server, reads)))]
        read = partial(_read, threads=STALL_THREADS, reads=reads, seconds=STALL_TEST_SECONDS)
        rows += [_row_of_stalls(tool, measure_in(tool, server, read)) for tool in tools()]
        title = f"{STALL_THREADS} threads read 64 KiB at random offsets, 5 ms; each {STALL_EVERY}th GET stalls 5 s"
        show(title, rows)
        server.change(stall_every=0)
        rows = [_row_of_storm(tool, measure_in(tool, server, lambda mount: _storm(server, mount))) for tool in tools()]
        title = f"{STORM_THREADS} threads read 64 KiB at random offsets for {STORM_TEST_SECONDS:.0f} s, 5 ms; for"
        show(f"{title} {STORM_SECONDS:.0f} s only {STORM_RATE:.0f} requests/s are served, the rest gets SlowDown", rows)


def _read(mount: MountedBy, *, threads: int, reads: int, seconds: float) -> Result:
    return run_job(
        "readers",
        "scattered",
        path=str(mount.path / "big-0.bin"),
        read_size=READ_BYTES,
        threads=threads,
        reads=reads,
        seconds=seconds,
        block_size=BLOCK_BYTES,
    )


def _bare(server: ObjectServer, reads: int) -> Result:
    return run_job(
        "bare",
        "scattered",
        address=server.address,
        path=f"/{BUCKET}/big-0.bin",
        size=OBJECT_BYTES,
        read_size=READ_BYTES,
        connections=STALL_THREADS,
        reads=reads,
        seconds=STALL_TEST_SECONDS,
    )


def _storm(server: ObjectServer, mount: MountedBy) -> Result:
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(_read, mount, threads=STORM_THREADS, reads=STORM_READS, seconds=STORM_TEST_SECONDS)
        time.sleep(STORM_AFTER_SECONDS)
        server.change(storm_rate=STORM_RATE, storm_seconds=STORM_SECONDS)
        return reading.result()


def _row_of_stalls(name: str, measured: Measured) -> Row:
    result = measured.result
    waits = {f"p{share * 100:g} ms": f"{result.wait_seconds(share) * 1000:.1f}" for share in (0.5, 0.99, 0.999)}
    figures = {"requests": measured.counts.requests, "stalled": str(measured.counts.stalled), **waits}
    figures["longest s"] = f"{result.wait_seconds(1):.2f}"
    return Row(name, figures | {"errors": str(len(result.errors)), "reads": str(len(result.waits))})


def _row_of_storm(name: str, measured: Measured) -> Row:
    counts, result = measured.counts, measured.result
    figures = {
        "requests": counts.requests,
        "served of allowed": f"{counts.served_in_storm / (STORM_RATE * STORM_SECONDS):.2f}",
        "refused": str(counts.refused),
        "refused/served": f"{counts.refused / max(1, counts.served_in_storm):.1f}",
        "longest s": f"{result.wait_seconds(1):.2f}",
        "errors": str(len(result.errors)),
    }
    return Row(name, figures | {"reads": str(len(result.waits))})
