"""Where a bucket lives, and how its keys are written in a request. Pure."""

from dataclasses import dataclass, replace
from urllib.parse import quote, urlsplit

PROBE_KEY = "k"
"""Key for which a URL is asked of botocore's endpoint rules; it is cut off again."""

_UNRESERVED = "-._~"
"""What SigV4 leaves unencoded besides letters and digits."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One bucket's address.

    **Invariant:** `base_path` is empty or starts with ``/`` and does not end in it.
    """

    scheme: str
    host: str
    """Name or address, an IPv6 one without brackets."""
    port: int
    base_path: str
    """What stands before ``/key``: ``/bucket`` in path style."""
    region: str
    service: str = "s3"

    @property
    def is_aws(self) -> bool:
        """Whether it is one of AWS itself."""
        return self.host.endswith((".amazonaws.com", ".amazonaws.com.cn"))

    @property
    def is_tls(self) -> bool:
        """Whether requests are encrypted."""
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """``Host`` header: without the port where it is the scheme's own, as S3 signs it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """``scheme://authority``."""
        return f"{self.scheme}://{self.authority}"

    @property
    def bucket_path(self) -> str:
        """Path of requests about the bucket itself."""
        return self.base_path or "/"

    def object_path(self, key: str) -> str:
        """Path of requests about one object; no part of a key is normalised."""
        return f"{self.base_path}/{quote(key, safe='/' + _UNRESERVED)}"

    def in_region(self, region: str) -> "Endpoint":
        """The same address, signed for another region."""
        return replace(self, region=region)


def endpoint_from_url(url: str, *, region: str, service: str) -> Endpoint:
    """Take the address from the URL botocore gives for `PROBE_KEY`.

    Raises:
        ValueError: The URL is not one.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"not an HTTP address: {url}")
    return Endpoint(
        scheme=parts.scheme,
        host=parts.hostname,
        port=parts.port or (443 if parts.scheme == "https" else 80),
        base_path=parts.path.removesuffix(f"/{PROBE_KEY}"),
        region=region,
        service=service,
    )


def canonical_query(parameters: dict[str, str]) -> str:
    """Write query parameters as they are both sent and signed."""
    return "&".join(
        f"{quote(name, safe=_UNRESERVED)}={quote(parameters[name], safe=_UNRESERVED)}" for name in sorted(parameters)
    )
