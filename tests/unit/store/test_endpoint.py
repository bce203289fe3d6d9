from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3mount.store.endpoint import canonical_query, endpoint_from_url


@pytest.mark.parametrize(
    ("url", "origin", "base_path", "host"),
    [
        ("https://b.s3.amazonaws.com/k", "https://b.s3.amazonaws.com", "", "b.s3.amazonaws.com"),
        ("http://localhost:9000/b/k", "http://localhost:9000", "/b", "localhost"),
        ("https://h/base/b/k", "https://h", "/base/b", "h"),
        ("http://[::1]:9000/b/k", "http://[::1]:9000", "/b", "::1"),
        ("https://h:443/b/k", "https://h", "/b", "h"),
        ("http://h:80/b/k", "http://h", "/b", "h"),
        ("https://h:80/b/k", "https://h:80", "/b", "h"),
        ("http://h/k/k", "http://h", "/k", "h"),
    ],
)
def test_an_address_is_taken_apart(url: str, origin: str, base_path: str, host: str):
    endpoint = endpoint_from_url(url, region="r", service="s3")

    assert (endpoint.origin, endpoint.base_path, endpoint.host) == (origin, base_path, host)
    assert endpoint.authority == origin.partition("//")[2]


@pytest.mark.parametrize("url", ["localhost:9000/k", "ftp://h/k", "http:///k", ""])
def test_what_is_no_address_is_refused(url: str):
    with pytest.raises(ValueError, match="not an HTTP address"):
        endpoint_from_url(url, region="r", service="s3")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_keys_survive_encoding(key: str):
    path = endpoint_from_url("http://h/b/k", region="r", service="s3").object_path(key)

    assert path.isascii()
    assert path.isprintable()
    assert unquote(path) == f"/b/{key}"


def test_paths_are_not_normalised():
    endpoint = endpoint_from_url("http://h/k", region="r", service="s3")

    assert [endpoint.object_path(key) for key in ("/a", "a//b", "../x", ".")] == ["//a", "/a//b", "/../x", "/."]
    assert endpoint.bucket_path == "/"


def test_a_query_is_sorted_and_encoded():
    assert canonical_query({"prefix": "a b/+&=~", "delimiter": "/"}) == "delimiter=%2F&prefix=a%20b%2F%2B%26%3D~"


@pytest.mark.parametrize(
    ("host", "is_aws"),
    [("b.s3.amazonaws.com", True), ("s3.cn-north-1.amazonaws.com.cn", True), ("amazonaws.com.example.org", False)],
)
def test_aws_is_known(host: str, *, is_aws: bool):
    assert endpoint_from_url(f"https://{host}/k", region="r", service="s3").is_aws is is_aws
