"""Sends HEAD and LIST through aiobotocore's HTTP session, on the asyncio loop; one attempt each.

The requests are written and signed here, not by a botocore client: its parser alone takes 100-130 ms for a page of
1,000 keys, and it reads bodies of any size into memory.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import aiohttp
from aiobotocore.httpsession import AIOHTTPSession
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError, SSLError

from s3mount.errors import CorruptResponseError, StoreUnavailableError
from s3mount.ranges import MIB
from s3mount.store.responses import MAX_ERROR_BODY_BYTES, fault_of_answer
from s3mount.store.retry import AttemptError, Fault, FaultKind

MAX_BODY_BYTES = 16 * MIB
"""Largest LIST answer; 1,000 keys of 1,024 bytes, each byte encoded as three, and their attributes take 4 MiB."""

_CONNECTIONS = 64
"""Control requests at a time; LISTs of a parallel walk, hardly ever more."""

_IDLE_SECONDS = 20.0
"""How long an idle connection is kept; the servers we know close theirs after 20 s or more."""

_FIRST_REFUSAL = 300


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """One HEAD or LIST."""

    method: str
    url: str
    sign: Callable[[], dict[str, str]]
    """Makes the headers; called when the request is sent."""


@dataclass(frozen=True, slots=True)
class ControlAnswer:
    """A successful answer."""

    headers: dict[str, str]
    """Lower-case names."""
    body: bytes


class ControlClient:
    """HTTP connections for control requests. Lives on the asyncio loop."""

    def __init__(self, session: AIOHTTPSession) -> None:
        self._session = session
        self._slots = asyncio.Semaphore(_CONNECTIONS)

    @classmethod
    async def open(
        cls,
        *,
        proxies: dict[str, str],
        verify: str | bool,
        connect_timeout_seconds: float,
        stall_timeout_seconds: float,
    ) -> Self:
        """Make a client; connects to nothing yet."""
        session = AIOHTTPSession(
            verify=verify,  # type: ignore[arg-type]  # a path is as good as a flag, see botocore
            proxies=proxies,
            timeout=(connect_timeout_seconds, stall_timeout_seconds),  # type: ignore[arg-type]  # a pair is as good
            max_pool_connections=_CONNECTIONS,
            # Each new connection resolves the name anew: a retry must be able to reach another address.
            connector_args={"keepalive_timeout": _IDLE_SECONDS, "use_dns_cache": False},
        )
        await session.__aenter__()
        return cls(session)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def send(self, request: ControlRequest) -> ControlAnswer:
        """Make one attempt.

        Raises:
            AttemptError: It failed.
        """
        async with self._slots:
            prepared = AWSRequest(method=request.method, url=request.url, headers=request.sign()).prepare()
            prepared.url = request.url  # as signed: preparing it may have re-encoded it
            prepared.stream_output = True  # the body is ours to read, within bounds
            try:
                response = await self._session.send(prepared)  # type: ignore[arg-type]  # its stub names the wrong class
                status, headers = response.status_code, dict(response.headers)
                limit = MAX_BODY_BYTES if status < _FIRST_REFUSAL else MAX_ERROR_BODY_BYTES
                body, is_complete = await _read_body(response.raw, limit)
            except (BotoCoreError, aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                raise AttemptError(_fault_of_exception(error)) from error
        if status >= _FIRST_REFUSAL:
            raise AttemptError(fault_of_answer(status, headers, body))
        if not is_complete:
            raise AttemptError(Fault(FaultKind.CORRUPT, CorruptResponseError("the answer is larger than any listing")))
        return ControlAnswer(headers, body)


async def _read_body(response: aiohttp.ClientResponse, limit: int) -> tuple[bytes, bool]:
    """The body, and whether it is all of it; more than *limit* bytes are not read."""
    body = bytearray()
    try:
        async for received in response.content.iter_any():
            body += received
            if len(body) > limit:
                return bytes(body[:limit]), False
    finally:
        if response.content.at_eof():
            response.release()
        else:
            response.close()
    return bytes(body), True


def _fault_of_exception(error: Exception) -> Fault:
    kind = FaultKind.FINAL if isinstance(error, SSLError) and _is_certificate_error(error) else FaultKind.TRANSIENT
    failure = StoreUnavailableError(str(error) or type(error).__name__)
    failure.__cause__ = error
    return Fault(kind, failure)


def _is_certificate_error(error: SSLError) -> bool:
    cause = error.__context__
    return isinstance(cause, aiohttp.ClientConnectorCertificateError)
