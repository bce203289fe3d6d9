"""Takes the pages of one LIST one after the other, and ends with an error if they go round in circles.

A page may be empty although others follow, so only the last one tells that there is no more. Runs in trio.
"""

from s3mount.errors import CorruptResponseError
from s3mount.store.interface import MAX_KEYS_PER_PAGE, ListPage, ObjectStore


class Paging:
    """One ``LIST prefix delimiter=/``. **Invariant:** nothing is asked for once `is_over`."""

    def __init__(self, store: ObjectStore, prefix: str, *, max_keys: int = MAX_KEYS_PER_PAGE) -> None:
        self._store = store
        self._prefix = prefix
        self._max_keys = max_keys
        self.is_over = False
        """Whether the last page has come."""
        self._token: str | None = None
        self._pages = 0
        self._remembered_token: str | None = None
        """That of page 1, 2, 4, 8, ...: a circle meets it again once the distance exceeds its length (Brent, 1980)."""

    async def next_page(self) -> ListPage:
        """Ask for the next page; by then the one before must not have been the last.

        Raises:
            CorruptResponseError: The listing cannot be completed: the page leads back to one that was there already.
            FileError: The request failed.
        """
        page = await self._store.list_page(self._prefix, token=self._token, max_keys=self._max_keys)
        self._pages += 1
        self._token = page.next_token
        self.is_over = page.next_token is None
        if self._token is not None and self._token == self._remembered_token:
            raise CorruptResponseError(f"the listing of {self._prefix!r} goes round in circles")
        if self._pages & (self._pages - 1) == 0:
            self._remembered_token = self._token
        return page


async def has_names_below(store: ObjectStore, prefix: str) -> bool:
    """Whether any key starts with *prefix*; one request, unless the first page is empty."""
    paging = Paging(store, prefix, max_keys=1)
    while not paging.is_over:
        page = await paging.next_page()
        if page.objects or page.prefixes:
            return True
    return False
