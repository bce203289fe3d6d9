"""HEAD and LIST against servers that misbehave, or only differ."""

import contextlib
from collections.abc import AsyncIterator, Callable
from urllib.parse import parse_qs, quote, quote_plus, urlsplit
from xml.sax.saxutils import escape

import pytest
import trio

from s3mount.errors import (
    AccessDeniedError,
    CorruptResponseError,
    InvalidRequestError,
    NoSuchEntryError,
    StoreUnavailableError,
)
from s3mount.metrics import Metric, Metrics
from s3mount.options import StoreOptions
from s3mount.store.bucket import S3Store
from s3mount.store.s3 import open_s3_store
from tests.integration.scripted_server import (
    EMPTY_LISTING,
    Act,
    Answer,
    Request,
    ScriptedServer,
    answer,
    error,
)

ODD_KEYS = ["a b", "a%2Bb", "%41", "100%", "caf\u00e9", "cafe\u0301", "q?x", "<&>", "\u0001\u001f"]
MODIFIED = "Wed, 01 May 2024 10:20:30 GMT"


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", lambda: 0.02)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))


@contextlib.asynccontextmanager
async def opened(
    script: Callable[[Request, int], Answer], *, deadline_seconds: float = 5.0, stall_timeout_seconds: float = 1.0
) -> AsyncIterator[tuple[S3Store, ScriptedServer, Metrics]]:
    """A store whose first LIST, the probe, finds an empty bucket; *script* answers the rest, counted from 0."""
    counted = -1

    def respond(request: Request) -> Answer:
        nonlocal counted
        counted += 1
        return [EMPTY_LISTING] if counted == 0 else script(request, counted - 1)

    metrics = Metrics()
    with ScriptedServer(respond) as server, trio.fail_after(15):
        options = StoreOptions(
            bucket="b",
            endpoint_url=server.url,
            request_deadline_seconds=deadline_seconds,
            stall_timeout_seconds=stall_timeout_seconds,
        )
        async with open_s3_store(options, metrics) as store:
            server.requests.clear()
            yield store, server, metrics


def listing(inside: str, *, more: str | None = None, is_truncated: bool | None = None) -> bytes:
    token = "" if more is None else f"<NextContinuationToken>{more}</NextContinuationToken>"
    truncated = str(more is not None if is_truncated is None else is_truncated).lower()
    return answer(
        200,
        '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<IsTruncated>{truncated}</IsTruncated><KeyCount>1</KeyCount>{token}{inside}</ListBucketResult>".encode(),
    )


def entry(key: str, *, size: str = "1", date: str = "2024-05-01T10:20:30.000Z", etag: str = "&quot;e&quot;") -> str:
    times = f"<LastModified>{date}</LastModified>"
    return f"<Contents><Key>{key}</Key><Size>{size}</Size>{times}<ETag>{etag}</ETag></Contents>"


async def all_keys(store: S3Store, prefix: str = "") -> list[str]:
    keys: list[str] = []
    token = None
    while True:
        page = await store.list_page(prefix, token=token)
        keys += [summary.key for summary in page.objects] + list(page.prefixes)
        token = page.next_token
        if token is None:
            return keys


@pytest.mark.parametrize(
    "fault",
    [
        [error(500, "InternalError")],
        [error(503, "SlowDown")],
        [answer(200, b"<html><body>login</body></html>")],
        [answer(200, b"<ListBucketResult><Contents><Key>a")],
        [listing(entry("a"))[:-30], Act.CLOSE],
        [answer(200, b"")],
        [error(200, "InternalError")],
        [Act.RESET],
        [Act.STALL],
    ],
    ids=["500", "503", "html", "cut xml", "cut body", "empty", "error as 200", "reset", "stall"],
)
async def test_a_passing_fault_is_not_seen(fault: Answer):
    script = lambda _, number: fault if number == 0 else [listing(entry("a"))]  # noqa: E731
    async with opened(script, stall_timeout_seconds=0.2) as (store, server, metrics):
        assert await all_keys(store) == ["a"]

    assert len(server.requests) == 2
    # A connection that breaks when it is used again is replaced without further ado.
    assert metrics.counters[Metric.RETRIES] == (0 if fault == [Act.RESET] else 1)


async def test_an_impossible_entry_makes_the_listing_corrupt():
    async with opened(lambda *_: [listing(entry("p/a", size="-1"))]) as (store, server, _):
        with pytest.raises(CorruptResponseError):
            await store.list_page("p/")

    assert 1 < len(server.requests) < 10


async def test_a_repeated_token_is_corrupt():
    async with opened(lambda *_: [listing(entry("a"), more="same")]) as (store, _, _):
        with pytest.raises(CorruptResponseError):
            await all_keys(store)


async def test_a_page_without_entries_goes_on():
    pages = [listing("", more="t1"), listing(entry("a"), more="t2"), listing("", more="t3"), listing(entry("b"))]
    async with opened(lambda _, number: [pages[number]]) as (store, _, _):
        assert await all_keys(store) == ["a", "b"]


async def test_a_token_on_the_last_page_is_ignored():
    async with opened(lambda *_: [listing(entry("a"), more="t", is_truncated=False)]) as (store, server, _):
        assert await all_keys(store) == ["a"]

    assert len(server.requests) == 1


def version_1_script(keys: list[str], *, page_size: int, refuses: bool, has_next_marker: bool):
    def script(request: Request, _: int) -> Answer:
        query = {name: values[0] for name, values in parse_qs(urlsplit(request.target).query).items()}
        if refuses and "list-type" in query:
            return [error(501, "NotImplemented")]
        rest = [key for key in keys if key > query.get("marker", "")]
        inside = "".join(entry(key) for key in rest[:page_size]) + f"<Marker>{query.get('marker', '')}</Marker>"
        is_truncated = len(rest) > page_size
        if is_truncated and has_next_marker:
            inside += f"<NextMarker>{rest[page_size - 1]}</NextMarker>"
        return [
            listing(inside, is_truncated=is_truncated).replace(b"<KeyCount>1</KeyCount>", b"<Version>1</Version>  ")
        ]

    return script


@pytest.mark.parametrize("refuses", [True, False])
@pytest.mark.parametrize("has_next_marker", [True, False])
async def test_a_server_of_version_1_is_listed(*, refuses: bool, has_next_marker: bool):
    keys = [f"k{number:02}" for number in range(20)]
    script = version_1_script(keys, page_size=7, refuses=refuses, has_next_marker=has_next_marker)
    async with opened(script) as (store, server, _):
        assert await all_keys(store) == keys
        server.requests.clear()
        assert await all_keys(store) == keys

    assert not any("list-type" in request.target for request in server.requests)


ENCODINGS = {
    "aws": lambda key: quote_plus(key, safe="/"),
    "percent": lambda key: quote(key, safe="/"),
    "go path": lambda key: quote(key, safe="/+$&:=@"),
    "seaweed": lambda key: quote_plus(key, safe="/") if "+" in key else quote(key, safe="/"),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("keys", [[*ODD_KEYS, "a+b"], ["a b", "a+b"], ["a+b c"]], ids=len)
async def test_keys_are_exact_however_they_are_encoded(encoding: str, keys: list[str]):
    if encoding == "go path":
        # Where a plus has to be learnt from an answer without encoding, XML cannot carry control characters.
        keys = [key for key in keys if key.isprintable()]

    def script(request: Request, _: int) -> Answer:
        is_encoded = "encoding-type=url" in request.target
        encode = ENCODINGS[encoding] if is_encoded else str
        inside = "".join(entry(escape(encode(key))) for key in keys)
        return [listing(inside + ("<EncodingType>url</EncodingType>" if is_encoded else ""))]

    async with opened(script) as (store, server, _):
        assert await all_keys(store) == keys
        server.requests.clear()
        assert await all_keys(store) == keys

    assert len(server.requests) == 1


@pytest.mark.parametrize("keys", [["a+b", "a b", "100%", "%41", "<&>"], ["a+b"]], ids=len)
async def test_keys_are_exact_where_encoding_is_not_known(keys: list[str]):
    async with opened(lambda *_: [listing("".join(entry(escape(key)) for key in keys))]) as (store, server, _):
        assert await all_keys(store) == keys

    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (error(404, "NoSuchBucket"), StoreUnavailableError),
        (answer(404), StoreUnavailableError),
        (error(403, "AccessDenied"), AccessDeniedError),
        (error(403, "ExpiredToken"), AccessDeniedError),
        (error(400, "InvalidArgument"), InvalidRequestError),
        (error(500, "InternalError"), StoreUnavailableError),
    ],
)
async def test_a_refused_listing_is_an_error(fault: bytes, expected: type[Exception]):
    async with opened(lambda *_: [fault], deadline_seconds=1.0) as (store, _, _):
        with pytest.raises(expected):
            await store.list_page("")


async def test_huge_bodies_are_not_read():
    def script(_request: Request, number: int) -> Answer:
        yield b"HTTP/1.1 500 Oops\r\nContent-Length: 1073741824\r\n\r\n" if number == 0 else answer(200, length=1 << 30)
        sent.append(0)
        while True:
            yield bytes(65_536)
            sent[-1] += 65_536

    sent: list[int] = []
    async with opened(script, deadline_seconds=2.0) as (store, _, _):
        with pytest.raises((StoreUnavailableError, CorruptResponseError)):
            await store.list_page("")

    assert max(sent) < 64 << 20


def head_answer(status: int = 200, **headers: str) -> bytes:
    defaults = {"ETag": '"e"', "Last_Modified": MODIFIED, "x_amz_request_id": "1"}
    return answer(status, length=int(headers.pop("length", "5")), **(defaults | headers))


async def test_head_reads_the_headers():
    script = lambda *_: [head_answer(ETag='W/"e"', Content_Type="text/plain", x_amz_version_id="v")]  # noqa: E731
    async with opened(script) as (store, server, _):
        summary = await store.head("d/k+ %")

    assert (summary.size, summary.etag, summary.mtime_ns) == (5, "e", 1714558830 * 10**9)
    assert (summary.content_type, summary.version_id, summary.storage_class) == ("text/plain", "v", "STANDARD")
    assert server.requests[0].target == "/b/d/k%2B%20%25"


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (answer(404), NoSuchEntryError),
        (answer(503), StoreUnavailableError),
        (head_answer(Last_Modified="x"), CorruptResponseError),
    ],
)
async def test_a_refused_head_is_an_error(fault: bytes, expected: type[Exception]):
    async with opened(lambda *_: [fault], deadline_seconds=1.0) as (store, _, _):
        with pytest.raises(expected):
            await store.head("k")


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "ExpiredToken", AccessDeniedError),
        (403, "ExpiredToken", AccessDeniedError),
        (403, "AllAccessDisabled", StoreUnavailableError),
    ],
)
async def test_a_listing_tells_why_a_head_was_refused(status: int, code: str, expected: type[Exception]):
    script = lambda request, _: [answer(status) if request.method == "HEAD" else error(status, code)]  # noqa: E731
    async with opened(script) as (store, _, _):
        with pytest.raises(expected, match=code):
            await store.head("k")


async def test_a_head_refused_for_the_clock_is_repeated():
    date = "Fri, 01 Jan 2100 00:00:00 GMT"

    def script(request: Request, number: int) -> Answer:
        if request.method == "GET":
            return [error(403, "RequestTimeTooSkewed", Date=date)]
        return [answer(403, Date=date) if number == 0 else head_answer()]

    async with opened(script) as (store, server, _):
        await store.head("k")

    assert [request.method for request in server.requests] == ["HEAD", "GET", "HEAD"]
    assert server.requests[2].headers["x-amz-date"].startswith("21000101")


async def test_expired_credentials_are_read_anew(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setattr("s3mount.store.credentials._MIN_RENEWAL_SECONDS", 0.0)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    file.write_text("[default]\naws_access_key_id=old\naws_secret_access_key=s\naws_session_token=t\n")

    def script(request: Request, _: int) -> Answer:
        return [EMPTY_LISTING if "Credential=new" in request.headers["authorization"] else error(400, "ExpiredToken")]

    async with opened(script) as (store, server, _):
        with pytest.raises(AccessDeniedError):
            await store.list_page("")
        assert len(server.requests) == 1
        file.write_text("[default]\naws_access_key_id=new\naws_secret_access_key=s\naws_session_token=t\n")

        assert await store.list_page("")
        assert await store.list_page("")

    assert len(server.requests) == 4


async def test_a_cancelled_request_returns_at_once():
    async with opened(lambda *_: [Act.STALL], stall_timeout_seconds=10) as (store, _, _):
        with trio.move_on_after(0.1) as scope, trio.fail_after(1):
            await store.head("k")

    assert scope.cancelled_caught
