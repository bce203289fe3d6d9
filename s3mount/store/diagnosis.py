"""Turns what went wrong at mount time into one line that says what to do."""

import socket
import ssl

import aiohttp
from botocore.exceptions import ProxyConnectionError

from s3mount.errors import (
    AccessDeniedError,
    BucketError,
    CorruptResponseError,
    CredentialsMissingError,
    EndpointError,
    MountError,
)
from s3mount.options import StoreOptions
from s3mount.store.endpoint import Endpoint
from s3mount.store.responses import CLOCK_CODES, CREDENTIAL_CODES, WRONG_REGION_CODES
from s3mount.store.retry import Fault

_NOT_FOUND = 404
_MOVED = frozenset({301, 307})
_BAD_REQUEST = 400


def region_to_follow(fault: Fault, endpoint: Endpoint) -> str | None:
    """Region the server says the bucket is in, if it is another than that of the request."""
    is_elsewhere = fault.code in WRONG_REGION_CODES or fault.status in _MOVED or fault.status == _BAD_REQUEST
    return fault.region if is_elsewhere and fault.region != endpoint.region else None


def mount_error(fault: Fault, options: StoreOptions, endpoint: Endpoint) -> MountError:
    """The one line."""
    origin = endpoint.origin
    if fault.status is None:
        return EndpointError(_unreachable(fault, options, endpoint))
    if fault.code in CREDENTIAL_CODES or fault.code == "SignatureDoesNotMatch":
        return CredentialsMissingError(f"the credentials were refused ({fault.code}): renew or correct them")
    if fault.code in CLOCK_CODES:
        return EndpointError(f"{origin} refuses requests by this host's clock: set the clock")
    complaint = _about_bucket(fault, options, origin)
    if complaint is not None:
        return BucketError(complaint)
    return EndpointError(f"{origin} does not serve bucket {options.bucket}: {fault.error}")


def _about_bucket(fault: Fault, options: StoreOptions, origin: str) -> str | None:
    bucket = options.bucket
    if fault.code == "NoSuchBucket" or fault.status == _NOT_FOUND:
        hint = "its name" if options.endpoint_url else "its name, and --endpoint-url if it is not on AWS"
        return f"bucket {bucket} does not exist at {origin}: check {hint}"
    if fault.code in WRONG_REGION_CODES or fault.status in _MOVED:
        where = f"region {fault.region}" if fault.region else "another region"
        return f"bucket {bucket} is in {where}: name it with --region"
    if not isinstance(fault.error, AccessDeniedError):
        return None
    if options.no_sign_request:
        return f"bucket {bucket} is not public: mount it with credentials, without --no-sign-request"
    return f"no access to list bucket {bucket} ({fault.error}): the credentials need s3:ListBucket"


def _unreachable(fault: Fault, options: StoreOptions, endpoint: Endpoint) -> str:
    origin, scheme = endpoint.origin, endpoint.scheme
    hint = "check --endpoint-url" if options.endpoint_url else "check the network"
    if isinstance(fault.error, CorruptResponseError):
        return f"{origin} does not answer like an S3 server ({fault.error}): {hint}"
    reasons: tuple[tuple[tuple[type[BaseException], ...], str], ...] = (
        (
            (ProxyConnectionError, aiohttp.ClientHttpProxyError),
            f"the proxy for {origin} does not answer: check {scheme}_proxy and no_proxy",
        ),
        (
            (ssl.SSLCertVerificationError,),
            f"the TLS certificate of {origin} is not trusted: name the right authority with --ca-bundle",
        ),
        ((ssl.SSLError, aiohttp.ClientSSLError), f"{origin} does not speak TLS as expected: {hint}"),
        (
            (socket.gaierror, aiohttp.ClientConnectorDNSError),
            f"the host name {endpoint.host} cannot be resolved: {hint}",
        ),
        ((ConnectionRefusedError,), f"{origin} refuses connections: {hint}"),
    )
    causes = _causes(fault.error)
    for classes, text in reasons:  # the first that fits is the most precise
        if any(isinstance(cause, classes) for cause in causes):
            return text
    return f"{origin} does not answer: {hint}"


def _causes(error: BaseException) -> list[BaseException]:
    """*error* and what led to it, including what aiohttp keeps in an attribute of its own."""
    found: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or current in found:
            continue
        found.append(current)
        pending += [current.__cause__, current.__context__]
        if isinstance(current, aiohttp.ClientConnectorError):
            pending.append(current.os_error)
        if isinstance(current, aiohttp.ClientConnectorCertificateError):
            pending.append(current.certificate_error)
    return found
