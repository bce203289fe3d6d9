"""The object server's answers, without its sockets."""

import re
from pathlib import Path

import pytest

from scripts.bench.object_server import _span_of
from scripts.bench.object_state import SharedState
from scripts.bench.objects import Made, Objects


@pytest.fixture
def objects(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "file.bin").write_bytes(b"stored")
    return Objects([Made("a/{:03}.jpg", 5, 100), Made("c{}.bin", 2, 200)], tmp_path, backing=-1)


def names(page):
    return re.findall(r"<Key>([^<]*)</Key>|<CommonPrefixes><Prefix>([^<]*)</Prefix>", page)


def test_listing_with_delimiter_shows_directories_and_objects_in_order(objects):
    page = objects.list_page({"list-type": "2", "delimiter": "/", "prefix": ""})

    assert names(page) == [("", "a/"), ("", "b/"), ("c0.bin", ""), ("c1.bin", "")]
    assert "<IsTruncated>false</IsTruncated>" in page


@pytest.mark.parametrize(
    ("version", "token_tag", "token_name"),
    [("2", "NextContinuationToken", "continuation-token"), ("", "NextMarker", "marker")],
)
def test_pages_continue_where_the_last_one_ended(objects, version, token_tag, token_name):
    query, seen = {"list-type": version, "delimiter": "/", "max-keys": "1"}, []
    for _ in range(4):
        page = objects.list_page(query)
        seen += names(page)
        token = re.search(f"<{token_tag}>(.*)</{token_tag}>", page)
        query[token_name] = token[1] if token else ""

    assert seen == [("", "a/"), ("", "b/"), ("c0.bin", ""), ("c1.bin", "")]
    assert token is None


def test_file_that_is_replaced_has_another_etag(objects, tmp_path):
    before = objects.find("b/file.bin")
    replacement = Path(tmp_path, "new")
    replacement.write_bytes(b"newer!")
    replacement.replace(tmp_path / "b" / "file.bin")

    after = objects.find("b/file.bin")

    assert before.size == after.size
    assert before.etag != after.etag


@pytest.mark.parametrize("key", ["", "a", "a/", "b", "b/", "missing", "../b/file.bin"])
def test_what_is_no_object_is_not_found(objects, key):
    assert objects.find(key) is None


@pytest.mark.parametrize(
    ("asked", "span"),
    [
        ("bytes=0-9", range(10)),
        ("bytes=90-", range(90, 100)),
        ("bytes=90-500", range(90, 100)),
        ("bytes=-5", range(95, 100)),
        ("bytes=100-", None),
    ],
)
def test_range_header_names_bytes(asked, span):
    assert _span_of(asked, 100) == span


def test_every_so_manieth_get_is_stalled():
    state = SharedState()
    state.change("stall_every", 3)
    state.change("stall_seconds", 5)

    waits = [state.begin("get").wait_seconds for _ in range(6)]

    assert waits == [0, 0, 5, 0, 0, 5]
    assert state.counts()["stalled"] == 2


def test_storm_refuses_what_is_too_much():
    state = SharedState()
    state.change("storm_rate", 0.001)
    state.change("storm_seconds", 1000)

    assert state.begin("get").is_refused
    assert state.counts()["refused"] == 1


def test_storm_that_is_over_refuses_nothing():
    state = SharedState()
    state.change("storm_rate", 0.001)
    state.change("storm_seconds", 0)

    assert not state.begin("get").is_refused
