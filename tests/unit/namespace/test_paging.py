from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3mount.errors import CorruptResponseError, FileError, StoreUnavailableError
from s3mount.metrics import RequestKind
from s3mount.namespace.paging import Paging, has_names_below
from s3mount.store.interface import MAX_KEYS_PER_PAGE, ListPage
from s3mount.store.memory import MemoryStore
from tests.support.pages import summary

FIRST = ""
"""Stands for the page that is asked for without a token."""


def page(*keys: str, then: str | None) -> ListPage:
    """A page of objects, or of common prefixes if they end in a slash."""
    objects = tuple(summary(key) for key in keys if not key.endswith("/"))
    return ListPage(objects, tuple(key for key in keys if key.endswith("/")), then)


@dataclass(frozen=True)
class Asked:
    """What a page was asked for with."""

    prefix: str
    token: str
    max_keys: int


class ScriptedStore(MemoryStore):
    """Answers LIST with the page that belongs to the token."""

    def __init__(self, pages: dict[str, ListPage]) -> None:
        super().__init__()
        self.asked: list[Asked] = []
        self._pages = pages

    async def list_page(
        self,
        prefix: str,
        *,
        delimiter: str = "/",
        token: str | None = None,
        max_keys: int = MAX_KEYS_PER_PAGE,
    ) -> ListPage:
        assert delimiter == "/"
        self.asked.append(Asked(prefix, token or FIRST, max_keys))
        return self._pages[token or FIRST]


def chain(length: int, *, back_to: int | None = None) -> dict[str, ListPage]:
    """So many pages one after the other; after the last there is none, or an earlier one by its number."""
    tokens = [FIRST, *(f"t{number}" for number in range(1, length))]
    following = [*tokens[1:], None if back_to is None else f"t{back_to}"]
    return {token: page(then=then) for token, then in zip(tokens, following, strict=True)}


async def taken(paging: Paging) -> list[str]:
    """All names, in the order in which they came."""
    names: list[str] = []
    while not paging.is_over:
        found = await paging.next_page()
        names += [*(item.key for item in found.objects), *found.prefixes]
    return names


async def test_each_page_goes_on_where_the_one_before_ended() -> None:
    store = ScriptedStore({FIRST: page("d/a", then="x"), "x": page("d/b", then="y"), "y": page("d/c/", then=None)})
    paging = Paging(store, "d/", max_keys=7)

    names = await taken(paging)

    assert names == ["d/a", "d/b", "d/c/"]
    assert store.asked == [Asked("d/", FIRST, 7), Asked("d/", "x", 7), Asked("d/", "y", 7)]


@pytest.mark.parametrize("page_size", [1, 2, 3, 100])
async def test_a_store_is_listed_whole_whatever_its_page_size(page_size: int) -> None:
    store = MemoryStore(page_size=page_size)
    for key in ("d/a", "d/b/x", "d/b/y", "d/c", "d/d", "e"):
        store.put(key)

    names = await taken(Paging(store, "d/"))

    assert sorted(names) == ["d/a", "d/b/", "d/c", "d/d"]


async def test_a_listing_is_over_with_its_last_page_and_not_before() -> None:
    paging = Paging(ScriptedStore(chain(3)), "")

    seen = [paging.is_over]
    for _ in range(3):
        await paging.next_page()
        seen.append(paging.is_over)

    assert seen == [False, False, False, True]


async def test_pages_are_as_large_as_there_may_be_unless_told_otherwise() -> None:
    store = ScriptedStore(chain(1))

    await Paging(store, "").next_page()

    assert store.asked == [Asked("", FIRST, MAX_KEYS_PER_PAGE)]


async def test_empty_pages_in_between_end_nothing() -> None:
    store = ScriptedStore({FIRST: page(then="x"), "x": page(then="y"), "y": page("a", then=None)})

    assert await taken(Paging(store, "")) == ["a"]


@given(lead=st.integers(1, 20), length=st.integers(1, 20))
async def test_a_circle_is_an_error_after_few_rounds(lead: int, length: int) -> None:
    """*lead* pages, the last of which is followed by *length* pages that follow each other for ever."""
    store = ScriptedStore(chain(lead + length, back_to=lead))
    paging = Paging(store, "d/")

    with pytest.raises(CorruptResponseError, match="'d/' goes round in circles"):
        await taken(paging)

    assert lead + length <= len(store.asked) <= 3 * (lead + length) + 1


@given(length=st.integers(1, 70))
async def test_a_long_listing_is_no_circle(length: int) -> None:
    store = ScriptedStore(chain(length))

    await taken(Paging(store, ""))

    assert len(store.asked) == length


async def test_a_page_that_failed_can_be_asked_for_again() -> None:
    store = MemoryStore(page_size=1)
    store.put("a")
    store.put("b")
    paging = Paging(store, "")
    await paging.next_page()
    store.inject(RequestKind.LIST, error=StoreUnavailableError("503"))
    with pytest.raises(StoreUnavailableError):
        await paging.next_page()
    assert not paging.is_over

    assert await taken(paging) == ["b"]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [(["d/a"], True), (["d/a/b"], True), (["d/"], True), (["d", "d-1", "d0", "c/d/a"], False), ([], False)],
)
async def test_names_below_are_found_by_one_request(keys: list[str], expected: bool) -> None:  # noqa: FBT001 - expected
    store = MemoryStore()
    for key in keys:
        store.put(key)

    assert await has_names_below(store, "d/") is expected

    assert len(store.calls) == 1


async def test_names_below_are_asked_for_by_the_smallest_page() -> None:
    store = ScriptedStore({FIRST: page("d/a", then="x")})

    assert await has_names_below(store, "d/")

    assert store.asked == [Asked("d/", FIRST, 1)]


@pytest.mark.parametrize(("last", "expected"), [(("d/a",), True), (("d/a/",), True), ((), False)])
async def test_names_below_are_looked_for_behind_empty_pages(last: tuple[str, ...], expected: bool) -> None:  # noqa: FBT001 - expected
    store = ScriptedStore({FIRST: page(then="x"), "x": page(then="y"), "y": page(*last, then=None)})

    assert await has_names_below(store, "d/") is expected

    assert len(store.asked) == 3


async def test_names_below_are_not_called_absent_when_the_pages_lead_nowhere() -> None:
    with pytest.raises(CorruptResponseError):
        await has_names_below(ScriptedStore(chain(3, back_to=1)), "d/")


async def test_names_below_are_not_called_absent_when_the_request_fails() -> None:
    store = MemoryStore()
    store.inject(RequestKind.LIST, error=StoreUnavailableError("503"))

    with pytest.raises(FileError):
        await has_names_below(store, "d/")
