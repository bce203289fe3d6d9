"""What mounting says about buckets that cannot be read, and the ways to reach those that can."""

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
import trustme

from s3mount.errors import BucketError, CredentialsMissingError, EndpointError, MountError
from s3mount.ids import ETag, ObjectId
from s3mount.metrics import Metric, Metrics
from s3mount.options import AddressingStyle, StoreOptions
from s3mount.ranges import ByteRange
from s3mount.store.s3 import S3Store, open_s3_store
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

OBJECT = ServedObject(bytes(range(256)) * 100)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret-key")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))


def serve(request: Request) -> Answer:
    return [EMPTY_LISTING] if "list-type" in request.target else [OBJECT.get(request)]


async def read_from(store: S3Store) -> bytes:
    """The object but for its first byte."""
    size = len(OBJECT.body)
    into = bytearray(size - 1)
    with trio.fail_after(15):
        object_id = ObjectId("d/k", ETag(OBJECT.etag))
        await store.get_range(object_id, ByteRange(1, size), object_size=size, into=memoryview(into))
    return bytes(into)


async def read_through(options: StoreOptions) -> bytes:
    """Mount, read the object, unmount."""
    with trio.fail_after(15):
        async with open_s3_store(options, Metrics()) as store:
            return await read_from(store)


async def complaint_of(options: StoreOptions, kind: type[MountError]) -> str:
    """The one line that mounting fails with."""
    with trio.fail_after(20), pytest.raises(kind) as caught:
        async with open_s3_store(options, Metrics()):
            pass
    text = str(caught.value)
    assert "\n" not in text
    assert "the-secret-key" not in text
    return text


@pytest.mark.parametrize(
    ("fault", "kind", "hint"),
    [
        (error(404, "NoSuchBucket"), BucketError, "does not exist"),
        (answer(404, b"<html>"), BucketError, "does not exist"),
        (error(403, "AccessDenied"), BucketError, "s3:ListBucket"),
        (error(403, "InvalidAccessKeyId"), CredentialsMissingError, "InvalidAccessKeyId"),
        (error(403, "SignatureDoesNotMatch"), CredentialsMissingError, "SignatureDoesNotMatch"),
        (error(400, "ExpiredToken"), CredentialsMissingError, "ExpiredToken"),
        (error(403, "RequestTimeTooSkewed"), EndpointError, "clock"),
        (error(301, "PermanentRedirect"), BucketError, "another region"),
        (error(301, "PermanentRedirect", x_amz_bucket_region="eu-north-9"), BucketError, "eu-north-9"),
        (error(501, "NotImplemented"), EndpointError, "does not serve"),
    ],
)
async def test_what_a_server_refuses_is_said_plainly(fault: bytes, kind: type[MountError], hint: str):
    with ScriptedServer(lambda _: [fault]) as server:
        text = await complaint_of(StoreOptions(bucket="my-bucket", endpoint_url=server.url), kind)

    assert hint in text
    assert 1 <= len(server.requests) <= 3


async def test_a_private_bucket_without_signing_is_said_to_be_private():
    with ScriptedServer(lambda _: [error(403, "AccessDenied")]) as server:
        options = StoreOptions(bucket="b", endpoint_url=server.url, no_sign_request=True)
        assert "not public" in await complaint_of(options, BucketError)

    assert "authorization" not in server.requests[0].headers


async def test_a_server_that_is_none_of_s3_is_said_to_be_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("random.random", lambda: 0.01)
    with ScriptedServer(lambda _: [answer(200, b"<html></html>")]) as server:
        assert "like an S3 server" in await complaint_of(
            StoreOptions(bucket="b", endpoint_url=server.url), EndpointError
        )


@pytest.fixture
def short_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s3mount.store.s3._PROBE_DEADLINE_SECONDS", 0.5)


async def test_a_refused_connection_is_said_plainly(short_probe):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    options = StoreOptions(bucket="b", endpoint_url=f"http://127.0.0.1:{port}")

    assert "refuses connections" in await complaint_of(options, EndpointError)


async def test_an_unknown_host_is_said_plainly(short_probe):
    options = StoreOptions(bucket="b", endpoint_url="http://no-such-host.invalid:1")

    assert "cannot be resolved" in await complaint_of(options, EndpointError)


async def test_a_silent_server_is_said_plainly(short_probe):
    with ScriptedServer(lambda _: [Act.STALL]) as server:
        options = StoreOptions(bucket="b", endpoint_url=server.url)

        assert "does not answer" in await complaint_of(options, EndpointError)


@pytest.mark.parametrize(
    ("options", "kind", "hint"),
    [
        (StoreOptions(bucket="b", profile="nobody"), CredentialsMissingError, "nobody"),
        (StoreOptions(bucket="not a bucket"), BucketError, "neither"),
        (StoreOptions(bucket="arn:aws:s3:us-west-2:123456789012:acc"), BucketError, "neither"),
        (StoreOptions(bucket="arn:aws:s3::123456789012:accesspoint/a.mrap"), BucketError, "multi-region"),
        (StoreOptions(bucket="b", endpoint_url="localhost:9000"), EndpointError, "https://host:port"),
        (
            StoreOptions(bucket="b", endpoint_url="https://127.0.0.1:1", ca_bundle=Path("/no/bundle")),
            EndpointError,
            "/no/bundle",
        ),
    ],
)
async def test_what_cannot_be_is_said_without_a_request(options: StoreOptions, kind: type[MountError], hint: str):
    assert hint in await complaint_of(options, kind)


async def test_missing_credentials_are_said_plainly(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    text = await complaint_of(StoreOptions(bucket="b", endpoint_url="http://127.0.0.1:1"), CredentialsMissingError)

    assert "--no-sign-request" in text


@pytest.mark.parametrize(
    "refusal",
    [
        error(301, "PermanentRedirect", x_amz_bucket_region="eu-north-9"),
        error(400, "AuthorizationHeaderMalformed", "<Region>eu-north-9</Region>"),
        error(400, "IllegalLocationConstraintException", x_amz_bucket_region="eu-north-9"),
    ],
)
async def test_a_wrong_region_is_followed(refusal: bytes):
    def script(request: Request) -> Answer:
        return serve(request) if "/eu-north-9/s3/" in request.headers["authorization"] else [refusal]

    with ScriptedServer(script) as server:
        await read_through(StoreOptions(bucket="b", endpoint_url=server.url))

    assert len(server.requests) == 3


async def test_the_clock_is_corrected_at_mount_and_for_reads():
    def script(request: Request) -> Answer:
        is_right = request.headers["x-amz-date"].startswith("2100")
        return (
            serve(request) if is_right else [error(403, "RequestTimeTooSkewed", Date="Fri, 01 Jan 2100 00:00:00 GMT")]
        )

    with ScriptedServer(script) as server:
        await read_through(StoreOptions(bucket="b", endpoint_url=server.url))

    assert len(server.requests) == 3


async def test_every_request_carries_payer_and_owner():
    with ScriptedServer(serve) as server:
        options = StoreOptions(
            bucket="b", endpoint_url=server.url, requester_pays=True, expected_bucket_owner="123456789012"
        )
        await read_through(options)

    for request in server.requests:
        assert request.headers["x-amz-request-payer"] == "requester"
        assert request.headers["x-amz-expected-bucket-owner"] == "123456789012"
        assert "x-amz-request-payer" in request.headers["authorization"]


async def test_unsigned_requests_read_public_buckets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with ScriptedServer(serve) as server:
        await read_through(StoreOptions(bucket="b", endpoint_url=server.url, no_sign_request=True))

    assert not any("authorization" in request.headers for request in server.requests)


@pytest.mark.parametrize(
    ("style", "url"),
    [
        (AddressingStyle.AUTO, "http://s3.example/bucket/d/k"),
        (AddressingStyle.PATH, "http://s3.example/bucket/d/k"),
        (AddressingStyle.VIRTUAL, "http://bucket.s3.example/d/k"),
    ],
)
async def test_addressing_styles(style: AddressingStyle, url: str, monkeypatch: pytest.MonkeyPatch):
    with ScriptedServer(serve) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        await read_through(StoreOptions(bucket="bucket", endpoint_url="http://s3.example", addressing_style=style))

    assert proxy.requests[-1].target == url
    assert proxy.requests[-1].headers["host"] == url.split("/")[2]


async def test_nothing_secret_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "the-session-token")
    caplog.set_level("DEBUG")
    with ScriptedServer(serve) as server:
        await read_through(StoreOptions(bucket="b", endpoint_url=server.url))
    with ScriptedServer(lambda _: [error(403, "SignatureDoesNotMatch")]) as refusing:
        await complaint_of(StoreOptions(bucket="b", endpoint_url=refusing.url), CredentialsMissingError)

    assert server.requests[0].headers["x-amz-security-token"] == "the-session-token"
    for secret in ("the-secret-key", "the-session-token", "Signature=", "Credential="):
        assert secret not in caplog.text


@contextlib.contextmanager
def relay(connect: Callable[[socket.socket], socket.socket]) -> Iterator[int]:
    """Accept connections on a port and pass bytes both ways to what *connect* makes of them."""

    def pump(near: socket.socket) -> None:
        with contextlib.suppress(OSError), near:
            near.settimeout(10)
            with connect(near) as far:
                while True:
                    ready, _, _ = select.select([near, far], [], [], 10)
                    for sock in ready:
                        received = sock.recv(65_536)
                        if not received:
                            return
                        (far if sock is near else near).sendall(received)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                threads.append(threading.Thread(target=pump, args=(near,)))
                threads[-1].start()

    threads = [threading.Thread(target=accept)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads[0].start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(5)


@contextlib.contextmanager
def behind_tls(port: int, authority: trustme.CA) -> Iterator[int]:
    """A port that speaks TLS in front of one that does not."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)

    @contextlib.contextmanager
    def plain_side() -> Iterator[int]:
        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near, _ = listener.accept()
                    threads.append(threading.Thread(target=serve_tls, args=(near,)))
                    threads[-1].start()

        def serve_tls(near: socket.socket) -> None:
            with (
                contextlib.suppress(OSError),
                context.wrap_socket(near, server_side=True) as secure,
                socket.create_connection(("127.0.0.1", port)) as far,
            ):
                back = threading.Thread(target=copy, args=(far, secure))
                back.start()
                copy(secure, far)
                back.join(5)

        def copy(source: socket.socket, sink: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while received := source.recv(65_536):
                    sink.sendall(received)
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sink, socket.SHUT_RDWR)

        threads = [threading.Thread(target=accept)]
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threads[0].start()
            yield listener.getsockname()[1]
            listener.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(5)

    with plain_side() as secure_port:
        yield secure_port


@pytest.fixture
def authority(tmp_path: Path) -> tuple[trustme.CA, Path]:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return ca, tmp_path / "ca.pem"


async def test_tls_with_an_authority_of_ones_own(authority: tuple[trustme.CA, Path]):
    ca, bundle = authority
    with ScriptedServer(serve) as server, behind_tls(int(server.url.rpartition(":")[2]), ca) as port:
        options = StoreOptions(bucket="b", endpoint_url=f"https://localhost:{port}", ca_bundle=bundle)

        metrics = Metrics()
        async with open_s3_store(options, metrics) as store:
            for _ in range(5):
                assert (await read_from(store)) == OBJECT.body[1:]

    assert metrics.counters[Metric.CONNECTIONS_OPENED] == 1


async def test_a_read_over_tls_can_be_cancelled_in_mid_body(authority: tuple[trustme.CA, Path]):
    ca, bundle = authority
    body_started = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def script(request: Request) -> Answer:
        if "list-type" in request.target:
            yield EMPTY_LISTING
            return
        yield OBJECT.get(request)[:-10_000]
        token.run_sync_soon(body_started.set)
        yield Act.STALL

    with ScriptedServer(script) as server, behind_tls(int(server.url.rpartition(":")[2]), ca) as port:
        options = StoreOptions(bucket="b", endpoint_url=f"https://localhost:{port}", ca_bundle=bundle)
        async with open_s3_store(options, Metrics()) as store:
            with trio.fail_after(5):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(read_from, store)
                    await body_started.wait()
                    nursery.cancel_scope.cancel()


async def test_an_unknown_authority_is_said_plainly(authority: tuple[trustme.CA, Path]):
    ca, _ = authority
    with ScriptedServer(serve) as server, behind_tls(int(server.url.rpartition(":")[2]), ca) as port:
        text = await complaint_of(StoreOptions(bucket="b", endpoint_url=f"https://localhost:{port}"), EndpointError)

    assert "--ca-bundle" in text


async def test_a_plain_proxy_is_used(monkeypatch: pytest.MonkeyPatch):
    with ScriptedServer(serve) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("http://", "http://user:pass@"))
        monkeypatch.delenv("no_proxy", raising=False)

        assert await read_through(StoreOptions(bucket="b", endpoint_url="http://s3.example:8000")) == OBJECT.body[1:]

    assert [request.target.partition("?")[0] for request in proxy.requests] == [
        "http://s3.example:8000/b",
        "http://s3.example:8000/b/d/k",
    ]
    assert all(request.headers["proxy-authorization"] == "Basic dXNlcjpwYXNz" for request in proxy.requests)
    assert all(request.headers["host"] == "s3.example:8000" for request in proxy.requests)


async def test_a_tunnelling_proxy_is_used(authority: tuple[trustme.CA, Path], monkeypatch: pytest.MonkeyPatch):
    ca, bundle = authority
    asked: list[str] = []

    def tunnel(near: socket.socket) -> socket.socket:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += near.recv(1)
        asked.append(head.decode().splitlines()[0])
        far = socket.create_connection(("127.0.0.1", port))
        near.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        return far

    with (
        ScriptedServer(serve) as server,
        behind_tls(int(server.url.rpartition(":")[2]), ca) as port,
        relay(tunnel) as proxy_port,
    ):
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy_port}")
        monkeypatch.delenv("no_proxy", raising=False)
        options = StoreOptions(bucket="b", endpoint_url=f"https://localhost:{port}", ca_bundle=bundle)

        assert await read_through(options) == OBJECT.body[1:]

    assert [line.rpartition(" ")[0] for line in asked] == [f"CONNECT localhost:{port}"] * 2


async def test_no_proxy_is_honoured(monkeypatch: pytest.MonkeyPatch):
    with ScriptedServer(serve) as server:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        monkeypatch.setenv("no_proxy", "127.0.0.1")

        assert await read_through(StoreOptions(bucket="b", endpoint_url=server.url)) == OBJECT.body[1:]
