"""Finds out how much memory this process may use: the host's, or less where a control group says so."""

from pathlib import Path, PurePosixPath

from s3mount.ranges import KIB, MIB

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")

DEFAULT_BUDGET = 512 * MIB
"""Budget for buffers where a quarter of the memory is more than that."""

BUDGET_SHARE = 4
"""One part in so many is the most a budget may be: training needs the rest."""

MIN_BUDGET = 32 * MIB
"""Least budget, also where a quarter is less: below it readahead stops working."""


def largest_budget(memory_bytes: int) -> int:
    """The most a mount may take of *memory_bytes*, in whole MiB."""
    return max(MIN_BUDGET, memory_bytes // BUDGET_SHARE // MIB * MIB)


def default_budget(memory_bytes: int) -> int:
    """What a mount takes of *memory_bytes* if nothing else is said."""
    return min(DEFAULT_BUDGET, largest_budget(memory_bytes))


def usable_memory(*, proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Bytes this process may use. Unreadable limits count as none; a host whose memory is unknown has 2 GiB."""
    limits = [_host_memory(proc), *_group_limits(proc, cgroups)]
    return min((limit for limit in limits if limit), default=2048 * MIB)


def _host_memory(proc: Path) -> int:
    for line in _read(proc / "meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * KIB
    return 0


def _group_limits(proc: Path, cgroups: Path) -> list[int]:
    """Limits of the process's control groups and of all above them, of either version (cgroups(7))."""
    limits = []
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:
            limits += [_limit(folder / "memory.max") for folder in _upwards(cgroups, group)]
            limits += [_limit(folder / "memory.max") for folder in _upwards(cgroups / "unified", group)]
        elif "memory" in controllers.split(","):
            limits += [_limit(folder / "memory.limit_in_bytes") for folder in _upwards(cgroups / "memory", group)]
    return limits


def _upwards(root: Path, group: str) -> list[Path]:
    """Folders of a group and of those above it. Seen from a container, the group's own folder may be the root."""
    path = PurePosixPath(group.lstrip("/"))
    return [root / path, *(root / parent for parent in path.parents)]


def _limit(path: Path) -> int:
    text = _read(path).strip()
    return int(text) if text.isdigit() else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
