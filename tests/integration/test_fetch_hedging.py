"""Requests that are slow or stalled: sent a second time, cut off and resumed, and out of the way of others."""

import contextlib
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import trio
import trio.testing

from s3mount.ranges import KIB, MIB, ByteRange
from s3mount.store import fetch, hedging
from s3mount.store.connection import Route
from s3mount.store.endpoint import Endpoint
from s3mount.store.exchange import RangeGet, Report
from s3mount.store.fetch import FetchEngine
from s3mount.store.interface import UNMEASURED_LINK
from s3mount.store.responses import ExpectedRange
from s3mount.store.retry import FaultKind
from tests.integration.scripted_server import Act, Answer, Request, ScriptedServer, ServedObject

BODY = b"".join(number.to_bytes(8, "big") for number in range(64 * KIB))
"""512 KiB, each 8 bytes of which say where they belong."""

OBJECT = ServedObject(BODY)

SIZE = 4 * KIB

SPAN = ByteRange(0, SIZE)

Script = Callable[[Request, int], Answer]


@pytest.fixture(autouse=True, params=[0, MIB], ids=["threads", "lanes"])
def carrier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of these tests are fetched by threads, or in the trio thread."""
    monkeypatch.setattr(fetch, "LARGEST_IN_LANES", request.param)


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy for a moment has no request sent a second time."""
    monkeypatch.setattr(hedging, "MIN_SECONDS", 0.1)


class Served(ScriptedServer):
    """Answers rightly what is asked for to learn, and by a script what is asked for to test."""

    def __init__(self, script: Script) -> None:
        super().__init__(self._answer)
        self.gets: list[Request] = []
        """Those that the script answered."""
        self._script_of_tests = script

    def _answer(self, request: Request) -> Answer:
        if request.path == "/b/usual":
            return [OBJECT.get(request)]
        self.gets.append(request)
        return self._script_of_tests(request, len(self.gets) - 1)


@contextlib.asynccontextmanager
async def running(script: Script, *, connections: int = 8) -> AsyncIterator[tuple[FetchEngine, Served]]:
    """An engine that has learned what is usual."""
    with Served(script) as server, trio.fail_after(15):
        port = int(server.url.rpartition(":")[2])
        route = Route(Endpoint("http", "127.0.0.1", port, "/b", "us-east-1"), stall_timeout_seconds=10)
        async with FetchEngine.running(route, connections=connections) as engine:
            for _ in range(80):
                assert (await fetched(engine, key="usual")).fault is None
            yield engine, server


def range_get(span: ByteRange = SPAN, *, key: str = "k", into: memoryview | None = None) -> RangeGet:
    headers = {"host": "b", "range": f"bytes={span.start}-{span.stop - 1}"}
    expected = ExpectedRange(span, len(BODY), "version-1")
    return RangeGet(f"/b/{key}", lambda: headers, expected, memoryview(bytearray(span.size)) if into is None else into)


def right(span: ByteRange = SPAN) -> bytes:
    return BODY[span.start : span.stop]


async def fetched(engine: FetchEngine, span: ByteRange = SPAN, *, key: str = "k") -> Report:
    get = range_get(span, key=key)
    report = await engine.fetch(get)
    assert get.into[: report.received] == right(span)[: report.received]
    return report


def outcome_of(report: Report) -> tuple[bool, bool]:
    """Whether a second request was sent, and whether it won."""
    return report.was_hedged, report.was_won_by_second


def whole(request: Request, _: int) -> Answer:
    return [OBJECT.get(request)]


def stall_first(*, after: int = 0) -> Script:
    """Stall the first request, *after* bytes of its answer."""
    return lambda request, number: [OBJECT.get(request)[:after], Act.STALL] if number == 0 else whole(request, number)


def stall(_: Request, __: int) -> Answer:
    return [Act.STALL]


async def test_a_request_without_a_first_byte_is_sent_a_second_time():
    async with running(stall_first()) as (engine, server):
        report = await fetched(engine)

        assert report.fault is None
        assert report.received == SIZE
        assert report.requests_sent == len(server.gets) == 2
        assert server.gets[0].connection != server.gets[1].connection
        assert outcome_of(report) == (True, True)


async def test_the_one_that_lost_is_cut_and_does_not_touch_the_buffer():
    is_late, was_cut = threading.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    def script(request: Request, number: int) -> Answer:
        return late_and_wrong(OBJECT.get(request)) if number == 0 else whole(request, number)

    def late_and_wrong(answer: bytes) -> Iterator[bytes]:
        is_late.wait(10)
        try:
            for _ in range(1000):
                yield answer.replace(b"\0", b"x")  # fails once nobody listens
        finally:
            token.run_sync_soon(was_cut.set)

    async with running(script) as (engine, _):
        get = range_get()
        assert (await engine.fetch(get)).fault is None
        is_late.set()
        await was_cut.wait()

        assert get.into == right()


async def test_a_first_request_that_answers_after_all_wins():
    second_was_sent = threading.Event()

    def script(request: Request, number: int) -> Answer:
        if number == 0:
            return slow(request)
        second_was_sent.set()
        return [Act.STALL]

    def slow(request: Request) -> Iterator[bytes]:
        second_was_sent.wait(10)
        yield OBJECT.get(request)

    async with running(script) as (engine, server):
        report = await fetched(engine)

        assert report.fault is None
        assert len(server.gets) == 2
        assert outcome_of(report) == (True, False)


async def test_the_answer_to_a_second_request_counts_when_the_first_fails():
    first_failed, second_was_sent = threading.Event(), threading.Event()

    def script(request: Request, number: int) -> Answer:
        if number > 1:  # the first one once more: over its old connection it may just have come too late
            return [Act.STALL]
        return failing() if number == 0 else answering(request)

    def failing() -> Iterator[Act]:
        second_was_sent.wait(10)
        first_failed.set()
        yield Act.RESET

    def answering(request: Request) -> Iterator[bytes]:
        second_was_sent.set()
        first_failed.wait(10)
        yield OBJECT.get(request)

    async with running(script) as (engine, _):
        report = await fetched(engine)

        assert report.fault is None
        assert outcome_of(report) == (True, True)


async def test_a_second_request_that_stalls_half_way_has_won():
    def script(request: Request, number: int) -> Answer:
        return [Act.STALL] if number == 0 else [OBJECT.get(request)[: -SIZE // 2], Act.STALL]

    async with running(script) as (engine, _):
        report = await fetched(engine)

        assert report.fault is not None
        assert report.received == SIZE // 2
        assert outcome_of(report) == (True, True)


async def test_second_requests_stay_a_small_share_when_all_are_slow():
    async with running(stall, connections=16) as (engine, server), trio.open_nursery() as nursery:
        for _ in range(16):
            nursery.start_soon(fetched, engine)
        with trio.move_on_after(1.0):
            await trio.sleep_forever()
        nursery.cancel_scope.cancel()

    assert 16 < len(server.gets) <= 16 + 0.03 * (80 + 16) + 1


async def test_a_stall_in_mid_body_is_cut_off_and_what_came_is_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hedging, "MIN_SECONDS", 5)  # on a busy machine the first bytes may take longer than usual
    head_size = OBJECT.get(Request("GET", "/", {"range": f"bytes=0-{SIZE - 1}"}, 0)).index(b"\r\n\r\n") + 4
    async with running(stall_first(after=head_size + 1000)) as (engine, server):
        report = await fetched(engine)

        assert report.fault is not None
        assert report.received == 1000
        assert len(server.gets) == 1
        assert outcome_of(report) == (False, False)


async def test_when_the_second_request_stalls_too_both_are_cut_off():
    async with running(stall) as (engine, server):
        report = await fetched(engine)

        assert report.fault is not None
        assert report.fault.kind is FaultKind.TRANSIENT
        assert report.requests_sent == len(server.gets) == 2
        assert outcome_of(report) == (True, False)


async def stall_again_and_again(engine: FetchEngine) -> None:
    while True:
        await engine.fetch(range_get(key="stalled"))


@pytest.mark.parametrize("stalled", [2, 10], ids=["all connections", "more than twice as many"])
async def test_stalled_requests_do_not_keep_others_from_being_answered(stalled: int):
    async with running(stall, connections=2) as (engine, _), trio.open_nursery() as nursery:
        for _ in range(stalled):
            nursery.start_soon(stall_again_and_again, engine)
        await trio.testing.wait_all_tasks_blocked()

        with trio.fail_after(9):
            assert (await fetched(engine, key="usual")).fault is None
        nursery.cancel_scope.cancel()


async def test_a_cancelled_fetch_ends_its_second_request_too_and_counts_both():
    counted: list[Report] = []
    second_was_sent = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def script(_: Request, number: int) -> Answer:
        if number == 1:
            token.run_sync_soon(second_was_sent.set)
        return [Act.STALL]

    async with running(script) as (engine, _), trio.open_nursery() as nursery:
        nursery.start_soon(lambda: engine.fetch(range_get(), count=counted.append))
        await second_was_sent.wait()
        nursery.cancel_scope.cancel()

    [report] = counted
    assert (report.requests_sent, report.received, outcome_of(report)) == (2, 0, (True, False))


async def test_a_cancelled_fetch_waits_for_the_second_request_that_has_the_buffer():
    is_filling = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def script(request: Request, number: int) -> Answer:
        return [Act.STALL] if number == 0 else half(OBJECT.get(request))

    def half(answer: bytes) -> Iterator[bytes | Act]:
        yield answer[: len(answer) // 2]
        token.run_sync_soon(is_filling.set)
        yield Act.STALL

    get = range_get()
    async with running(script) as (engine, _):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.fetch, get)
            await is_filling.wait()
            nursery.cancel_scope.cancel()
        get.into[:] = bytes(SIZE)
        assert (await fetched(engine, key="usual")).fault is None

    assert get.into == bytes(SIZE)


async def test_the_link_is_measured():
    async with running(whole) as (engine, _):
        assert 0 < engine.link.round_trip_seconds != UNMEASURED_LINK.round_trip_seconds
        assert engine.link.bytes_per_second == UNMEASURED_LINK.bytes_per_second


class Mischief:
    """Answers late, not to the end, not at all, or with other bytes on a connection that should be cut."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def answer(self, request: Request, _: int) -> Answer:
        whole = OBJECT.get(request)
        cut_at = self._chance.randrange(len(whole))
        pause = self._chance.choice([0.0, 0.001, 0.02, 0.06])
        act = self._chance.choice([None, None, None, None, Act.RESET, Act.CLOSE, Act.STALL])
        return self._steps(whole, cut_at, pause, act)

    @staticmethod
    def _steps(whole: bytes, cut_at: int, pause: float, act: Act | None) -> Iterator[bytes | Act]:
        threading.Event().wait(pause)
        yield whole[:cut_at]
        threading.Event().wait(pause)
        yield whole[cut_at:] if act is None else act


async def test_bytes_are_right_whichever_request_wins_and_whoever_gives_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hedging, "MIN_SECONDS", 0.005)
    monkeypatch.setattr(hedging, "MIN_STALL_SECONDS", 0.05)
    monkeypatch.setattr(hedging, "EXTRA_SHARE", 1.0)
    chance = random.Random(2)

    async def read_all(engine: FetchEngine, span: ByteRange) -> None:
        get, received = range_get(span), 0
        while received < span.size:
            rest = range_get(ByteRange(span.start + received, span.stop), into=get.into[received:])
            report = await engine.fetch(rest)
            received += report.received
            assert get.into[:received] == right(span)[:received]

    async def read_or_give_up(engine: FetchEngine, span: ByteRange, patience_seconds: float) -> None:
        get = range_get(span)
        with trio.move_on_after(patience_seconds):
            await engine.fetch(get)
        get.into[:] = bytes(span.size)
        abandoned.append(get.into)

    abandoned: list[memoryview] = []
    async with running(Mischief(1).answer, connections=6) as (engine, server), trio.open_nursery() as nursery:
        for number in range(120):
            start = chance.randrange(len(BODY) - 64 * KIB)
            span = ByteRange(start, start + chance.randrange(1, 64 * KIB))
            if number % 3:
                nursery.start_soon(read_all, engine, span)
            else:
                nursery.start_soon(read_or_give_up, engine, span, chance.choice([0.0, 0.01, 0.03, 0.1]))

    assert all(not any(buffer) for buffer in abandoned)
    assert len(server.gets) > 120
