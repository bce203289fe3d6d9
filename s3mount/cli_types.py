"""What click needs to read our kinds of values, and to show options in groups."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from s3mount.quantities import parse_duration, parse_mode, parse_size
from s3mount.source import parse_source

T = TypeVar("T")


def reading(name: str, parse: Callable[[str], T]) -> Callable[[object], T]:
    """A type of click from a function that refuses text with `ValueError`; the help calls it *name*."""

    def convert(value: object) -> T:
        try:
            return parse(str(value))
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    convert.__name__ = name
    return convert


def _parse_positive_duration(text: str) -> float:
    seconds = parse_duration(text)
    if seconds < 1:
        raise ValueError(f"{text!r} is less than a second")
    return seconds


def _read_mode(value: object) -> int:
    """Permissions: octal text. A number of TOML has lost its base, so it is refused."""
    if not isinstance(value, str):
        raise click.BadParameter('write it as a text, such as "0644"')
    return reading("mode", parse_mode)(value)


_read_mode.__name__ = "mode"

DURATION = reading("duration", parse_duration)
POSITIVE_DURATION = reading("duration", _parse_positive_duration)
SIZE = reading("size", parse_size)
SOURCE = reading("source", parse_source)
MODE = _read_mode


class GroupedOption(click.Option):
    """An option that is shown under a heading, and can be set by ``S3MOUNT_<NAME>``."""

    def __init__(self, *args: Any, group: str, more_variables: tuple[str, ...] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.show_envvar = True
        self.group = group
        name = self.long_name.replace("-", "_").upper()
        self.variables = (f"S3MOUNT_{name}", *more_variables)
        self.envvar = list(self.variables)

    @property
    def long_name(self) -> str:
        """Name without dashes before it."""
        return next(name for name in self.opts if name.startswith("--"))[2:]

    def variable(self, environment: Mapping[str, str]) -> str:
        """The environment variable that sets it, of those it may be set by."""
        return next((name for name in self.variables if environment.get(name)), self.variables[0])


class GroupedCommand(click.Command):
    """A command that shows its options in groups, and its epilog as it is written."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx) if isinstance(option, click.Option) else None
            if record is not None:
                groups.setdefault(option.group if isinstance(option, GroupedOption) else "", []).append(record)
        others = groups.pop("", [])
        for heading, records in [*groups.items(), ("Other options", others)]:
            with formatter.section(heading):
                formatter.write_dl(records)
