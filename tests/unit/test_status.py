from pathlib import Path

import pytest

from s3mount.metrics import Gauge, Metric, Metrics, RequestKind
from s3mount.options import MountPointOptions
from s3mount.ranges import GIB, MIB
from s3mount.status import describe, format_duration, format_size, format_status


def a_status() -> dict[str, object]:
    metrics = Metrics()
    metrics.add(Metric.FETCHED_BYTES, 3 * GIB // 2)
    metrics.add(Metric.RETRIES, 1234)
    metrics.add_request(RequestKind.LIST, 7)
    metrics.add_error("EIO")
    metrics.watch(Gauge.MEMORY_BYTES, lambda: 5 * MIB)
    mount_point = MountPointOptions(Path("/mnt/data"), "s3://bucket/p")
    return describe(mount_point, metrics, version="1.2.3", pid=42, uptime_seconds=3725.5)


def test_status_holds_the_mount_and_the_metrics() -> None:
    status = a_status()

    assert {name: status[name] for name in ("source", "mount_point", "version", "pid", "uptime_seconds")} == {
        "source": "s3://bucket/p",
        "mount_point": "/mnt/data",
        "version": "1.2.3",
        "pid": 42,
        "uptime_seconds": 3725.5,
    }
    assert status["errors"] == {"EIO": 1}


def test_text_is_aligned_and_in_units() -> None:
    lines = format_status(a_status()).splitlines()

    assert lines[:2] == ["s3://bucket/p on /mnt/data", "  s3mount 1.2.3, pid 42, up 1h 2m 5s"]
    assert any(line.split() == ["fetched", "1.5", "GiB"] for line in lines)
    assert any(line.split() == ["retries", "1,234"] for line in lines)
    counters = lines[lines.index("counters:") + 1 : lines.index("gauges:") - 1]
    assert len({len(line) for line in counters}) == 1


def test_text_of_something_else_does_not_fail() -> None:
    assert format_status({"counters": {"x": "y"}, "requests": 3}).startswith("? on ?")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536 * 1024, "1.5 MiB"), (1 << 62, "4096.0 PiB")],
)
def test_sizes(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.9, "0s"), (59, "59s"), (60, "1m 0s"), (3725, "1h 2m 5s"), (90061, "1d 1h 1m"), (86400, "1d 0h 0m")],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
