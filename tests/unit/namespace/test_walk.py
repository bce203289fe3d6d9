from s3mount.namespace.names import NameCache
from s3mount.namespace.walk import MAX_AHEAD, SiblingWalk
from s3mount.options import NamespaceOptions


def directories(count):
    names = NameCache(NamespaceOptions(), mounted_at_ns=0, clock=lambda: 0.0)
    return [names.adopt_directory(names.inodes.root, f"d{index:03}", 0.0) for index in range(count)]


def test_each_step_of_a_walk_looks_further_ahead():
    siblings = directories(100)
    walk = SiblingWalk(siblings, siblings[0])

    lengths = []
    for sibling in siblings[1:8]:
        assert walk.advance(sibling)
        lengths.append(len(walk.next_siblings()))

    assert lengths == [2, 4, 8, 16, 16, 16, 16]
    assert max(lengths) == MAX_AHEAD


def test_the_next_directories_come_first():
    siblings = directories(10)
    walk = SiblingWalk(siblings, siblings[3])

    walk.advance(siblings[4])

    assert walk.next_siblings() == siblings[5:7]


def test_opening_a_far_directory_is_no_walk():
    siblings = directories(100)
    walk = SiblingWalk(siblings, siblings[0])

    assert not walk.advance(siblings[50])
    assert not walk.advance(siblings[99])


def test_going_back_is_no_walk():
    siblings = directories(10)
    walk = SiblingWalk(siblings, siblings[5])

    assert not walk.advance(siblings[4])


def test_a_walk_ends_with_the_last_directory():
    siblings = directories(3)
    walk = SiblingWalk(siblings, siblings[1])

    assert walk.advance(siblings[2])
    assert walk.next_siblings() == []
