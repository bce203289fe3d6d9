"""The proxy does what it is told, and reports what it did."""

import contextlib
import http.client
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.support.faults import (
    Action,
    Answer,
    Cut,
    End,
    Rule,
    cut_after,
    ignore_range,
    s3_error,
    slow_down,
    stall_after,
)
from tests.support.http_heads import Kind, Request
from tests.support.proxy import FaultProxy, RateLimiter
from tests.support.proxy_log import Outcome, bytes_sent, most_at_once
from tests.support.tls import make_ca

BODY = bytes(range(256)) * 40
SIZE = len(BODY)
LARGE_REPEATS = 100


class Handler(BaseHTTPRequestHandler):
    """Serves BODY at every path, framed or repeated as the query says."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self.server.hosts.append(self.headers["Host"])
        if self.path.endswith("?chunked"):
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for start in range(0, SIZE, 1000):
                piece = BODY[start : start + 1000]
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        elif "?large" in self.path:
            self.send_response(200)
            self.send_header("Content-Length", str(SIZE * LARGE_REPEATS))
            self.end_headers()
            self.wfile.write(BODY if self.path.endswith("cut") else BODY * LARGE_REPEATS)
            self.close_connection = self.path.endswith("cut")
        elif self.path.endswith("?until-close"):
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(BODY)
        else:
            self._send_range()

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(SIZE))
        self.end_headers()

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("ETag", f'"{len(body)}"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send_range(self) -> None:
        start, stop = 0, SIZE
        wanted = self.headers["Range"]
        if wanted is not None:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop = int(first), int(last) + 1
        self.send_response(200 if wanted is None else 206)
        self.send_header("Content-Length", str(stop - start))
        if wanted is not None:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{SIZE}")
        self.end_headers()
        self.wfile.write(BODY[start:stop])

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Remembers the Host headers it got."""

    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.hosts: list[str] = []

    def handle_error(self, *args: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # the proxy leaves in the middle of a response
            super().handle_error(*args)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    with FaultProxy(f"http://127.0.0.1:{server.server_port}") as running:
        yield running


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[http.client.HTTPConnection]:
    connection = connect(proxy)
    yield connection
    connection.close()


def connect(proxy: FaultProxy) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", urlsplit(proxy.endpoint_url).port, timeout=5)


class Got(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]


def get(client: http.client.HTTPConnection, path: str = "/b/k", **headers: str) -> Got:
    client.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    response = client.getresponse()
    return Got(response.status, response.read(), {name.lower(): value for name, value in response.getheaders()})


def test_a_request_passes_unchanged(proxy, server, client):
    got = get(client, Range="bytes=10-19")

    assert (got.status, got.body) == (206, BODY[10:20])
    assert got.headers["content-range"] == f"bytes 10-19/{SIZE}"
    assert server.hosts[-1] == proxy.endpoint_url.removeprefix("http://")


@pytest.mark.parametrize("path", ["/b/k", "/b/k?chunked", "/b/k?until-close"])
def test_bodies_pass_however_they_are_framed(proxy, client, path):
    assert get(client, path).body == BODY
    assert get(client, path).body == BODY

    assert proxy.connections_total == 1
    assert [exchange.bytes_sent for exchange in proxy.log.select()] == [SIZE, SIZE]


def test_head_has_a_length_and_no_body(proxy, client):
    client.request("HEAD", "/b/k")
    response = client.getresponse()

    assert response.getheader("Content-Length") == str(SIZE)
    assert response.read() == b""
    assert get(client).body == BODY
    assert [exchange.kind for exchange in proxy.log.select()] == [Kind.HEAD, Kind.GET]


def test_a_body_is_uploaded(proxy, client):
    client.request("PUT", "/b/k", body=BODY, headers={"Expect": "100-continue"})
    response = client.getresponse()
    response.read()

    assert response.getheader("ETag") == f'"{SIZE}"'
    assert proxy.log.select(Kind.PUT)[0].bytes_received == SIZE


def test_the_log_tells_what_was_asked_and_answered(proxy, client):
    get(client, "/b/a%20b?versionId=7", Range="bytes=5-9", If_Match='"x"')

    (exchange,) = proxy.log.wait_until_idle()
    request = exchange.request
    assert (request.bucket, request.key, request.kind) == ("b", "a b", Kind.GET)
    assert (request.range_start, request.range_stop, request.header("if-match")) == (5, 10, '"x"')
    assert (exchange.status, exchange.bytes_sent, exchange.outcome) == (206, 5, Outcome.COMPLETE)
    assert exchange.ended_at >= exchange.started_at


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("GET /b?list-type=2&prefix=a%2F HTTP/1.1", Kind.LIST),
        ("GET /b/?prefix= HTTP/1.1", Kind.LIST),
        ("GET /b?location HTTP/1.1", Kind.OTHER),
        ("GET / HTTP/1.1", Kind.OTHER),
        ("HEAD /b HTTP/1.1", Kind.OTHER),
        ("HEAD /b/k HTTP/1.1", Kind.HEAD),
        ("GET /b/k?x-id=GetObject HTTP/1.1", Kind.GET),
        ("GET /b/k?tagging HTTP/1.1", Kind.OTHER),
        ("GET /b/k?uploadId=1 HTTP/1.1", Kind.OTHER),
        ("PUT /b/k?partNumber=1&uploadId=1 HTTP/1.1", Kind.PUT),
        ("PUT /b/k HTTP/1.1\r\nx-amz-copy-source: b/l", Kind.COPY),
        ("DELETE /b/k HTTP/1.1", Kind.DELETE),
        ("DELETE /b/k?uploadId=1 HTTP/1.1", Kind.OTHER),
        ("POST /b/k?uploads HTTP/1.1", Kind.OTHER),
    ],
)
def test_kinds_of_requests(line, kind):
    assert Request.parse(line.encode() + b"\r\n\r\n", number=1, connection_id=1).kind is kind


def test_without_range_the_server_answers_with_everything(proxy, client):
    proxy.add(ignore_range())

    got = get(client, Range="bytes=10-19")

    assert (got.status, got.body) == (200, BODY)
    assert proxy.log.select()[0].request.range_header == "bytes=10-19"


@pytest.mark.parametrize("size", [0, 1, 1000, SIZE])
def test_reset_comes_after_exactly_so_many_bytes(proxy, size):
    proxy.add(cut_after(size))
    port = urlsplit(proxy.endpoint_url).port

    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        sock.sendall(b"GET /b/k HTTP/1.1\r\nHost: x\r\n\r\n")
        received = bytearray()
        with contextlib.suppress(ConnectionResetError):
            while piece := sock.recv(1 << 16):
                received += piece
            pytest.fail("the connection was closed, not reset")

    assert received.partition(b"\r\n\r\n")[2] == BODY[:size]
    (exchange,) = proxy.log.wait_until_idle()
    assert (exchange.bytes_sent, exchange.outcome) == (size, Outcome.CUT)


def test_close_comes_after_exactly_so_many_bytes(proxy, client):
    proxy.add(cut_after(1000, End.CLOSE))

    with pytest.raises(http.client.IncompleteRead) as caught:
        get(client)

    assert caught.value.partial == BODY[:1000]


def test_a_cut_body_may_look_whole(proxy, client):
    proxy.add(cut_after(1000, End.TERMINATE))

    got = get(client)

    assert got.body == BODY[:1000]
    assert got.headers["transfer-encoding"] == "chunked"
    assert "content-length" not in got.headers


def test_a_cut_beyond_the_body_does_nothing(proxy, client):
    proxy.add(cut_after(SIZE + 1))

    assert get(client).body == BODY


def test_a_stalled_body_goes_on_when_released(proxy, client):
    release = threading.Event()
    proxy.add(stall_after(1000, release))
    client.request("GET", "/b/k")
    response = client.getresponse()

    first = response.read(1000)
    (exchange,) = proxy.log.select()
    assert (first, exchange.is_pending) == (BODY[:1000], True)
    release.set()
    assert response.read() == BODY[1000:]


def test_a_response_is_held_after_the_server_has_given_it(proxy, server, client):
    release = threading.Event()
    proxy.add(Action(hold=release))
    before = len(server.hosts)
    threading.Timer(0.02, release.set).start()

    assert get(client).body == BODY
    assert release.is_set()
    assert len(server.hosts) == before + 1


def test_an_error_is_answered_without_the_server(proxy, server, client):
    rule = Rule(slow_down(retry_after=3), times=1)
    proxy.add(rule)
    before = len(server.hosts)

    got = get(client)

    assert (got.status, got.headers["retry-after"]) == (503, "3")
    assert b"<Code>SlowDown</Code>" in got.body
    assert len(server.hosts) == before
    assert get(client).status == 200
    assert (rule.matched, rule.fired, proxy.connections_total) == (2, 1, 1)


def test_headers_status_and_body_are_rewritten(proxy, client):
    proxy.add(
        Action(
            status=200, response_headers={"ETag": '"new"', "Content-Range": None}, rewrite_body=lambda body: body[::-1]
        )
    )

    got = get(client, Range="bytes=0-9")

    assert (got.status, got.body) == (200, BODY[9::-1])
    assert got.headers["etag"] == '"new"'
    assert "content-range" not in got.headers


def test_a_body_of_another_length_than_announced_ends_the_connection(proxy, client):
    proxy.add(Action(rewrite_body=lambda _: b"", response_headers={"Content-Length": str(SIZE)}))

    with pytest.raises(http.client.IncompleteRead):
        get(client)


def test_a_dropped_request_is_never_answered(proxy, client):
    proxy.add(Rule(Action(drop=True), times=1))
    client.timeout = 0.05

    with pytest.raises(TimeoutError):
        get(client)
    client.close()

    (exchange,) = proxy.log.wait_until_idle()
    assert (exchange.status, exchange.outcome) == (None, Outcome.DROPPED)


def test_a_request_is_reset_without_an_answer(proxy, client):
    proxy.add(Action(reset=True))

    with pytest.raises(ConnectionResetError):
        get(client)


def test_refused_connections_come_back_at_the_same_place(proxy, client):
    get(client)
    proxy.refuse()

    assert client.sock.recv(1) == b""
    client.close()
    with pytest.raises(ConnectionRefusedError):
        get(client)
    client.close()
    proxy.listen()
    assert get(client).body == BODY


@pytest.mark.parametrize("is_reset", [False, True])
def test_idle_connections_are_ended(proxy, client, is_reset):
    proxy.idle_seconds = 0.02
    proxy.idle_reset = is_reset
    get(client)

    if is_reset:
        with pytest.raises(ConnectionResetError):
            client.sock.recv(1)
    else:
        assert client.sock.recv(1) == b""


def test_latency_is_added_to_each_request(proxy, client):
    get(client)
    proxy.latency_seconds = 0.03
    started_at = time.perf_counter()

    get(client)

    assert time.perf_counter() - started_at >= 0.03


def test_bodies_are_throttled(proxy, client):
    proxy.add(Action(bytes_per_second=SIZE / 0.05))
    started_at = time.perf_counter()

    assert get(client).body == BODY

    assert time.perf_counter() - started_at >= 0.05


def test_too_many_requests_are_told_to_slow_down(proxy, client):
    proxy.limiter = RateLimiter(requests_per_second=0.001, burst=2)

    assert [get(client).status for _ in range(4)] == [200, 200, 503, 503]
    assert proxy.limiter.refused == 2


def test_healing_takes_all_faults_away(proxy, client):
    proxy.add(s3_error(500, "InternalError"))
    proxy.refuse()

    proxy.heal()

    assert get(client).status == 200


def test_a_server_that_is_gone_is_a_bad_gateway():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    with FaultProxy(f"http://127.0.0.1:{port}") as proxy:
        client = connect(proxy)
        got = get(client)
        client.close()

    assert got.status == 502
    assert proxy.log.wait_until_idle()[0].outcome is Outcome.SERVER_GONE


def test_requests_of_many_connections_are_all_counted(proxy):
    clients = [connect(proxy) for _ in range(8)]
    threads = [threading.Thread(target=lambda each=each: [get(each) for _ in range(5)]) for each in clients]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in clients:
        each.close()

    exchanges = proxy.log.wait_until_idle()
    assert (len(exchanges), bytes_sent(exchanges)) == (40, 40 * SIZE)
    assert len({exchange.request.number for exchange in exchanges}) == 40
    assert proxy.connections_total == 8
    assert 1 <= most_at_once(exchanges) <= 8


def test_tls_is_spoken_to_those_who_trust_the_proxy(server, tmp_path):
    with FaultProxy(f"http://127.0.0.1:{server.server_port}", tls=True) as proxy:
        trust = ssl.create_default_context(cafile=str(proxy.write_ca(tmp_path)))
        client = http.client.HTTPSConnection("127.0.0.1", urlsplit(proxy.endpoint_url).port, timeout=5, context=trust)
        body = get(client).body
        proxy.add(cut_after(1000))
        with pytest.raises((ConnectionResetError, http.client.IncompleteRead, ssl.SSLError)):
            get(client)
        client.close()

    assert body == BODY


def test_a_context_for_other_names_is_not_trusted(server, tmp_path):
    context, trusted = make_ca(tmp_path, "elsewhere.example")
    trust = ssl.create_default_context(cafile=str(trusted))
    with FaultProxy(f"http://127.0.0.1:{server.server_port}", tls=context) as proxy:
        port = urlsplit(proxy.endpoint_url).port
        with (
            socket.create_connection(("127.0.0.1", port), timeout=5) as sock,
            pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for '127\.0\.0\.1'"),
        ):
            trust.wrap_socket(sock, server_hostname="127.0.0.1")
        with (
            socket.create_connection(("127.0.0.1", port), timeout=5) as sock,
            trust.wrap_socket(sock, server_hostname="elsewhere.example") as client,
        ):
            client.sendall(b"GET /b/k HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"


def test_a_client_that_leaves_before_tls_begins_takes_nobody_along(server, tmp_path):
    with FaultProxy(f"http://127.0.0.1:{server.server_port}", tls=True) as proxy:
        trust = ssl.create_default_context(cafile=str(proxy.write_ca(tmp_path)))
        port = urlsplit(proxy.endpoint_url).port
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=trust)

        body = get(client).body
        client.close()

    assert body == BODY
    assert proxy.connections_total == 21


def test_requests_are_counted_by_kind(proxy, client):
    get(client)
    get(client, "/b/l")
    get(client, "/b?list-type=2")
    before = proxy.counts()

    proxy.log.clear()

    assert before == {Kind.GET: 2, Kind.LIST: 1}
    assert proxy.counts() == {}


def test_open_connections_are_counted_until_they_end(proxy):
    clients = [connect(proxy) for _ in range(3)]
    for each in clients:
        get(each)
    before = proxy.open_connections

    proxy.refuse()
    for each in clients:
        each.close()
    proxy.close()

    assert (before, proxy.open_connections, proxy.connections_total) == (3, 0, 3)


def test_a_removed_hook_does_nothing_more(proxy, client):
    hook = proxy.add(s3_error(500, "InternalError"))
    other = proxy.add(Rule(slow_down(), key="other"))
    first = get(client).status

    proxy.remove(hook)
    proxy.remove(hook)

    assert (first, get(client).status, get(client, "/b/other").status) == (500, 200, 503)
    assert (hook.fired, other.fired) == (1, 1)


def test_old_connections_fall_silent_and_new_ones_work(proxy, client):
    get(client)
    blackhole = proxy.blackhole_connections()
    client.sock.settimeout(0.05)

    with pytest.raises(TimeoutError):
        get(client)
    client.close()
    client.timeout = 5

    assert get(client).body == BODY
    assert blackhole.fired == 1
    assert [exchange.outcome for exchange in proxy.log.wait_until_idle()] == [
        Outcome.COMPLETE,
        Outcome.DROPPED,
        Outcome.COMPLETE,
    ]


@pytest.mark.parametrize("own", [None, 1.0e9])
def test_every_connection_is_throttled_whatever_hooks_say(proxy, client, own):
    proxy.add(Action(bytes_per_second=own, status=203))
    proxy.bytes_per_second_per_connection = SIZE / 0.05
    started_at = time.perf_counter()

    got = get(client)

    assert time.perf_counter() - started_at >= 0.05
    assert (got.status, got.body) == (203, BODY)


def test_those_who_have_to_slow_down_are_told_for_how_long(proxy, client):
    proxy.limiter = RateLimiter(requests_per_second=0.001, retry_after_seconds=7)

    answers = [get(client) for _ in range(2)]

    assert [answer.headers.get("retry-after") for answer in answers] == [None, "7"]
    assert proxy.limiter.refused == 1


@pytest.mark.parametrize(
    "action",
    [
        Action(drop=True),
        Action(delay_seconds=60),
        Action(answer_delay_seconds=60),
        Action(hold=threading.Event()),
        Action(bytes_per_second=1),
        stall_after(10, threading.Event()),
    ],
    ids=["drop", "delay", "answer-delay", "hold", "throttle", "stall"],
)
def test_the_proxy_ends_at_once_whatever_goes_on(server, action):
    with FaultProxy(f"http://127.0.0.1:{server.server_port}") as proxy:
        proxy.add(action)
        with socket.create_connection(("127.0.0.1", urlsplit(proxy.endpoint_url).port), timeout=5) as sock:
            sock.sendall(b"GET /b/k HTTP/1.1\r\nHost: x\r\n\r\n")
            proxy.log.wait_for(lambda exchanges: len(exchanges) == 1)
            started_at = time.perf_counter()

            proxy.close()

            assert time.perf_counter() - started_at < 1
    assert not proxy.log.select()[0].is_pending
    assert proxy.open_connections == 0


def test_a_rule_takes_the_nth_and_then_every_few():
    rule = Rule(Action(drop=True), skip=1, every=3, times=2)
    request = Request.parse(b"GET /b/k HTTP/1.1\r\n\r\n", number=1, connection_id=1)

    fired = [rule(request) is not None for _ in range(10)]

    assert [index for index, is_fired in enumerate(fired) if is_fired] == [1, 4]


def test_a_rule_tells_keys_and_ranges_apart():
    rule = Rule(Action(drop=True), kind=Kind.GET, key="data/*.bin", range_start=100)

    def fires(line: str, range_header: str) -> bool:
        raw = f"{line} HTTP/1.1\r\nRange: {range_header}\r\n\r\n".encode()
        return rule(Request.parse(raw, number=1, connection_id=1)) is not None

    assert fires("GET /b/data/x.bin", "bytes=100-200")
    assert not fires("HEAD /b/data/x.bin", "bytes=100-200")
    assert not fires("GET /b/data/x.txt", "bytes=100-200")
    assert not fires("GET /b/data/x.bin", "bytes=101-200")


def test_chance_is_seeded():
    request = Request.parse(b"GET /b/k HTTP/1.1\r\n\r\n", number=1, connection_id=1)

    runs = [[rule(request) is not None for _ in range(100)] for rule in (Rule(Action(), probability=0.3) for _ in "ab")]

    assert runs[0] == runs[1]
    assert 15 < sum(runs[0]) < 45


def test_stall_and_cut_go_together(proxy, client):
    release = threading.Event()
    release.set()
    action = stall_after(500, release)
    proxy.add(Action(stall=action.stall, cut=Cut(700, End.CLOSE), answer=Answer(200, {}, BODY)))

    with pytest.raises(http.client.IncompleteRead) as caught:
        get(client)

    assert caught.value.partial == BODY[:700]


def test_a_large_body_passes_and_is_counted(proxy, client):
    get(client, "/b/k?large")

    got = get(client, "/b/k?large")

    assert got.body == BODY * LARGE_REPEATS
    assert bytes_sent(proxy.log.select()) == 2 * SIZE * LARGE_REPEATS


def test_a_server_that_ends_a_large_body_early_is_noticed(proxy, client):
    with pytest.raises(http.client.IncompleteRead) as caught:
        get(client, "/b/k?large-cut")

    assert caught.value.partial == BODY
    assert proxy.log.wait_until_idle()[0].outcome is Outcome.SERVER_GONE
