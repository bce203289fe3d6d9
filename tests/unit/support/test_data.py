"""Coded contents tell where they come from."""

import pytest

from tests.support import data
from tests.support.data import BATCH, SLOT, WrongBytesError, check_coded, coded_bytes, find_mismatch


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


def test_contents_of_several_batches_are_made_and_checked_without_seams():
    seam = BATCH * SLOT
    start, stop = seam - 21, 2 * seam + 37

    whole = coded_bytes("k", start, stop)

    assert len(whole) == stop - start
    assert whole[:21] == coded_bytes("k", start, seam)
    assert whole[10:40] == coded_bytes("k", start + 10, start + 40)
    assert whole[-37:] == coded_bytes("k", 2 * seam, stop)
    check_coded(whole, "k", start, stop)


def test_wrong_bytes_on_both_sides_of_a_seam_are_counted_together():
    seam = BATCH * SLOT
    found = bytearray(coded_bytes("k", 0, 2 * seam))
    for at in (seam - 1, seam, 2 * seam - 1):
        found[at] ^= 0xFF

    message = find_mismatch(found, "k", 0)

    assert message is not None
    assert f"3 of {2 * seam} bytes are wrong, from offset {seam - 1} to {2 * seam - 1}; at {seam - 1}" in message


def test_a_mismatch_is_told_without_raising():
    assert find_mismatch(coded_bytes("k", 5, 50), "k", 5, 50) is None
    assert find_mismatch(b"", "k", 0) is None
    assert find_mismatch(bytes(64), "k", 0) == (
        "'k', version A: 64 of 64 bytes are wrong, from offset 0 to 63; at 0 are zeros"
    )
    assert find_mismatch(coded_bytes("k", 0, 64, version="B"), "k", 0, version="B") is None


@pytest.mark.parametrize(
    ("found", "start", "message"),
    [
        (coded_bytes("k", 1003, 1100), 1000, "at 1000 are those of 'k', version A, offset 1003"),
        (coded_bytes("k", 997, 1100), 1000, "at 1000 are those of 'k', version A, offset 997"),
        (coded_bytes("k", 5, 40, version="B"), 5, "at 5 are those of 'k', version B, offset 5"),
        (coded_bytes("k", 0, 37) + bytes(40), 0, "at 37 are zeros"),
        (coded_bytes("k", 0, 37) + b"\1" + coded_bytes("k", 38, 90), 0, r"1 of 90 bytes .* at 37 is b'\\x01"),
        (coded_bytes("k", 0, 37) + coded_bytes("k", 100, 153), 0, "at 37 are those of 'k', version A, offset 100"),
        (b"\1\2\3", 0, r"at 0 is b'\\x01\\x02\\x03'"),
    ],
    ids=["ahead", "behind", "version", "zeros", "one byte", "skipped", "short"],
)
def test_wrong_bytes_are_named_wherever_they_begin(found, start, message):
    with pytest.raises(WrongBytesError, match=message):
        check_coded(found, "k", start)


def test_an_object_of_another_process_is_told_from_garbage(monkeypatch):
    found = coded_bytes("theirs", 0, 64)
    monkeypatch.setattr(data, "_known", {})

    assert find_mismatch(found, "k", 0).endswith("at 0 are those of an unknown object")
