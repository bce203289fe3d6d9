import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3mount.store.answer import BUFFER_BYTES, AnswerReader, BadAnswerError, NoAnswerError, receive_from


@contextlib.contextmanager
def received(sent: bytes) -> Iterator[socket.socket]:
    """A connection over which *sent* comes, and then its end."""
    near, far = socket.socketpair()

    def send() -> None:
        with far, contextlib.suppress(OSError):
            far.sendall(sent)

    thread = threading.Thread(target=send)
    thread.start()
    with near:
        near.settimeout(5)
        yield near
    thread.join()


def whole(sent: bytes) -> tuple[AnswerReader, bytes]:
    with received(sent) as sock:
        answer = AnswerReader(bytearray(BUFFER_BYTES))
        receive_from(sock, answer.receive_head())
        return answer, receive_from(sock, answer.read_upto(1 << 20))


def chunked(parts: list[bytes]) -> bytes:
    framed = b"".join(b"%x;name=value\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\nTrailer: x\r\n\r\n"


def test_an_answer_with_a_length():
    answer, body = whole(b'HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nETag:  "e" \r\n\r\nhello')

    assert (answer.status, body, answer.headers["etag"]) == (206, b"hello", '"e"')
    assert answer.is_complete
    assert answer.is_keeping_alive


def test_what_follows_an_answer_is_not_its_body():
    _, body = whole(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1")

    assert body == b"hello"


@given(st.lists(st.binary(min_size=1, max_size=100_000), max_size=4))
def test_chunked_bodies(parts: list[bytes]):
    answer, body = whole(chunked(parts))

    assert body == b"".join(parts)
    assert answer.is_complete
    assert not answer.has_length


def test_a_body_up_to_the_end_of_the_connection():
    answer, body = whole(b"HTTP/1.1 200 OK\r\n\r\nhello")

    assert body == b"hello"
    assert not answer.is_keeping_alive


def test_a_short_body_ends_early():
    answer, body = whole(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello")

    assert body == b"hello"
    assert not answer.is_complete


@pytest.mark.parametrize(
    ("head", "is_keeping_alive"),
    [
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"HTTP/1.1 200\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n", True),
    ],
)
def test_connections_are_kept_where_the_server_keeps_them(head: bytes, *, is_keeping_alive: bool):
    answer, _ = whole(head + b"Content-Length: 0\r\n\r\n")

    assert answer.is_keeping_alive is is_keeping_alive


def test_interim_answers_are_passed_over():
    answer, body = whole(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    assert (answer.status, body) == (200, b"ok")


@pytest.mark.parametrize("status", [204, 304])
def test_answers_without_a_body(status: int):
    answer, body = whole(b"HTTP/1.1 %d X\r\nContent-Length: 7\r\n\r\n" % status)

    assert (answer.is_complete, body) == (True, b"")


@pytest.mark.parametrize(
    "sent",
    [
        b"garbage\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: empty\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"x" * BUFFER_BYTES,
    ],
)
def test_what_is_not_http_is_refused(sent: bytes):
    with pytest.raises(BadAnswerError):
        whole(sent)


def test_the_end_before_an_answer_is_told_apart():
    with pytest.raises(NoAnswerError):
        whole(b"")


@pytest.mark.parametrize("sent", [b"HTTP/1.1 200", chunked([b"abc"])[:-8]])
def test_the_end_within_an_answer_is_a_broken_connection(sent: bytes):
    with pytest.raises(ConnectionError) as caught:
        whole(sent)

    assert not isinstance(caught.value, NoAnswerError)


def test_bytes_can_be_skipped():
    with received(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789") as sock:
        answer = AnswerReader(bytearray(BUFFER_BYTES))
        receive_from(sock, answer.receive_head())

        assert receive_from(sock, answer.skip(4)) == 4
        assert receive_from(sock, answer.read_upto(3)) == b"456"
        assert receive_from(sock, answer.skip(100)) == 3


def test_headers_that_are_not_ascii_do_no_harm():
    answer, _ = whole(b"HTTP/1.1 200 OK\r\nX: \xff\xfe\r\nContent-Length: 0\r\n\r\n")

    assert answer.headers["x"] == "\xff\xfe"
