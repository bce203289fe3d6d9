"""Answers that are wrong, cut short or refused: a reader gets the right bytes or an error, which does not stay."""

import errno
import hashlib
import os
import random
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from tests.support.data import check_coded, coded_bytes
from tests.support.faults import Action, Answer, End, Rule, cut_after, s3_error, slow_down
from tests.support.file_user import file_users
from tests.support.http_heads import Kind, Request
from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

KIB = 1024
MIB = 1024 * KIB

SIZE = 9 * MIB
"""More than a range, so that there are GETs of parts."""

PLACE = 6 * MIB
"""Far enough from the beginning for bytes of the beginning to be noticed."""

DEADLINE_SECONDS = 1.0

REFUSED = "may not be read"
"""Stands in the log for objects to which access is denied."""


@pytest.fixture(scope="module")
def shared(seaweed: S3Server) -> Iterator[Scene]:
    """A mount that gives up soon."""
    options = (f"--request-deadline={DEADLINE_SECONDS}s", "--negative-ttl=0")
    with scene(seaweed, *options, expected_warning=REFUSED, life_seconds=300) as built:
        built.put("data", SIZE)
        yield built


@pytest.fixture(scope="module")
def shared_patient(seaweed: S3Server) -> Iterator[Scene]:
    with scene(seaweed, "--negative-ttl=0", life_seconds=300) as built:
        yield built


@pytest.fixture
def patient(shared_patient: Scene) -> Iterator[Scene]:
    """A mount that gives up after a minute."""
    shared_patient.reset()
    yield shared_patient
    shared_patient.reset()
    shared_patient.wait_until_closed()


def shifted(request: Request) -> Action:
    """The answer to another range, honestly or not."""
    start, stop = request.range_start, request.range_stop
    assert start is not None
    assert stop is not None
    return Action(response_headers={"Content-Range": f"bytes {start - MIB}-{stop - MIB - 1}/{SIZE}"})


def with_total(total: int) -> Callable[[Request], Action]:
    def change(request: Request) -> Action:
        assert request.range_stop is not None
        span = f"{request.range_start}-{request.range_stop - 1}"
        return Action(response_headers={"Content-Range": f"bytes {span}/{total}"})

    return change


WHOLE_BODY = coded_bytes("data", 0, SIZE)
WHOLE = Action(
    answer=Answer(200, {"ETag": f'"{hashlib.md5(WHOLE_BODY, usedforsecurity=False).hexdigest()}"'}, WHOLE_BODY)
)
"""As from a server that does not know ranges. (One that checks signatures would miss the header itself.)"""

XML_WITH_200 = Action(
    answer=Answer(200, {"Content-Type": "application/xml"}, b"<Error><Code>InternalError</Code></Error>")
)
HTML = Action(answer=Answer(200, {"Content-Type": "text/html"}, b"<html>Please log in</html>"))
HTML_206 = Action(answer=Answer(206, {"Content-Type": "text/html"}, b"<html>Please log in</html>"))
BIG_ERROR = Action(answer=Answer(500, {}, b"x" * (32 * MIB)))

Fault = Action | Callable[[Request], Action]

BROKEN_ANSWERS: dict[str, tuple[Fault, set[int]]] = {
    "status 500": (s3_error(500, "InternalError"), {errno.EIO}),
    "status 502 without a body": (Action(answer=Answer(502)), {errno.EIO}),
    "status 503": (slow_down(), {errno.EIO}),
    "status 500 with a big body": (BIG_ERROR, {errno.EIO}),
    "error document with status 200": (XML_WITH_200, {errno.EIO}),
    "HTML with status 200": (HTML, {errno.EIO}),
    "HTML with status 206": (HTML_206, {errno.EIO}),
    "status 204": (Action(answer=Answer(204)), {errno.EIO}),
    "redirect": (Action(answer=Answer(302, {"Location": "http://127.0.0.1:1/"})), {errno.EIO}),
    "connection reset": (Action(reset=True), {errno.EIO}),
    "no answer": (Action(drop=True), {errno.EIO}),
    "empty body with status 206, then closed": (cut_after(0, End.CLOSE), {errno.EIO}),
    "empty body with status 206, ended well": (cut_after(0, End.TERMINATE), {errno.EIO}),
    "whole object instead of the range": (WHOLE, {errno.EIO}),
    "Content-Range of another range": (shifted, {errno.EIO}),
    "no Content-Range": (Action(response_headers={"Content-Range": None}), {errno.EIO}),
    "Content-Range that is none": (Action(response_headers={"Content-Range": "bytes */*"}), {errno.EIO}),
    "Content-Range with a smaller total": (with_total(PLACE + MIB), {errno.ESTALE}),
    "Content-Range with a larger total": (with_total(SIZE + 1), {errno.ESTALE}),
    "ETag of another version": (Action(response_headers={"ETag": '"0123456789"'}), {errno.ESTALE}),
    "no ETag": (Action(response_headers={"ETag": None}), {errno.EIO}),
    "header that is not UTF-8": (Action(response_headers={"ETag": '"\xff\xfe"'}), {errno.ESTALE, errno.EIO}),
    "shorter Content-Length": (Action(rewrite_body=lambda body: body[:-1]), {errno.EIO}),
    "longer Content-Length": (Action(rewrite_body=lambda body: body + b"x"), {errno.EIO}),
    "access denied": (s3_error(403, "AccessDenied"), {errno.EACCES}),
    "expired token": (s3_error(400, "ExpiredToken"), {errno.EACCES}),
    "expired token with status 403": (s3_error(403, "ExpiredToken"), {errno.EACCES}),
    "object gone": (s3_error(404, "NoSuchKey"), {errno.ESTALE}),
    "range not satisfiable": (s3_error(416, "InvalidRange"), {errno.ESTALE}),
    "malformed request": (s3_error(400, "InvalidRequest"), {errno.EINVAL}),
}


def test_lasting_faults_are_errors_and_leave_nothing_behind(seaweed: S3Server) -> None:
    """All at once, each with a file of its own: the errors come at the deadline."""
    with (
        scene(seaweed, "--request-deadline=3s", expected_warning=REFUSED) as place,
        file_users(place.mount.path, 2) as (user, other),
    ):
        for name, (fault, _) in BROKEN_ANSWERS.items():
            place.client.put_object(Bucket=place.bucket, Key=name, Body=WHOLE_BODY)
            place.proxy.add(Rule(fault, kind=Kind.GET, key=name))
        descriptors = {name: user.open(name) for name in BROKEN_ANSWERS}

        found = user.each("pread", [(fd, 4 * KIB, PLACE) for fd in descriptors.values()], threads=len(descriptors))
        tries = {name: len(place.gets(name)) for name in descriptors}
        sizes = {user.size(fd) for fd in descriptors.values()}
        place.proxy.heal()
        same_handle = {name: user.pread(fd, MIB, PLACE) for name, fd in descriptors.items()}
        other_process = {name: other.pread(other.open(name), MIB, PLACE) for name in descriptors}

        errors = dict(zip(descriptors, found, strict=True))
        wrong = {
            name: error
            for name, error in errors.items()
            if not isinstance(error, OSError) or error.errno not in BROKEN_ANSWERS[name][1]
        }
        assert wrong == {}
        assert max(tries.values()) <= 30, tries
        assert sizes == {SIZE}
        assert [name for name, content in same_handle.items() if content != WHOLE_BODY[PLACE : PLACE + MIB]] == []
        assert same_handle == other_process


def test_failed_read_is_not_tried_again_for_the_kernel(place: Scene) -> None:
    key = place.folder() + "data"
    place.put(key, 100 * KIB)
    with place.user() as user:
        fd = user.open(key)
        place.proxy.add(Rule(s3_error(403, "AccessDenied"), kind=Kind.GET, key=key))

        for count in (1, 2, 3):
            with pytest.raises(PermissionError):
                user.pread(fd, 100, 50 * KIB)
            assert len(place.gets(key)) == count


PASSING_FAULTS: dict[str, Fault] = {
    "status 500": s3_error(500, "InternalError"),
    "status 503": slow_down(),
    "status 503 with Retry-After": slow_down(retry_after=1),
    "error document with status 200": XML_WITH_200,
    "connection reset": Action(reset=True),
    "reset in the first bytes": cut_after(10),
    "reset in the middle": cut_after(777_777),
    "closed in the middle": cut_after(777_777, End.CLOSE),
    "chunked body ended early": cut_after(777_777, End.TERMINATE),
    "empty body": cut_after(0, End.CLOSE),
    "whole object instead of the range": WHOLE,
    "no Content-Range": Action(response_headers={"Content-Range": None}),
    "closed after the answer": Action(close_after=True),
}


def test_passing_faults_are_not_noticed(patient: Scene) -> None:
    folder = patient.folder()
    rules = {}
    for name, fault in PASSING_FAULTS.items():
        patient.client.put_object(Bucket=patient.bucket, Key=folder + name, Body=WHOLE_BODY)
        rules[name] = patient.proxy.add(Rule(fault, kind=Kind.GET, key=folder + name, times=2))
    with patient.user() as user:
        contents = user.read_files([folder + name for name in rules], threads=len(rules), timeout=60)

    for name, content in zip(rules, contents, strict=True):
        assert isinstance(content, bytes), (name, content)
        assert content == WHOLE_BODY, name
    assert {name: rule.fired for name, rule in rules.items()} == dict.fromkeys(rules, 2)


def test_clock_is_set_after_the_servers(seaweed: S3Server) -> None:
    with scene(seaweed) as place, place.user() as user:
        place.put("data", SIZE)
        fd = user.open("data")
        ahead = format_datetime(datetime.now(UTC) + timedelta(minutes=10), usegmt=True)
        place.proxy.add(Rule(s3_error(403, "RequestTimeTooSkewed", headers={"Date": ahead}), kind=Kind.GET, times=1))

        content = user.pread(fd, 100, PLACE)

        check_coded(content, "data", PLACE, PLACE + 100)
        signed = [exchange.request.header("x-amz-date") or "" for exchange in place.gets("data")]
        before, after = (datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) for text in signed)
        assert after - before > timedelta(minutes=9)


def test_connections_cut_anywhere_shift_no_byte(patient: Scene) -> None:
    generator = random.Random(3)
    key = patient.folder() + "data"
    patient.put(key, 20 * MIB)
    ends = [generator.choice([End.RESET, End.CLOSE, End.TERMINATE]) for _ in range(12)]
    cuts = [cut_after(generator.randrange(1, 2 * MIB), end) for end in ends]
    with patient.user() as user:
        fd = user.open(key)
        for cut in cuts:
            patient.proxy.add(Rule(cut, kind=Kind.GET, key=key, times=1))

        content = user.read_all(fd, size=100 * KIB)

    check_coded(content, key, 0, 20 * MIB)
    asked = [(exchange.request.range_start, exchange.request.range_stop) for exchange in patient.gets(key)]
    assert len(asked) == len(set(asked)), "what was received is not asked for again"


def test_range_that_fails_for_good_does_not_shift_what_comes_after(place: Scene) -> None:
    key = place.folder() + "data"
    place.put(key, 20 * MIB)
    with place.user() as user:
        fd = user.open(key)
        check_coded(user.pread(fd, MIB, 0), key, 0, MIB)
        place.proxy.add(
            Rule(s3_error(500, "InternalError"), kind=Kind.GET, where=lambda r: (r.range_start or 0) >= MIB)
        )
        with pytest.raises(OSError, match="Input/output error"):
            user.read_all(fd, size=100 * KIB)
        place.proxy.heal()

        content = user.pread(fd, MIB, 10 * MIB)
        rest = [user.pread(fd, 100 * KIB, 11 * MIB + index * 100 * KIB) for index in range(40)]

    check_coded(content, key, 10 * MIB, 11 * MIB)
    check_coded(b"".join(rest), key, 11 * MIB, 11 * MIB + 4000 * KIB)


def test_copy_from_a_server_that_goes_away_fails_with_a_right_beginning(place: Scene, tmp_path: Path) -> None:
    key = place.folder() + "data"
    place.put(key, 40 * MIB)
    place.proxy.add(
        Rule(cut_after(0), kind=Kind.GET, key=key, where=lambda request: (request.range_start or 0) > 20 * MIB)
    )

    done = place.mount.run("cp", key, str(tmp_path / "out"))

    assert done.returncode != 0
    assert "Input/output error" in done.stderr
    copied = (tmp_path / "out").read_bytes()
    assert len(copied) < 40 * MIB
    check_coded(copied, key, 0)


def test_ignored_range_near_the_beginning_is_cut_out_of_the_whole(place: Scene) -> None:
    with place.user() as user:
        fd = user.open("data", flags=os.O_RDONLY | os.O_DIRECT)
        place.proxy.add(Rule(WHOLE, kind=Kind.GET))

        content = user.pread(fd, 4 * KIB, 512 * KIB)

    check_coded(content, "data", 512 * KIB, 516 * KIB)


def test_checksum_that_does_not_fit_is_an_error_and_not_kept(place: Scene) -> None:
    key = place.folder() + "data"
    place.put(key, 100 * KIB)
    with place.user() as user:
        fd = user.open(key)
        place.proxy.add(Rule(Action(response_headers={"x-amz-checksum-crc32": "AAAAAA=="}), kind=Kind.GET, key=key))
        with pytest.raises(OSError, match="Input/output error"):
            user.pread(fd, 4 * KIB, 0)
        place.proxy.heal()

        content = user.read_all(fd)

    check_coded(content, key, 0, 100 * KIB)


def test_failed_reads_leave_no_buffers_and_no_handles_behind(seaweed: S3Server) -> None:
    with scene(seaweed, "--request-deadline=1s", "--memory=32M") as place:
        place.put("data", 40 * MIB)
        place.proxy.add(Rule(s3_error(500, "InternalError"), kind=Kind.GET, probability=0.8, seed=4))
        with place.user() as user:
            fd = user.open("data")
            places = [(64 * KIB, index * 97 * KIB) for index in range(300)]
            contents = user.pread_many(fd, places, threads=32, timeout=90)
            assert place.gauges()["memory_bytes"] <= place.gauges()["memory_limit_bytes"] == 32 * MIB
            place.proxy.heal()
            again = user.read_all(fd)
        place.wait_until_closed()

        for (_, offset), content in zip(places, contents, strict=True):
            if isinstance(content, bytes):
                check_coded(content, "data", offset)  # fewer, if the kernel had some of the pages
            else:
                assert content.errno == errno.EIO
        check_coded(again, "data", 0, 40 * MIB)
        assert place.mount.status()["gauges"]["memory_bytes"] <= 32 * MIB


def test_secrets_are_never_logged(place: Scene) -> None:
    """The mount logs all there is to log; the faults before have left their traces."""
    with place.user() as user:
        place.proxy.add(Rule(s3_error(403, "SignatureDoesNotMatch"), kind=Kind.GET))
        with pytest.raises(PermissionError):
            user.pread(user.open("data"), 10, PLACE + MIB)

    log = place.mount.log()
    command_line = place.mount.run("cat", f"/proc/{place.mount.pid}/cmdline").stdout
    for text in (log, command_line):
        assert not re.search(r"s3mount-test-secret|Signature=|AWS4-HMAC|X-Amz-Security-Token", text, re.IGNORECASE)
