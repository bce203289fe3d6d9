from pathlib import Path

import pytest

from s3mount.handover import Failed, Ready, decode_options, decode_report, encode_options, encode_report
from s3mount.options import (
    AddressingStyle,
    LogLevel,
    LogOptions,
    MountOptions,
    MountPointOptions,
    NamespaceOptions,
    ReadOptions,
    StoreOptions,
)


def test_options_arrive_as_they_were() -> None:
    options = MountOptions(
        store=StoreOptions(
            bucket="b", endpoint_url="http://h:1", addressing_style=AddressingStyle.PATH, ca_bundle=Path("/ca")
        ),
        mount_point=MountPointOptions(path=Path("/m\udcff ü"), source="s3://b", control_socket=Path("/run/x")),
        namespace=NamespaceOptions(prefix="p/", ttl_seconds=0.5, uid=7),
        read=ReadOptions(memory_bytes=1),
        log=LogOptions(level=LogLevel.DEBUG, file=Path("/log"), state_folder=Path("/state")),
    )

    assert decode_options(encode_options(options)) == options


def test_defaults_arrive_as_they_were() -> None:
    options = MountOptions(store=StoreOptions("b"), mount_point=MountPointOptions(Path("/m"), "s3://b"))

    assert decode_options(encode_options(options)) == options


@pytest.mark.parametrize("report", [Ready("system log"), Failed("it is broken", 5)])
def test_report_arrives_as_one_line(report: Ready | Failed) -> None:
    line = encode_report(report)

    assert line.count(b"\n") == 1
    assert decode_report(line) == report


@pytest.mark.parametrize("line", [b"", b"{", b"[]\n", b"{}\n", b'{"message": 3, "exit_code": 1}\n', b"\xff\n"])
def test_anything_else_is_no_report(line: bytes) -> None:
    assert decode_report(line) is None
