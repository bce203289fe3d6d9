from s3mount.reading.tails import TailHabits


def test_nothing_is_expected_of_an_unknown_kind():
    assert not TailHabits().expects_tail("data/a.zip")


def test_one_archive_read_at_its_end_speaks_for_its_kind():
    habits = TailHabits()
    habits.note("data/a.zip", is_tail_first=True)

    assert habits.expects_tail("other/b.zip")
    assert not habits.expects_tail("data/a.tar")


def test_files_that_are_read_otherwise_end_the_habit():
    habits = TailHabits()
    habits.note("a.bin", is_tail_first=True)

    habits.note("b.bin", is_tail_first=False)
    habits.note("c.bin", is_tail_first=False)

    assert not habits.expects_tail("d.bin")


def test_a_name_without_a_dot_is_a_kind_too():
    habits = TailHabits()
    habits.note("dir.d/data", is_tail_first=True)

    assert habits.expects_tail("other")
    assert not habits.expects_tail("x.d")
