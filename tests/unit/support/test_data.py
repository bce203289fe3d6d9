"""Coded contents tell where they come from."""

import pytest

from tests.support.data import SLOT, WrongBytesError, check_coded, coded_bytes


def test_any_range_is_a_part_of_the_whole():
    whole = coded_bytes("k", 0, 1000)

    assert len(whole) == 1000
    for start, stop in [(0, 0), (0, 1), (15, 17), (16, 32), (33, 999), (999, 1000)]:
        assert coded_bytes("k", start, stop) == whole[start:stop]


def test_keys_and_versions_differ_in_every_slot():
    contents = [coded_bytes("k", 0, 800), coded_bytes("k", 0, 800, version="B"), coded_bytes("l", 0, 800)]

    slots = [content[at : at + SLOT] for content in contents for at in range(0, 800, SLOT)]

    assert len(set(slots)) == len(slots)


def test_nearly_every_byte_differs_between_places_and_versions():
    whole = coded_bytes("k", 0, 1 << 16)

    for other in (coded_bytes("k", 1 << 20, (1 << 20) + (1 << 16)), coded_bytes("k", 0, 1 << 16, version="B")):
        assert sum(map(int.__eq__, whole, other)) < len(whole) / 64


def test_right_bytes_pass():
    check_coded(coded_bytes("k", 5, 500), "k", 5)
    check_coded(bytearray(coded_bytes("k", 5, 500)), "k", 5, 500)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (coded_bytes("k", 64, 128), "at 0 are those of 'k', version A, offset 64"),
        (coded_bytes("k", 0, 64, version="B"), "at 0 are those of 'k', version B, offset 0"),
        (coded_bytes("k", 0, 32) + bytes(32), "from offset 32 to 63; at 32 are zeros"),
        (coded_bytes("k", 0, 32) + b"<Error>No</Error>" * 2, "at 32 is b'<Error>No</Error'"),
        (
            coded_bytes("k", 0, 32) + coded_bytes("other", 1 << 30, (1 << 30) + 32),
            f"'other', version A, offset {1 << 30}",
        ),
        (coded_bytes("k", 0, 48), "48 bytes from 0 instead of 64"),
        (coded_bytes("k", 0, 80), "80 bytes from 0 instead of 64"),
    ],
)
def test_wrong_bytes_are_named(found, message):
    with pytest.raises(WrongBytesError, match=message):
        check_coded(found, "k", 0, 64)


def test_the_first_wrong_byte_is_told():
    found = bytearray(coded_bytes("k", 7, 500))
    found[100] ^= 1

    with pytest.raises(WrongBytesError) as caught:
        check_coded(found, "k", 7)

    assert caught.value.offset == 107
