"""Buckets with dots in their names: no part of them becomes a part of a host's name."""

import contextlib
import secrets
from pathlib import Path

import pytest

from tests.support.data import check_coded, coded_bytes
from tests.support.mounts import mounted
from tests.support.proxy import FaultProxy
from tests.support.scene import Scene
from tests.support.servers import S3Server

KEYS = {"a": 1000, "v1.2/b.c": 2000, "large": 9 * 1024 * 1024}


@pytest.fixture
def bucket(seaweed: S3Server) -> str:
    """With a file and a directory."""
    name = f"my.data.{secrets.token_hex(6)}.v1"
    with contextlib.closing(seaweed.client()) as client:
        client.create_bucket(Bucket=name)
        for key, size in KEYS.items():
            client.put_object(Bucket=name, Key=key, Body=coded_bytes(key, 0, size))
    return name


@pytest.mark.parametrize(("host", "is_tls"), [("127.0.0.1", False), ("localhost", False), ("localhost", True)])
def test_a_bucket_with_dots_is_named_in_the_path(
    seaweed: S3Server, bucket: str, tmp_path: Path, host: str, *, is_tls: bool
) -> None:
    with FaultProxy(seaweed.endpoint_url, tls=is_tls) as proxy:
        endpoint_url = proxy.endpoint_url.replace("127.0.0.1", host)
        options = ["--ca-bundle", str(proxy.write_ca(tmp_path))] if is_tls else []
        with mounted(f"s3://{bucket}", endpoint_url, *options) as mount, contextlib.closing(seaweed.client()) as client:
            check_bucket(Scene(mount, proxy, client, bucket))

        exchanges = proxy.log.select()
    assert {exchange.request.bucket for exchange in exchanges} == {bucket}
    assert {exchange.request.header("host") for exchange in exchanges} == {endpoint_url.partition("//")[2]}


def check_bucket(place: Scene) -> None:
    """All keys are there, with their bytes."""
    found = place.mount.run("find", "-mindepth", "1", "-printf", "%P %y\\n")
    assert sorted(found.stdout.splitlines()) == ["a f", "large f", "v1.2 d", "v1.2/b.c f"]
    with place.user() as user:
        for key, size in KEYS.items():
            check_coded(user.read_file(key), key, 0, size)


def test_a_prefix_in_a_bucket_with_dots_is_mounted(seaweed: S3Server, bucket: str) -> None:
    with mounted(f"s3://{bucket}/v1.2/", seaweed.endpoint_url) as mount:
        listed = mount.run("ls")

    assert (listed.returncode, listed.stdout) == (0, "b.c\n")


def test_a_bucket_with_dots_that_is_not_there_is_named_in_the_error(seaweed: S3Server) -> None:
    with (
        pytest.raises(RuntimeError, match=r"bucket no\.such\.bucket\.v1 does not exist"),
        mounted("s3://no.such.bucket.v1", seaweed.endpoint_url),
    ):
        pass
