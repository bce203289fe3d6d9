import asyncio
import contextlib
import threading
from collections.abc import Callable

import outcome
import pytest
import trio

from s3mount.errors import StoreUnavailableError
from s3mount.store.bridge import AsyncioThread, wait_foreign


@pytest.fixture
async def loop():
    async with AsyncioThread("test-loop") as loop:
        with trio.fail_after(5):
            yield loop


async def sleep_for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_result_comes_back(loop: AsyncioThread):
    async def work() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    assert await loop.run(work) == "test-loop"


async def test_an_error_comes_back(loop: AsyncioThread):
    async def fail() -> None:
        raise KeyError("it")

    with pytest.raises(KeyError, match="it"):
        await loop.run(fail)


async def test_many_at_a_time(loop: AsyncioThread):
    started = 0
    all_started = asyncio.Event()

    async def meet() -> None:
        nonlocal started
        started += 1
        if started == 50:
            all_started.set()
        await all_started.wait()

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(loop.run, meet)


async def test_cancelling_cancels_the_coroutine_and_waits_for_its_end(loop: AsyncioThread):
    started, ended = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    async def work() -> None:
        token.run_sync_soon(started.set)
        try:
            await sleep_for_ever()
        finally:
            await asyncio.sleep(0)
            ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.run, work)
        await started.wait()
        nursery.cancel_scope.cancel()

    assert ended.is_set()


async def test_a_cancelled_caller_starts_nothing(loop: AsyncioThread):
    calls: list[int] = []

    async def work() -> None:
        calls.append(1)

    with trio.CancelScope() as scope:
        scope.cancel()
        await loop.run(work)

    assert scope.cancelled_caught
    assert not calls


async def test_closing_ends_what_runs():
    loop = AsyncioThread("test-loop")

    async def expect_the_end() -> None:
        with pytest.raises(StoreUnavailableError):
            await loop.run(sleep_for_ever)

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery, loop:
            nursery.start_soon(expect_the_end)
            await trio.testing.wait_all_tasks_blocked()


async def test_after_closing_nothing_runs():
    async with AsyncioThread("test-loop") as loop:
        pass
    await loop.close()

    with pytest.raises(StoreUnavailableError):
        await loop.run(sleep_for_ever)


async def test_closing_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("s3mount.store.bridge._CLOSE_SECONDS", 0.1)
    started = trio.Event()
    token = trio.lowlevel.current_trio_token()
    released = asyncio.Event()

    async def stubborn() -> None:
        token.run_sync_soon(started.set)
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()

    async def expect_the_end(loop: AsyncioThread) -> None:
        with pytest.raises(StoreUnavailableError):
            await loop.run(stubborn)

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery, AsyncioThread("test-loop") as loop:
            nursery.start_soon(expect_the_end, loop)
            await started.wait()


async def test_a_job_that_does_not_let_go_keeps_the_cancelled_caller():
    stopped = trio.Event()
    deliveries: list[Callable[[outcome.Outcome[str]], None]] = []

    def start(deliver: Callable[[outcome.Outcome[str]], None]) -> Callable[[], None]:
        deliveries.append(deliver)
        return stopped.set

    returned = trio.Event()

    async def call() -> None:
        try:
            await wait_foreign(start)
        finally:
            returned.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await stopped.wait()
            await trio.testing.wait_all_tasks_blocked()
            assert not returned.is_set()
            deliveries[0](outcome.Error(OSError()))
            await returned.wait()


async def test_a_job_that_finishes_all_the_same_is_not_lost():
    deliveries: list[Callable[[outcome.Outcome[str]], None]] = []

    def start(deliver: Callable[[outcome.Outcome[str]], None]) -> Callable[[], None]:
        deliveries.append(deliver)
        return lambda: deliver(outcome.Value("done"))

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.testing.wait_all_tasks_blocked)
            scope.deadline = trio.current_time() + 0.01
            assert await wait_foreign(start) == "done"
