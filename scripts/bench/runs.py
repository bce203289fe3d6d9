"""Whole programs on a mount, and what must hold for each; the counts are those of the server."""

import contextlib
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from scripts.bench.harness import MountedBy, Row, mounted_by, show
from scripts.bench.jobs import Result, run_job
from scripts.bench.measured import MIB, Measured, measure, measure_in
from scripts.bench.object_client import BUCKET, ObjectServer, object_server
from scripts.bench.objects import Made
from scripts.bench.programs import is_installed
from scripts.bench.reads import MAPPED_BYTES, MAPPED_PROCESSES, compare_mapped, make_tar, read_tar

CHECKPOINT_BYTES = 512 * MIB
TOKENS_BYTES = 256 * MIB
BATCHES = 500
TABLE_ROWS = 4_000_000
"""256 MB."""

SHARD_BYTES = 150_000_000
REPLACED_BYTES = 512 * MIB


def bench_runs(shrink: int) -> None:
    """Checkpoints, memory maps, Parquet columns, tar shards, and an object that is replaced while it is read."""
    rows = [
        *_checkpoint(shrink),
        _memory_map(shrink),
        _mapped_model(shrink),
        *_parquet(shrink),
        _shard(shrink),
        _replacement(shrink),
    ]
    show("programs on s3mount", rows)


@contextlib.contextmanager
def _stored() -> Iterator[tuple[Path, ObjectServer]]:
    """A directory whose files are objects."""
    with tempfile.TemporaryDirectory(prefix="s3mount-bench-") as folder, object_server(root=Path(folder)) as server:
        yield Path(folder), server


def _checkpoint(shrink: int) -> list[Row]:
    names = {False: "torch.load", True: "torch.load(mmap=True)"}
    if not is_installed("torch"):
        return [Row(name, {"holds": "torch is not installed"}) for name in names.values()]
    rows = []
    with _stored() as (folder, server):
        run_job("programs", "save_tensors", path=str(folder / "model.pt"), size=CHECKPOINT_BYTES // shrink)
        size = (folder / "model.pt").stat().st_size
        for mapped, name in names.items():
            measured = measure_in("s3mount", server, partial(_load, server=server, mapped=mapped))
            first, fetched = measured.result.notes["first_requests"], measured.counts.bytes / size
            demand, seen, holds = "<= 1.05 of its bytes", f"{fetched:.3f}", fetched <= 1.05
            if mapped:  # else all tensors are there when the first one is
                demand += ", <= 3 requests before the first tensor"
                seen, holds = f"{seen}, {first:.0f}", holds and first <= 3
            rows.append(_row(name, demand, seen, measured, holds=holds))
    return rows


def _load(mount: MountedBy, *, server: ObjectServer, mapped: bool) -> Result:
    port = urlsplit(server.endpoint_url).port
    return run_job("programs", "load_tensors", path=str(mount.path / "model.pt"), port=port, mapped=mapped)


def _memory_map(shrink: int) -> Row:
    with (
        object_server(Made("tokens-{}.bin", 1, TOKENS_BYTES // shrink)) as server,
        mounted_by("s3mount", server.endpoint_url, BUCKET) as mount,
    ):
        job = partial(run_job, "programs", "memmap", path=str(mount.path / "tokens-0.bin"), batches=BATCHES // shrink)
        first, second = (measure(server, job, mount) for _ in range(2))
    seen = f"first {first.counts.get}, second {second.counts.get}"
    return _row(
        "np.memmap opened per batch, twice", "no GETs the second time", seen, first, holds=second.counts.get == 0
    )


def _mapped_model(shrink: int) -> Row:
    with object_server(Made("model-{}.safetensors", 1, MAPPED_BYTES // shrink)) as server:
        alone, together = compare_mapped("s3mount", server)
    ratio = alone.result.seconds / together.result.seconds
    name = f"{MAPPED_PROCESSES} processes map one file"
    return _row(name, ">= 0.8 of sequential speed", f"{ratio:.2f}", together, holds=ratio >= 0.8)


def _parquet(shrink: int) -> list[Row]:
    names = {False: "Parquet, 2 of 8 columns", True: "Parquet, 2 of 8 columns, memory_map=True"}
    if not is_installed("pyarrow"):
        return [Row(name, {"holds": "pyarrow is not installed"}) for name in names.values()]
    rows = []
    with _stored() as (folder, server):
        run_job("programs", "write_table", path=str(folder / "table.parquet"), rows=TABLE_ROWS // shrink)
        for mapped, name in names.items():
            measured = measure_in("s3mount", server, partial(_columns, mapped=mapped))
            fetched = measured.counts.bytes / measured.result.bytes
            rows.append(
                _row(name, "fetched <= 1.5 of what is needed", f"{fetched:.2f}", measured, holds=fetched <= 1.5)
            )
    return rows


def _columns(mount: MountedBy, *, mapped: bool) -> Result:
    path = str(mount.path / "table.parquet")
    return run_job("programs", "read_columns", path=path, columns=["c1", "c5"], mapped=mapped)


def _shard(shrink: int) -> Row:
    with _stored() as (folder, server):
        make_tar(folder / "shard.tar", SHARD_BYTES // shrink)
        measured = measure_in("s3mount", server, read_tar)
    gets = measured.counts.get
    return _row("tar shard of 150 MB in 4 KiB reads", "<= 20 GETs", f"{gets}", measured, holds=gets <= 20)


def _replacement(shrink: int) -> Row:
    with _stored() as (folder, server), tempfile.TemporaryDirectory(prefix="s3mount-bench-") as beside:
        stored, replacement = folder / "object.bin", Path(beside, "object.bin")
        stored.write_bytes(b"A" * (REPLACED_BYTES // shrink))
        replacement.write_bytes(b"B" * (REPLACED_BYTES // shrink))
        measured = measure_in(
            "s3mount", server, partial(_replace, stored=str(stored), replacement=str(replacement)), "--ttl", "1s"
        )
    notes = measured.result.notes
    seen = ", ".join(f"{name} {count:.0f}" for name, count in notes.items())
    holds = notes["new"] == notes["mixed"] == 0 and not measured.result.errors
    return _row("object replaced while open", "old bytes or ESTALE", seen, measured, holds=holds)


def _replace(mount: MountedBy, *, stored: str, replacement: str) -> Result:
    path = str(mount.path / "object.bin")
    return run_job("programs", "replaced", path=path, stored=stored, replacement=replacement)


def _row(name: str, demand: str, seen: str, measured: Measured, *, holds: bool) -> Row:
    figures = {"must hold": demand, "seen": seen, "holds": "yes" if holds else "NO"}
    return Row(name, figures | measured.figures() | {"seconds": f"{measured.result.seconds:.2f}"})
