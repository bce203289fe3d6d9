"""Objects whose key is refused by the key management service: reading fails at once, all else goes on."""

import errno
from collections.abc import Iterator

import pytest

from tests.support.data import check_coded
from tests.support.faults import Action, Answer, Rule
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
    with scene(seaweed, "--ttl", "1h", "--negative-ttl", "0", life_seconds=300) as built:
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


@pytest.mark.parametrize("refused", REFUSALS)
def test_the_debug_log_tells_which_key_was_refused_and_by_which_request(place: Scene, refused: str) -> None:
    key = place.folder() + "encrypted"
    place.put(key, SMALL)
    place.proxy.add(Rule(REFUSALS[refused], kind=Kind.GET, key=key))
    known = len(place.mount.log())
    with place.user() as user, pytest.raises(OSError, match=r"."):
        user.read_file(key)

    lines = place.mount.log()[known:].splitlines()
    assert any(REQUEST_ID in line and KEY_ARN in line for line in lines), lines
