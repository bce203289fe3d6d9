"""`Scene`: a mounted bucket behind a proxy, and another client of the bucket that knows nothing of the mount."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from types_boto3_s3 import S3Client

from tests.support.data import coded_bytes
from tests.support.file_user import FileUser
from tests.support.http_heads import Kind
from tests.support.mounts import LIFE_SECONDS, Mount, mounted
from tests.support.proxy import FaultProxy
from tests.support.proxy_log import Exchange
from tests.support.servers import S3Server

WAIT_SECONDS = 20.0
"""How long to wait for what is about to happen."""


@dataclass(slots=True)
class Scene:
    """May be shared by tests if each puts its objects into a folder of its own."""

    mount: Mount
    proxy: FaultProxy
    client: S3Client
    bucket: str
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def folder(self) -> str:
        """A name that no test has used, with a slash at its end."""
        return f"folder{next(self._numbers)}/"

    def put(self, key: str, size: int, *, version: str = "A") -> bytes:
        """Store position-coded bytes, past the mount; returns them."""
        content = coded_bytes(key, 0, size, version=version)
        self.client.put_object(Bucket=self.bucket, Key=key, Body=content)
        return content

    def delete(self, key: str) -> None:
        """Delete an object, past the mount."""
        self.client.delete_object(Bucket=self.bucket, Key=key)

    def user(self) -> FileUser:
        """A process that works in the mounted directory."""
        return FileUser(self.mount.path)

    def gets(self, key: str | None = None) -> list[Exchange]:
        """All GETs so far."""
        return self.proxy.log.select(Kind.GET, key)

    def first_gets(self, key: str | None = None) -> list[Exchange]:
        """The same without those that the mount sent a second time."""
        gets = self.gets(key)
        first = {(exchange.key, exchange.request.header("range")): exchange for exchange in reversed(gets)}
        return list(first.values()) if 0 < len(gets) - len(first) <= self.gets_sent_twice() else gets

    def gets_sent_twice(self) -> int:
        """GETs that the mount sent a second time so far, since the first try was slow: on a busy machine some are."""
        return int(self.mount.status()["counters"]["hedges_total"])

    def wait_for_gets(self, count: int, *, pending: bool = False) -> None:
        """Return once there have been so many GETs, or so many are under way."""
        self.proxy.log.wait_for(
            lambda exchanges: (
                sum(exchange.kind is Kind.GET and (exchange.is_pending or not pending) for exchange in exchanges)
                >= count
            ),
            timeout_seconds=WAIT_SECONDS,
        )

    def gauges(self) -> dict[str, float]:
        """What the daemon shows of itself."""
        return self.mount.status()["gauges"]

    def wait_until(self, is_true: Callable[[], bool]) -> None:
        """Return once something is true.

        Raises:
            TimeoutError: It does not become true.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while not is_true():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not after {WAIT_SECONDS:g} s")
            time.sleep(0.02)

    def wait_until_closed(self) -> None:
        """Return once the daemon has no handle open; the kernel closes them a moment after the program does."""
        self.wait_until(lambda: self.gauges()["open_handles"] == 0)

    def reset(self) -> None:
        """Take all faults away, and begin to count anew."""
        self.proxy.heal()
        self.proxy.log.clear()


@contextlib.contextmanager
def scene(
    server: S3Server,
    *options: str,
    allow_warnings: bool = False,
    expected_warning: str | None = None,
    life_seconds: float = LIFE_SECONDS,
    extra_environment: dict[str, str] | None = None,
) -> Iterator[Scene]:
    """Mount a fresh bucket of *server* with *options*."""
    client = server.client()
    bucket = server.new_bucket()
    with (
        contextlib.closing(client),
        FaultProxy(server.endpoint_url) as proxy,
        mounted(
            f"s3://{bucket}",
            proxy.endpoint_url,
            *options,
            allow_warnings=allow_warnings,
            expected_warning=expected_warning,
            life_seconds=life_seconds,
            extra_environment=extra_environment,
        ) as mount,
    ):
        built = Scene(mount, proxy, client, bucket)
        built.reset()
        yield built
        proxy.heal()
