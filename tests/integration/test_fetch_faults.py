"""Range GETs against a server that misbehaves: right bytes, or the right error, in bounded time."""

import contextlib
import gc
import gzip
import mmap
import socket
import threading
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import trio

from s3mount.errors import (
    AccessDeniedError,
    ArchivedObjectError,
    CorruptResponseError,
    StaleObjectError,
    StoreUnavailableError,
)
from s3mount.ids import ETag, ObjectId
from s3mount.metrics import Metric, Metrics, RequestKind
from s3mount.options import StoreOptions
from s3mount.ranges import KIB, MIB, ByteRange
from s3mount.store import fetch
from s3mount.store.bucket import S3Store
from s3mount.store.s3 import open_s3_store
from tests.integration.scripted_server import (
    EMPTY_LISTING,
    Act,
    Answer,
    Request,
    ScriptedServer,
    ServedObject,
    answer,
    error,
)

BODY = b"".join(number.to_bytes(8, "big") for number in range(256 * KIB))
"""2 MiB, each 8 bytes of which say where they belong."""

SPAN = ByteRange(MIB, MIB + 512 * KIB)

GetScript = Callable[[Request, int], Answer]
"""Answers a GET of the object; the number counts them from 0."""


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", lambda: 0.02)


@pytest.fixture(autouse=True, params=[0, MIB], ids=["threads", "lanes"])
def carrier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of these tests are fetched by threads, or in the trio thread."""
    monkeypatch.setattr(fetch, "LARGEST_IN_LANES", request.param)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))


@contextlib.contextmanager
def served(script: GetScript) -> Iterator[ScriptedServer]:
    gets: list[Request] = []

    def respond(request: Request) -> Answer:
        if "list-type" in request.target:
            return [EMPTY_LISTING]
        gets.append(request)
        return script(request, len(gets) - 1)

    with ScriptedServer(respond) as server:
        server.gets = gets
        yield server


@contextlib.asynccontextmanager
async def opened(
    script: GetScript, *, deadline_seconds: float = 2.0, stall_timeout_seconds: float = 1.0, connections: int = 4
) -> AsyncIterator[tuple[S3Store, ScriptedServer, Metrics]]:
    metrics = Metrics()
    with served(script) as server, trio.fail_after(15):
        options = StoreOptions(
            bucket="b",
            endpoint_url=server.url,
            request_deadline_seconds=deadline_seconds,
            stall_timeout_seconds=stall_timeout_seconds,
            connections=connections,
        )
        async with open_s3_store(options, metrics) as store:
            yield store, server, metrics


async def read(store: S3Store, span: ByteRange = SPAN, *, etag: str = "version-1", size: int = len(BODY)) -> bytes:
    into = bytearray(span.size)
    await store.get_range(ObjectId("k", ETag(etag)), span, object_size=size, into=memoryview(into))
    return bytes(into)


def after(count: int, fault: Answer, then: ServedObject) -> GetScript:
    """Answer the first *count* GETs by *fault*."""
    return lambda request, number: fault if number < count else [then.get(request)]


def right(span: ByteRange = SPAN) -> bytes:
    return BODY[span.start : span.stop]


OBJECT = ServedObject(BODY)


def partial(
    body: bytes, *, start: int = SPAN.start, stop: int = SPAN.stop, size: int = len(BODY), etag: str = "version-1"
) -> bytes:
    """An answer that claims to be that range."""
    return answer(206, body, ETag=f'"{etag}"', Content_Range=f"bytes {start}-{stop - 1}/{size}")


PASSING: dict[str, Answer] = {
    "server error": [error(500, "InternalError")],
    "throttled": [error(503, "SlowDown")],
    "web page": [answer(502, b"<html>bad gateway</html>", Content_Type="text/html")],
    "reset": [Act.RESET],
    "close": [Act.CLOSE],
    "cut status": [b"HTTP/1.1 2", Act.CLOSE],
    "cut head": [b"HTTP/1.1 206 OK\r\nContent-Len", Act.RESET],
    "garbage": [b"not http at all\r\n\r\n"],
    "shifted": [partial(right()[1:] + b"x", start=SPAN.start + 1, stop=SPAN.stop + 1)],
    "no Content-Range": [answer(206, right(), ETag='"version-1"')],
    "error as 200": [answer(200, b"<Error><Code>InternalError</Code></Error>")],
    "no content": [answer(204, ETag='"version-1"')],
    "empty": [partial(b"")],
    "no body": [partial(b"").replace(b"Content-Length: 0", b"Content-Length: %d" % SPAN.size), Act.CLOSE],
}

LASTING: dict[str, tuple[Answer, type[Exception]]] = {
    "server error": ([error(500, "InternalError")], StoreUnavailableError),
    "throttled": ([error(503, "SlowDown", Retry_After="1")], StoreUnavailableError),
    "reset": ([Act.RESET], StoreUnavailableError),
    "denied": ([error(403, "AccessDenied")], AccessDeniedError),
    "archived": ([error(403, "InvalidObjectState")], ArchivedObjectError),
    "gone": ([error(404, "NoSuchKey")], StaleObjectError),
    "bucket gone": ([error(404, "NoSuchBucket")], StoreUnavailableError),
    "precondition": ([error(412, "PreconditionFailed")], StaleObjectError),
    "range": ([error(416, "InvalidRange")], StaleObjectError),
    "other ETag": ([partial(right(), etag="other")], StaleObjectError),
    "other size": ([partial(right(), size=9)], StaleObjectError),
    "empty": ([partial(b"")], CorruptResponseError),
    "no body": (PASSING["no body"], CorruptResponseError),
}


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
async def test_a_passing_fault_is_not_seen(fault: Answer):
    async with opened(after(2, fault, OBJECT), deadline_seconds=10) as (store, server, metrics):
        assert await read(store) == right()

    assert len(server.gets) >= 3
    assert metrics.requests[RequestKind.GET] == len(server.gets)
    assert metrics.counters[Metric.FETCHED_BYTES] == SPAN.size


@pytest.mark.parametrize(("fault", "expected"), LASTING.values(), ids=LASTING)
async def test_a_lasting_fault_becomes_an_error_and_passes(fault: Answer, expected: type[Exception]):
    is_broken = True

    def script(request: Request, _: int) -> Answer:
        return fault if is_broken else [OBJECT.get(request)]

    async with opened(script, deadline_seconds=0.7) as (store, _, _):
        with pytest.raises(expected):
            await read(store)
        is_broken = False

        assert await read(store) == right()


@pytest.mark.parametrize(
    "fault", [error(403, "AccessDenied"), error(403, "InvalidObjectState"), error(404, "NoSuchKey")]
)
async def test_what_will_not_change_is_asked_once(fault: bytes):
    async with opened(lambda *_: [fault]) as (store, server, _):
        with pytest.raises(Exception, match=r"40[34]"):
            await read(store)

        assert len(server.gets) == 1


async def test_a_reset_body_is_resumed_at_the_missing_byte():
    def script(request: Request, number: int) -> Answer:
        whole = OBJECT.get(request)
        return [whole[: len(whole) - 7], Act.RESET] if number == 0 else [whole]

    async with opened(script) as (store, server, _):
        assert await read(store) == right()

    # A reset may take bytes with it that were sent but not read.
    assert SPAN.start < server.gets[1].range[0] <= SPAN.stop - 7
    assert all(get.range[1] == SPAN.stop - 1 and get.headers["if-match"] == '"version-1"' for get in server.gets)


async def test_a_short_body_is_resumed_at_the_missing_byte():
    cuts = [1, 100_000, 3, 70_000]

    def script(request: Request, number: int) -> Answer:
        whole = OBJECT.get(request)
        head_size = whole.index(b"\r\n\r\n") + 4
        return [whole[: head_size + cuts[number]], Act.CLOSE] if number < len(cuts) else [whole]

    async with opened(script) as (store, server, _):
        assert await read(store) == right()

    assert [get.range[0] - SPAN.start for get in server.gets] == [0, 1, 100_001, 100_004, 170_004]


async def test_a_whole_object_is_asked_for_without_a_range_and_resumed_with_one():
    def script(request: Request, number: int) -> Answer:
        whole = OBJECT.get(request)
        return [whole[: whole.index(b"\r\n\r\n") + 4 + MIB], Act.CLOSE] if number == 0 else [whole]

    async with opened(script) as (store, server, _):
        assert await read(store, ByteRange(0, len(BODY))) == BODY

    assert [get.range for get in server.gets] == [None, (MIB, len(BODY) - 1)]


def chunked(request: Request, sizes: list[int], *, surplus: bytes = b"") -> bytes:
    head, _, body = OBJECT.get(request).partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
    head = b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", b""])
    result, position = [head], 0
    for size in sizes:
        part = body[position : position + size]
        result.append(f"{len(part):x};ext=1\r\n".encode() + part + b"\r\n")
        position += size
    return b"".join(
        [*result, *([b"%x\r\n%s\r\n" % (len(surplus), surplus)] if surplus else []), b"0\r\nTrailer: x\r\n\r\n"]
    )


async def test_chunked_bodies_are_read_and_the_connection_kept():
    sizes = [1, 2, 65_536, 100_000, SPAN.size - 165_539]
    async with opened(lambda request, _: [chunked(request, sizes)]) as (store, server, metrics):
        for _ in range(3):
            assert await read(store) == right()

    assert len(server.gets) == 3
    assert metrics.counters[Metric.CONNECTIONS_OPENED] == 1


async def test_a_chunked_body_that_ends_early_is_resumed():
    script = lambda request, number: [chunked(request, [1000])] if number < 2 else [OBJECT.get(request)]  # noqa: E731
    async with opened(script) as (store, server, _):
        assert await read(store) == right()

    assert [get.range[0] - SPAN.start for get in server.gets] == [0, 1000, 2000]


async def test_a_chunked_body_that_is_too_long_is_refused():
    def script(request: Request, number: int) -> Answer:
        return [OBJECT.get(request)] if number else [chunked(request, [SPAN.size], surplus=b"more")]

    async with opened(script) as (store, server, _):
        assert await read(store) == right()

    assert [get.range for get in server.gets] == [(SPAN.start, SPAN.stop - 1)] * 2


async def test_a_chunked_body_whose_end_is_lost_is_fetched_anew():
    def script(request: Request, number: int) -> Answer:
        return [OBJECT.get(request)] if number else [chunked(request, [SPAN.size])[:-9], Act.CLOSE]

    async with opened(script) as (store, server, _):
        assert await read(store) == right()

    assert [get.range for get in server.gets] == [(SPAN.start, SPAN.stop - 1)] * 2


async def test_an_ignored_range_is_served_within_bounds():
    whole = answer(200, BODY, ETag='"version-1"')
    async with opened(lambda *_: [whole]) as (store, _, _):
        span = ByteRange(MIB - 10, MIB + 10)
        assert await read(store, span) == right(span)
        assert await read(store, span) == right(span)


async def test_an_ignored_range_is_refused_beyond_bounds():
    whole = answer(200, BODY, ETag='"version-1"')
    async with opened(lambda *_: [whole], deadline_seconds=10) as (store, server, metrics):
        with pytest.raises(CorruptResponseError):
            await read(store, ByteRange(len(BODY) - 5, len(BODY)))

        assert len(server.gets) < 10
        assert metrics.counters[Metric.FETCHED_BYTES] == 0


async def test_stored_bytes_are_delivered_whatever_their_encoding():
    packed = ServedObject(gzip.compress(b"text" * 1000))

    def script(request: Request, _: int) -> Answer:
        return [packed.get(request).replace(b"\r\nETag", b"\r\nContent-Encoding: gzip\r\nETag")]

    async with opened(script) as (store, server, _):
        body = await read(store, ByteRange(0, len(packed.body)), size=len(packed.body))

    assert body == packed.body
    assert server.gets[0].headers["accept-encoding"] == "identity"


async def test_a_stalled_answer_is_asked_for_anew():
    script = lambda request, number: [Act.STALL] if number == 0 else [OBJECT.get(request)]  # noqa: E731
    async with opened(script, stall_timeout_seconds=0.2) as (store, server, _):
        assert await read(store) == right()

    assert server.gets[0].connection != server.gets[1].connection


async def test_a_body_that_trickles_ends_at_the_deadline():
    def trickle(request: Request, _: int) -> Iterator[bytes]:
        head, end, _body = OBJECT.get(request).partition(b"\r\n\r\n")
        yield head + end
        while True:
            yield b"x"
            never.wait(0.05)

    never = threading.Event()
    async with opened(trickle, deadline_seconds=0.5) as (store, _, _):
        with pytest.raises(StoreUnavailableError):
            await read(store, ByteRange(0, 100))


async def test_idle_connections_closed_by_the_server_cost_no_failure():
    async with opened(lambda request, _: [OBJECT.get(request)]) as (store, server, metrics):
        for _ in range(20):
            assert await read(store) == right()
            server.close_idle_connections()

    assert metrics.counters[Metric.RETRIES] == 0


async def test_a_reset_upon_a_reused_connection_is_not_a_failure():
    used: set[int] = set()

    def script(request: Request, _: int) -> Answer:
        is_reused = request.connection in used
        used.add(request.connection)
        return [Act.RESET] if is_reused else [OBJECT.get(request)]

    async with opened(script) as (store, _, metrics):
        for _ in range(5):
            assert await read(store) == right()

    assert metrics.counters[Metric.RETRIES] == 0


async def test_a_server_that_goes_away_is_an_error_in_bounded_time():
    async with opened(lambda request, _: [OBJECT.get(request)], deadline_seconds=0.5) as (store, server, _):
        assert await read(store) == right()
        server.refuse_connections()
        server.close_idle_connections()

        with pytest.raises(StoreUnavailableError):
            await read(store)


async def test_connections_are_reused():
    async with opened(lambda request, _: [OBJECT.get(request)]) as (store, _, metrics):
        for _ in range(50):
            await read(store)

    assert metrics.counters[Metric.CONNECTIONS_OPENED] == 1


async def test_no_more_connections_than_allowed():
    async with opened(lambda request, _: [OBJECT.get(request)], connections=3) as (store, server, _):
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(read, store)

        sent_twice = len(server.gets) - 30
        assert len({get.connection for get in server.gets}) <= 3 + sent_twice


async def test_nothing_keeps_the_memory_of_a_range_that_was_fetched():
    gc.disable()  # reference cycles would keep it until the next collection
    try:
        async with opened(lambda request, _: [OBJECT.get(request)]) as (store, _, _):
            for _ in range(5):
                buffer = mmap.mmap(-1, SPAN.size)
                with memoryview(buffer) as into:
                    await store.get_range(ObjectId("k", ETag("version-1")), SPAN, object_size=len(BODY), into=into)
                buffer.close()  # refuses as long as anything refers to it
    finally:
        gc.enable()


async def test_a_cancelled_read_leaves_the_buffer_alone():
    body_started = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def script(request: Request, number: int) -> Answer:
        whole = OBJECT.get(request)
        if number > 0:
            return [whole]
        return stalled(whole[:-100_000])

    def stalled(part: bytes) -> Iterator[bytes | Act]:
        yield part
        token.run_sync_soon(body_started.set)
        yield Act.STALL

    into = bytearray(SPAN.size)
    async with opened(script, stall_timeout_seconds=10) as (store, _, _):
        with trio.fail_after(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    lambda: store.get_range(
                        ObjectId("k", ETag("version-1")), SPAN, object_size=len(BODY), into=memoryview(into)
                    )
                )
                await body_started.wait()
                nursery.cancel_scope.cancel()
        into[:] = bytes(len(into))
        assert await read(store) == right()

    assert into == bytes(len(into))


async def test_a_read_cancelled_before_the_answer_returns_at_once():
    asked = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def script(request: Request, number: int) -> Answer:
        token.run_sync_soon(asked.set)
        return [Act.STALL] if number == 0 else [OBJECT.get(request)]

    async with opened(script, stall_timeout_seconds=10, connections=1) as (store, _, _):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, store)
            await asked.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(1):
            assert await read(store) == right()


async def test_a_server_without_if_match_is_read_all_the_same():
    def script(request: Request, _: int) -> Answer:
        return [error(412, "PreconditionFailed")] if "if-match" in request.headers else [OBJECT.get(request)]

    async with opened(script) as (store, server, _):
        assert await read(store) == right()
        assert await read(store) == right()

    seen = [(get.method, "if-match" in get.headers) for get in server.gets]
    assert seen == [("GET", True), ("HEAD", False), ("GET", False), ("GET", False)]


async def test_that_an_object_was_replaced_is_found_out_without_bytes_of_it():
    def script(request: Request, _: int) -> Answer:
        if request.method == "HEAD":
            return [answer(200, ETag='"version-2"', Last_Modified="Thu, 01 Jan 2026 00:00:00 GMT")]
        return [error(412, "PreconditionFailed")]

    async with opened(script) as (store, server, _):
        with pytest.raises(StaleObjectError):
            await read(store)

    assert [get.method for get in server.gets] == ["GET", "HEAD"]


async def test_retries_are_signed_anew_and_skew_is_corrected():
    def script(request: Request, number: int) -> Answer:
        date = "Fri, 01 Jan 2100 00:00:00 GMT"
        return [error(403, "RequestTimeTooSkewed", Date=date)] if number == 0 else [OBJECT.get(request)]

    async with opened(script) as (store, server, _):
        assert await read(store) == right()
        assert await read(store) == right()

    assert [get.headers["x-amz-date"][:8] == "21000101" for get in server.gets] == [False, True, True]


async def test_bytes_that_do_not_match_their_checksum_are_fetched_anew():
    checksum = b64encode(zlib.crc32(BODY).to_bytes(4, "big")).decode()

    def script(request: Request, number: int) -> Answer:
        body = BODY if number else b"x" + BODY[1:]
        return [answer(200, body, ETag='"version-1"', x_amz_checksum_crc32=checksum)]

    async with opened(script) as (store, server, _):
        assert await read(store, ByteRange(0, len(BODY))) == BODY

    assert len(server.gets) == 2


async def test_throttling_slows_down():
    async with opened(after(3, [error(503, "SlowDown")], OBJECT), deadline_seconds=10) as (store, server, metrics):
        assert await read(store) == right()

    assert metrics.counters[Metric.RETRIES] == 3
    assert len(server.gets) == 4


async def test_after_closing_nothing_is_sent():
    async with opened(lambda request, _: [OBJECT.get(request)]) as (store, _, _):
        await read(store)

    with pytest.raises(StoreUnavailableError):
        await read(store)


def test_no_port_is_left_open():
    with served(lambda request, _: [OBJECT.get(request)]) as server:
        port = int(server.url.rpartition(":")[2])

    with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.1", port), timeout=1):
        pass
