from urllib.parse import quote, quote_plus
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3mount.errors import CorruptResponseError
from s3mount.store.interface import ListPage
from s3mount.store.pages import (
    ListRequest,
    ListVersion,
    PlusMeaning,
    RawPage,
    learn_plus,
    learn_plus_from,
    parse_date,
    read_page,
)

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
PRINTABLE_KEYS = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=12)


def entry(key: str = "p/a", *, size: str = "1", date: str = "2024-05-01T10:20:30.123Z", more: str = "") -> str:
    return f"<Contents><Key>{key}</Key><Size>{size}</Size><LastModified>{date}</LastModified>{more}</Contents>"


def body_of(inside: str, *, is_truncated: str = "false", namespace: str = "") -> bytes:
    truncated = f"<IsTruncated>{is_truncated}</IsTruncated>" if is_truncated else ""
    return f"<ListBucketResult{namespace}>{truncated}{inside}</ListBucketResult>".encode()


def encoded_page(keys: list[str], encode) -> RawPage:
    return RawPage(body_of("<EncodingType>url</EncodingType>" + "".join(entry(escape(encode(key))) for key in keys)))


def request(
    prefix: str = "", *, delimiter: str = "/", token: str | None = None, version: ListVersion = ListVersion.V2
) -> ListRequest:
    return ListRequest(prefix, delimiter, token, 1000, version)


def read(inside: str, asked: ListRequest | None = None, *, is_truncated: str = "false") -> ListPage:
    return read_page(RawPage(body_of(inside, is_truncated=is_truncated)), asked or request(), PlusMeaning.SPACE)


@pytest.mark.parametrize("namespace", ["", ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"', ' xmlns="other"'])
def test_an_entry_is_read(namespace: str):
    inside = entry(more="<ETag>&quot;e&quot;</ETag><StorageClass>STANDARD_IA</StorageClass><Owner><ID>x</ID></Owner>")
    page = read_page(RawPage(body_of(inside, namespace=namespace)), request("p/"), PlusMeaning.SPACE)

    (summary,) = page.objects
    assert (summary.key, summary.size, summary.etag, summary.storage_class) == ("p/a", 1, "e", "STANDARD_IA")
    assert summary.mtime_ns == 1714558830 * 10**9
    assert page.next_token is None


@pytest.mark.parametrize("etag", ["", "<ETag/>", "<ETag>a&#10;b</ETag>", "<ETag>\u00e9</ETag>"])
def test_an_etag_that_cannot_be_sent_is_none(etag: str):
    assert read(entry(more=etag)).objects[0].etag is None


RESTORING = "<RestoreStatus><IsRestoreInProgress>true</IsRestoreInProgress></RestoreStatus>"
RESTORED = (
    "<RestoreStatus><IsRestoreInProgress>false</IsRestoreInProgress>"
    "<RestoreExpiryDate>2030-01-01T00:00:00Z</RestoreExpiryDate></RestoreStatus>"
)


@pytest.mark.parametrize(
    ("more", "is_archived"),
    [
        ("", False),
        ("<StorageClass>GLACIER_IR</StorageClass>", False),
        ("<StorageClass>GLACIER</StorageClass>", True),
        ("<StorageClass>DEEP_ARCHIVE</StorageClass>", True),
        ("<StorageClass>GLACIER</StorageClass>" + RESTORING, True),
        ("<StorageClass>GLACIER</StorageClass>" + RESTORED, False),
    ],
)
def test_archived_classes_are_known(more: str, *, is_archived: bool):
    assert read(entry(more=more)).objects[0].is_archived is is_archived


@pytest.mark.parametrize(
    "inside",
    [
        entry("other/a"),
        entry(""),
        entry(size="-1"),
        entry(size=str(2**63)),
        entry(size="0" * 30),
        entry(size="1e3"),
        entry(size="\u0663"),
        entry(size=""),
        entry(date="yesterday"),
        entry(date=""),
        entry().replace("Size", "Length"),
        entry().replace("Key", "Name"),
        entry().replace("LastModified", "Modified"),
        "<CommonPrefixes><Prefix>q/</Prefix></CommonPrefixes>",
        "<CommonPrefixes><Prefix>p/</Prefix></CommonPrefixes>",
        "<CommonPrefixes><Prefix>p/x</Prefix></CommonPrefixes>",
    ],
)
def test_an_impossible_entry_is_refused(inside: str):
    with pytest.raises(CorruptResponseError):
        read(inside, request("p/"))


@pytest.mark.parametrize("body", [b"", b"<html></html>", b"<ListBucketResult>", b"\xff", b"<Error/>", b"nothing"])
def test_what_is_no_listing_is_refused(body: bytes):
    with pytest.raises(CorruptResponseError):
        RawPage(body)


def test_a_key_that_is_not_utf8_is_refused():
    with pytest.raises(CorruptResponseError):
        read("<EncodingType>url</EncodingType>" + entry("%FF"))


def test_the_largest_size_is_taken():
    assert read(entry(size=str(2**63 - 1))).objects[0].size == 2**63 - 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2024-05-01T10:20:30.999Z", 1714558830),
        ("2024-05-01T10:20:30Z", 1714558830),
        ("2024-05-01T10:20:30.123456789Z", 1714558830),
        ("2024-05-01T12:20:30+02:00", 1714558830),
        ("2024-05-01T10:20:30", 1714558830),
        ("1970-01-01T00:00:00Z", 0),
    ],
)
def test_dates_are_utc_and_whole_seconds(text: str, seconds: int):
    assert parse_date(text) == seconds * 10**9


TOKEN = "<NextContinuationToken>t2</NextContinuationToken>"


def test_a_page_goes_on_at_its_token():
    assert read(TOKEN, request(token="t1"), is_truncated="true").next_token == "t2"


def test_a_last_page_ends_whatever_token_it_has():
    assert read(TOKEN, is_truncated="false").next_token is None


@pytest.mark.parametrize(
    ("inside", "is_truncated", "token"),
    [
        (entry(), "true", None),
        (entry() + "<NextContinuationToken/>", "true", None),
        (TOKEN, "true", "t2"),
        (TOKEN, "", None),
        (TOKEN, "maybe", None),
    ],
)
def test_a_page_that_leads_nowhere_is_refused(inside: str, is_truncated: str, token: str | None):
    with pytest.raises(CorruptResponseError):
        read(inside, request(token=token), is_truncated=is_truncated)


@pytest.mark.parametrize(
    ("inside", "marker"),
    [
        ("<NextMarker>m</NextMarker>" + entry("a"), "m"),
        (entry("a") + entry("b"), "b"),
        (entry("a") + "<CommonPrefixes><Prefix>c/</Prefix></CommonPrefixes>", "c/"),
        (entry("d") + "<CommonPrefixes><Prefix>c/</Prefix></CommonPrefixes>", "d"),
    ],
)
def test_version_1_goes_on_after_its_last_name(inside: str, marker: str):
    assert read(inside, request(version=ListVersion.V1), is_truncated="true").next_token == marker


def test_version_1_cannot_go_on_from_nothing():
    with pytest.raises(CorruptResponseError):
        read("", request(version=ListVersion.V1), is_truncated="true")


@given(st.lists(KEYS, min_size=1, max_size=5))
def test_keys_survive_the_encoding_of_aws(keys: list[str]):
    page = read_page(encoded_page(keys, lambda key: quote_plus(key, safe="/")), request(), PlusMeaning.SPACE)

    assert [summary.key for summary in page.objects] == keys


@given(st.lists(KEYS, min_size=1, max_size=5))
def test_keys_survive_an_encoding_that_leaves_plus_alone(keys: list[str]):
    page = read_page(encoded_page(keys, lambda key: quote(key, safe="/+&=:@$")), request(), PlusMeaning.PLUS)

    assert [summary.key for summary in page.objects] == keys


@given(st.lists(PRINTABLE_KEYS, min_size=1, max_size=5))
def test_keys_without_encoding_are_literal(keys: list[str]):
    page = read_page(RawPage(body_of("".join(entry(escape(key)) for key in keys))), request(), PlusMeaning.SPACE)

    assert [summary.key for summary in page.objects] == keys


def test_an_encoded_plus_tells_what_a_plus_is():
    assert learn_plus(encoded_page(["a+b"], quote_plus)) is PlusMeaning.SPACE


@pytest.mark.parametrize("keys", [["a b"], ["a%20b"], ["plain"]])
def test_without_an_encoded_plus_nothing_is_told(keys: list[str]):
    assert learn_plus(encoded_page(keys, quote)) is PlusMeaning.UNKNOWN


@given(st.lists(PRINTABLE_KEYS, min_size=1, max_size=4))
def test_the_same_page_without_encoding_tells(keys: list[str]):
    literal = RawPage(body_of("".join(entry(escape(key)) for key in keys)))
    for meaning, encode in ((PlusMeaning.SPACE, quote_plus), (PlusMeaning.PLUS, lambda key: quote(key, safe="/+"))):
        page = encoded_page(keys, encode)
        if page.has_plus():
            assert learn_plus_from(page, literal) is meaning


def test_a_bucket_that_changed_meanwhile_tells_nothing():
    with pytest.raises(CorruptResponseError):
        learn_plus_from(encoded_page(["a b"], quote_plus), RawPage(body_of(entry("c"))))
