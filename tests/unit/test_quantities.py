import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3mount.quantities import parse_duration, parse_mode, parse_size, write_size
from s3mount.ranges import GIB, KIB, MIB


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("30", 30),
        ("30s", 30),
        ("1.5m", 90),
        ("5m", 300),
        ("1h", 3600),
        ("2d", 172800),
        ("500ms", 0.5),
        (" 3 s ", 3),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1", "1y", "1 2", "inf", "nan", "1e3", "5M", "400d", "٣"])
def test_other_texts_are_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|longer"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("512MiB", 512 * MIB),
        ("1G", GIB),
        ("1g", GIB),
        ("1GiB", GIB),
        ("1GB", 10**9),
        ("1.5 KiB", 1536),
        ("2T", 2048 * GIB),
        ("10kb", 10_000),
        ("7B", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1X", "1 G iB", "0x10", "9999999T", "1e9"])
def test_other_texts_are_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|large"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "mode"), [("0644", 0o644), ("755", 0o755), ("0o600", 0o600), ("0", 0), ("7777", 0o7777)]
)
def test_modes_are_octal(text: str, mode: int) -> None:
    assert parse_mode(text) == mode


@pytest.mark.parametrize("text", ["", "0888", "rwx", "-1", "10000", "0x1"])
def test_other_texts_are_no_modes(text: str) -> None:
    with pytest.raises(ValueError, match="mode"):
        parse_mode(text)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0"), (KIB, "1KiB"), (3 * GIB, "3GiB"), (1025, "1025"), (1536 * MIB, "1536MiB")]
)
def test_sizes_are_written_in_whole_units(size: int, text: str) -> None:
    assert write_size(size) == text


@given(st.integers(0, 1 << 62))
def test_written_sizes_are_read_back(size: int) -> None:
    assert parse_size(write_size(size)) == size
