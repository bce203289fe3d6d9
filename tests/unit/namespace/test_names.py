import dataclasses

import pytest

from s3mount.errors import NoSuchEntryError, StaleObjectError
from s3mount.namespace.inodes import DirectoryInode, FileInode
from s3mount.namespace.listing import ListedEntry
from s3mount.namespace.names import NameCache
from s3mount.options import NamespaceOptions
from tests.support.pages import summary

TTL = 60.0
NEGATIVE_TTL = 5.0


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def names(clock):
    options = NamespaceOptions(prefix="p/", ttl_seconds=TTL, negative_ttl_seconds=NEGATIVE_TTL)
    cache = NameCache(options, mounted_at_ns=0, clock=clock)
    yield cache
    cache.check_invariants()


def list_names(names, *keys, at, etag="1"):
    root = names.inodes.root
    entries = [names.adopt(root, ListedEntry(key, summary(f"p/{key}", etag=etag)), at) for key in keys]
    names.complete_listing(root, at, entries)


def test_a_listed_name_is_known_until_its_ttl_is_over(names):
    list_names(names, "a", at=1000.0)
    root = names.inodes.root

    assert names.known(root, "a", 1000.0 + TTL - 1) is root.children["a"]
    assert names.known(root, "a", 1000.0 + TTL) is None


def test_a_name_a_complete_listing_lacks_is_absent_for_the_negative_ttl(names):
    list_names(names, "a", at=1000.0)
    root = names.inodes.root

    with pytest.raises(NoSuchEntryError):
        names.known(root, "b", 1000.0 + NEGATIVE_TTL - 1)
    assert names.known(root, "b", 1000.0 + NEGATIVE_TTL) is None


def test_nothing_is_absent_before_a_listing_is_complete(names):
    root = names.inodes.root
    names.adopt(root, ListedEntry("a", summary("p/a")), 1000.0)

    assert names.known(root, "b", 1000.0) is None


def test_hidden_names_are_not_absent_because_a_listing_lacks_them(names):
    list_names(names, "a", at=1000.0)

    assert names.known(names.inodes.root, "@s3mount-file:a", 1000.0) is None


def test_an_unchanged_object_keeps_its_inode(names):
    list_names(names, "a", at=1000.0)
    before = names.inodes.root.children["a"]

    list_names(names, "a", at=1100.0)

    assert names.inodes.root.children["a"] is before
    assert before.checked_at == 1100.0


def test_a_replaced_object_is_a_new_inode_and_the_old_one_is_detached(names):
    list_names(names, "a", at=1000.0)
    before = names.inodes.root.children["a"]

    list_names(names, "a", at=1100.0, etag="2")

    after = names.inodes.root.children["a"]
    assert after.number != before.number
    with pytest.raises(StaleObjectError):
        names.key_of(before)


def test_names_are_in_the_order_of_the_listing_whatever_was_looked_up_before(names):
    root = names.inodes.root
    for key in ("@s3mount-file:h", "c", "b"):
        names.adopt_file(root, key, summary(f"p/{key}"), 999.0, is_listed=False)

    list_names(names, "a", "b", "c", at=1000.0)

    assert list(root.children) == ["a", "b", "c", "@s3mount-file:h"]


def test_a_new_version_takes_the_place_of_the_old_one(names):
    list_names(names, "a", "b", "c", at=1000.0)
    root = names.inodes.root
    old = root.children["b"]

    names.adopt_file(root, "b", summary("p/b", etag="2"), 1001.0, is_listed=True)

    assert list(root.children) == ["a", "b", "c"]
    assert root.children["b"] is not old
    assert old.parent is None


def test_an_older_listing_does_not_undo_a_newer_answer(names):
    root = names.inodes.root
    newer = names.adopt_file(root, "a", summary("p/a", etag="2"), 1001.0, is_listed=False)

    entry = names.adopt(root, ListedEntry("a", summary("p/a", etag="1")), 1000.0)
    names.complete_listing(root, 1000.0, [entry])

    assert root.children["a"] is newer
    assert newer.etag == "2"


def test_a_name_missing_from_a_newer_listing_is_gone(names):
    list_names(names, "a", "b", at=1000.0)

    list_names(names, "b", at=1100.0)

    assert set(names.inodes.root.children) == {"b"}


def test_an_unread_file_takes_over_the_etag_head_shows(names):
    root = names.inodes.root
    file = names.adopt_file(root, "a", summary("p/a", size=5, etag="list-form"), 1000.0, is_listed=True)

    same = names.adopt_file(root, "a", summary("p/a", size=5, etag="head-form"), 1001.0, is_listed=False)

    assert same is file
    assert file.etag == "head-form"


def test_a_read_file_does_not_take_over_another_etag(names):
    root = names.inodes.root
    file = names.adopt_file(root, "a", summary("p/a", size=5, etag="1"), 1000.0, is_listed=True)
    file.was_read = True

    other = names.adopt_file(root, "a", summary("p/a", size=5, etag="2"), 1001.0, is_listed=False)

    assert other is not file
    assert file.etag == "1"


def test_an_endpoint_that_lists_other_etags_does_not_make_new_inodes(names):
    root = names.inodes.root
    file = names.adopt_file(root, "a", summary("p/a", etag="list-form"), 1000.0, is_listed=True)
    names.adopt_file(root, "a", summary("p/a", etag="head-form"), 1001.0, is_listed=False)
    file.was_read = True

    again = names.adopt_file(root, "a", summary("p/a", etag="list-form"), 1002.0, is_listed=True)
    fresh = names.adopt_file(root, "b", summary("p/b", etag="list-form"), 1002.0, is_listed=True)

    assert again is file
    assert file.etag == "head-form"
    assert fresh.etag is None


def test_a_listing_without_etags_does_not_make_new_inodes(names):
    root = names.inodes.root
    unversioned = dataclasses.replace(summary("p/a"), etag=None)
    file = names.adopt_file(root, "a", unversioned, 1000.0, is_listed=True)
    names.adopt_file(root, "a", summary("p/a", etag="1"), 1001.0, is_listed=False)
    file.was_read = True

    again = names.adopt_file(root, "a", unversioned, 1002.0, is_listed=True)

    assert again is file
    assert file.etag == "1"


def test_a_directory_replaces_a_file_of_its_name(names):
    root = names.inodes.root
    list_names(names, "a", at=1000.0)

    directory = names.adopt(root, ListedEntry("a", None), 1001.0)

    assert isinstance(directory, DirectoryInode)
    assert directory.key_prefix == "p/a/"


def test_a_file_below_a_vanished_directory_has_no_key(names):
    root = names.inodes.root
    directory = names.adopt_directory(root, "d", 1000.0)
    file = names.adopt_file(directory, "a", summary("p/d/a"), 1000.0, is_listed=True)

    names.forget_name(root, "d")

    with pytest.raises(NoSuchEntryError):
        names.key_of(file)


def test_forgotten_names_stay_known_until_they_expire(names):
    list_names(names, "a", at=1000.0)
    root = names.inodes.root
    file = root.children["a"]
    names.inodes.remember(file)

    names.forget([(file.number, 1)], 1001.0)

    assert names.known(root, "a", 1002.0) is file
    names.expire(1000.0 + 2 * TTL)
    assert not root.children


def test_names_the_kernel_holds_do_not_expire(names):
    list_names(names, "a", "b", at=1000.0)
    root = names.inodes.root
    held = root.children["a"]
    names.inodes.remember(held)

    names.expire(1000.0 + 2 * TTL)

    assert list(root.children.values()) == [held]
    names.forget([(held.number, 1)], 1000.0 + 3 * TTL)
    assert not root.children


def test_a_name_that_expires_is_not_taken_for_absent(names):
    list_names(names, "a", at=1000.0)
    names.expire(1000.0 + 2 * TTL)

    assert names.known(names.inodes.root, "a", 1000.0 + 2 * TTL) is None


def test_the_lookup_count_has_to_reach_zero(names):
    list_names(names, "a", at=1000.0)
    file = names.inodes.root.children["a"]
    assert isinstance(file, FileInode)
    names.inodes.remember(file)
    names.inodes.remember(file)

    names.forget([(file.number, 1)], 1001.0)

    assert names.inodes.get(file.number) is file
    names.forget([(file.number, 1)], 1001.0)
    assert names.inodes.get(file.number) is None


def test_absence_is_remembered_for_the_negative_ttl(names, clock):
    root = names.inodes.root
    names.note_absent(root, "a")

    with pytest.raises(NoSuchEntryError):
        names.known(root, "a", clock.now)
    clock.now += NEGATIVE_TTL
    assert names.known(root, "a", clock.now) is None


def test_absence_is_not_remembered_for_longer_than_presence(clock):
    names = NameCache(
        NamespaceOptions(ttl_seconds=0.0, negative_ttl_seconds=NEGATIVE_TTL), mounted_at_ns=0, clock=clock
    )

    names.note_absent(names.inodes.root, "a")

    assert names.known(names.inodes.root, "a", clock.now) is None


def test_a_name_that_appears_is_not_absent_any_more(names, clock):
    root = names.inodes.root
    names.note_absent(root, "a")

    file = names.adopt_file(root, "a", summary("p/a"), clock.now, is_listed=False)

    assert names.known(root, "a", clock.now) is file
