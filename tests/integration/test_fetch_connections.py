"""How many connections range GETs use, what they cost to open, and when they are closed."""

import contextlib
import dataclasses
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import pytest
import trio

from s3mount.ranges import KIB, MIB, ByteRange
from s3mount.store import fetch
from s3mount.store.addresses import Address, Addresses, open_socket
from s3mount.store.connection import Proxy, Route
from s3mount.store.endpoint import Endpoint
from s3mount.store.exchange import RangeGet, Report
from s3mount.store.fetch import KEPT_IDLE, FetchEngine
from s3mount.store.responses import ExpectedRange
from tests.integration.scripted_server import Answer, Request, ScriptedServer, ServedObject
from tests.support.tls import make_ca

OBJECT = ServedObject(bytes(64 * KIB))

SPAN = ByteRange(0, 4 * KIB)


@pytest.fixture(autouse=True, params=[0, MIB], ids=["threads", "lanes"])
def carrier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of these tests are fetched by threads, or in the trio thread."""
    monkeypatch.setattr(fetch, "LARGEST_IN_LANES", request.param)


class Server(ScriptedServer):
    """Serves `OBJECT`, by TLS if it has a context; may be told to answer several requests at once."""

    def __init__(self, context: ssl.SSLContext | None = None, *, together: int = 1) -> None:
        super().__init__(self._answer)
        self.resumed: list[bool] = []
        """For each connection, whether its TLS session was an earlier one's."""
        self.together = threading.Barrier(together)
        self._context = context

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def _answer(self, request: Request) -> Answer:
        self.together.wait(10)
        return [OBJECT.get(request)]

    def _serve(self, sock: socket.socket, number: int) -> None:
        if self._context is None:
            super()._serve(sock, number)
            return
        with contextlib.suppress(OSError), self._context.wrap_socket(sock, server_side=True) as tls:
            self.resumed.append(bool(tls.session_reused))
            super()._serve(tls, number)


@contextlib.asynccontextmanager
async def running(route: Route) -> AsyncIterator[FetchEngine]:
    with trio.fail_after(15):
        async with FetchEngine.running(route, connections=8) as engine:
            yield engine


def route_to(server: Server, context: ssl.SSLContext | None = None, *, proxy: Proxy | None = None) -> Route:
    scheme = "http" if context is None else "https"
    return Route(Endpoint(scheme, "127.0.0.1", server.port, "/b", "us-east-1"), proxy=proxy, ssl_context=context)


async def fetched(engine: FetchEngine) -> Report:
    headers = {"host": "b", "range": f"bytes={SPAN.start}-{SPAN.stop - 1}"}
    expected = ExpectedRange(SPAN, len(OBJECT.body), "version-1")
    report = await engine.fetch(RangeGet("/b/k", lambda: headers, expected, memoryview(bytearray(SPAN.size))))
    assert report.fault is None
    return report


async def fetch_together(engine: FetchEngine, count: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(fetched, engine)


async def test_many_requests_one_after_the_other_use_one_connection():
    with Server() as server:
        async with running(route_to(server)) as engine:
            opened = sum([(await fetched(engine)).connections_opened for _ in range(300)])

    # A second request of a slow one may open another.
    assert opened <= 3


async def test_connections_that_stayed_unused_are_closed_except_a_few():
    with Server(together=6) as server:
        async with running(route_to(server)) as engine:
            await fetch_together(engine, 6)
            server.together = threading.Barrier(1)
            workers = [thread for thread in threading.enumerate() if thread.name.startswith("s3mount-fetch")]

            engine.retire(unused_since=time.monotonic())
            await fetch_together(engine, KEPT_IDLE)

            assert server.connections == 6
            assert len(await ended(workers, count=len(workers) - KEPT_IDLE)) >= len(workers) - KEPT_IDLE


async def ended(workers: list[threading.Thread], *, count: int) -> list[threading.Thread]:
    """Those that have ended, once there are so many."""
    while len(done := [worker for worker in workers if not worker.is_alive()]) < count:
        await trio.to_thread.run_sync(workers[-1].join, 0.01)
    return done


async def test_connections_in_use_lately_are_kept():
    with Server(together=6) as server:
        async with running(route_to(server)) as engine:
            await fetch_together(engine, 6)
            engine.retire(unused_since=time.monotonic() - 60)
            await fetch_together(engine, 6)

        assert server.connections == 6


async def test_a_connection_that_does_not_come_about_is_waited_for_by_nobody():
    can_connect = threading.Event()
    attempts: list[Address] = []

    def open_slowly(address: Address, timeout_seconds: float) -> socket.socket:
        attempts.append(address)
        if len(attempts) == 1:
            can_connect.wait(10)
        return open_socket(address, timeout_seconds)

    with Server() as server:
        route = dataclasses.replace(route_to(server), addresses=Addresses(open_socket=open_slowly))
        async with running(route) as engine:
            await fetched(engine)
            assert not can_connect.is_set()
            can_connect.set()

    assert len(attempts) == 2


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The server's, and one that trusts it."""
    server_context, ca = make_ca(tmp_path, "127.0.0.1")
    return server_context, ssl.create_default_context(cafile=str(ca))


async def test_later_connections_resume_the_tls_session(contexts):
    server_context, client_context = contexts
    with Server(server_context) as server:
        async with running(route_to(server, client_context)) as engine:
            await fetched(engine)
            server.together = threading.Barrier(3)
            await fetch_together(engine, 3)

    assert sorted(server.resumed) == [False, True, True]


async def test_tls_goes_through_a_proxys_tunnel(contexts):
    server_context, client_context = contexts
    with Server(server_context) as server, Tunnel() as tunnel:
        proxy = Proxy("localhost", tunnel.port, {"Proxy-Authorization": "Basic eA=="})
        async with running(route_to(server, client_context, proxy=proxy)) as engine:
            await fetched(engine)

    assert tunnel.head.startswith(f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\n")
    assert "Proxy-Authorization: Basic eA==" in tunnel.head
    assert server.resumed == [False]


class Tunnel:
    """A proxy on 127.0.0.1 for one connection."""

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.head = ""
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def _serve(self) -> None:
        near, _ = self._listener.accept()
        with near:
            self.head = near.recv(4096).decode()
            host, _, port = self.head.split(" ")[1].rpartition(":")
            with socket.create_connection((host, int(port))) as far:
                near.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
                back = threading.Thread(target=_pump, args=(far, near))
                back.start()
                _pump(near, far)
                back.join(5)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
