"""One measured step of reading: what was asked of the server, what it cost the daemon, and how long it took."""

from collections.abc import Callable
from dataclasses import dataclass

from scripts.bench.harness import MountedBy, mounted_by
from scripts.bench.jobs import Result
from scripts.bench.object_client import BUCKET, Counts, ObjectServer

GIB = 1 << 30
MIB = 1 << 20
KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class Measured:
    """A step."""

    result: Result
    counts: Counts
    cpu_seconds: float
    """Of the daemon; of the job itself where there is none."""

    @property
    def bytes_per_second(self) -> float:
        """What the application got."""
        return self.result.bytes / self.result.seconds

    def figures(self) -> dict[str, str]:
        """What every table of reads shows first."""
        read = self.result.bytes
        figures = {"requests": self.counts.requests, "fetched/read": f"{self.counts.bytes / read:.3f}" if read else "-"}
        if self.result.errors:
            figures["errors"] = f"{len(self.result.errors)}: {self.result.errors[0][:60]}"
        return figures

    def cpu_per_gib(self) -> str:
        """CPU seconds for each GiB the application got."""
        return f"{self.cpu_seconds / self.result.bytes * GIB:.2f}" if self.result.bytes else "-"


def measure(server: ObjectServer, job: Callable[[], Result], mount: MountedBy | None = None) -> Measured:
    """Run *job* and see what it takes, readahead that nobody waited for included."""
    server.reset()
    cpu_before = mount.cpu_seconds() if mount else 0.0
    result = job()
    counts = server.settled_counts()
    return Measured(result, counts, mount.cpu_seconds() - cpu_before if mount else result.cpu_seconds)


def measure_in(tool: str, server: ObjectServer, job: Callable[[MountedBy], Result], *options: str) -> Measured:
    """The same in a fresh mount by one of `harness.tools`, with further options; the job gets the mount."""
    if server.ca_file and tool == "s3mount":
        options = (*options, "--ca-bundle", str(server.ca_file))
    with mounted_by(tool, server.endpoint_url, BUCKET, *options) as mount:
        return measure(server, lambda: job(mount), mount)


def fastest(*attempts: Measured) -> Measured:
    """The one that was disturbed least."""
    return min(attempts, key=lambda measured: measured.result.seconds)
