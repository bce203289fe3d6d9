import random

from s3mount.reading.order import MAX_FILES_AHEAD, HintedOrder, ListedOrder

NAMES = [f"f{index:05}" for index in range(3000)]


def text(paths):
    return "\n".join(paths).encode()


def take_all(order):
    taken = []
    while (path := order.take()) is not None:
        taken.append(path)
    return taken


class TestHintedOrder:
    def test_names_files_before_any_is_opened(self):
        order = HintedOrder(text(NAMES))

        assert take_all(order) == NAMES[:MAX_FILES_AHEAD]
        assert not order.is_over

    def test_goes_on_as_files_are_opened(self):
        order = HintedOrder(text(NAMES))
        taken = take_all(order)

        for name in NAMES:
            assert order.note_opened(name)
            taken += take_all(order)

        assert taken == NAMES
        assert order.is_read

    def test_follows_the_furthest_of_several_workers(self):
        order = HintedOrder(text(NAMES))
        take_all(order)

        order.note_opened(NAMES[99])

        assert take_all(order) == NAMES[MAX_FILES_AHEAD : MAX_FILES_AHEAD + 100]
        assert order.note_opened(NAMES[0])

    def test_does_not_wait_for_files_that_are_left_out(self):
        order = HintedOrder(text(NAMES))
        taken = take_all(order)

        for name in NAMES[::2]:
            order.note_opened(name)
            taken += take_all(order)

        assert taken == NAMES
        assert order.is_over

    def test_knows_nothing_of_other_files(self):
        order = HintedOrder(text(NAMES))
        take_all(order)

        assert not order.note_opened("other")
        assert not order.note_opened(NAMES[-1])

    def test_takes_lines_as_people_write_them(self):
        order = HintedOrder(b"./a\r\n\n/b/c\nd/\n\xff\ne")

        assert take_all(order) == ["a", "b/c", "d", "e"]

    def test_of_an_empty_text_is_over(self):
        assert HintedOrder(b"").is_read


class TestListedOrder:
    def test_names_more_the_more_files_were_read_in_a_row(self):
        order = ListedOrder(NAMES)

        named = [order.note_read(name) for name in NAMES]

        assert [len(positions) for positions in named[:4]] == [0, 0, 0, 0]
        assert sorted(position for positions in named for position in positions) == list(range(5, len(NAMES)))
        assert all(len(positions) <= MAX_FILES_AHEAD for positions in named)

    def test_recognises_processes_that_take_turns(self):
        order = ListedOrder(NAMES)
        rng = random.Random(1)
        batches = [NAMES[start : start + 8] for start in range(0, len(NAMES), 8)]

        named = []
        for batch in batches:
            rng.shuffle(batch)
            named += [position for name in batch for position in order.note_read(name)]

        assert len(set(named)) == len(named)
        assert len(named) > 0.9 * len(NAMES)

    def test_recognises_readers_of_their_own_parts(self):
        order = ListedOrder(NAMES)
        parts = [NAMES[start : start + 100] for start in range(0, 800, 100)]

        named = [position for names in zip(*parts, strict=True) for name in names for position in order.note_read(name)]

        assert len(set(named)) > 700

    def test_costs_nothing_where_the_order_is_shuffled(self):
        names = NAMES[:2000]
        shuffled = random.Random(2).sample(names, len(names))
        order = ListedOrder(names)

        named = [position for name in shuffled for position in order.note_read(name)]

        assert len(named) <= 10

    def test_names_again_what_could_not_be_fetched(self):
        order = ListedOrder(NAMES)
        for name in NAMES[:4]:
            order.note_read(name)
        named = order.note_read(NAMES[4])
        order.give_back(named[2])

        assert order.note_read(NAMES[5])[0] == named[2]

    def test_ignores_names_it_does_not_know(self):
        assert not ListedOrder(["b", "a"]).note_read("c")
        assert not ListedOrder(NAMES).note_read("x")
