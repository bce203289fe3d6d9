"""The command ``s3mount``. It stays light: what talks to S3 and to the kernel is imported by the daemon it starts."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import click
from click.core import ParameterSource
from click.shell_completion import get_completion_class

from s3mount import __version__, control, launch, mountpoint
from s3mount.cli_options import PARAMETERS, MountArguments, build_options, warnings_about
from s3mount.cli_types import GroupedCommand, GroupedOption
from s3mount.errors import InternalError, InterruptedStartError, MountError, UsageError
from s3mount.memory_limit import usable_memory
from s3mount.options import MountOptions
from s3mount.status import format_status

MOUNT_EXAMPLES = """\b
Examples:
  s3mount mount s3://training-data /mnt/data
  s3mount mount s3://training-data/imagenet /mnt/imagenet --memory 2G
  s3mount mount s3://models /mnt/models --endpoint-url http://minio:9000
  s3mount mount s3://open-data /mnt/open --no-sign-request --allow-other
  s3mount mount s3://training-data /mnt/data --config /etc/s3mount.toml
"""

HINT_SECONDS = 60.0

_context = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=_context, invoke_without_command=True)
@click.version_option(__version__, prog_name="s3mount", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Mount S3 buckets as directories.

    \b
    Examples:
      s3mount mount s3://BUCKET/PREFIX /mnt/data    mount; returns when it can be used
      s3mount status /mnt/data                      requests, hits, memory of a mount
      s3mount hint /mnt/data --from-file ORDER      fetch files before they are opened
      s3mount unmount /mnt/data                     unmount
    """  # noqa: D301 click's mark for a paragraph to leave as it is
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(UsageError.exit_code)


def mount(given: MountArguments, environment: Mapping[str, str]) -> None:
    """Mount, in the background unless told otherwise."""
    uid = os.geteuid()
    mountpoint.check_fuse(uid=uid)
    if given.allow_other:
        mountpoint.check_allow_other(uid=uid)
    memory_bytes = usable_memory()
    for warning in warnings_about(given, memory_bytes=memory_bytes):
        _say(f"warning: {warning}")
    place = mountpoint.resolve(given.mount_point)
    control_socket = control.prepare_socket(place, control.runtime_folders(uid, environment))
    options = build_options(
        given,
        mount_point=place,
        memory_bytes=memory_bytes,
        control_socket=control_socket,
        state_folder=_state_folder(uid, environment, otherwise=control_socket.parent),
    )
    _start(options, uid=uid, allow_non_empty=given.allow_non_empty)


def _start(options: MountOptions, *, uid: int, allow_non_empty: bool) -> None:
    place, control_socket = options.mount_point.path, options.mount_point.control_socket
    assert control_socket is not None
    with control.start_lock(control_socket) as lock:
        done = mountpoint.check_place(place, uid=uid, allow_non_empty=allow_non_empty)
        if done is not None:
            _say(done)
        if options.log.foreground:
            launch.become_daemon(options, lock_descriptor=lock)
        ready = launch.start(options)
    click.echo(f"s3mount: {options.mount_point.source} is mounted at {place} (log: {ready.log})")


def _mount_command(**parameters: object) -> None:
    mount(MountArguments(**parameters), os.environ)  # type: ignore[arg-type]  # click has checked the types


cli.add_command(
    GroupedCommand(
        "mount",
        params=list(PARAMETERS),
        callback=_mount_command,
        context_settings=_context,
        short_help="Mount a bucket.",
        help="Mount a bucket, or a prefix in it, at MOUNTPOINT, an empty directory.\n\nReturns when the file system "
        "answers, or fails with one line that says why. Credentials are found as by the AWS CLI. Options can also be "
        "set by the environment variables shown, and in a file (--config); the command line wins over the environment, "
        "the environment over the file.",
        epilog=MOUNT_EXAMPLES,
    )
)


@cli.command(context_settings=_context)
@click.argument("mount_point", metavar="MOUNTPOINT", type=Path)
@click.option("--lazy", is_flag=True, help="Detach also while files are open: they stay readable until closed.")
def unmount(mount_point: Path, *, lazy: bool) -> None:
    """Unmount MOUNTPOINT and wait until its daemon has ended.

    Also removes what a daemon that was killed has left behind.
    """
    place = mountpoint.resolve(mount_point)
    found = mountpoint.find_own_mount(place)
    folders = control.runtime_folders(found.owner, os.environ)
    pid = control.peer_pid(place, folders, owner=found.owner)
    click.echo(f"s3mount: {mountpoint.unmount(place, lazy=lazy, daemon_pid=pid)}")


@cli.command(context_settings=_context)
@click.argument("mount_point", metavar="MOUNTPOINT", type=Path)
@click.option("--json", "as_json", is_flag=True, help="Print the values as JSON; names as in docs/metrics.md.")
def status(mount_point: Path, *, as_json: bool) -> None:
    """Show what the mount at MOUNTPOINT is and has done."""
    reply = _ask(mountpoint.resolve(mount_point), "status")
    click.echo(json.dumps(reply.body, indent=2) if as_json else format_status(reply.body))


@cli.command(context_settings=_context, short_help="Tell in which order files will be read.")
@click.argument("mount_point", metavar="MOUNTPOINT", type=Path)
@click.option(
    "--from-file",
    "order",
    type=click.File("rb"),
    required=True,
    help="Paths, one per line, below MOUNTPOINT or relative to it; - for standard input.",
)
def hint(mount_point: Path, order: BinaryIO) -> None:
    """Tell the mount at MOUNTPOINT in which order files will be read, so that it fetches each before it is opened.

    For small files in an order that no listing shows, such as a shuffled epoch. Returns at once; files are fetched as
    far ahead as memory allows, each once. Several orders may be followed at a time, one per training process.

    \b
    Example:
      s3mount hint /mnt/data --from-file epoch-1.txt
    """  # noqa: D301 click's mark for a paragraph to leave as it is
    place = mountpoint.resolve(mount_point)
    text = _below(place, order.read())
    if not text.strip():
        raise UsageError(f"{order.name} names no files")
    if len(text) > control.MAX_BODY_BYTES:
        raise UsageError(f"{order.name} has {len(text)} bytes: give at most {control.MAX_BODY_BYTES} at a time")
    reply = _ask(place, "hint", text, timeout_seconds=HINT_SECONDS)
    click.echo(f"s3mount: {place} fetches {reply.body.get('paths')} files in that order")


def _below(place: Path, text: bytes) -> bytes:
    """Lines with the paths relative to *place*."""
    root = os.fsencode(place) + b"/"
    return b"\n".join(line.removeprefix(root) for line in text.splitlines())


def _ask(place: Path, command: str, body: bytes = b"", timeout_seconds: float = control.REPLY_SECONDS) -> control.Reply:
    """Send a command to the daemon of the mount at *place*."""
    found = mountpoint.find_own_mount(place)
    folders = control.runtime_folders(found.owner, os.environ)
    return control.ask(place, folders, command, owner=found.owner, body=body, timeout_seconds=timeout_seconds)


@cli.command(context_settings=_context, short_help="Print a shell completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script, for instance for ~/.bashrc:

    \b
      eval "$(s3mount completion bash)"
    """  # noqa: D301, D415 click's mark, and a colon that leads to an example
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    click.echo(completion_class(cli, {}, "s3mount", "_S3MOUNT_COMPLETE").source())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status. Every failure is one line on standard error."""
    _open_missing_descriptors()
    try:
        return cli.main(arguments, prog_name="s3mount", standalone_mode=False) or 0
    except BrokenPipeError:  # whoever reads our output has seen enough
        return MountError.exit_code
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 the top of the process
        message, exit_status = _verdict(error)
        _say(message)
        return exit_status


def _verdict(error: BaseException) -> tuple[str, int]:
    """What to say about a failure, and the exit status for it."""
    match error:
        case MountError():
            return str(error), error.exit_code
        case click.ClickException():
            return _describe(error), UsageError.exit_code
        case click.Abort() | KeyboardInterrupt():
            return "interrupted", InterruptedStartError.exit_code
        case _:
            return f"internal error: {error!r}{_where(error)}", InternalError.exit_code


def _describe(error: click.ClickException) -> str:
    """The message, and where the value came from unless that was the command line."""
    if isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter) and error.param:
        return f"{_name_of(error.param)}: {error.message}{_origin(error.param, error.ctx)}"
    message = error.format_message()
    if isinstance(error, click.UsageError) and error.ctx is not None:
        message += f" See '{error.ctx.command_path} --help'."
    return message


def _name_of(parameter: click.Parameter) -> str:
    return parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name


def _origin(parameter: click.Parameter, ctx: click.Context | None) -> str:
    source = ctx.get_parameter_source(parameter.name or "") if ctx else None
    if ctx is not None and source is ParameterSource.DEFAULT_MAP:
        return f" (in {ctx.params.get('config')})"
    if source is ParameterSource.ENVIRONMENT and isinstance(parameter, GroupedOption):
        return f" (from {parameter.variable(os.environ)})"
    return ""


def _where(error: BaseException) -> str:
    """File and line where *error* was raised: there is no log yet, and nobody wants a traceback."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return ""
    return f" ({Path(traceback.tb_frame.f_code.co_filename).name}:{traceback.tb_lineno})"


def _say(message: str) -> None:
    """One line on standard error."""
    with suppress(OSError):
        click.echo(f"s3mount: {' '.join(message.split())}", err=True)


def _state_folder(uid: int, environment: Mapping[str, str], *, otherwise: Path) -> Path:
    """Folder of log files where there is no system log (XDG base directory specification)."""
    if uid == 0:
        return Path("/var/log/s3mount")
    base = Path(environment.get("XDG_STATE_HOME") or "~/.local/state")
    try:
        base = base.expanduser()
    except RuntimeError:  # a container's user without an entry in passwd
        return otherwise
    return base / "s3mount" if base.is_absolute() else otherwise


def _open_missing_descriptors() -> None:
    """Fill descriptors 0 to 2 if they are closed: a pipe of ours must not get one of these numbers."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


if __name__ == "__main__":
    sys.exit(main())
