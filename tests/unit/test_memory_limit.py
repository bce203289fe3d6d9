from pathlib import Path

import pytest

from s3mount.memory_limit import default_budget, largest_budget, usable_memory
from s3mount.ranges import GIB, MIB

HOST_BYTES = 64 * GIB


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal: {HOST_BYTES // 1024} kB\nMemFree: 1 kB\n")
    return tmp_path / "proc"


@pytest.fixture
def cgroups(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


def limit(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def test_without_groups_it_is_the_hosts(proc: Path, cgroups: Path) -> None:
    assert usable_memory(proc=proc, cgroups=cgroups) == HOST_BYTES


def test_unlimited_group(proc: Path, cgroups: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/job\n")
    limit(cgroups / "job" / "memory.max", "max")

    assert usable_memory(proc=proc, cgroups=cgroups) == HOST_BYTES


def test_smallest_limit_on_the_way_up_counts(proc: Path, cgroups: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/slice/job/task\n")
    limit(cgroups / "slice" / "memory.max", str(8 * GIB))
    limit(cgroups / "slice" / "job" / "task" / "memory.max", str(16 * GIB))

    assert usable_memory(proc=proc, cgroups=cgroups) == 8 * GIB


def test_container_that_sees_its_group_as_the_root(proc: Path, cgroups: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/\n")
    limit(cgroups / "memory.max", str(2 * GIB))

    assert usable_memory(proc=proc, cgroups=cgroups) == 2 * GIB


def test_version_1(proc: Path, cgroups: Path) -> None:
    (proc / "self" / "cgroup").write_text("8:pids:/x\n4:cpu,memory:/docker/abc\n0::/\n")
    limit(cgroups / "memory" / "docker" / "abc" / "memory.limit_in_bytes", str(4 * GIB))
    limit(cgroups / "memory" / "memory.limit_in_bytes", "9223372036854771712")

    assert usable_memory(proc=proc, cgroups=cgroups) == 4 * GIB


def test_version_1_with_the_hosts_path_in_a_container(proc: Path, cgroups: Path) -> None:
    (proc / "self" / "cgroup").write_text("4:memory:/docker/abc\n")
    limit(cgroups / "memory" / "memory.limit_in_bytes", str(GIB))

    assert usable_memory(proc=proc, cgroups=cgroups) == GIB


def test_nothing_can_be_read(tmp_path: Path) -> None:
    assert usable_memory(proc=tmp_path, cgroups=tmp_path) == 2 * GIB


@pytest.mark.parametrize(
    ("memory", "largest", "default"),
    [
        (64 * GIB, 16 * GIB, 512 * MIB),
        (2 * GIB, 512 * MIB, 512 * MIB),
        (GIB, 256 * MIB, 256 * MIB),
        (GIB + 3, 256 * MIB, 256 * MIB),
        (64 * MIB, 32 * MIB, 32 * MIB),
    ],
)
def test_budget_is_a_quarter_at_most(memory: int, largest: int, default: int) -> None:
    assert largest_budget(memory) == largest
    assert default_budget(memory) == default
