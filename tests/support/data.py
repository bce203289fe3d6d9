"""Position-coded contents: every 16 bytes say of which object, which version and which place they are.

A slot is two words of 8 bytes (little-endian): the hash of key and version plus a multiple of the slot's number, and a
mixture of the first word. Nearly every byte differs between versions and between places, and whatever is found in the
wrong place, be it stale, foreign or missing, can be named.
"""

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

SLOT = 16

BATCH = 1 << 15
"""Slots made at a time: they stay in the processor's cache."""

STEP = 0x9E3779B97F4A7C15
INVERSE_STEP = pow(STEP, -1, 1 << 64)

LARGEST = 1 << 48
"""Offsets beyond are not believed."""

_known: dict[int, tuple[str, str]] = {}
"""Key and version of each hash made in this process, to name what is found in the wrong place."""

Place = tuple[str, str, int]
"""Key, version and offset."""


class WrongBytesError(AssertionError):
    """Bytes are not what they should be; `offset` is that of the first wrong one."""

    def __init__(self, message: str, *, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


def coded_bytes(key: str, start: int, stop: int, *, version: str = "A") -> bytes:
    """Bytes ``[start, stop)`` of the object."""
    return b"".join(piece.data for piece in _batches(_hash(key, version), start, stop))


def check_coded(
    found: bytes | bytearray | memoryview, key: str, start: int, stop: int | None = None, *, version: str = "A"
) -> None:
    """Compare *found* with bytes ``[start, stop)`` of the object; without *stop*, with as many as there are.

    Raises:
        WrongBytesError: They differ; the message tells where, and what is there instead.
    """
    got = np.frombuffer(found, dtype=np.uint8)
    wanted_size = len(got) if stop is None else stop - start
    common = min(len(got), wanted_size)
    first, last, count = _compare(got, _hash(key, version), start, start + common)
    if count:
        raise WrongBytesError(
            f"{key!r}, version {version}: {count} of {common} bytes are wrong, from offset {start + first} to "
            f"{start + last}; at {start + first} {_describe(got, first, (key, version, start + first))}",
            offset=start + first,
        )
    if len(got) != wanted_size:
        raise WrongBytesError(
            f"{key!r}, version {version}: {len(got)} bytes from {start} instead of {wanted_size}", offset=start + common
        )


def find_mismatch(
    found: bytes | bytearray | memoryview, key: str, start: int, stop: int | None = None, *, version: str = "A"
) -> str | None:
    """What `check_coded` would raise, as text; None if all is right. For threads, which collect what they find."""
    try:
        check_coded(found, key, start, stop, version=version)
    except WrongBytesError as error:
        return str(error)
    return None


def _batches(seed: int, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
    """Bytes ``[start, stop)`` in pieces, so that a comparison does not need them all at once."""
    for at in range(start // SLOT, -(-stop // SLOT), BATCH):
        size = min(BATCH, -(-stop // SLOT) - at)
        words = np.arange(at, at + size, dtype="<u8")
        words *= np.uint64(STEP)
        words += np.uint64(seed)
        words ^= words >> np.uint64(32)
        slots = np.empty((size, 2), dtype="<u8")
        slots[:, 0] = words
        slots[:, 1] = _mix(words)
        yield slots.view(np.uint8).reshape(-1)[max(0, start - at * SLOT) : stop - at * SLOT]


def _compare(got: NDArray[np.uint8], seed: int, start: int, stop: int) -> tuple[int, int, int]:
    """Index of the first and last wrong byte, and how many there are."""
    first = last = count = at = 0
    for wanted in _batches(seed, start, stop):
        piece = got[at : at + len(wanted)]
        if not np.array_equal(piece, wanted):
            wrong = np.flatnonzero(piece != wanted)
            first = first if count else at + int(wrong[0])
            last, count = at + int(wrong[-1]), count + len(wrong)
        at += len(wanted)
    return first, last, count


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread every bit over the whole word."""
    mixed = words >> np.uint64(32)
    mixed ^= words
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    mixed ^= mixed >> np.uint64(29)
    return mixed


def _hash(key: str, version: str) -> int:
    digest = hashlib.blake2b(f"{version}\0{key}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "little")
    _known[number] = (key, version)
    return number


def _describe(got: NDArray[np.uint8], at: int, wanted: Place) -> str:
    """What is at index *at* instead of *wanted*."""
    following = got[at : at + SLOT]
    if not following.any():
        return "are zeros"
    # A slot that holds the byte says what it is; one that begins later tells it only if it came along.
    for slot_at in (*range(at, at - SLOT, -1), *range(at + 1, at + SLOT)):
        word = _word_of(got[max(0, slot_at) : slot_at + SLOT])
        if word is None:
            continue
        place = _place_of(word, at - slot_at)
        if place is None:
            return "are those of an unknown object"
        if place != wanted:
            key, version, offset = place
            return f"are those of {key!r}, version {version}, offset {offset}"
    return f"is {following.tobytes()!r}"


def _word_of(slot: NDArray[np.uint8]) -> int | None:
    """First word of *slot*; None if this is not a slot of any object."""
    if len(slot) < SLOT:
        return None
    words = np.frombuffer(slot.tobytes(), dtype="<u8")
    return int(words[0]) if _mix(words[:1])[0] == words[1] else None


def _place_of(word: int, distance: int) -> Place | None:
    """Place *distance* bytes from the slot that begins with *word*; None if its object was not made here."""
    word ^= word >> 32
    for seed, (key, version) in list(_known.items()):  # other threads may add to it
        offset = (word - seed) * INVERSE_STEP % (1 << 64) * SLOT
        if offset < LARGEST:
            return key, version, offset + distance
    return None
