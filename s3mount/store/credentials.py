"""Keeps the latest credentials, fresh before they expire, where any thread can read them.

botocore finds them (environment, files, SSO, roles, instance metadata). Those that know when they expire renew
themselves when they are asked early enough: a task on the asyncio loop asks. The others, such as a session token in a
file, are looked for anew when the server calls them expired.
"""

import asyncio
import logging
import time

from aiobotocore.credentials import AioCredentials
from aiobotocore.session import AioSession
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import BotoCoreError, ClientError

from s3mount.errors import CredentialsMissingError
from s3mount.store.signing import SigningKey

log = logging.getLogger(__name__)

_CHECK_SECONDS = 30.0
"""How often self-renewing credentials are asked; botocore renews from 15 minutes before the end on."""

_MIN_RENEWAL_SECONDS = 2.0
"""Shortest time between two searches: without it every denied request would read files, or ask the metadata service."""


class CredentialKeeper:
    """The credentials of one store. All methods run on the asyncio loop; `latest` may be read from any thread."""

    def __init__(self, profile: str | None) -> None:
        self._profile = profile
        self._source: AioCredentials | None = None
        self._searched_at = float("-inf")
        self._searching = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.latest: SigningKey | None = None
        """Replaced as a whole, never changed."""

    async def start(self) -> None:
        """Load, and keep fresh from now on until the loop ends.

        Raises:
            CredentialsMissingError: There are none, or what was found is broken.
        """
        await self.load()
        self._task = asyncio.get_running_loop().create_task(self._keep_fresh())

    async def load(self) -> None:
        """Look for credentials everywhere botocore knows.

        Raises:
            CredentialsMissingError: There are none, or what was found is broken.
        """
        self._searched_at = time.monotonic()
        try:
            source = await AioSession(profile=self._profile).get_credentials()
            if source is not None:
                self._take(await source.get_frozen_credentials())
        except (BotoCoreError, ClientError) as error:
            raise CredentialsMissingError(f"cannot get credentials: {error}") from error
        if source is None:
            raise CredentialsMissingError(
                "no credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, run 'aws configure', "
                "name a profile with --profile, or use --no-sign-request for a public bucket"
            )
        self._source = source

    async def _keep_fresh(self) -> None:
        """Renew credentials before they expire, for ever."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            source = self._source
            if source is None:
                continue
            try:
                self._take(await source.get_frozen_credentials())
            except Exception as error:  # noqa: BLE001 - the top of a task; providers raise anything
                log.warning("cannot renew credentials: %s", type(error).__name__)

    async def renew(self, refused: SigningKey | None) -> bool:
        """Get other credentials than those *refused*; false if there are none (yet)."""
        async with self._searching:
            if self.latest != refused:
                return True
            if time.monotonic() - self._searched_at < _MIN_RENEWAL_SECONDS:
                return False
            try:
                await self.load()
            except CredentialsMissingError as error:
                log.warning("%s", error)
                return False
            return self.latest != refused

    def _take(self, frozen: ReadOnlyCredentials) -> None:
        if not frozen.access_key or not frozen.secret_key:
            return
        key = SigningKey(frozen.access_key, frozen.secret_key, frozen.token or None)
        if key != self.latest:
            self.latest = key
