"""An attempt in flight: who may write to its buffer, and how it is cut off.

Of two attempts at the same bytes the first that brings a good head takes the buffer, by `Flight.begin_filling`, and
cuts the other off. A flight that is cut off without having the buffer lets its caller go at once, and its carrier finds
later that it is not wanted any more; one that has the buffer is woken, and the caller waits until the carrier has let
go.

Locks: `Claim.lock` is the only one, and nothing that waits is called under it.
"""

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from s3mount.errors import StoreUnavailableError
from s3mount.store.connection import cut
from s3mount.store.exchange import RangeGet, Report, fault_of_exception
from s3mount.store.retry import Fault, FaultKind


class UnwantedError(OSError):
    """Nobody waits for the answer any more."""


@dataclass(eq=False, slots=True)
class Claim:
    """The right to write to one buffer: of one attempt, and for good."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    is_taken: bool = False


@dataclass(eq=False, slots=True)
class Flight:
    """One attempt at a range.

    **Invariant:** while `is_filling`, nobody else writes to ``get.into``.
    """

    get: RangeGet
    is_large: bool
    began_at: float
    claim: Claim = field(default_factory=Claim)
    report: Report = field(default_factory=Report)
    rival: "Flight | None" = None
    """The other attempt at the same bytes."""
    landed: trio.Event | None = None
    """Set at the end of an attempt that has a task of its own."""
    outcome: Report | None = None
    """Of such an attempt, once it has landed in order."""
    let_go: Callable[[], None] | None = None
    """Lets the caller go before the carrier has reported; called once at most, from any thread."""
    is_cut: bool = False
    is_filling: bool = False
    was_let_go: bool = False
    sent_at: float | None = None
    first_byte_at: float | None = None
    arrivals: int = 0
    """How often bytes came."""
    seen_arrivals: int = 0
    """Of these, known to `watch`."""
    moved_at: float = 0.0
    """When `watch` saw the last of them."""
    _is_over: bool = False
    _sock: socket.socket | None = None

    def check_wanted(self) -> None:
        """Stop here if this flight was cut off.

        Raises:
            UnwantedError: It was.
        """
        if self.is_cut:
            raise UnwantedError("cut off")

    def use(self, sock: socket.socket) -> None:
        """Tell which connection to cut.

        Raises:
            UnwantedError: It is too late.
        """
        with self.claim.lock:
            self._sock = sock
            if self.is_cut:
                raise UnwantedError("cut off")

    def note_sent(self) -> None:
        """The request goes out."""
        self.report.requests_sent += 1
        self.sent_at = time.monotonic()

    def note_arrival(self) -> None:
        """Bytes came."""
        if not self.arrivals:
            self.first_byte_at = time.monotonic()
        self.arrivals += 1

    def begin_filling(self) -> None:
        """Take the buffer, and cut the rival off.

        Raises:
            UnwantedError: Somebody else has it, or the caller has gone.
        """
        with self.claim.lock:
            if self.is_cut or self.claim.is_taken:
                raise UnwantedError("cut off")
            self.claim.is_taken = True
            self.is_filling = True
            rival = self.rival
        if rival is not None:
            rival.cut()

    def cut(self) -> None:
        """Wake the carrier, and let the caller go unless the carrier has the buffer; safe from any thread."""
        with self.claim.lock:
            if self.is_cut or self._is_over:
                return
            self.is_cut = True
            let_go = None if self.is_filling else self.let_go
            self.was_let_go = let_go is not None
            if self._sock is not None:
                cut(self._sock)
        if let_go is not None:
            let_go()

    def end(self, error: Exception | None) -> None:
        """Give the buffer back; the carrier does no more for this flight."""
        ended_at = time.monotonic()
        with self.claim.lock:
            self._is_over = True
            self.is_filling = False
            self._sock = None
        report = self.report
        if error is not None:
            report.fault = cut_off() if self.is_cut else fault_of_exception(error)
        elif self.sent_at is not None and self.first_byte_at is not None:
            report.first_byte_seconds = self.first_byte_at - self.sent_at
            report.body_seconds = ended_at - self.first_byte_at


def cut_off() -> Fault:
    """Why a flight that was cut off has failed."""
    return Fault(FaultKind.TRANSIENT, StoreUnavailableError("no bytes came for too long"))
