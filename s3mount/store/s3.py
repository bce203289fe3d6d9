"""Opens an `S3Store`: finds the bucket, and proves by one LIST that it can be read.

The store itself stands in `bucket`; what it says when the bucket cannot be read, in `diagnosis`.
"""

import contextlib
import dataclasses
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

import trio
from botocore.httpsession import create_urllib3_context, get_cert_path
from botocore.utils import get_environ_proxies

from s3mount import __version__
from s3mount.errors import EndpointError
from s3mount.metrics import Metrics, RequestKind
from s3mount.options import StoreOptions
from s3mount.store.attempts import Attempts
from s3mount.store.bridge import AsyncioThread
from s3mount.store.bucket import S3Store, Workings
from s3mount.store.connection import Route, proxy_from_url
from s3mount.store.control import ControlClient
from s3mount.store.credentials import CredentialKeeper
from s3mount.store.diagnosis import mount_error, region_to_follow
from s3mount.store.fetch import FetchEngine
from s3mount.store.interface import ListPage
from s3mount.store.lister import Lister
from s3mount.store.requests import RequestWriter, ServerClock
from s3mount.store.resolve import Resolved, resolve_endpoint
from s3mount.store.retry import AttemptError, Fault, Retries, RetryPolicy

__all__ = ["S3Store", "open_s3_store"]

log = logging.getLogger(__name__)

_PROBE_DEADLINE_SECONDS = 10.0
"""A mount command that cannot reach its bucket says so by then."""

_SECRETIVE_LOGGERS = ("aiobotocore", "botocore", "urllib3", "asyncio", "aiohttp")
"""Loggers whose DEBUG messages hold signatures and session tokens."""


@contextlib.asynccontextmanager
async def open_s3_store(options: StoreOptions, metrics: Metrics, *, probe_prefix: str = "") -> AsyncIterator[S3Store]:
    """Provide the store, proved to be listable; close all it holds afterwards.

    Args:
        options: Where the bucket is.
        metrics: Counts the requests.
        probe_prefix: Where to list, since a policy may allow no other place.

    Raises:
        BucketError: The bucket is missing, elsewhere, or not ours to list.
        CredentialsMissingError: There are no credentials, or they are refused.
        EndpointError: Nothing at the endpoint answers like S3.
    """
    for name in _SECRETIVE_LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.level, logging.WARNING))
    options = _within_deadline(options)
    async with contextlib.AsyncExitStack() as stack:
        bridge = await stack.enter_async_context(AsyncioThread("s3mount-asyncio"))
        keeper = None if options.no_sign_request else CredentialKeeper(options.profile)
        resolved = await bridge.run(lambda: resolve_endpoint(options))
        if keeper is not None:
            await bridge.run(keeper.start)
        opening = _Opening(options, Attempts(bridge, keeper, ServerClock(), metrics))
        workings, fault = await opening.try_at(resolved, stack, probe_prefix)
        if fault is not None and (region := region_to_follow(fault, resolved.endpoint)) is not None:
            log.info("bucket %s is in region %s, not %s", options.bucket, region, resolved.endpoint.region)
            resolved = await bridge.run(lambda: resolve_endpoint(options, region=region))
            workings, fault = await opening.try_at(resolved, stack, probe_prefix)
        if fault is not None:
            raise mount_error(fault, options, resolved.endpoint) from fault.error
        yield S3Store(workings)


@dataclass(frozen=True, slots=True)
class _Opening:
    """What does not depend on the region."""

    options: StoreOptions
    attempts: Attempts

    async def try_at(
        self, resolved: Resolved, stack: contextlib.AsyncExitStack, prefix: str
    ) -> tuple[Workings, Fault | None]:
        """Build all that talks to this address, and what its answer to a LIST says is wrong."""
        workings = await stack.enter_async_context(self._workings(resolved))

        async def attempt(_: Retries) -> ListPage:
            self.attempts.metrics.add_request(RequestKind.LIST)
            return await self.attempts.bridge.run(
                lambda: workings.lister.page(prefix, delimiter="/", token=None, max_keys=1)
            )

        deadline = min(_PROBE_DEADLINE_SECONDS, self.options.request_deadline_seconds)
        try:
            await self.attempts.run(attempt, RetryPolicy(deadline))
        except AttemptError as error:
            return workings, error.fault
        return workings, None

    @contextlib.asynccontextmanager
    async def _workings(self, resolved: Resolved) -> AsyncGenerator[Workings]:
        options, bridge = self.options, self.attempts.bridge
        proxies: dict[str, str] = get_environ_proxies(resolved.endpoint.origin)
        route = _route(options, resolved, proxies)
        keeper = self.attempts.keeper
        writer = RequestWriter(
            resolved.endpoint,
            (lambda: None) if keeper is None else (lambda: keeper.latest),
            self.attempts.clock,
            _common_headers(options, resolved),
        )
        control = await bridge.run(
            lambda: ControlClient.open(
                proxies=proxies,
                verify=resolved.verify if resolved.endpoint.is_tls else False,  # spares reading the authorities
                connect_timeout_seconds=options.connect_timeout_seconds,
                stall_timeout_seconds=options.stall_timeout_seconds,
            )
        )
        policy = RetryPolicy(options.request_deadline_seconds)
        try:
            async with FetchEngine.running(route, connections=options.connections) as engine:
                yield Workings(
                    self.attempts, policy, writer, control, Lister(control, writer), engine, self.attempts.metrics
                )
        finally:
            with trio.CancelScope(shield=True):
                await bridge.run(control.close)


def _within_deadline(options: StoreOptions) -> StoreOptions:
    """Have no attempt wait for longer than all of them together may take."""
    deadline = options.request_deadline_seconds
    return dataclasses.replace(
        options,
        connect_timeout_seconds=min(options.connect_timeout_seconds, deadline),
        stall_timeout_seconds=min(options.stall_timeout_seconds, deadline),
    )


def _route(options: StoreOptions, resolved: Resolved, proxies: dict[str, str]) -> Route:
    proxy_url = proxies.get(resolved.endpoint.scheme)
    try:
        return Route(
            endpoint=resolved.endpoint,
            proxy=proxy_from_url(proxy_url) if proxy_url else None,
            ssl_context=_ssl_context(resolved.verify) if resolved.endpoint.is_tls else None,
            connect_timeout_seconds=options.connect_timeout_seconds,
            stall_timeout_seconds=options.stall_timeout_seconds,
        )
    except OSError as error:
        raise EndpointError(f"cannot read the CA bundle {resolved.verify}: {error.strerror or error}") from error
    except ValueError as error:
        raise EndpointError(f"cannot use the proxy of {resolved.endpoint.scheme}_proxy: {error}") from error


def _ssl_context(verify: str | bool) -> ssl.SSLContext:  # noqa: FBT001 - what botocore calls it, path or flag
    """Check certificates as the control requests do: by botocore's own rules."""
    context: ssl.SSLContext = create_urllib3_context()
    context.check_hostname = True
    context.load_verify_locations(get_cert_path(verify))  # type: ignore[arg-type]  # a path is as good
    return context


def _common_headers(options: StoreOptions, resolved: Resolved) -> dict[str, str]:
    headers = {"user-agent": f"s3mount/{__version__} {resolved.user_agent}"}
    if options.requester_pays:
        headers["x-amz-request-payer"] = "requester"
    if options.expected_bucket_owner is not None:
        headers["x-amz-expected-bucket-owner"] = options.expected_bucket_owner
    return headers
