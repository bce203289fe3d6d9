import datetime as dt
from urllib.parse import quote

import botocore.auth
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from hypothesis import given
from hypothesis import strategies as st

from s3mount.store.signing import SigningKey, signed_headers

NOW = 1_714_558_830.0
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)


def by_botocore(method: str, path: str, query: str, headers: dict[str, str], key: SigningKey) -> str:
    url = f"https://{headers['host']}{path}" + (f"?{query}" if query else "")
    request = AWSRequest(method, url, headers={name: value for name, value in headers.items() if name != "host"})
    credentials = ReadOnlyCredentials(key.access_key, key.secret_key, key.token)
    S3SigV4Auth(credentials, "s3", "eu-west-1").add_auth(request)
    return str(request.headers["Authorization"])


@pytest.fixture(autouse=True, scope="module")
def fixed_clock():
    with pytest.MonkeyPatch.context() as patch:
        moment = dt.datetime.fromtimestamp(NOW, dt.UTC).replace(tzinfo=None)
        patch.setattr(botocore.auth, "get_current_datetime", lambda: moment)
        yield


@given(
    method=st.sampled_from(["GET", "HEAD"]),
    key=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    parameters=st.dictionaries(st.text("abc-", min_size=1), VALUES, max_size=3),
    etag=VALUES,
    token=st.none() | st.text("abc/+=", min_size=1),
)
def test_signatures_are_those_of_botocore(
    method: str, key: str, parameters: dict[str, str], etag: str, token: str | None
):
    path = "/b/" + quote(key, safe="/-._~")
    query = "&".join(f"{name}={quote(parameters[name], safe='-._~')}" for name in sorted(parameters))
    headers = {"host": "h.example:8000", "range": "bytes=0-1", "if-match": f'"{etag}"'}
    signing_key = SigningKey("access", "secret", token)

    ours = signed_headers(
        method, path=path, query=query, headers=headers, key=signing_key, region="eu-west-1", service="s3", now=NOW
    )

    assert ours["authorization"] == by_botocore(method, path, query, headers, signing_key)


def test_every_header_is_signed_and_sent():
    headers = {"host": "h", "x-amz-request-payer": "requester"}

    result = signed_headers(
        "GET", path="/", headers=headers, key=SigningKey("a", "s", "t"), region="r", service="s3", now=NOW
    )

    assert headers.items() <= result.items()
    assert result["x-amz-date"] == "20240501T102030Z"
    assert result["x-amz-security-token"] == "t"
    signed = result["authorization"].partition("SignedHeaders=")[2].partition(",")[0]
    assert signed.split(";") == sorted(set(result) - {"authorization"})


def test_a_key_does_not_show_its_secrets():
    shown = repr(SigningKey("ACCESSKEY", "the secret", "the token"))

    assert "secret" not in shown
    assert "token" not in shown
