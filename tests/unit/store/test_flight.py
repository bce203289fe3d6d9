import socket
from collections.abc import Iterator

import pytest

from s3mount.ranges import KIB, ByteRange
from s3mount.store.exchange import RangeGet
from s3mount.store.flight import Flight, UnwantedError
from s3mount.store.responses import ExpectedRange
from s3mount.store.retry import FaultKind


def flight(rival: Flight | None = None) -> Flight:
    get = RangeGet("/k", dict, ExpectedRange(ByteRange(0, KIB), KIB, "version-1"), memoryview(bytearray(KIB)))
    if rival is None:
        return Flight(get, is_large=False, began_at=0.0)
    second = Flight(get, is_large=False, began_at=0.0, claim=rival.claim, rival=rival)
    rival.rival = second
    return second


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def test_of_two_attempts_one_gets_the_buffer_and_cuts_the_other():
    first = flight()
    second = flight(first)
    second.begin_filling()

    assert second.is_filling
    assert first.is_cut
    with pytest.raises(UnwantedError):
        first.begin_filling()


def test_the_buffer_stays_with_an_attempt_that_has_failed():
    first = flight()
    first.begin_filling()
    first.end(ConnectionError("reset"))

    with pytest.raises(UnwantedError):
        flight(first).begin_filling()


def test_an_attempt_that_was_cut_does_not_get_the_buffer():
    first = flight()
    first.cut()

    with pytest.raises(UnwantedError):
        first.begin_filling()


def test_cutting_wakes_the_connection_and_lets_the_caller_go_once(sockets):
    near, far = sockets
    let_go: list[bool] = []
    first = flight()
    first.let_go = lambda: let_go.append(True)
    first.use(near)
    first.cut()
    first.cut()

    assert far.recv(1) == b""
    assert let_go == [True]


def test_while_it_fills_the_buffer_the_caller_is_not_let_go(sockets):
    let_go: list[bool] = []
    first = flight()
    first.let_go = lambda: let_go.append(True)
    first.use(sockets[0])
    first.begin_filling()
    first.cut()

    assert first.is_cut
    assert let_go == []


def test_a_connection_is_not_used_once_cut(sockets):
    first = flight()
    first.cut()

    with pytest.raises(UnwantedError):
        first.use(sockets[0])


def test_a_fault_of_our_own_making_may_be_tried_again():
    first = flight()
    first.cut()
    first.end(ValueError("the body ended"))

    assert first.report.fault is not None
    assert first.report.fault.kind is FaultKind.TRANSIENT


def test_an_attempt_that_is_over_cannot_be_cut():
    first = flight()
    first.note_sent()
    first.note_arrival()
    first.end(None)
    first.cut()

    assert not first.is_cut
    assert first.report.first_byte_seconds is not None
