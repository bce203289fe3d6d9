"""Runs measurements: ``python -m scripts.bench [NAME…]``."""

import argparse
import os
import platform
import sys
from collections.abc import Callable

from scripts.bench import names
from tests.support.servers import S3Server, seaweed_server

BENCHMARKS: dict[str, Callable[[S3Server], None]] = {
    "ready": names.bench_ready,
    "small-files": names.bench_small_files,
    "listing": names.bench_listing,
    "memory": names.bench_memory,
}


def main() -> int:
    """Run what the command line names, or all; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; default: all")
    chosen = parser.parse_args().names or list(BENCHMARKS)
    unknown = [name for name in chosen if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no such measurement: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    print(f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}")
    with seaweed_server() as server:
        for name in chosen:
            BENCHMARKS[name](server)
    return 0


if __name__ == "__main__":
    sys.exit(main())
