"""Runs measurements: ``python -m scripts.bench [--quick] [NAME…]``."""

import argparse
import contextlib
import os
import platform
import sys
from collections.abc import Callable

from scripts.bench import faults, names, reads, resident, runs, small
from tests.support.servers import S3Server, seaweed_server

NAMES: dict[str, Callable[[S3Server], None]] = {
    "ready": names.bench_ready,
    "small-files": names.bench_small_files,
    "listing": names.bench_listing,
    "memory": names.bench_memory,
}
"""Those that need a server which stores."""

READS: dict[str, Callable[[int], None]] = {
    "sequential": reads.bench_sequential,
    "random": reads.bench_random,
    "mapped": reads.bench_mapped,
    "small": small.bench_small,
    "stalls": faults.bench_stalls,
    "resident": resident.bench_resident,
    "runs": runs.bench_runs,
}
"""Those with made-up objects; they are told by how much to divide their sizes."""

QUICK_SHRINK = 8


def main() -> int:
    """Run what the command line names, or all; returns the exit status."""
    known = [*NAMES, *READS]
    parser = argparse.ArgumentParser(prog="python -m scripts.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; default: all")
    parser.add_argument("--quick", action="store_true", help="read an eighth: shows that it works, not how fast")
    options = parser.parse_args()
    chosen = options.names or known
    unknown = [name for name in chosen if name not in known]
    if unknown:
        parser.error(f"no such measurement: {', '.join(unknown)}; there are {', '.join(known)}")
    print(f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}")
    with contextlib.ExitStack() as stack:
        stores = [name for name in chosen if name in NAMES]
        if stores:
            server = stack.enter_context(seaweed_server())
            for name in stores:
                NAMES[name](server)
    for name in chosen:
        if name in READS:
            READS[name](QUICK_SHRINK if options.quick else 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
