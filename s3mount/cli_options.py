"""The options of ``s3mount mount``, and how they become `MountOptions`.

Precedence: command line, then environment, then configuration file, then default. click sees to it; the file's values
are its ``default_map``.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from s3mount.cli_types import DURATION, MODE, POSITIVE_DURATION, SIZE, SOURCE, GroupedOption
from s3mount.config import given_names, read_config
from s3mount.memory_limit import MIN_BUDGET, default_budget, largest_budget
from s3mount.options import (
    AddressingStyle,
    LogLevel,
    LogOptions,
    MountOptions,
    MountPointOptions,
    NamespaceOptions,
    ReadOptions,
    StoreOptions,
)
from s3mount.quantities import write_size
from s3mount.source import Source

MAX_CONNECTIONS = 1024

_ACCOUNT_ID = re.compile(r"[0-9]{12}")

_STORE = "Where the bucket is"
_ACCESS = "Who may do what"
_NAMES = "How long names are remembered"
_SPEED = "Memory and speed"
_LOG = "Log and process"


@dataclass(frozen=True, slots=True, kw_only=True)
class MountArguments:
    """What was given, after precedence and types; names as click gives them."""

    source: Source
    mount_point: Path
    endpoint_url: str | None
    region: str | None
    profile: str | None
    no_sign_request: bool
    requester_pays: bool
    expected_bucket_owner: str | None
    addressing_style: str
    ca_bundle: Path | None
    read_only: bool
    allow_other: bool
    allow_non_empty: bool
    uid: int | None
    gid: int | None
    file_mode: int
    dir_mode: int
    umask: int
    ttl: float
    negative_ttl: float
    memory: int | None
    connections: int
    max_readahead: int
    request_deadline: float
    log_level: str
    log_file: Path | None
    foreground: bool
    config: Path | None


def build_options(
    given: MountArguments, *, mount_point: Path, memory_bytes: int, control_socket: Path, state_folder: Path
) -> MountOptions:
    """Put the sections together.

    Args:
        given: What was given.
        mount_point: The mount point, resolved.
        memory_bytes: Memory this process may use, which bounds the budget.
        control_socket: Where the daemon is to answer.
        state_folder: Where it may log to.
    """
    return MountOptions(
        store=StoreOptions(
            bucket=given.source.bucket,
            endpoint_url=given.endpoint_url,
            region=given.region,
            profile=given.profile,
            no_sign_request=given.no_sign_request,
            requester_pays=given.requester_pays,
            expected_bucket_owner=given.expected_bucket_owner,
            addressing_style=AddressingStyle(given.addressing_style),
            ca_bundle=given.ca_bundle,
            connections=given.connections,
            request_deadline_seconds=given.request_deadline,
        ),
        mount_point=MountPointOptions(
            path=mount_point,
            source=given.source.uri,
            allow_other=given.allow_other,
            control_socket=control_socket,
        ),
        namespace=NamespaceOptions(
            prefix=given.source.prefix,
            ttl_seconds=given.ttl,
            negative_ttl_seconds=given.negative_ttl,
            uid=os.getuid() if given.uid is None else given.uid,
            gid=os.getgid() if given.gid is None else given.gid,
            file_mode=given.file_mode & ~given.umask,
            dir_mode=given.dir_mode & ~given.umask,
        ),
        read=ReadOptions(memory_bytes=_budget(given.memory, memory_bytes), max_readahead_bytes=given.max_readahead),
        log=LogOptions(
            level=LogLevel(given.log_level),
            file=given.log_file,
            foreground=given.foreground,
            state_folder=state_folder,
        ),
    )


def warnings_about(given: MountArguments, *, memory_bytes: int) -> list[str]:
    """Lines for the user: what is done in another way than asked for."""
    largest = largest_budget(memory_bytes)
    if given.memory is None or given.memory <= largest:
        return []
    wanted = write_size(given.memory)
    return [f"--memory {wanted} is more than a quarter of the memory there is: using {write_size(largest)}"]


def _budget(wanted: int | None, memory_bytes: int) -> int:
    return default_budget(memory_bytes) if wanted is None else min(wanted, largest_budget(memory_bytes))


def _check_endpoint_url(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    scheme, separator, host = value.partition("://")
    if scheme not in {"http", "https"} or not separator or not host.strip("/") or host.startswith("/"):
        raise click.BadParameter(f"{value!r} does not look like https://HOST or http://HOST:PORT")
    if "@" in host:
        raise click.BadParameter("a URL must not hold credentials: use AWS_ACCESS_KEY_ID or a profile")
    return value.rstrip("/")


def _check_bucket_owner(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not _ACCOUNT_ID.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not an account id of 12 digits")
    return value


def _check_memory(_ctx: click.Context, _param: click.Parameter, value: int | None) -> int | None:
    if value is not None and value < MIN_BUDGET:
        raise click.BadParameter(f"at least {write_size(MIN_BUDGET)} is needed")
    return value


def _absolute(_ctx: click.Context, _param: click.Parameter, value: Path | None) -> Path | None:
    """The daemon has another working directory."""
    try:
        return None if value is None else Path(os.path.abspath(value))  # noqa: PTH100 absolute() keeps ..
    except OSError as error:
        raise click.BadParameter(f"{value} is relative to a directory that is gone") from error


def _load_config(ctx: click.Context, _param: click.Parameter, value: Path | None) -> Path | None:
    if value is not None:
        settable = [option for option in ctx.command.params if isinstance(option, GroupedOption)]
        values = read_config(
            value,
            flags={option.long_name for option in settable if option.is_flag},
            options={option.long_name for option in settable if not option.is_flag and option.name != "config"},
        )
        ctx.default_map = {**(ctx.default_map or {}), **given_names(values)}
    return value


PARAMETERS: Sequence[click.Parameter] = (
    click.Argument(["source"], type=SOURCE, metavar="s3://BUCKET[/PREFIX]"),
    click.Argument(["mount_point"], type=Path, metavar="MOUNTPOINT"),
    GroupedOption(
        ["--endpoint-url"],
        group=_STORE,
        metavar="URL",
        callback=_check_endpoint_url,
        help="S3 endpoint; AWS_ENDPOINT_URL works too. Default: AWS.",
    ),
    GroupedOption(
        ["--region"],
        group=_STORE,
        more_variables=("AWS_REGION",),
        help="Region of the bucket; a wrong one is corrected. Default: as configured for the AWS CLI.",
    ),
    GroupedOption(["--profile"], group=_STORE, help="Profile of ~/.aws/config with the credentials."),
    GroupedOption(["--no-sign-request"], group=_STORE, is_flag=True, help="Send no credentials, for public buckets."),
    GroupedOption(["--requester-pays"], group=_STORE, is_flag=True, help="Accept to pay for the requests."),
    GroupedOption(
        ["--expected-bucket-owner"],
        group=_STORE,
        metavar="ACCOUNT",
        callback=_check_bucket_owner,
        help="Fail if the bucket belongs to another AWS account.",
    ),
    GroupedOption(
        ["--addressing-style"],
        group=_STORE,
        type=click.Choice([style.value for style in AddressingStyle]),
        default=AddressingStyle.AUTO.value,
        show_default=True,
        help="Bucket in the host name (virtual) or in the path.",
    ),
    GroupedOption(
        ["--ca-bundle"],
        group=_STORE,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        callback=_absolute,
        help="Certificates (PEM) to trust instead of the system's.",
    ),
    GroupedOption(
        ["--read-only"],
        group=_ACCESS,
        is_flag=True,
        help="Refuse changes. This version always mounts read-only.",
    ),
    GroupedOption(
        ["--allow-other"],
        group=_ACCESS,
        is_flag=True,
        help="Let other users in; needs user_allow_other in /etc/fuse.conf, except for root.",
    ),
    GroupedOption(
        ["--allow-non-empty"],
        group=_ACCESS,
        is_flag=True,
        help="Mount over a directory that is not empty, which hides what is there.",
    ),
    GroupedOption(
        ["--uid"],
        group=_ACCESS,
        type=click.IntRange(0, (1 << 32) - 2),
        metavar="UID",
        help="Owner of all files. Default: who mounts.",
    ),
    GroupedOption(
        ["--gid"],
        group=_ACCESS,
        type=click.IntRange(0, (1 << 32) - 2),
        metavar="GID",
        help="Group of all files. Default: that of who mounts.",
    ),
    GroupedOption(
        ["--file-mode"], group=_ACCESS, type=MODE, default="0644", show_default=True, help="Mode of files, octal."
    ),
    GroupedOption(
        ["--dir-mode"], group=_ACCESS, type=MODE, default="0755", show_default=True, help="Mode of directories, octal."
    ),
    GroupedOption(
        ["--umask"],
        group=_ACCESS,
        type=MODE,
        default="0000",
        show_default=True,
        help="Bits to take away from both modes, octal.",
    ),
    GroupedOption(
        ["--ttl"],
        group=_NAMES,
        type=DURATION,
        default="60s",
        show_default=True,
        help="How long names and attributes may be used before S3 is asked again; 0 asks always.",
    ),
    GroupedOption(
        ["--negative-ttl"],
        group=_NAMES,
        type=DURATION,
        default="5s",
        show_default=True,
        help="The same for the absence of a name.",
    ),
    GroupedOption(
        ["--memory"],
        group=_SPEED,
        type=SIZE,
        callback=_check_memory,
        help="Memory for file contents. Limit: a quarter of what this host or container has. Default: "
        "512MiB, or that quarter if it is less.",
    ),
    GroupedOption(
        ["--connections"],
        group=_SPEED,
        type=click.IntRange(1, MAX_CONNECTIONS),
        default=32,
        show_default=True,
        help="Most connections that read contents at a time.",
    ),
    GroupedOption(
        ["--max-readahead"],
        group=_SPEED,
        type=SIZE,
        default="256MiB",
        show_default=True,
        help="Most that is read ahead of one sequential reader.",
    ),
    GroupedOption(
        ["--request-deadline"],
        group=_SPEED,
        type=POSITIVE_DURATION,
        default="60s",
        show_default=True,
        help="When a request that is tried again and again becomes an error.",
    ),
    GroupedOption(
        ["--log-level"],
        group=_LOG,
        type=click.Choice([level.value for level in LogLevel], case_sensitive=False),
        default=LogLevel.INFO.value,
        show_default=True,
        help="Least severe message to log.",
    ),
    GroupedOption(
        ["--log-file"],
        group=_LOG,
        type=click.Path(dir_okay=False, readable=False, path_type=Path),
        metavar="FILE",
        callback=_absolute,
        help="Where to log. Default: the system log.",
    ),
    GroupedOption(["--foreground"], group=_LOG, is_flag=True, help="Stay in the foreground and log to standard error."),
    GroupedOption(
        ["--config"],
        group=_LOG,
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        is_eager=True,
        callback=_load_config,
        help="TOML file with options, named as the long ones here.",
    ),
)
"""All of them, in the order of the help. The mount point is no `click.Path`: that would touch a mount that may hang."""
