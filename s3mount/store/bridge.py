"""Lets a trio task wait for work that runs elsewhere: in a thread of the fetch engine, or on an asyncio loop.

One hop there and one back per request: the work is handed over, the task sleeps, and the result wakes it by a single
``run_sync_soon``. A cancelled task asks the other side to stop, but keeps sleeping until the other side has said that
it has let go: only then may the caller reuse a buffer. `AsyncioThread` runs the loop that aiobotocore needs.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Generic, Self, TypeAlias, TypeVar

import outcome
import trio

from s3mount.errors import StoreUnavailableError

T = TypeVar("T")

Deliver: TypeAlias = Callable[[outcome.Outcome[T]], None]
"""Takes the result, from any thread, exactly once."""

_RaiseCancel = Callable[[], object]

_CLOSE_SECONDS = 2.0
"""Longest wait for the loop's thread to end; a daemon thread that is stuck then dies with the process."""


async def wait_foreign(start: Callable[[Deliver[T]], Callable[[], None]]) -> T:
    """Start work elsewhere and wait for what it delivers.

    When the caller is cancelled, the work is told so, and this returns once the work has delivered: its result if it
    finished all the same, otherwise `trio.Cancelled`.

    Args:
        start: Begins the work and returns at once. It is given the function that delivers the result, and returns the
            one that asks the work to stop; the latter may be called on the trio thread at any time, even after the
            delivery.
    """
    await trio.lowlevel.checkpoint_if_cancelled()
    task = trio.lowlevel.current_task()
    token = trio.lowlevel.current_trio_token()
    raise_cancel: list[_RaiseCancel] = []

    def wake(result: "outcome.Outcome[T]") -> None:
        if raise_cancel and isinstance(result, outcome.Error):
            trio.lowlevel.reschedule(task, outcome.capture(raise_cancel[0]))
        else:
            trio.lowlevel.reschedule(task, result)

    def deliver(result: "outcome.Outcome[T]") -> None:
        with contextlib.suppress(trio.RunFinishedError):  # nobody is left to hear it
            token.run_sync_soon(wake, result)

    stop = start(deliver)

    def abort(raise_it: _RaiseCancel) -> trio.lowlevel.Abort:
        raise_cancel.append(raise_it)
        stop()
        return trio.lowlevel.Abort.FAILED

    return await trio.lowlevel.wait_task_rescheduled(abort)  # type: ignore[no-any-return]  # trio types it as Any


class AsyncioThread:
    """An asyncio loop on a daemon thread of its own.

    Belongs to one trio run; `run` may be called from any of its tasks.

    **Invariant:** every coroutine given to `run` has delivered before `close` returns, unless it ignored its
    cancellation for longer than `_CLOSE_SECONDS`.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._is_closing = False
        self._undelivered: set[Callable[[], None]] = set()
        """Gives up on a job, for each that has not delivered yet; touched on the loop's thread only."""

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with trio.CancelScope(shield=True):
            await self.close()

    async def run(self, make: Callable[[], Coroutine[object, object, T]]) -> T:
        """Run the coroutine that *make* makes on the loop, and return or raise what it does.

        Cancelling the caller cancels the coroutine, and waits until it has ended.

        Raises:
            StoreUnavailableError: The loop is closing.
        """
        if self._is_closing:
            raise StoreUnavailableError("the store is closed")

        # Quoted: an annotation of a nested function is evaluated at each call, and this one takes 50 µs.
        def start(deliver: "Deliver[T]") -> "Callable[[], None]":
            job = _CoroutineJob(make, deliver, self._undelivered)
            self._loop.call_soon_threadsafe(job.begin)
            return lambda: self._call_soon(job.cancel)

        return await wait_foreign(start)

    async def close(self) -> None:
        """Cancel what runs on the loop and end the thread, within a bounded time. Doing it twice does no harm."""
        if self._is_closing:
            return
        self._is_closing = True
        self._call_soon(self._loop.stop)
        await trio.to_thread.run_sync(self._thread.join, _CLOSE_SECONDS, abandon_on_cancel=True)

    def _call_soon(self, function: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing left to cancel
            self._loop.call_soon_threadsafe(function)

    def _main(self) -> None:
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=_CLOSE_SECONDS / 2))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            for give_up in tuple(self._undelivered):
                give_up()
            self._loop.close()


class _CoroutineJob(Generic[T]):
    """One coroutine on the loop. Everything but the constructor runs on the loop's thread."""

    def __init__(
        self,
        make: Callable[[], Coroutine[object, object, T]],
        deliver: Deliver[T],
        undelivered: set[Callable[[], None]],
    ) -> None:
        self._make = make
        self._deliver = deliver
        self._undelivered = undelivered
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        self._undelivered.add(self.give_up)
        self._task = asyncio.get_running_loop().create_task(self._run())
        # A callback, not code in the coroutine: one that is cancelled before its first step never runs.
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def give_up(self) -> None:
        """Deliver an error although the coroutine still runs."""
        self._finish(outcome.Error(StoreUnavailableError("the store was closed")))

    async def _run(self) -> T:
        return await self._make()

    def _end(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            # Either our caller was cancelled and never sees this error, or the loop is closing.
            self.give_up()
        elif (error := task.exception()) is not None:
            self._finish(outcome.Error(error))
        else:
            self._finish(outcome.Value(task.result()))

    def _finish(self, result: "outcome.Outcome[T]") -> None:
        if self.give_up in self._undelivered:
            self._undelivered.discard(self.give_up)
            self._deliver(result)
