"""Random sequences of what other clients, the kernel and time do, held against a plain model of the bucket."""

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from s3mount.errors import NoSuchEntryError
from s3mount.metrics import Metrics
from s3mount.namespace.inodes import DirectoryInode
from s3mount.namespace.keys import NameKind, decode_name
from s3mount.namespace.tree import Tree
from s3mount.options import NamespaceOptions
from s3mount.store.memory import MemoryStore

TTL = 10.0
KEYS = ["a", "a-", "a/b", "a/b/c", "a/", "a//x", "/x", "b", "b/.", "b/..", "c/d/e", "c/d", "c.d"]
NAMES = ["a", "a-", "b", "c", "d", "e", "x", "c.d", "@s3mount:", "@s3mount:%2E", "@s3mount:%2E%2E", "@s3mount-file:a"]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(KEYS), st.binary(max_size=3)),
        st.tuples(st.just("delete"), st.sampled_from(KEYS)),
        st.tuples(st.just("lookup"), st.lists(st.sampled_from(NAMES), min_size=1, max_size=3)),
        st.tuples(st.just("list"), st.lists(st.sampled_from(NAMES), max_size=2)),
        st.tuples(st.just("forget"), st.integers(0, 20)),
        st.tuples(st.just("sleep"), st.sampled_from([0.5, TTL / 2, TTL * 2])),
    ),
    max_size=30,
)


class Model:
    """The bucket, and what each directory of it shows."""

    def __init__(self):
        self.objects = {}

    def names(self, prefix):
        shown = {}
        for key, body in self.objects.items():
            if key.startswith(prefix):
                component, slash, _ = key[len(prefix) :].partition("/")
                if slash:
                    shown[component] = None
                elif component:
                    shown.setdefault(component, body)
        return shown

    def lookup(self, prefix, name):
        decoded = decode_name(name)
        assert decoded is not None
        shown = self.names(prefix)
        if decoded.kind is NameKind.SHADOWED_FILE:
            is_hidden = shown.get(decoded.text, b"") is None and prefix + decoded.text in self.objects
            return (self.objects[prefix + decoded.text],) if is_hidden else None
        if decoded.text in shown:
            return (shown[decoded.text],)
        if not decoded.text and prefix in self.objects and prefix:
            return (self.objects[prefix],)
        return None


async def walk_to(tree, names):
    directory = tree.names.inodes.root
    for name in names:
        inode = await tree.lookup(directory, name)
        tree.remember(inode)
        if not isinstance(inode, DirectoryInode):
            return None
        directory = inode
    return directory


async def list_whole(tree, directory):
    listing = tree.list_directory(directory)
    listing.waiting += 1
    while not listing.is_over:
        await listing.wait_for_more()
    assert listing.is_complete
    return {inode.name: None if isinstance(inode, DirectoryInode) else inode.size for inode in listing.entries}


async def run(sequence, *, ttl, page_size):
    store, model = MemoryStore(page_size=page_size), Model()
    options = NamespaceOptions(ttl_seconds=ttl, negative_ttl_seconds=ttl / 2)
    async with trio.open_nursery() as nursery:
        tree = Tree(store, options, Metrics(), nursery, mounted_at_ns=0, on_stale=lambda *_: None)
        for operation, *arguments in sequence:
            if operation == "put":
                key, body = arguments
                store.put(key, body)
                model.objects[key] = body
            elif operation == "delete":
                store.delete(arguments[0])
                model.objects.pop(arguments[0], None)
            elif operation == "sleep":
                await trio.sleep(arguments[0])
                tree.names.expire(trio.current_time())
            elif operation == "forget":
                live = [inode for inode in tree.names.inodes if inode is not tree.names.inodes.root]
                chosen = live[arguments[0] :]
                tree.forget([(inode.number, inode.lookup_count) for inode in chosen])
            else:
                await check(tree, model, operation, arguments[0], is_exact=ttl == 0)
            tree.names.check_invariants()
        nursery.cancel_scope.cancel()


async def check(tree, model, operation, names, *, is_exact):
    *parents, last = names if operation == "lookup" else [*names, ""]
    try:
        directory = await walk_to(tree, parents)
        if directory is None:
            return
        if operation == "list":
            found = await list_whole(tree, directory)
            if is_exact:
                shown = model.names(directory.key_prefix)
                expected = {name: None if body is None else len(body) for name, body in shown.items()}
                assert {decode_name(name).text: size for name, size in found.items()} == expected
            return
        inode = await tree.lookup(directory, last)
    except NoSuchEntryError:
        if is_exact and operation == "lookup" and directory_exists(model, parents):
            assert model.lookup(prefix_of(parents), last) is None
        return
    tree.remember(inode)
    if is_exact:
        [body] = model.lookup(directory.key_prefix, last)
        is_directory = isinstance(inode, DirectoryInode)
        assert is_directory == (body is None)
        assert is_directory or inode.size == len(body)


def prefix_of(names):
    return "".join(decode_name(name).text + "/" for name in names)


def directory_exists(model, names):
    if any(decode_name(name).kind is not NameKind.COMPONENT for name in names):
        return False
    return not names or any(key.startswith(prefix_of(names)) for key in model.objects)


@settings(max_examples=300, deadline=None)
@given(steps, st.sampled_from([1, 2, 1000]))
def test_without_a_ttl_every_answer_is_what_the_bucket_has(sequence, page_size):
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(lambda: run(sequence, ttl=0.0, page_size=page_size), clock=clock)


@settings(max_examples=300, deadline=None)
@given(steps, st.sampled_from([1, 2, 1000]))
def test_with_a_ttl_names_and_inodes_never_contradict_each_other(sequence, page_size):
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(lambda: run(sequence, ttl=TTL, page_size=page_size), clock=clock)
