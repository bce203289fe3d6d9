"""How big objects are read: from beginning to end, at random offsets and through mappings."""

import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

from scripts.bench.harness import MountedBy, Row, show, tools
from scripts.bench.jobs import Result, run_job
from scripts.bench.measured import GIB, KIB, MIB, Measured, fastest, measure, measure_in
from scripts.bench.object_client import BUCKET, ObjectServer, object_server
from scripts.bench.objects import Made

SEQUENTIAL_BYTES = GIB
SEQUENTIAL_READ_BYTES = MIB
SEQUENTIAL_ROUNDS = 3
"""Each tool in turn so often; the fastest of its rounds is shown."""

BARE_RANGE_BYTES = 8 * MIB
BARE_CONNECTIONS = (4, 8, 16)
"""The best of them is what ours is compared with."""

FAR_SECONDS = 0.030
FAR_BYTES_PER_SECOND = 90e6
"""A connection to S3 from the same region: first byte after so long, and no more than that."""

TOGETHER = 4
TAR_BYTES = 256 * MIB
TAR_MEMBER_BYTES = 115_000
TAR_READ_BYTES = 4 * KIB

RANDOM_BYTES = 2 * GIB
RANDOM_READ_BYTES = (4 * KIB, 64 * KIB, 256 * KIB)
RANDOM_READS = 200
RANDOM_THREADS = 32
RANDOM_SECONDS = 10.0
"""Longest of one step: peers may need seconds for one read."""

BLOCK_BYTES = 128 * KIB
"""What bytes fetched by random reads are compared with."""

MAPPED_BYTES = 256_000_000
MAPPED_PROCESSES = 8


def bench_sequential(shrink: int) -> None:
    """Read objects once, cold: as fast as can be, far away, by TLS, four at once, and a tar shard in 4 KiB reads."""
    size = SEQUENTIAL_BYTES // shrink
    rounds = SEQUENTIAL_ROUNDS if shrink == 1 else 1
    with object_server(Made("big-{}.bin", TOGETHER, size)) as server:
        _compare_sequential(f"one object of {size >> 20} MiB, no latency", server, size, rounds=rounds)
        _compare_sequential(f"{TOGETHER} objects of {size >> 20} MiB at once", server, size, rounds=1, count=TOGETHER)
        server.change(latency_seconds=FAR_SECONDS, bytes_per_second=FAR_BYTES_PER_SECOND)
        single = measure(server, lambda: _bare(server, 1, size, connections=1, range_size=size))
        title = f"one object of {size >> 20} MiB, {FAR_SECONDS * 1000:.0f} ms and 90 MB/s per connection"
        _compare_sequential(title, server, size, rounds=1, single=single)
    with object_server(Made("big-{}.bin", 1, size), tls=True) as server:
        title = f"one object of {size >> 20} MiB, TLS"
        _compare_sequential(title, server, size, rounds=rounds, chosen=["s3mount"])
    _bench_tar(shrink)


def bench_random(shrink: int) -> None:
    """Read at random offsets of one object, by one thread and by many through one descriptor, far away."""
    with object_server(Made("big-{}.bin", 1, RANDOM_BYTES)) as server:
        server.change(latency_seconds=FAR_SECONDS)
        for read_size in RANDOM_READ_BYTES:
            rows = [
                _row_of_random("bare loop", *(_bare_random(server, read_size, n, shrink) for n in (1, RANDOM_THREADS)))
            ]
            for tool in tools():
                one, many = (_random(tool, server, read_size, n, shrink) for n in (1, RANDOM_THREADS))
                rows.append(_row_of_random(tool, one, many))
            show(f"reads of {read_size >> 10} KiB at random offsets of {RANDOM_BYTES >> 30} GiB, 30 ms latency", rows)


def bench_mapped(shrink: int) -> None:
    """Map one file in 8 processes which all touch all of it, as loaders of safetensors do."""
    size = MAPPED_BYTES // shrink
    rows = []
    with object_server(Made("model-{}.safetensors", 1, size)) as server:
        for tool in tools():
            alone, together = compare_mapped(tool, server)
            ratio = alone.result.seconds / together.result.seconds
            fetched = {"fetched/size": f"{together.counts.bytes / size:.3f}"}
            speed = {"of sequential speed": f"{ratio:.2f}", "seconds": f"{together.result.seconds:.2f}"}
            rows.append(Row(tool, {"requests": together.counts.requests, **fetched, **speed}))
    show(f"{MAPPED_PROCESSES} processes map one file of {size / 1e6:.0f} MB", rows)


def compare_mapped(tool: str, server: ObjectServer) -> tuple[Measured, Measured]:
    """One sequential reader, then the mapping processes, each in a fresh mount."""

    def read(mount: MountedBy) -> Result:
        paths = [str(mount.path / "model-0.safetensors")]
        return run_job("readers", "sequential", paths=paths, read_size=SEQUENTIAL_READ_BYTES)

    def map_it(mount: MountedBy) -> Result:
        path = str(mount.path / "model-0.safetensors")
        return run_job("readers", "mapped", path=path, processes=MAPPED_PROCESSES)

    return measure_in(tool, server, read), measure_in(tool, server, map_it)


def make_tar(path: Path, size: int) -> None:
    """Write a tar shard of about *size*, as data loaders make them."""
    with tarfile.open(path, "w") as archive:
        for number in range(size // TAR_MEMBER_BYTES):
            member = tarfile.TarInfo(f"{number:06}.jpg")
            member.size = TAR_MEMBER_BYTES
            archive.addfile(member, BytesIO(bytes(TAR_MEMBER_BYTES)))


def _compare_sequential(
    title: str,
    server: ObjectServer,
    size: int,
    *,
    rounds: int,
    count: int = 1,
    single: Measured | None = None,
    chosen: list[str] | None = None,
) -> None:
    """A table: the best bare loop, ours and the peers, in turn."""

    def read(mount: MountedBy) -> Result:
        paths = [str(mount.path / f"big-{index}.bin") for index in range(count)]
        return run_job("readers", "sequential", paths=paths, read_size=SEQUENTIAL_READ_BYTES)

    chosen = chosen or tools()
    attempts: dict[str, list[Measured]] = {}
    for _ in range(rounds):
        for connections in BARE_CONNECTIONS:
            bare = measure(server, lambda n=connections: _bare(server, count, size, connections=n))  # type: ignore[misc]
            attempts.setdefault("bare loop", []).append(bare)
        for tool in chosen:
            attempts.setdefault(tool, []).append(measure_in(tool, server, read))
    best = {name: fastest(*some) for name, some in attempts.items()}
    rows = []
    for name, measured in best.items():
        ratio = measured.bytes_per_second / best["bare loop"].bytes_per_second
        figures = measured.figures() | {"CPU s/GiB": measured.cpu_per_gib(), "of bare loop": f"{ratio:.2f}"}
        if single is not None:
            figures["x one connection"] = f"{measured.bytes_per_second / single.bytes_per_second:.1f}"
        figures |= {"MB/s": f"{measured.bytes_per_second / 1e6:.0f}", "connections": str(measured.counts.connections)}
        rows.append(Row(name, figures))
    show(title, rows)


def _bare(
    server: ObjectServer, count: int, size: int, *, connections: int, range_size: int = BARE_RANGE_BYTES
) -> Result:
    return run_job(
        "bare",
        "sequential",
        address=server.address,
        paths=[f"/{BUCKET}/big-{index}.bin" for index in range(count)],
        size=size,
        range_size=range_size,
        connections=connections,
        ca_file=str(server.ca_file) if server.ca_file else None,
    )


def _bench_tar(shrink: int) -> None:
    with tempfile.TemporaryDirectory(prefix="s3mount-bench-") as folder:
        make_tar(Path(folder, "shard.tar"), TAR_BYTES // shrink)
        with object_server(root=Path(folder)) as server:
            local = run_job("readers", "tar", path=str(Path(folder, "shard.tar")), read_size=TAR_READ_BYTES)
            rows = [Row("local file", {"MB/s": f"{local.bytes / local.seconds / 1e6:.0f}", "of local file": "1.00"})]
            for tool in tools():
                measured = measure_in(tool, server, read_tar)
                ratio = {"of local file": f"{local.seconds / measured.result.seconds:.2f}"}
                speed = {"MB/s": f"{measured.bytes_per_second / 1e6:.0f}"}
                rows.append(Row(tool, measured.figures() | {"CPU s/GiB": measured.cpu_per_gib()} | ratio | speed))
            show(f"tar shard of {TAR_BYTES // shrink >> 20} MiB as a stream in 4 KiB reads", rows)


def read_tar(mount: MountedBy) -> Result:
    """Read ``shard.tar`` as a stream."""
    return run_job("readers", "tar", path=str(mount.path / "shard.tar"), read_size=TAR_READ_BYTES)


def _random(tool: str, server: ObjectServer, read_size: int, threads: int, shrink: int) -> Measured:
    def read(mount: MountedBy) -> Result:
        return run_job(
            "readers",
            "scattered",
            path=str(mount.path / "big-0.bin"),
            read_size=read_size,
            threads=threads,
            reads=RANDOM_READS // shrink,
            seconds=RANDOM_SECONDS / shrink,
            block_size=BLOCK_BYTES,
        )

    return measure_in(tool, server, read)


def _bare_random(server: ObjectServer, read_size: int, connections: int, shrink: int) -> Measured:
    def fetch() -> Result:
        return run_job(
            "bare",
            "scattered",
            address=server.address,
            path=f"/{BUCKET}/big-0.bin",
            size=RANDOM_BYTES,
            read_size=read_size,
            connections=connections,
            reads=RANDOM_READS // shrink,
        )

    return measure(server, fetch)


def _row_of_random(name: str, one: Measured, many: Measured) -> Row:
    blocks = many.result.notes.get("blocks")
    rate_of_one, rate_of_many = (len(some.result.waits) / some.result.seconds for some in (one, many))
    figures = {
        "requests": many.counts.requests,
        "fetched/blocks": f"{many.counts.bytes / (blocks * BLOCK_BYTES):.2f}" if blocks else "",
        "CPU ms/read": f"{many.cpu_seconds / max(1, len(many.result.waits)) * 1000:.2f}",
        "p50 ms, 1 thread": f"{one.result.wait_seconds(0.5) * 1000:.1f}",
        f"{RANDOM_THREADS} threads, x 1": f"{rate_of_many / rate_of_one:.1f}",
        "reads/s": f"{rate_of_many:.0f}",
        "errors": str(len(one.result.errors) + len(many.result.errors)),
    }
    return Row(name, figures)
