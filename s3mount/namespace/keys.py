"""The total, reversible mapping between keys and paths.

A key below the mounted prefix is cut at every ``/`` into *components*; each becomes a file name. Nearly all are used as
they are. Those that no file system can show are escaped, so that every key has exactly one path and every path at most
one key:

======================================  ==============================================================================
component                               name
======================================  ==============================================================================
empty (``a//b``, leading ``/``)         ``@s3mount:``
``.`` and ``..``                        ``@s3mount:%2E``, ``@s3mount:%2E%2E``
with a NUL                              ``@s3mount:`` and the component with NUL as ``%00`` and ``%`` as ``%25``
starting with ``@s3mount``              ``@s3mount:`` and the component with ``%`` as ``%25``
longer than 255 bytes                   directory ``@s3mount-part:`` and the longest start that fits; inside it the rest
file hidden by a directory of its name  ``@s3mount-file:`` and the component
======================================  ==============================================================================

The object behind a directory marker (``d/``) is the empty component inside the directory; it and hidden files can be
looked up but are not listed.

Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

RESERVED = "@s3mount"
"""Components starting with this are always escaped, which keeps the mapping reversible."""

ESCAPE = "@s3mount:"
SHADOWED = "@s3mount-file:"
PART = "@s3mount-part:"

MAX_NAME_BYTES = 255
"""``NAME_MAX`` of Linux."""


class NameKind(Enum):
    """What a name in a directory stands for."""

    COMPONENT = auto()
    """A whole component: a file, or a directory of that name."""
    SHADOWED_FILE = auto()
    """The file of a component whose name belongs to a directory."""
    PART = auto()
    """The start of a component too long for one name; a directory holds the rest."""


@dataclass(frozen=True, slots=True)
class DecodedName:
    """A name and the text of the key it stands for."""

    kind: NameKind
    text: str


def normalise_prefix(prefix: str) -> str:
    """Prefix as the mount uses it: empty, or without leading slashes and ending in exactly one."""
    stripped = prefix.strip("/")
    return f"{stripped}/" if stripped else ""


def encode_component(component: str) -> str:
    """Name of a component that fits one name or of the start of a longer one (see `first_name`)."""
    if component in {"", ".", ".."}:
        return ESCAPE + component.replace(".", "%2E")
    if "\0" in component or component.startswith(RESERVED):
        return ESCAPE + _quote(component)
    return component


def first_name(component: str) -> tuple[str, str]:
    """Name of *component* and what of it is left for the directory of that name; the latter is mostly empty."""
    name = encode_component(component)
    if _fits(name):
        return name, ""
    size = _part_size(component)
    return PART + _quote(component[:size]), component[size:]


def shadowed_name(component: str) -> tuple[str, str]:
    """As `first_name`, for the file *component* when a directory has that name."""
    name = SHADOWED + _quote(component)
    if _fits(name):
        return name, ""
    size = _part_size(component)
    return PART + _quote(component[:size]), component[size:]


def decode_name(name: str) -> DecodedName | None:
    """What *name* stands for; None if it is no component's name (then there is no such entry)."""
    if not name.startswith(RESERVED):
        return DecodedName(NameKind.COMPONENT, name) if encode_component(name) == name and _fits(name) else None
    for marker, kind in _KIND_OF_MARKER.items():
        if name.startswith(marker):
            text = _unquote(name.removeprefix(marker))
            return DecodedName(kind, text) if _fits(name) and _encode(kind, text) == name else None
    return None


def is_hidden_file(name: str) -> bool:
    """Whether a file of that name can be looked up but is not listed."""
    return name == ESCAPE or name.startswith(SHADOWED)


def is_continued(head: str, rest: str, *, is_shadowed: bool = False) -> bool:
    """Whether the component ``head + rest`` is cut after *head*: *rest* then belongs into that part's directory."""
    split = shadowed_name if is_shadowed else first_name
    return bool(rest) and split(head + rest)[1] == rest


def path_of_key(relative_key: str, *, is_shadowed: bool = False) -> str:
    """Path of the object with this key (below the mounted prefix).

    Args:
        relative_key: Key without the mounted prefix.
        is_shadowed: Whether other keys start with ``relative_key + "/"``.
    """
    *parents, last = relative_key.split("/")
    names = [name for component in parents for name in _names(component, first_name)]
    return "/".join([*names, *_names(last, shadowed_name if is_shadowed else first_name)])


def key_of_path(path: str) -> tuple[str, bool] | None:
    """Key of the file at *path* and whether it is shadowed; None if no key has that path. Inverse of `path_of_key`."""
    decoded = [decode_name(name) for name in path.split("/")]
    key = ""
    is_shadowed = False
    for position, part in enumerate(decoded):
        if part is None or is_shadowed:
            return None
        is_shadowed = part.kind is NameKind.SHADOWED_FILE
        key += part.text
        if part.kind is NameKind.PART:
            if not _continues(part.text, decoded[position + 1 :]):
                return None
        elif position < len(decoded) - 1:
            key += "/"
    return key, is_shadowed


def _continues(head: str, following: list[DecodedName | None]) -> bool:
    """Whether the names after a part make up a component that is cut there."""
    rest = ""
    for name in following:
        if name is None:
            return False
        rest += name.text
        if name.kind is not NameKind.PART:
            return is_continued(head, rest, is_shadowed=name.kind is NameKind.SHADOWED_FILE)
    return False


def _names(component: str, split: Callable[[str], tuple[str, str]]) -> list[str]:
    names = []
    rest = component
    while True:
        name, rest = split(rest)
        names.append(name)
        if not rest:
            return names


def _fits(name: str) -> bool:
    # A quarter of the limit in characters is within it in bytes, whatever the characters are.
    return len(name) <= MAX_NAME_BYTES // 4 or len(name.encode()) <= MAX_NAME_BYTES


def _part_size(component: str) -> int:
    """Characters of the longest start of *component* whose part name fits and that leaves a rest."""
    room = MAX_NAME_BYTES - len(PART)
    for size, character in enumerate(component):
        room -= len(_quote(character).encode())
        if room < 0:
            return size
    return len(component) - 1


def _encode(kind: NameKind, text: str) -> str:
    match kind:
        case NameKind.COMPONENT:
            return encode_component(text)
        case NameKind.SHADOWED_FILE:
            return SHADOWED + _quote(text)
        case NameKind.PART:
            return PART + _quote(text) if text else ""


def _quote(text: str) -> str:
    return text.replace("%", "%25").replace("\0", "%00")


def _unquote(text: str) -> str:
    if text in {"%2E", "%2E%2E"}:
        return text.replace("%2E", ".")
    return text.replace("%00", "\0").replace("%25", "%")


_KIND_OF_MARKER = {ESCAPE: NameKind.COMPONENT, SHADOWED: NameKind.SHADOWED_FILE, PART: NameKind.PART}
