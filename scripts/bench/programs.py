"""What training programs do to files, with the libraries they use; those that are not installed are left out."""

import errno
import importlib
import importlib.util
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from scripts.bench.jobs import Result, serve_job
from scripts.bench.object_client import ObjectServer

TOKENS_PER_SAMPLE = 1024
SAMPLES_PER_BATCH = 12
TENSOR_BYTES = 16 * 1024 * 1024
COLUMNS = 8
READ_BYTES = 1024 * 1024


def is_installed(library: str) -> bool:
    """Whether a library can be imported."""
    return importlib.util.find_spec(library) is not None


def memmap(path: str, batches: int) -> Result:
    """Open a memory map of 16-bit tokens anew for each of so many random batches; the same ones each time."""
    choose = random.Random(2)
    result, started_at = Result(), time.monotonic()
    for _ in range(batches):
        tokens = np.memmap(path, dtype=np.uint16, mode="r")
        for _ in range(SAMPLES_PER_BATCH):
            start = choose.randrange(len(tokens) - TOKENS_PER_SAMPLE)
            result.bytes += tokens[start : start + TOKENS_PER_SAMPLE].astype(np.int64).nbytes // 4
    result.seconds = time.monotonic() - started_at
    return result


def save_tensors(path: str, size: int) -> Result:
    """Write a checkpoint of about *size*."""
    torch = importlib.import_module("torch")
    tensors = {f"layer{index}": torch.zeros(TENSOR_BYTES // 4) for index in range(size // TENSOR_BYTES)}
    torch.save(tensors, path)
    return Result(bytes=Path(path).stat().st_size)


def load_tensors(path: str, port: int, *, mapped: bool) -> Result:
    """Load a checkpoint and touch all of it. Notes: ``first_requests`` until the first tensor was there."""
    torch = importlib.import_module("torch")
    server = ObjectServer(port, None)
    result, started_at = Result(), time.monotonic()
    tensors = torch.load(path, mmap=mapped, weights_only=True)
    if mapped:
        float(tensors["layer0"][0])
    counts = server.counts()
    result.notes["first_requests"] = counts.get + counts.head + counts.list
    for tensor in tensors.values():
        float(tensor.sum())
        result.bytes += tensor.numel() * 4
    result.seconds = time.monotonic() - started_at
    return result


def write_table(path: str, rows: int) -> Result:
    """Write a Parquet file of 8 columns that do not compress."""
    arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    choose = np.random.default_rng(3)
    table = arrow.table({f"c{index}": choose.random(rows) for index in range(COLUMNS)})
    parquet.write_table(table, path, use_dictionary=False)
    return Result()


def read_columns(path: str, columns: list[str], *, mapped: bool) -> Result:
    """Read columns of a Parquet file. Its bytes are those that the columns take in the file."""
    parquet = importlib.import_module("pyarrow.parquet")
    result, started_at = Result(), time.monotonic()
    parquet.read_table(path, columns=columns, memory_map=mapped)
    result.seconds = time.monotonic() - started_at
    footer = parquet.read_metadata(path)
    for group in range(footer.num_row_groups):
        chunks = [footer.row_group(group).column(index) for index in range(footer.num_columns)]
        result.bytes += sum(some.total_compressed_size for some in chunks if some.path_in_schema in columns)
    return result


def replaced(path: str, stored: str, replacement: str) -> Result:
    """Read a file of ``A`` while another of ``B`` takes its place in the store, half-way through.

    Notes: how many reads after that gave ``old`` bytes, ``new`` ones and both (``mixed``), or ESTALE (``stale``).
    """
    notes = dict.fromkeys(("old", "new", "mixed", "stale"), 0.0)
    result, started_at = Result(notes=notes), time.monotonic()
    with Path(path).open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        for offset in range(0, size, READ_BYTES):
            if offset == size // 2 // READ_BYTES * READ_BYTES:
                Path(replacement).replace(stored)
            try:
                content = os.pread(file.fileno(), READ_BYTES, offset)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    result.errors.append(str(error))
                notes["stale"] += error.errno == errno.ESTALE
                continue
            kinds = set(content)
            notes[{b"A": "old", b"B": "new"}.get(bytes(kinds), "mixed")] += 1
            result.bytes += len(content)
    result.seconds = time.monotonic() - started_at
    return result


JOBS: dict[str, Callable[..., Result]] = {
    "memmap": memmap,
    "save_tensors": save_tensors,
    "load_tensors": load_tensors,
    "write_table": write_table,
    "read_columns": read_columns,
    "replaced": replaced,
}

if __name__ == "__main__":
    serve_job(JOBS)
