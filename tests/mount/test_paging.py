"""Listings that come in many pages, in every dialect: each name once, or an error; never a part that looks whole."""

import dataclasses
import errno
import re
from collections.abc import Callable, Iterator

import pytest

from tests.support.faults import Action, Answer, Hook
from tests.support.file_user import FileUser
from tests.support.http_heads import Kind, Request
from tests.support.listed_bucket import Encode, ListedBucket, with_percent_for_space, with_plus_for_space
from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

FILES = [f"f{index:02}" for index in range(40)]

AROUND_DIRECTORIES = [f"a{index:02}/x" for index in range(10)] + ["a", "a-", "a0", "a05-", "a050"]

KEYS = [*FILES, *AROUND_DIRECTORIES, "sub one/below+/deep", *(f"sub one/{name}" for name in FILES[:20])]
"""Directories that fill whole pages, and names that stand before and after them."""


@pytest.fixture(scope="module")
def shared(moto: S3Server) -> Iterator[Scene]:
    with scene(moto, "--ttl", "1h", "--negative-ttl", "0", allow_warnings=True, life_seconds=300) as built:
        yield built


@pytest.fixture(scope="module")
def shared_doubting(moto: S3Server) -> Iterator[Scene]:
    with scene(moto, "--ttl", "0", allow_warnings=True, life_seconds=300) as built:
        yield built


@pytest.fixture
def doubting(shared_doubting: Scene) -> Iterator[Scene]:
    """A mount that asks for every name anew."""
    shared_doubting.reset()
    yield shared_doubting
    shared_doubting.reset()
    shared_doubting.wait_until_closed()


@pytest.fixture
def old_server(moto: S3Server) -> Iterator[Scene]:
    """A mount of its own: it remembers that its server knows only the first version of LIST."""
    with scene(moto, "--negative-ttl", "0") as place:
        yield place


def content_of(key: str) -> bytes:
    return b"content of " + key.encode()


def bucket_of(keys: list[str], folder: str = "", **dialect: int | bool | Encode | None) -> ListedBucket:
    return ListedBucket({folder + key: content_of(key) for key in keys}, **dialect)  # type: ignore[arg-type] # by name


def names_in(keys: list[str], folder: str = "") -> list[str]:
    """Names that a directory has, in the order of the store."""
    below = [key.removeprefix(folder) for key in keys if key.startswith(folder)]
    shown = {head + slash for head, slash, _ in (key.partition("/") for key in below)}
    return [name.removesuffix("/") for name in sorted(shown) if name + "/" not in shown]


def paths_of(keys: list[str]) -> list[str]:
    """Files and directories that a walk shows."""
    directories = {key[:at] for key in keys for at, letter in enumerate(key) if letter == "/"}
    return sorted(directories | set(keys))


def found_by_find(place: Scene, folder: str) -> list[str]:
    done = place.mount.run("find", folder, "-mindepth", "1", "-printf", "%P\\n")
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def found_by_ls(place: Scene, folder: str) -> list[str]:
    """In the order of the store."""
    done = place.mount.run("ls", "-f", "-A", folder)
    assert done.returncode == 0, done.stderr
    return [name for name in done.stdout.splitlines() if name not in {".", ".."}]


def check_all(place: Scene, user: FileUser, folder: str, keys: list[str]) -> None:
    """Every name once in its order, and every file with its bytes."""
    assert found_by_ls(place, folder) == names_in(keys)
    assert found_by_find(place, folder) == paths_of(keys)
    assert user.read_files([folder + key for key in keys], threads=4) == [content_of(key) for key in keys]


# Pages of all kinds


class EmptyPages:
    """The same bucket with an empty page before each page, and one at the end."""

    def __init__(self, bucket: ListedBucket) -> None:
        self._bucket = bucket
        self.empty = 0
        """Pages without a name so far."""

    def __call__(self, request: Request) -> Action | None:
        if request.kind is not Kind.LIST:
            return self._bucket(request)
        token = request.query.get("continuation-token", "")
        if not token.startswith("full-"):
            self.empty += 1
            return _empty_page(None if token == "end" else f"full-{token}")
        query = {name: value for name, value in request.query.items() if name != "continuation-token"}
        if token != "full-":
            query["continuation-token"] = token.removeprefix("full-")
        action = self._bucket(dataclasses.replace(request, query=query))
        assert action is not None
        return _rewritten(action, _going_on_at_its_end)


def _empty_page(token: str | None) -> Action:
    goes_on = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    body = (
        f"<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>{str(bool(token)).lower()}</IsTruncated>"
        f"{goes_on}</ListBucketResult>"
    )
    return Action(answer=Answer(200, {"Content-Type": "application/xml"}, body.encode()))


def _going_on_at_its_end(body: bytes) -> bytes:
    more = b"<IsTruncated>true</IsTruncated><NextContinuationToken>end</NextContinuationToken>"
    return body.replace(b"<IsTruncated>false</IsTruncated>", more)


def _rewritten(action: Action, rewrite: Callable[[bytes], bytes]) -> Action:
    answer = action.answer
    assert answer is not None
    return Action(answer=dataclasses.replace(answer, body=rewrite(answer.body)))


def test_empty_pages_in_between_end_no_listing(place: Scene, user: FileUser) -> None:
    folder = place.folder()
    bucket = EmptyPages(bucket_of(KEYS, folder, page_size=7))
    place.proxy.add(bucket)

    check_all(place, user, folder, KEYS)

    assert bucket.empty > len(KEYS) // 7


def test_empty_pages_in_between_hide_no_name_from_lookups(doubting: Scene) -> None:
    folder = doubting.folder()
    doubting.proxy.add(EmptyPages(bucket_of(KEYS, folder, page_size=2)))
    with doubting.user() as user:
        found = user.read_files([folder + key for key in KEYS], threads=4)
        with pytest.raises(FileNotFoundError):
            user.size(folder + "f0")

    assert dict(zip(KEYS, found, strict=True)) == {key: content_of(key) for key in KEYS}


@pytest.mark.parametrize("encode", [with_plus_for_space, with_percent_for_space, None])
def test_pages_of_seven_names_show_each_name_once(place: Scene, user: FileUser, encode: Encode | None) -> None:
    folder = place.folder()
    keys = [key for key in KEYS if "+" not in key] if encode is with_percent_for_space else KEYS
    place.proxy.add(bucket_of(keys, folder, page_size=7, encode=encode))

    check_all(place, user, folder, keys)

    pages = [exchange for exchange in place.proxy.log.select(Kind.LIST) if exchange.request.query["prefix"] == folder]
    assert len(pages) >= len(names_in(keys)) // 7


@pytest.mark.parametrize("page_size", [1, 7, 1000])
def test_a_server_of_the_first_version_shows_each_name_once(old_server: Scene, page_size: int) -> None:
    old_server.proxy.add(bucket_of(KEYS, "d/", page_size=page_size, is_version_1=True))
    with old_server.user() as user:
        check_all(old_server, user, "d/", KEYS)

    continued = [exchange.request.query for exchange in old_server.proxy.log.select(Kind.LIST)]
    assert any("marker" in query for query in continued) or page_size == 1000


def test_a_server_of_the_first_version_need_not_say_where_it_goes_on(old_server: Scene) -> None:
    bucket = bucket_of(KEYS, "d/", page_size=7, is_version_1=True)

    def without_marker(request: Request) -> Action | None:
        action = bucket(request)
        if request.kind is not Kind.LIST or action is None:
            return action
        return _rewritten(action, lambda body: re.sub(rb"<NextMarker>.*?</NextMarker>", b"", body))

    old_server.proxy.add(without_marker)
    with old_server.user() as user:
        check_all(old_server, user, "d/", KEYS)


# Pages that lead nowhere


def _without_token(body: bytes) -> bytes:
    return re.sub(rb"<NextContinuationToken>.*?</NextContinuationToken>", b"", body)


def _in_circles(bucket: ListedBucket) -> Hook:
    """Answer always with the first page, and lead from it to one of two tokens in turn."""
    second = "11"
    third = "33"

    def answer(request: Request) -> Action | None:
        token = request.query.get("continuation-token")
        action = bucket(dataclasses.replace(request, query={"prefix": request.query.get("prefix", "")}))
        if request.kind is not Kind.LIST or action is None:
            return bucket(request)
        following = third if token == second else second
        return _rewritten(
            action,
            lambda body: re.sub(
                rb"<NextContinuationToken>.*?<",
                f"<NextContinuationToken>{following}<".encode(),
                body,
            ),
        )

    return answer


def _breaking_off(bucket: ListedBucket) -> Hook:
    """Leave out where to go on after the third page."""
    asked: dict[str, list[str]] = {}

    def answer(request: Request) -> Action | None:
        action = bucket(request)
        if request.kind is not Kind.LIST or action is None:
            return action
        prefix = request.query.get("prefix", "")
        token = request.query.get("continuation-token", "")
        tokens = asked.setdefault(prefix, [])
        if token not in tokens:
            tokens.append(token)
        return _rewritten(action, _without_token) if tokens.index(token) >= 2 else action

    return answer


def _always_the_same_page(bucket: ListedBucket) -> Hook:
    def answer(request: Request) -> Action | None:
        if request.kind is not Kind.LIST:
            return bucket(request)
        query = {name: value for name, value in request.query.items() if name != "continuation-token"}
        return bucket(dataclasses.replace(request, query=query))

    return answer


@pytest.mark.parametrize("break_paging", [_breaking_off, _always_the_same_page, _in_circles])
def test_a_listing_that_cannot_be_completed_is_an_error_after_any_page(
    place: Scene, user: FileUser, break_paging: Callable[[ListedBucket], Hook]
) -> None:
    folder = place.folder()
    bucket = bucket_of(FILES, folder, page_size=7)
    broken = place.proxy.add(break_paging(bucket))

    listed = place.mount.run("ls", "-f", folder)
    found = place.mount.run("find", folder, "-type", "f")
    with pytest.raises(OSError, match="Input/output error") as caught:
        user.listdir(folder)

    assert caught.value.errno == errno.EIO
    for done in (listed, found):
        assert done.returncode != 0
        assert "Input/output error" in done.stderr
    assert len(place.proxy.log.select(Kind.LIST)) <= 100
    place.proxy.add(bucket)
    place.proxy.remove(broken)
    assert found_by_ls(place, folder) == FILES
    assert user.read_file(folder + "f39") == content_of("f39")


@pytest.mark.parametrize("break_paging", [_breaking_off, _always_the_same_page, _in_circles])
def test_names_behind_a_page_that_leads_nowhere_are_not_called_absent(
    place: Scene, user: FileUser, break_paging: Callable[[ListedBucket], Hook]
) -> None:
    folder = place.folder()
    place.proxy.add(break_paging(bucket_of(FILES, folder, page_size=7)))
    fd = user.open(folder, flags=0o200000)  # O_DIRECTORY

    # The first two are asked for by themselves, for the third the directory is listed; it would stand on page 4.
    first, second, third = user.each("size_below", [(fd, name) for name in ("f39", "f30", "f21")], threads=1)

    size = len(content_of("f39"))
    assert [first, second] == [size, size]
    assert third == size or getattr(third, "errno", None) == errno.EIO


def test_a_first_version_page_without_names_and_marker_is_an_error(old_server: Scene) -> None:
    bucket = bucket_of(FILES, "d/", page_size=7, is_version_1=True)

    def emptied(request: Request) -> Action | None:
        action = bucket(request)
        if request.kind is not Kind.LIST or action is None or not request.query.get("marker"):
            return action
        return _rewritten(action, lambda body: re.sub(rb"<NextMarker>.*</Contents>", b"", body))

    broken = old_server.proxy.add(emptied)

    listed = old_server.mount.run("ls", "d")
    old_server.proxy.add(bucket)
    old_server.proxy.remove(broken)

    assert listed.returncode != 0
    assert "Input/output error" in listed.stderr
    assert found_by_ls(old_server, "d") == FILES


# Names that sort around a directory

AROUND = ["dir", "dir-", "dir-1", "dir.x", *(f"dir/{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"), "dir0"]

SHOWN = ["dir-", "dir-1", "dir.x", "dir", "dir0"]
"""In the order of the store, where ``dir/`` stands behind ``dir.x``."""


def check_around(user: FileUser, folder: str) -> None:
    """Every name has its kind, and its bytes."""
    for name in SHOWN[:3] + SHOWN[4:]:
        assert user.read_file(folder + name) == content_of(name)
        with pytest.raises(NotADirectoryError):
            user.listdir(folder + name)
    for key in AROUND[4:-1]:
        assert user.read_file(folder + key) == content_of(key)
    assert user.read_file(folder + "@s3mount-file:dir") == content_of("dir")
    with pytest.raises(FileNotFoundError):
        user.size(folder + "dir/0")
    with pytest.raises(FileNotFoundError):
        user.size(folder + "di")


@pytest.mark.parametrize("page_size", [1, 2, 3, 4, 5])
def test_names_around_a_directory_are_listed_once_with_pages_of_any_size(
    place: Scene, user: FileUser, page_size: int
) -> None:
    folder = place.folder()
    place.proxy.add(bucket_of(AROUND, folder, page_size=page_size))

    listed = user.listdir(folder)
    below = user.listdir(folder + "dir")

    assert listed == SHOWN
    assert below == list("abcdefghijklmnopqrstuvwxyz")
    assert found_by_find(place, folder) == paths_of(AROUND)
    check_around(user, folder)


@pytest.mark.parametrize("page_size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("keeps_names", [True, False])
def test_names_around_a_directory_are_found_without_a_listing_with_pages_of_any_size(
    place: Scene, doubting: Scene, *, keeps_names: bool, page_size: int
) -> None:
    used = place if keeps_names else doubting
    folder = used.folder()
    used.proxy.add(bucket_of(AROUND, folder, page_size=page_size))

    with used.user() as user:
        check_around(user, folder)

        assert user.listdir(folder) == SHOWN


# What a short page shows is not the whole directory


@pytest.mark.parametrize("keeps_names", [True, False])
def test_with_pages_of_two_names_no_name_is_lost_and_no_change_gets_through(
    place: Scene, doubting: Scene, *, keeps_names: bool
) -> None:
    used = place if keeps_names else doubting
    folder = used.folder()
    names = [f"f{index:03}" for index in range(11)]
    used.proxy.add(bucket_of([f"dir/{name}" for name in names], folder, page_size=2))
    directory = f"{folder}dir"
    with used.user() as user:
        user.size(directory)
        for missing in ("f", "f0035", "zz"):
            with pytest.raises(FileNotFoundError):
                user.size(f"{directory}/{missing}")
        assert user.listdir(directory) == names
        with pytest.raises(FileNotFoundError):
            user.size(f"{directory}/f0035")
        assert user.read_file(f"{directory}/f007") == content_of("dir/f007")

        for change in (["rmdir", directory], ["mv", "-T", directory, f"{folder}dir2"]):
            done = used.mount.run(*change)
            assert done.returncode != 0
            assert "Read-only file system" in done.stderr

        assert user.listdir(directory) == names
        assert user.listdir(folder) == ["dir"]
        assert user.read_files([f"{directory}/{name}" for name in names], threads=4) == [
            content_of(f"dir/{name}") for name in names
        ]
    assert {exchange.kind for exchange in used.proxy.log.select()} <= {Kind.LIST, Kind.HEAD, Kind.GET}
