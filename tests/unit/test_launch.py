import os
import select
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from s3mount import launch
from s3mount.errors import DaemonError, MountError, StartTimeoutError
from s3mount.handover import Failed, Ready, encode_report
from s3mount.options import MountOptions, MountPointOptions, StoreOptions

SECONDS = 5.0


@pytest.fixture
def options(tmp_path: Path) -> MountOptions:
    return MountOptions(store=StoreOptions("b"), mount_point=MountPointOptions(tmp_path, "s3://b"))


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch):
    """Makes a shell script stand in for the daemon; it reports on descriptor ``$report``."""

    def stand_in(script: str) -> None:
        def command(_options: MountOptions, *arguments: str) -> list[str]:
            report = arguments[arguments.index("--report-fd") + 1]
            return ["/bin/sh", "-c", script.replace("$report", f"/proc/self/fd/{report}")]

        monkeypatch.setattr(launch, "_command", command)

    return stand_in


def say(report: Ready | Failed) -> str:
    return f"echo '{encode_report(report).decode().strip()}' >$report"


def test_ready_daemon_goes_on_without_us(options: MountOptions, daemon, tmp_path: Path) -> None:
    daemon(f"echo $$ >{tmp_path}/pid; {say(Ready('a log'))}; exec sleep 30")

    ready = launch.start(options, start_seconds=SECONDS)

    pid = int((tmp_path / "pid").read_text())
    assert ready == Ready("a log")
    assert os.getsid(pid) == pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_failure_has_its_line_and_exit_code(options: MountOptions, daemon) -> None:
    daemon(say(Failed("no such bucket", 5)))

    with pytest.raises(MountError, match="no such bucket") as caught:
        launch.start(options, start_seconds=SECONDS)

    assert caught.value.exit_code == 5


def test_daemon_that_dies_is_told_with_its_last_words(options: MountOptions, daemon) -> None:
    daemon("echo first >&2; echo 'libfuse3.so.3: no such file' >&2; exit 3")

    with pytest.raises(DaemonError, match=r"\(exit status 3\): libfuse3.so.3: no such file"):
        launch.start(options, start_seconds=SECONDS)


def test_daemon_that_is_killed_is_told_with_the_signal(options: MountOptions, daemon) -> None:
    daemon("kill -9 $$")

    with pytest.raises(DaemonError, match=r"\(SIGKILL\)"):
        launch.start(options, start_seconds=SECONDS)


def test_daemon_that_talks_nonsense_is_ended(options: MountOptions, daemon) -> None:
    daemon("echo nonsense >$report; exit 0")

    with pytest.raises(DaemonError):
        launch.start(options, start_seconds=SECONDS)


def test_late_daemon_is_killed_with_all_it_has_started(
    options: MountOptions, daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "END_SECONDS", 0.02)
    daemon(f"trap '' TERM; sleep 30 & echo $! >{tmp_path}/pid; wait; sleep 30")

    with pytest.raises(StartTimeoutError):
        launch.start(options, start_seconds=0.05)

    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(int((tmp_path / "pid").read_text()))
        assert select.select([descriptor], [], [], 10)[0]
        os.close(descriptor)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_start_and_the_daemon(
    options: MountOptions, daemon, tmp_path: Path, number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    daemon(f"echo $$ >{tmp_path}/pid; kill -{int(number)} {os.getpid()}; exec sleep 30")

    with pytest.raises(MountError, match="interrupted") as caught:
        launch.start(options, start_seconds=SECONDS)

    assert caught.value.exit_code == 130
    assert signal.getsignal(number) == before
    assert_ended(tmp_path)


def assert_ended(folder: Path) -> None:
    """The process whose number is in the folder has ended and was waited for."""
    with pytest.raises(ChildProcessError):
        os.waitpid(int((folder / "pid").read_text()), os.WNOHANG)


def test_options_are_handed_over_and_nothing_else_is(options: MountOptions, tmp_path: Path, monkeypatch) -> None:
    seen = tmp_path / "seen"

    def command(_options: MountOptions, *arguments: str) -> list[str]:
        given = arguments[arguments.index("--options-fd") + 1]
        report = arguments[arguments.index("--report-fd") + 1]
        script = (
            f"cat </proc/self/fd/{given} >{seen}; pwd >>{seen}; ls /proc/self/fd >>{seen}; {say(Failed('enough', 1))}"
        )
        return ["/bin/sh", "-c", script.replace("$report", f"/proc/self/fd/{report}")]

    monkeypatch.setattr(launch, "_command", command)
    extra = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(extra, True)
    try:
        with pytest.raises(MountError, match="enough"):
            launch.start(options, start_seconds=SECONDS)
    finally:
        os.close(extra)

    handed_over, *descriptors = seen.read_text().splitlines()
    assert handed_over == launch.encode_options(options).decode() + "/"
    # The two pipes, and the folder that ls itself has open.
    assert len(set(descriptors) - {"0", "1", "2"}) == 3
    assert str(extra) not in descriptors


def test_command_line_shows_what_is_mounted_and_nothing_secret(options: MountOptions) -> None:
    command = launch._command(options, "--options-fd", "3")

    assert command[-2:] == ["s3://b", str(options.mount_point.path)]
    assert "-P" in command


def test_no_process_is_left(options: MountOptions, daemon, tmp_path: Path) -> None:
    daemon(f"echo $$ >{tmp_path}/pid; {say(Failed('x', 1))}")

    with pytest.raises(MountError):
        launch.start(options, start_seconds=SECONDS)

    assert_ended(tmp_path)
