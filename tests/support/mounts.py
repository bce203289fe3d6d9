"""Real mounts for tests: the real command in the foreground, a watchdog, and readers in processes of their own.

A blocked FUSE mount blocks whoever touches it, so nothing here touches a mount without a time limit, and every mount is
aborted through the kernel's control files when its time is over.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import ACCESS_KEY, REGION, SECRET_KEY

READY_SECONDS = 20.0
"""How long a mount may take until it can be used."""

LIFE_SECONDS = 120.0
"""When the watchdog ends a mount, whatever the test is doing."""

UNEXPECTED = re.compile(r"Traceback|\b(WARNING|ERROR|CRITICAL)\b")

_FUSECTL = Path("/sys/fs/fuse/connections")


@dataclass(slots=True)
class Outcome:
    """How a process that used a mount ended."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float


@dataclass(slots=True)
class Mount:
    """A mounted bucket."""

    path: Path
    process: subprocess.Popen[bytes]
    log_file: Path
    device: int = 0
    """Number of the mount's device, once it is ready."""

    @property
    def pid(self) -> int:
        """Of the daemon."""
        return self.process.pid

    def log(self) -> str:
        """All it has logged."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def status(self) -> dict[str, dict[str, float]]:
        """What ``s3mount status --json`` says."""
        done = run_command([*S3MOUNT, "status", str(self.path), "--json"], timeout=10)
        assert done.returncode == 0, done.stderr
        reply = json.loads(done.stdout)
        assert isinstance(reply, dict)
        return reply

    def rss_bytes(self) -> int:
        """Resident memory of the daemon."""
        pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def run(self, *command: str, timeout: float = 30.0) -> Outcome:
        """Run a command in the mounted directory, as a process of its own."""
        return run_command(command, timeout=timeout, cwd=self.path)

    def run_python(self, code: str, *arguments: str, timeout: float = 30.0) -> Outcome:
        """Run Python code in the mounted directory, as a process of its own; imports do not look there."""
        return run_command([sys.executable, "-P", "-c", code, *arguments], timeout=timeout, cwd=self.path)

    def start_python(self, code: str, *arguments: str) -> subprocess.Popen[str]:
        """Start Python code in the mounted directory; the test ends it."""
        return subprocess.Popen(
            [sys.executable, "-P", "-c", code, *arguments],
            cwd=self.path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


S3MOUNT = (sys.executable, "-m", "s3mount.cli")


def environment(endpoint_url: str | None = None) -> dict[str, str]:
    """An environment with the test servers' credentials and none of the tester's own settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "S3MOUNT_"))}
    kept |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": REGION}
    kept |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    kept |= {"AWS_EC2_METADATA_DISABLED": "true", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    if endpoint_url is not None:
        kept["AWS_ENDPOINT_URL"] = endpoint_url
    return kept


@contextlib.contextmanager
def mounted(
    source: str,
    endpoint_url: str,
    *options: str,
    allow_warnings: bool = False,
    expected_warning: str | None = None,
    life_seconds: float = LIFE_SECONDS,
    extra_environment: dict[str, str] | None = None,
) -> Iterator[Mount]:
    """Mount *source*, for instance ``s3://bucket/prefix``; unmounts at the end and checks that the daemon fared well.

    Args:
        source: As the command takes it.
        endpoint_url: Of the server or the proxy before it.
        options: Further options of ``s3mount mount``.
        allow_warnings: Do not fail when the daemon has logged a warning.
        expected_warning: Nor when it has logged one with this text.
        life_seconds: When the watchdog ends it all.
        extra_environment: Of the daemon.
    """
    with tempfile.TemporaryDirectory(prefix="s3mount-test-") as folder:
        path, log_file = Path(folder, "mnt"), Path(folder, "log")
        path.mkdir()
        command = [*S3MOUNT, "mount", source, str(path), "--foreground", "--log-level", "debug", *options]
        with log_file.open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(endpoint_url) | (extra_environment or {}),
                start_new_session=True,
            )
        mount = Mount(path, process, log_file)
        watchdog = threading.Timer(life_seconds, _abort, [mount])
        watchdog.daemon = True
        watchdog.start()
        try:
            mount.device = _wait_until_ready(mount)
            yield mount
            assert process.poll() is None, f"the daemon is gone: {mount.log()[-3000:]}"
        finally:
            _unmount(mount)
            watchdog.cancel()
            watchdog.join()
        unexpected = [
            line
            for line in mount.log().splitlines()
            if UNEXPECTED.search(line) and not (expected_warning and " WARNING " in line and expected_warning in line)
        ]
        assert allow_warnings or not unexpected, f"unexpected in the log: {unexpected[:10]}"
        assert "Traceback" not in mount.log(), mount.log()[-5000:]


def run_command(command: Sequence[str], *, timeout: float, cwd: Path | None = None) -> Outcome:
    """Run a command with a time limit.

    Raises:
        TimeoutError: It did not end. It is killed, but not waited for: a process that a mount blocks cannot die.
    """
    started_at = time.monotonic()
    process = subprocess.Popen(
        list(command), cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        process.kill()
        raise TimeoutError(f"{command} did not end within {timeout} s") from error
    return Outcome(process.returncode, stdout, stderr, time.monotonic() - started_at)


def is_mounted(path: Path) -> bool:
    """Whether something is mounted there; does not touch it."""
    escaped = str(path).replace(" ", "\\040")
    return any(line.split()[4] == escaped for line in Path("/proc/self/mountinfo").read_text("utf-8").splitlines())


def _wait_until_ready(mount: Mount) -> int:
    """Wait until the root answers; returns its device number."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if mount.process.poll() is not None:
            raise RuntimeError(f"the daemon ended with {mount.process.returncode}: {mount.log()[-3000:]}")
        if is_mounted(mount.path):
            done = run_command(["stat", "--format=%d", str(mount.path)], timeout=deadline - time.monotonic())
            if done.returncode == 0:
                return int(done.stdout)
        time.sleep(0.02)
    raise RuntimeError(f"the mount is not ready after {READY_SECONDS} s: {mount.log()[-3000:]}")


def _unmount(mount: Mount) -> None:
    """Detach it and end the daemon, by force if need be."""
    for attempt in (["umount", str(mount.path)], ["umount", "--lazy", str(mount.path)]):
        if is_mounted(mount.path):
            with contextlib.suppress(TimeoutError):
                run_command(attempt, timeout=10)
    try:
        mount.process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        _abort(mount)
        mount.process.wait(timeout=10)


def _abort(mount: Mount) -> None:
    """End all requests of the mount with an error, detach it and kill the daemon."""
    if mount.device:
        _mount_fusectl()
        with contextlib.suppress(OSError):
            (_FUSECTL / str(os.minor(mount.device)) / "abort").write_text("1", encoding="ascii")
    if is_mounted(mount.path):
        with contextlib.suppress(TimeoutError):
            run_command(["umount", "--lazy", str(mount.path)], timeout=10)
    with contextlib.suppress(ProcessLookupError):
        os.kill(mount.pid, signal.SIGKILL)


def _mount_fusectl() -> None:
    if not any(_FUSECTL.iterdir()):
        run_command(["mount", "-t", "fusectl", "none", str(_FUSECTL)], timeout=5)
