"""What ``s3mount status`` tells: as values, and as text for people. Pure."""

from collections.abc import Mapping

from s3mount.metrics import Metrics
from s3mount.options import MountPointOptions
from s3mount.ranges import KIB

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def describe(
    mount_point: MountPointOptions, metrics: Metrics, *, version: str, pid: int, uptime_seconds: float
) -> dict[str, object]:
    """Everything to know about a mount, in types of JSON."""
    return {
        "source": mount_point.source,
        "mount_point": str(mount_point.path),
        "version": version,
        "pid": pid,
        "uptime_seconds": round(uptime_seconds, 3),
        **metrics.snapshot(),
    }


def format_status(status: Mapping[str, object]) -> str:
    """Text of a status: aligned lines, sizes in binary units."""
    uptime = format_duration(_number(status.get("uptime_seconds")))
    lines = [
        f"{status.get('source', '?')} on {status.get('mount_point', '?')}",
        f"  s3mount {status.get('version', '?')}, pid {status.get('pid', '?')}, up {uptime}",
    ]
    for title in ("requests", "counters", "gauges", "errors"):
        values = status.get(title)
        if isinstance(values, Mapping) and values:
            lines += ["", f"{title}:", *_table({str(name): _number(value) for name, value in values.items()})]
    return "\n".join(lines)


def format_size(size: float) -> str:
    """``1536`` → ``1.5 KiB``; whole bytes below a KiB."""
    for unit in _UNITS:
        if size < KIB or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= KIB
    raise AssertionError


def format_duration(seconds: float) -> str:
    """``3725`` → ``1h 2m 5s``; at most three units, from the largest on."""
    rest = int(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        count, rest = divmod(rest, length)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join([*parts, f"{rest}s"][:3])


def _table(values: Mapping[str, float]) -> list[str]:
    texts = {_label(name): _text(name, value) for name, value in values.items()}
    width = max(map(len, texts))
    value_width = max(map(len, texts.values()))
    return [f"  {label:<{width}}  {text:>{value_width}}" for label, text in texts.items()]


def _label(name: str) -> str:
    for suffix in ("_total", "_bytes", "_seconds"):
        name = name.removesuffix(suffix)
    return name.replace("_", " ")


def _text(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return format_size(value)
    if name.endswith("_seconds"):
        return format_duration(value)
    return f"{value:,.0f}"


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
