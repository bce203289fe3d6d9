"""Signs requests by AWS Signature Version 4 in its S3 form: path taken as it stands, payload hash in a header.

botocore's signer gives the same signatures (a test compares them) but takes 110-180 µs where this takes 10-15, and it
takes the time from a clock that cannot be corrected; measured on 2 shared cores, Python 3.11. Pure.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
"""Payload hash of a request without a body; all of ours are."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """Credentials as they were at one moment."""

    access_key: str
    secret_key: str
    token: str | None = None

    def __repr__(self) -> str:
        """Without anything secret, since reprs end up in logs and tracebacks."""
        return f"SigningKey({self.access_key[:4]}...)"


def signed_headers(
    method: str,
    *,
    path: str,
    query: str = "",
    headers: Mapping[str, str],
    key: SigningKey,
    region: str,
    service: str,
    now: float,
) -> dict[str, str]:
    """All headers to send: *headers* and those that sign them.

    Args:
        method: HTTP method in capitals.
        path: Path as sent, percent-encoded, with its leading slash.
        query: Query as sent, percent-encoded, parameters sorted by name.
        headers: Lower-case names; must have ``host``. Every one is signed.
        key: Credentials.
        region: Region of the endpoint.
        service: Name the service signs by, ``s3`` except for special endpoints.
        now: Seconds since the epoch on the server's clock.
    """
    timestamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    result = {**headers, "x-amz-content-sha256": EMPTY_SHA256, "x-amz-date": timestamp}
    if key.token is not None:
        result["x-amz-security-token"] = key.token
    names = sorted(result)
    listed = ";".join(names)
    canonical = "".join(f"{name}:{' '.join(result[name].split())}\n" for name in names)
    request = f"{method}\n{path}\n{query}\n{canonical}\n{listed}\n{EMPTY_SHA256}"
    scope = f"{timestamp[:8]}/{region}/{service}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{timestamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    signature = hmac.digest(_derived_key(key.secret_key, timestamp[:8], region, service), text.encode(), "sha256").hex()
    result["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={key.access_key}/{scope}, SignedHeaders={listed}, Signature={signature}"
    )
    return result


@lru_cache(maxsize=8)
def _derived_key(secret_key: str, date: str, region: str, service: str) -> bytes:
    """Key of one day; a day's requests share it, and a process has one or two credentials at a time."""
    digest = hmac.digest(f"AWS4{secret_key}".encode(), date.encode(), "sha256")
    for text in (region, service, "aws4_request"):
        digest = hmac.digest(digest, text.encode(), "sha256")
    return digest
