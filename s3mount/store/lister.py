"""Makes LIST requests and remembers what kind of server answers them. Lives on the asyncio loop."""

import dataclasses
from dataclasses import dataclass

from s3mount.errors import CorruptResponseError, NoSuchEntryError, StoreUnavailableError
from s3mount.store.control import ControlClient, ControlRequest
from s3mount.store.endpoint import canonical_query
from s3mount.store.interface import ListPage
from s3mount.store.pages import (
    ListRequest,
    ListVersion,
    PlusMeaning,
    RawPage,
    learn_plus,
    learn_plus_from,
    read_page,
)
from s3mount.store.requests import RequestWriter
from s3mount.store.retry import AttemptError, Fault, FaultKind

_NOT_IMPLEMENTED = 501


@dataclass(slots=True)
class Lister:
    """Lists one bucket.

    **Invariant:** what was learnt about the server holds for all its answers; only `page` learns.
    """

    client: ControlClient
    writer: RequestWriter
    version: ListVersion = ListVersion.V2
    plus: PlusMeaning = PlusMeaning.UNKNOWN

    async def page(self, prefix: str, *, delimiter: str, token: str | None, max_keys: int) -> ListPage:
        """Ask for one page; once, except while learning.

        Raises:
            AttemptError: The attempt failed.
        """
        version, server_token = _split_token(token) if token is not None else (self.version, None)
        request = ListRequest(prefix, delimiter, server_token, max_keys, version)
        try:
            raw = await self._ask(request)
        except AttemptError as error:
            is_unknown = error.fault.status == _NOT_IMPLEMENTED and version is ListVersion.V2 and token is None
            if not is_unknown:
                raise
            self.version = ListVersion.V1
            request = dataclasses.replace(request, version=ListVersion.V1)
            raw = await self._ask(request)
        try:
            if version is ListVersion.V2 and token is None and raw.is_of_version_1():
                self.version = ListVersion.V1
                request = dataclasses.replace(request, version=ListVersion.V1)
            page = read_page(raw, request, await self._plus_of(raw, request))
        except CorruptResponseError as error:
            raise AttemptError(Fault(FaultKind.CORRUPT, error)) from error
        if page.next_token is None:
            return page
        return dataclasses.replace(page, next_token=f"{request.version.value}{page.next_token}")

    async def _plus_of(self, page: RawPage, request: ListRequest) -> PlusMeaning:
        if self.plus is PlusMeaning.UNKNOWN:
            self.plus = learn_plus(page)
        if self.plus is PlusMeaning.UNKNOWN and page.has_plus():
            self.plus = learn_plus_from(page, await self._ask(dataclasses.replace(request, is_encoded=False)))
        return self.plus

    async def _ask(self, request: ListRequest) -> RawPage:
        endpoint = self.writer.endpoint
        path, query = endpoint.bucket_path, canonical_query(request.parameters())
        extra = {"x-amz-optional-object-attributes": "RestoreStatus"} if endpoint.is_aws else {}
        try:
            answer = await self.client.send(
                ControlRequest(
                    "GET",
                    f"{endpoint.origin}{path}?{query}",
                    lambda: self.writer.headers("GET", path, query=query, extra=extra),
                )
            )
            return RawPage(answer.body)
        except CorruptResponseError as error:
            raise AttemptError(Fault(FaultKind.CORRUPT, error)) from error
        except AttemptError as error:
            if isinstance(error.fault.error, NoSuchEntryError):  # a listing that cannot be found is no absent entry
                failure = StoreUnavailableError(str(error.fault.error))
                raise AttemptError(dataclasses.replace(error.fault, error=failure)) from error
            raise


def _split_token(token: str) -> tuple[ListVersion, str]:
    """Our tokens carry the version they belong to, for the server's may change its mind between two pages."""
    return ListVersion(token[0]), token[1:]
