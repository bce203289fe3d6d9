"""Reads options from a TOML file: keys named as the long options, at the top level or in a table ``[mount]``."""

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path

from s3mount.errors import UsageError

TABLE = "mount"

Value = bool | str | int | float


def read_config(path: Path, *, flags: Collection[str], options: Collection[str]) -> dict[str, Value]:
    """Values by the names of long options, without dashes before them.

    Args:
        path: The file.
        flags: Options that are true or false.
        options: Options with a value.

    Raises:
        UsageError: The file cannot be read, or holds what is no option.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"the configuration file {path} is not valid TOML: {error}") from error
    table = content.pop(TABLE, {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: '{TABLE}' has to be a table: [{TABLE}]")
    twice = content.keys() & table.keys()
    if twice:
        raise UsageError(f"{path}: '{min(twice)}' stands there twice, at the top level and in [{TABLE}]")
    return {key: _checked(path, key, value, flags=flags, options=options) for key, value in (content | table).items()}


def _checked(path: Path, key: str, value: object, *, flags: Collection[str], options: Collection[str]) -> Value:
    if key in flags:
        if not isinstance(value, bool):
            raise UsageError(f"{path}: '{key}' has to be true or false")
        return value
    if key in options:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise UsageError(f"{path}: '{key}' has to be a text or a number")
        return value
    raise UsageError(f"{path}: unknown key '{key}'{_suggestion(key, {*flags, *options})}")


def _suggestion(key: str, names: Collection[str]) -> str:
    dashed = key.replace("_", "-").lower()
    return f"; it is '{dashed}'" if dashed in names else "; keys are the long options of 's3mount mount'"


def given_names(values: Mapping[str, Value]) -> dict[str, Value]:
    """The same values under the names of parameters, with underscores."""
    return {key.replace("-", "_"): value for key, value in values.items()}
