import time

import pytest

from s3mount.ranges import KIB, ByteRange
from s3mount.store.concurrency import Concurrency
from s3mount.store.exchange import RangeGet
from s3mount.store.flight import Flight
from s3mount.store.hedging import MAX_STALL_SECONDS, UNMEASURED_SECONDS
from s3mount.store.responses import ExpectedRange
from s3mount.store.slots import Slots
from s3mount.store.watch import Watch

MOST = 2

STALL_TIMEOUT_SECONDS = 10.0


class Sky:
    """A watch, and flights that began some time ago."""

    def __init__(self) -> None:
        self.concurrency = Concurrency.upto(MOST)
        self.slots = Slots(self.concurrency)
        self.hedged: list[Flight] = []
        self.watch = Watch(self.slots, most=MOST, stall_timeout_seconds=STALL_TIMEOUT_SECONDS, hedge=self.hedged.append)

    def flight(self, *, seconds: float, arrivals: int = 0) -> Flight:
        began_at = time.monotonic() - seconds
        expected = ExpectedRange(ByteRange(0, KIB), 10 * KIB, "version-1")
        flight = Flight(RangeGet("/k", dict, expected, memoryview(bytearray(KIB))), is_large=False, began_at=began_at)
        flight.sent_at = began_at
        flight.arrivals = flight.seen_arrivals = arrivals
        self.watch.begin(flight)
        return flight


@pytest.fixture
def sky() -> Sky:
    return Sky()


@pytest.fixture(autouse=True)
async def trio_runs() -> None:
    """A watch tells its task when to wake by trio's clock."""


async def test_a_request_is_sent_a_second_time_when_it_is_late(sky):
    late = sky.flight(seconds=UNMEASURED_SECONDS + 0.1)
    sky.flight(seconds=UNMEASURED_SECONDS / 2)
    sky.watch.look()

    assert sky.hedged == [late]


async def test_nothing_is_sent_a_second_time_while_the_server_asks_for_less(sky):
    sky.concurrency.throttle.note_refusal(sent_at=0.0, in_flight=2, now=1.0)
    sky.flight(seconds=UNMEASURED_SECONDS + 0.1)
    sky.watch.look()

    assert sky.hedged == []


async def test_no_server_is_blamed_for_a_machine_that_slept(sky):
    flight = sky.flight(seconds=STALL_TIMEOUT_SECONDS + 60)
    sky.watch.look(is_late=True)
    sky.watch.look()

    assert not flight.is_cut
    assert sky.hedged == []


async def test_what_has_had_no_byte_for_the_stall_timeout_is_cut_whatever_that_costs(sky):
    flights = [sky.flight(seconds=STALL_TIMEOUT_SECONDS + 1) for _ in range(5)]
    sky.watch.look()

    assert all(flight.is_cut for flight in flights)


async def test_stalls_in_mid_body_are_cut_within_the_budget(sky):
    flights = [sky.flight(seconds=MAX_STALL_SECONDS + 1, arrivals=3) for _ in range(5)]
    sky.watch.look()

    assert [flight.is_cut for flight in flights] == [True, False, False, False, False]


async def test_a_body_that_moves_is_left_alone(sky):
    flight = sky.flight(seconds=MAX_STALL_SECONDS + 1, arrivals=3)
    flight.arrivals += 1
    sky.watch.look()

    assert not flight.is_cut
    assert not sky.watch.has_stalled


async def test_stalled_requests_make_room_until_there_are_twice_as_many(sky):
    for _ in range(MOST + 3):
        sky.flight(seconds=MAX_STALL_SECONDS + 1)
    sky.watch.look()

    assert sky.watch.has_stalled
    assert sky.slots.excused == MOST


async def test_room_is_taken_back_once_they_move(sky):
    flight = sky.flight(seconds=MAX_STALL_SECONDS + 1)
    sky.watch.look()
    flight.arrivals += 1
    sky.watch.look()

    assert sky.slots.excused == 0
