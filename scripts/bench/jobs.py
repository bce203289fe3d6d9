"""Work that is measured in processes of its own: how it is started, bounded in time, and what it tells.

A module with jobs, such as `readers`, calls `serve_job` when it is run; `run_job` runs it and hands in the arguments.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
STEP_SECONDS = 300.0
"""Longest a step may take; then it is ended."""


@dataclass(slots=True)
class Result:
    """What a job has done."""

    seconds: float = 0.0
    """From when all of its processes and threads were ready until the last had ended."""
    cpu_seconds: float = 0.0
    """Of the job itself."""
    bytes: int = 0
    """Read by it."""
    waits: list[float] = field(default_factory=list)
    """Seconds of each read, or of each file."""
    errors: list[str] = field(default_factory=list)
    notes: dict[str, float] = field(default_factory=dict)
    """What only this job tells."""

    def wait_seconds(self, share: float) -> float:
        """Wait that this share of all did not exceed."""
        return sorted(self.waits)[min(len(self.waits) - 1, int(len(self.waits) * share))] if self.waits else 0.0

    def add(self, other: "Result") -> None:
        """Add what another thread or process has done meanwhile."""
        self.bytes += other.bytes
        self.cpu_seconds += other.cpu_seconds
        self.waits += other.waits
        self.errors += other.errors


def run_job(module: str, job: str, *, timeout: float = STEP_SECONDS, **arguments: object) -> Result:
    """Run *job* of ``scripts.bench.<module>`` in a process of its own.

    Raises:
        TimeoutError: It did not end. It is killed with all it has started.
        RuntimeError: It failed.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", f"scripts.bench.{module}", job],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, failure = process.communicate(json.dumps(arguments), timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{job} did not end within {timeout} s") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        raise RuntimeError(f"{job}: {failure[-2000:]}")
    return Result(**json.loads(printed))


def serve_job(jobs: dict[str, Callable[..., Result]]) -> None:
    """Run the job that the command line names, with the arguments on standard input, and print its result."""
    result = jobs[sys.argv[1]](**json.load(sys.stdin))
    print(json.dumps(asdict(result)))


def in_threads(count: int, work: Callable[[int, Result], None]) -> Result:
    """Run *work* in so many threads; each is told its number, and fills in a result of its own."""
    results = [Result() for _ in range(count)]
    threads = [threading.Thread(target=work, args=(index, result)) for index, result in enumerate(results)]
    cpu_before, started_at = time.process_time(), time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = Result(time.monotonic() - started_at, time.process_time() - cpu_before)
    for result in results:
        total.add(result)
    return total


def in_processes(count: int, work: Callable[[int, Result], None]) -> Result:
    """Run *work* in so many processes, which begin together; each is told its number, and fills in a result."""
    context = get_context("fork")
    barrier = context.Barrier(count)
    queue = context.SimpleQueue()

    def begin(index: int) -> None:
        result = Result()
        try:
            barrier.wait(30)
            cpu_before, started_at = time.process_time(), time.monotonic()
            work(index, result)
            result.cpu_seconds = time.process_time() - cpu_before
            result.notes = {"started_at": started_at, "ended_at": time.monotonic()}
        except Exception as error:  # noqa: BLE001 the parent waits for an answer, whatever happens
            result.errors.append(repr(error))
        queue.put(result)

    processes = [context.Process(target=begin, args=(index,)) for index in range(count)]
    for process in processes:
        process.start()
    results = [queue.get() for _ in processes]
    for process in processes:
        process.join()
    total = Result()
    for result in results:
        total.add(result)
    ended = [result.notes for result in results if result.notes]
    if ended:
        total.seconds = max(notes["ended_at"] for notes in ended) - min(notes["started_at"] for notes in ended)
    return total
