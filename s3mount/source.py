"""Reads what is to be mounted: ``s3://BUCKET[/PREFIX]``. Pure."""

import re
from dataclasses import dataclass

MAX_KEY_BYTES = 1024
"""Longest key of S3; a prefix has to leave room for a name."""

_SCHEME = "s3://"

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
"""Looser than AWS: 3 to 63 lower-case characters hold for new buckets there, not for old ones and other servers."""

_ACCESS_POINT = re.compile(
    r"(?P<arn>arn:[a-z0-9-]+:s3[a-z-]*:[a-z0-9-]*:[0-9]{12}:"
    r"(?:outpost[:/][A-Za-z0-9-]+[:/])?accesspoint[:/][A-Za-z0-9._-]+)"
    r"(?:/(?P<prefix>.*))?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Source:
    """A bucket and a prefix in it."""

    bucket: str
    """Name, or ARN of an access point."""
    prefix: str
    """Empty or ending in ``/``."""

    @property
    def uri(self) -> str:
        """How ``findmnt`` shows it."""
        return f"{_SCHEME}{self.bucket}/{self.prefix}".rstrip("/")


def parse_source(text: str) -> Source:
    """Read ``s3://BUCKET[/PREFIX]``; the scheme may be left out, the prefix with or without slashes around it.

    Raises:
        ValueError: It is neither; the message says what is wrong.
    """
    rest = text.removeprefix(_SCHEME)
    if rest.startswith("arn:"):
        match = _ACCESS_POINT.fullmatch(rest)
        if match is None:
            raise ValueError(f"{rest} is not the ARN of an access point (arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME)")
        return Source(match["arn"], normalise_prefix(match["prefix"] or ""))
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise ValueError(f"{text!r} does not name a bucket; it has to look like s3://BUCKET or s3://BUCKET/PREFIX")
    return Source(bucket, normalise_prefix(prefix))


def normalise_prefix(text: str) -> str:
    """``data``, ``/data`` and ``data/`` are ``data/``; nothing is nothing.

    Raises:
        ValueError: No key can start like that.
    """
    prefix = text.strip("/")
    if not prefix:
        return ""
    try:
        size = len(f"{prefix}/".encode())
    except UnicodeEncodeError as error:
        raise ValueError("the prefix is not UTF-8, as keys are") from error
    if size >= MAX_KEY_BYTES:
        raise ValueError(f"the prefix is longer than a key may be ({MAX_KEY_BYTES} bytes)")
    return f"{prefix}/"
