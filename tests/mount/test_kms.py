"""Objects whose key is refused by the key management service: reading fails at once, all else goes on."""

import errno
from collections.abc import Iterator

import pytest

from s3mount.log import MESSAGES_PER_WINDOW
from tests.support.data import check_coded
from tests.support.faults import Action, Answer, Rule, s3_error
from tests.support.file_user import FileUser
from tests.support.http_heads import Kind
from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

KIB = 1024
MIB = 1024 * KIB

SMALL = 100 * KIB

LARGE = 9 * MIB
"""More than one range."""

REQUEST_ID = "KMSREQUEST000001"


def refusal(status: int, code: str, message: str) -> Action:
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message>'
        f"<RequestId>{REQUEST_ID}</RequestId></Error>"
    ).encode()
    return Action(answer=Answer(status, {"Content-Type": "application/xml", "x-amz-request-id": REQUEST_ID}, body))


KEY_ARN = "arn:aws:kms:us-east-1:111122223333:key/1234abcd"

REFUSALS = {
    "disabled key": refusal(400, "KMS.DisabledException", f"{KEY_ARN} is disabled."),
    "no such key": refusal(400, "KMS.NotFoundException", f"Key '{KEY_ARN}' does not exist"),
    "key about to be deleted": refusal(400, "KMS.KMSInvalidStateException", f"{KEY_ARN} is pending deletion."),
    "key in a wrong state": refusal(400, "KMS.InvalidStateException", f"{KEY_ARN} is pending import."),
    "no right to decrypt": refusal(403, "AccessDenied", f"Not authorized to perform: kms:Decrypt on {KEY_ARN}"),
}
"""Answers to GET that deny access. S3 tells size and time of such objects, but not their bytes."""

PASSING = {
    "too many calls": refusal(400, "KMS.ThrottlingException", "Rate exceeded"),
    "key not there for a moment": refusal(400, "KMS.KeyUnavailableException", f"{KEY_ARN} is not available"),
}
"""Answers to GET after which the same request may succeed."""


@pytest.fixture(scope="module")
def shared(seaweed: S3Server) -> Iterator[Scene]:
    options = ("--ttl", "1h", "--negative-ttl", "0")
    with scene(seaweed, *options, expected_warning="may not be read", life_seconds=300) as built:
        yield built


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("refused", REFUSALS)
def test_an_object_whose_key_is_refused_cannot_be_read_until_it_is_granted(
    place: Scene, refused: str, size: int
) -> None:
    folder = place.folder()
    key, other = folder + "encrypted", folder + "plain"
    place.put(key, size)
    place.put(other, SMALL)
    place.proxy.add(Rule(REFUSALS[refused], kind=Kind.GET, key=key))
    with place.user() as user:
        fd = user.open(key)
        for count in (1, 2, 3):
            with pytest.raises(OSError, match=r".") as caught:
                user.pread(fd, 100, size // 2)
            assert caught.value.errno == errno.EACCES
            assert len(place.gets(key)) == count, "asking again would not help"
        copied = place.mount.run("cat", key)
        listed = user.listdir(folder)

        assert copied.returncode != 0
        assert copied.stdout == ""
        assert listed == ["encrypted", "plain"]
        assert user.size(key) == size
        check_coded(user.read_file(other), other, 0, SMALL)

        place.proxy.heal()

        check_coded(user.read_all(fd), key, 0, size)
        check_coded(user.read_file(key), key, 0, size)


@pytest.mark.parametrize("passing", PASSING)
def test_a_refusal_that_passes_is_waited_for(place: Scene, passing: str) -> None:
    key = place.folder() + "encrypted"
    place.put(key, SMALL)
    rule = place.proxy.add(Rule(PASSING[passing], kind=Kind.GET, key=key, times=2))
    with place.user() as user:
        check_coded(user.read_file(key), key, 0, SMALL)

    assert rule.fired == 2


def warnings_of(place: Scene) -> list[str]:
    return [line for line in place.mount.log().splitlines() if " WARNING " in line]


def read_refused(user: FileUser, *keys: str) -> None:
    for key in keys:
        with pytest.raises(PermissionError):
            user.read_file(key)


def test_the_log_names_each_refused_object_once_and_says_why(seaweed: S3Server) -> None:
    with scene(seaweed, "--ttl", "1h", expected_warning="may not be read") as place:
        keys = [f"{number} encrypted" for number in range(len(REFUSALS))]
        for key, fault in zip(keys, REFUSALS.values(), strict=True):
            place.put(key, SMALL)
            place.proxy.add(Rule(fault, kind=Kind.GET, key=key))
        place.put("missing", SMALL)
        place.proxy.add(Rule(s3_error(404, "NoSuchKey"), kind=Kind.GET, key="missing"))
        with place.user() as user, place.user() as other:
            read_refused(user, *keys)
            read_refused(other, *reversed(keys))
            read_refused(user, *keys)
            with pytest.raises(OSError, match="Stale file handle"):
                user.read_file("missing")

        warnings = warnings_of(place)
        assert len(warnings) == len(keys)
        for key, line in zip(keys, warnings, strict=True):
            assert f"key '{key}' may not be read" in line
            assert KEY_ARN in line
            assert REQUEST_ID in line


def test_a_refused_bucket_does_not_flood_the_log(seaweed: S3Server) -> None:
    with scene(seaweed, "--ttl", "1h", expected_warning="may not be read") as place, place.user() as user:
        keys = [f"{number:02}" for number in range(MESSAGES_PER_WINDOW + 5)]
        for key in keys:
            place.put(key, SMALL)
        place.proxy.add(Rule(s3_error(403, "AccessDenied"), kind=Kind.GET))

        read_refused(user, *keys)

        warnings = warnings_of(place)
        assert len(warnings) == MESSAGES_PER_WINDOW
        assert "more like this are suppressed" in warnings[-1]
        assert place.mount.status()["errors"]["EACCES"] >= len(keys)
