import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3mount.namespace.listing import ListingAssembler
from tests.support.pages import pages_of, summary


def names_of(keys, *, page_size, prefix=""):
    assembler = ListingAssembler(prefix)
    entries = []
    for page in pages_of(keys, prefix=prefix, page_size=page_size):
        entries += assembler.feed(page)
    return [entry.name + ("" if entry.summary else "/") for entry in entries + assembler.finish()]


@pytest.mark.parametrize("page_size", [1, 2, 3, 5, 1000])
def test_names_that_sort_around_a_directory_come_out_once(page_size):
    keys = ["dir", "dir-1", "dir.x", *(f"dir/{letter}" for letter in "abcz"), "dir0"]

    assert sorted(names_of(keys, page_size=page_size)) == ["dir-1", "dir.x", "dir/", "dir0"]


def test_a_file_is_not_shown_before_its_directory_could_have_come():
    assembler = ListingAssembler("")
    first, *_ = pages_of(["foo", "foo-1", "foo/x"], page_size=1)

    assert assembler.feed(first) == []


def test_a_file_shows_up_as_soon_as_no_directory_of_its_name_can_come():
    assembler = ListingAssembler("")
    pages = pages_of(["foo", "zoo"], page_size=1)
    assembler.feed(pages[0])

    assert [entry.name for entry in assembler.feed(pages[1])] == ["foo"]


def test_shadowed_files_are_reported():
    assembler = ListingAssembler("p/")
    for page in pages_of(["p/foo", "p/foo/x"], prefix="p/", page_size=1):
        assembler.feed(page)

    assert assembler.shadowed == ["p/foo"]


def test_a_marker_is_not_listed_inside_its_directory():
    assert names_of(["d/", "d/x"], prefix="d/", page_size=10) == ["x"]


def test_keys_no_file_system_can_show_are_escaped():
    keys = ["//", "//lead", "a//b", "a/ok"]

    assert names_of(keys, page_size=10) == ["@s3mount:/", "a/"]
    assert names_of(keys, prefix="a/", page_size=10) == ["@s3mount:/", "ok"]


def test_long_names_share_one_directory_per_start():
    long_names = ["x" * 290 + end for end in "12"]

    assert names_of(long_names, page_size=1) == [f"@s3mount-part:{'x' * 241}/"]


def test_the_directory_of_a_long_names_start_has_only_long_names():
    head = "x" * 241
    assembler = ListingAssembler(head, head)
    [page] = pages_of([head, head + "short", head + "y" * 20, head + "z" * 20 + "/a"], prefix=head, page_size=10)

    names = [entry.name for entry in assembler.feed(page) + assembler.finish()]

    assert names == ["y" * 20, "z" * 20]


def test_an_endpoint_without_order_gets_every_name_once():
    keys = ["b/x", "foo", "a", "foo/y", "c"]
    assembler = ListingAssembler("")
    entries = list(
        itertools.chain.from_iterable(assembler.feed(page) for key in keys for page in pages_of([key], page_size=1))
    )
    names = [entry.name for entry in entries + assembler.finish()]

    assert sorted(names) == ["a", "b", "c", "foo"]


@settings(deadline=None)
@given(
    st.sets(st.text(st.sampled_from("ab-./0"), min_size=1, max_size=6), max_size=30),
    st.integers(min_value=1, max_value=7),
)
def test_names_do_not_depend_on_where_pages_end(keys, page_size):
    whole = names_of(sorted(keys), page_size=10_000)

    assert sorted(names_of(sorted(keys), page_size=page_size)) == sorted(whole)
    assert len({name.rstrip("/") for name in whole}) == len(whole)


def test_the_summary_comes_with_its_name():
    assembler = ListingAssembler("")
    [page] = pages_of(["a"], page_size=1)

    [entry] = assembler.feed(page) + assembler.finish()

    assert entry.summary == summary("a")
