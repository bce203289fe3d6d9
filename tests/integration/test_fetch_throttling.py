"""Range GETs against a server that refuses what is too much for it."""

import threading
from collections.abc import Iterator

import pytest
import trio

from s3mount.metrics import Metric
from s3mount.ranges import KIB, ByteRange
from s3mount.store import fetch
from tests.integration.scripted_server import Answer, Request, error
from tests.integration.test_fetch_faults import BODY, OBJECT, opened, read

READS = 40

MOST_AT_A_TIME = 2


@pytest.fixture(autouse=True, params=[0, 1024 * KIB], ids=["threads", "lanes"])
def carrier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "LARGEST_IN_LANES", request.param)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


class BusyServer:
    """Answers `MOST_AT_A_TIME` requests at a time, slowly, and refuses the others at once."""

    def __init__(self) -> None:
        self.refused = 0
        self._busy = threading.Semaphore(MOST_AT_A_TIME)

    def answer(self, request: Request, _: int) -> Answer:
        if self._busy.acquire(blocking=False):
            return self._answer_slowly(request)
        self.refused += 1
        return [error(503, "SlowDown")]

    def _answer_slowly(self, request: Request) -> Iterator[bytes]:
        threading.Event().wait(0.01)
        self._busy.release()
        yield OBJECT.get(request)


async def test_a_storm_of_refusals_reaches_nobody():
    server = BusyServer()
    received: dict[int, bytes] = {}

    async def read_one(number: int) -> None:
        span = ByteRange(number * 8 * KIB, (number + 1) * 8 * KIB)
        received[number] = await read(store, span)

    async with (
        opened(server.answer, deadline_seconds=10, connections=16) as (store, _, metrics),
        trio.open_nursery() as nursery,
    ):
        for number in range(READS):
            nursery.start_soon(read_one, number)

    assert b"".join(received[number] for number in range(READS)) == BODY[: READS * 8 * KIB]
    assert metrics.counters[Metric.RETRIES] == server.refused > 0
