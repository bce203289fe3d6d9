"""Makes attempts at a request until one succeeds, `retry` says that none will, or the deadline has passed.

What can be repaired between two attempts is repaired here: credentials are looked for anew, our clock is set to the
server's.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import trio

from s3mount.errors import StoreUnavailableError
from s3mount.metrics import Metric, Metrics
from s3mount.store.bridge import AsyncioThread
from s3mount.store.credentials import CredentialKeeper
from s3mount.store.requests import ServerClock
from s3mount.store.retry import AttemptError, Fault, FaultKind, Retries, RetryPolicy
from s3mount.store.signing import SigningKey

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Attempts:
    """The retry loop of one store. May be used from any trio task."""

    bridge: AsyncioThread
    keeper: CredentialKeeper | None
    """Absent where requests are not signed."""
    clock: ServerClock
    metrics: Metrics

    async def run(
        self, attempt: Callable[[Retries], Awaitable[T]], policy: RetryPolicy, *, extra_seconds: float = 0.0
    ) -> T:
        """Call *attempt* until it succeeds.

        Args:
            attempt: Makes one attempt, and raises `AttemptError` if it fails. It notes progress on the retries it is
                given.
            policy: Bounds of the retries.
            extra_seconds: How much longer than the policy's deadline all attempts together may take if bytes keep
                coming.

        Raises:
            AttemptError: Why the last attempt failed.
        """
        retries = Retries(policy, counted_from=trio.current_time())
        fault = Fault(
            FaultKind.TRANSIENT,
            StoreUnavailableError(f"no answer within {policy.deadline_seconds + extra_seconds:.0f} s"),
        )
        with trio.move_on_after(policy.deadline_seconds + extra_seconds):
            while True:
                key = self.keeper.latest if self.keeper is not None else None
                try:
                    return await attempt(retries)
                except AttemptError as error:
                    fault = error.fault
                delay = retries.delay_after(fault, now=trio.current_time(), share=random.random())
                if delay is None or not await self._repair(fault, key):
                    break
                self.metrics.add(Metric.RETRIES)
                await trio.sleep(delay)
        raise AttemptError(fault) from fault.error

    async def _repair(self, fault: Fault, key: SigningKey | None) -> bool:
        """Do what makes another attempt worth while; false if there is nothing."""
        match fault.kind:
            case FaultKind.CREDENTIALS:
                keeper = self.keeper
                return keeper is not None and await self.bridge.run(lambda: keeper.renew(key))
            case FaultKind.CLOCK:
                return self.clock.correct(fault.server_time)
            case _:
                return True
