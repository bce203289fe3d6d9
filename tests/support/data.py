"""Position-coded contents: every 16 bytes say of which object, which version and which place they are.

A slot is two words of 8 bytes (little-endian): the hash of key and version plus a multiple of the slot's number, and a
mixture of the first word. Nearly every byte differs between versions and between places, and whatever is found in the
wrong place, be it stale, foreign or missing, can be named.
"""

import hashlib

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


class WrongBytesError(AssertionError):
    """Bytes are not what they should be; `offset` is that of the first wrong one."""

    def __init__(self, message: str, *, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


def coded_bytes(key: str, start: int, stop: int, *, version: str = "A") -> bytes:
    """Bytes ``[start, stop)`` of the object."""
    seed = _hash(key, version)
    first, last = start // SLOT, -(-stop // SLOT)
    slots = np.empty((max(0, last - first), 2), dtype="<u8")
    for at in range(0, len(slots), BATCH):
        batch = slots[at : at + BATCH]
        numbers = np.arange(first + at, first + at + len(batch), dtype="<u8")
        words = numbers * np.uint64(STEP) + np.uint64(seed)
        words ^= words >> np.uint64(32)
        batch[:, 0] = words
        batch[:, 1] = _mix(words)
    if start % SLOT == 0 and stop % SLOT == 0:
        return slots.tobytes()
    return slots.view(np.uint8).reshape(-1)[start - first * SLOT : stop - first * SLOT].tobytes()


def check_coded(
    found: bytes | bytearray | memoryview, key: str, start: int, stop: int | None = None, *, version: str = "A"
) -> None:
    """Compare *found* with bytes ``[start, stop)`` of the object; without *stop*, with as many as there are.

    Raises:
        WrongBytesError: They differ; the message tells where, and what is there instead.
    """
    got = np.frombuffer(found, dtype=np.uint8)
    wanted_stop = start + len(got) if stop is None else stop
    wanted = np.frombuffer(coded_bytes(key, start, wanted_stop, version=version), dtype=np.uint8)
    common = min(len(got), len(wanted))
    wrong = np.flatnonzero(got[:common] != wanted[:common])
    if len(wrong):
        at = int(wrong[0])
        slot_start = at - (start + at) % SLOT
        raise WrongBytesError(
            f"{key!r}, version {version}: {len(wrong)} of {common} bytes are wrong, from offset {start + at} to "
            f"{start + int(wrong[-1])}; at {start + at} {_describe(got[max(0, slot_start) : slot_start + SLOT])}",
            offset=start + at,
        )
    if len(got) != len(wanted):
        raise WrongBytesError(
            f"{key!r}, version {version}: {len(got)} bytes from {start} instead of {len(wanted)}", offset=start + common
        )


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread every bit over the whole word."""
    mixed = (words ^ (words >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    mixed ^= mixed >> np.uint64(29)
    return mixed


def _hash(key: str, version: str) -> int:
    digest = hashlib.blake2b(f"{version}\0{key}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "little")
    _known[number] = (key, version)
    return number


def _describe(slot: NDArray[np.uint8]) -> str:
    """What is in one slot."""
    if not slot.any():
        return "are zeros"
    if len(slot) == SLOT:
        words = slot.view("<u8")
        if _mix(words[:1])[0] == words[1]:
            return _name(int(words[0]))
    return f"is {slot.tobytes()!r}"


def _name(word: int) -> str:
    """Say which slot begins with *word*."""
    word ^= word >> 32
    for seed, (key, version) in _known.items():
        offset = (word - seed) * INVERSE_STEP % (1 << 64) * SLOT
        if offset < LARGEST:
            return f"are those of {key!r}, version {version}, offset {offset}"
    return "are those of an unknown object"
