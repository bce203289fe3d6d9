import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from s3mount.namespace.keys import (
    MAX_NAME_BYTES,
    NameKind,
    decode_name,
    first_name,
    is_continued,
    key_of_path,
    normalise_prefix,
    path_of_key,
)

odd_text = st.text(st.one_of(st.sampled_from("/.%\0@:é😀"), st.characters(exclude_categories=["Cs"])), max_size=40)
odd_words = st.sampled_from(
    ["@s3mount", "@s3mount:", "@s3mount:%2E", "@s3mount-part:x", "@s3mount-file:y", ".", "..", "%2E", "%00", "a%2Fb"]
)
long_words = st.builds(
    str.__mul__, st.text(st.sampled_from("a%\0é😀."), min_size=1, max_size=3), st.integers(min_value=80, max_value=400)
)
keys = st.lists(st.one_of(odd_text, odd_words, long_words), max_size=5).map("/".join)


@settings(max_examples=1000, deadline=None)
@given(keys, st.booleans())
@example("", False)
@example("a//b", False)
@example("/", False)
@example("é" * 127 + "a" * 2, False)
def test_every_key_has_one_path_and_comes_back_from_it(key, is_shadowed):
    path = path_of_key(key, is_shadowed=is_shadowed)

    assert key_of_path(path) == (key, is_shadowed)


@settings(max_examples=1000, deadline=None)
@given(keys, st.booleans())
def test_every_path_consists_of_names_linux_accepts(key, is_shadowed):
    names = path_of_key(key, is_shadowed=is_shadowed).split("/")

    for name in names:
        assert 1 <= len(name.encode()) <= MAX_NAME_BYTES
        assert name not in {".", ".."}
        assert "\0" not in name


@settings(max_examples=1000, deadline=None)
@given(keys)
def test_a_path_that_means_a_key_is_that_keys_only_path(path):
    meaning = key_of_path(path)

    if meaning is not None:
        key, is_shadowed = meaning
        assert path_of_key(key, is_shadowed=is_shadowed) == path


@pytest.mark.parametrize(
    "name",
    [
        "a b",
        "a+b c",
        "100%",
        "%41",
        "a%2Fb",
        "-x",
        " trailing ",
        "~,=&?#;'\"*",
        "back\\slash",
        "new\nline",
        "caf\u00e9",
        "cafe\u0301",
        "😀",
        "...",
        "é" * 127,
        "a" * 255,
    ],
)
def test_normal_names_stay_as_they_are(name):
    assert path_of_key(name) == name


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("a//b", "a/@s3mount:/b"),
        ("/lead", "@s3mount:/lead"),
        ("a/./b", "a/@s3mount:%2E/b"),
        ("a/../b", "a/@s3mount:%2E%2E/b"),
        ("a\0%", "@s3mount:a%00%25"),
        ("@s3mount", "@s3mount:@s3mount"),
        ("d/", "d/@s3mount:"),
        ("a" * 300, f"@s3mount-part:{'a' * 241}/{'a' * 59}"),
    ],
)
def test_escaped_names_are_those_the_documentation_lists(key, path):
    assert path_of_key(key) == path


def test_a_shadowed_file_has_a_path_of_its_own():
    assert path_of_key("foo", is_shadowed=True) == "@s3mount-file:foo"


@pytest.mark.parametrize("name", ["@s3mount:abc", "@s3mount", "@s3mount-part:", "@s3mount-x", ".", "..", "", "a\0b"])
def test_names_no_component_has_stand_for_nothing(name):
    assert decode_name(name) is None


def test_two_long_names_that_differ_late_share_only_the_part():
    first, second = "x" * 290 + "1", "x" * 290 + "2"

    assert first_name(first)[0] == first_name(second)[0]
    assert first_name(first)[1] != first_name(second)[1]


def test_a_component_that_fits_is_not_continued_in_a_part():
    head = "a" * 241

    assert not is_continued(head, "b" * 14)
    assert is_continued(head, "b" * 15)


def test_decoding_tells_files_hidden_by_a_directory():
    decoded = decode_name("@s3mount-file:foo")

    assert decoded is not None
    assert (decoded.kind, decoded.text) == (NameKind.SHADOWED_FILE, "foo")


@pytest.mark.parametrize(
    ("given_prefix", "prefix"), [("", ""), ("/", ""), ("data", "data/"), ("data/", "data/"), ("/data//", "data/")]
)
def test_a_prefix_is_empty_or_ends_in_one_slash(given_prefix, prefix):
    assert normalise_prefix(given_prefix) == prefix
