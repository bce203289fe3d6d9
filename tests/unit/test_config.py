from pathlib import Path

import pytest

from s3mount.config import Value, given_names, read_config
from s3mount.errors import UsageError

FLAGS = {"read-only"}
OPTIONS = {"ttl", "memory", "file-mode"}


def read(path: Path, text: str) -> dict[str, Value]:
    file = path / "s3mount.toml"
    file.write_text(text, encoding="utf-8")
    return read_config(file, flags=FLAGS, options=OPTIONS)


def test_keys_at_the_top_level(tmp_path: Path) -> None:
    assert read(tmp_path, 'ttl = "5m"\nmemory = 1073741824\nread-only = true\n') == {
        "ttl": "5m",
        "memory": 1073741824,
        "read-only": True,
    }


def test_keys_in_the_table(tmp_path: Path) -> None:
    assert read(tmp_path, "ttl = 30\n[mount]\nread-only = false\n") == {"ttl": 30, "read-only": False}


def test_empty_file(tmp_path: Path) -> None:
    assert read(tmp_path, "") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tll = 3\n", r"unknown key 'tll'; keys are the long options"),
        ("read_only = true\n", r"unknown key 'read_only'; it is 'read-only'"),
        ("[mounts]\nttl = 3\n", r"unknown key 'mounts'"),
        ('read-only = "yes"\n', r"'read-only' has to be true or false"),
        ("ttl = true\n", r"'ttl' has to be a text or a number"),
        ("ttl = [1]\n", r"'ttl' has to be a text or a number"),
        ("ttl = 1979-05-27\n", r"'ttl' has to be a text or a number"),
        ("mount = 3\n", r"'mount' has to be a table"),
        ("ttl = 3\n[mount]\nttl = 4\n", r"'ttl' stands there twice"),
        ("ttl = \n", r"not valid TOML: .*line 1"),
    ],
)
def test_mistake_is_named_with_the_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read(tmp_path, text)

    assert str(tmp_path / "s3mount.toml") in str(caught.value)


def test_file_that_is_not_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "s3mount.toml"
    file.write_bytes(b'ttl = "\xff"\n')

    with pytest.raises(UsageError, match="not valid TOML"):
        read_config(file, flags=FLAGS, options=OPTIONS)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_config(tmp_path / "missing", flags=FLAGS, options=OPTIONS)


def test_parameters_have_underscores() -> None:
    assert given_names({"file-mode": "0644"}) == {"file_mode": "0644"}
