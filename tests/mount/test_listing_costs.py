"""What listings and lookups cost, counted before the server, and that they are complete."""

import random
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.faults import Action, Rule, s3_error, slow_down
from tests.support.http_heads import Kind
from tests.support.proxy_log import most_at_once
from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

FILES = 2500
DIRECTORIES = 40


@pytest.fixture(scope="module")
def big(seaweed: S3Server) -> Iterator[Scene]:
    """2,500 files in one directory, and 40 directories with 5 files each."""
    with scene(seaweed, "--ttl", "1h", life_seconds=300) as built:
        put_all(built, [f"flat/f{index:04}" for index in range(FILES)])
        put_all(built, [f"tree/d{index:02}/f{number}" for index in range(DIRECTORIES) for number in range(5)])
        built.reset()
        yield built


@pytest.fixture
def place(seaweed: S3Server) -> Iterator[Scene]:
    with scene(seaweed, "--ttl", "1h", "--request-deadline", "2s", allow_warnings=True) as built:
        yield built


def put_all(place: Scene, keys: list[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: place.client.put_object(Bucket=place.bucket, Key=key, Body=b"12345"), keys))


def counts(place: Scene) -> dict[str, int]:
    found: dict[str, int] = {}
    for exchange in place.proxy.log.select():
        found[exchange.kind.value] = found.get(exchange.kind.value, 0) + 1
    return found


def test_ls_of_2500_files_costs_three_lists_and_its_stats_nothing(big: Scene) -> None:
    listed = big.mount.run("ls", "-l", "flat")

    assert len(re.findall(r"^-.* 5 .* f\d{4}$", listed.stdout, re.MULTILINE)) == FILES
    # One more to find the directory itself.
    assert counts(big) == {"list": 4}

    big.proxy.log.clear()
    for command in (["ls", "-l", "flat"], ["find", "flat", "-size", "+0"], ["du", "-s", "flat"]):
        assert big.mount.run(*command).returncode == 0
    scan = "import os, sys\nprint(sum(entry.stat().st_size for entry in os.scandir('flat')))"
    assert big.mount.run_python(scan).stdout == f"{5 * FILES}\n"
    assert counts(big) == {}


def test_a_walk_lists_each_directory_once_and_several_at_a_time(big: Scene) -> None:
    big.proxy.log.clear()
    big.proxy.latency_seconds = 0.05

    found = big.mount.run("find", "tree", "-type", "f")

    big.proxy.latency_seconds = 0.0
    assert len(found.stdout.splitlines()) == DIRECTORIES * 5
    listed = [exchange.request.query.get("prefix") for exchange in big.proxy.log.select(Kind.LIST)]
    assert sorted(prefix for prefix in listed if prefix != "tree") == sorted(
        ["tree/", *(f"tree/d{index:02}/" for index in range(DIRECTORIES))]
    )
    assert most_at_once(big.proxy.log.select(Kind.LIST)) >= 4
    assert not big.proxy.log.select(Kind.HEAD)


def test_a_big_directory_shows_entries_before_the_listing_is_complete(place: Scene) -> None:
    put_all(place, [f"f{index:04}" for index in range(1200)])
    release = threading.Event()
    place.proxy.add(Rule(Action(hold=release), kind=Kind.LIST, where=lambda r: "continuation-token" in r.query))
    reader = place.mount.start_python("import os\nfor entry in os.scandir(): print(entry.name, flush=True)")
    assert reader.stdout is not None
    first = reader.stdout.readline()

    release.set()

    names = [first.strip(), *reader.stdout.read().split()]
    reader.communicate(timeout=20)
    assert sorted(names) == [f"f{index:04}" for index in range(1200)]


def test_reading_files_of_a_stored_list_costs_little_more_than_a_request_each(place: Scene) -> None:
    names = [f"c{index % 10}/f{index}" for index in range(200)]
    put_all(place, names)
    code = "import sys\nfor name in sys.argv[1:]:\n    assert open(name).read() == '12345'"
    shuffled = random.Random(7).sample(names, len(names))

    assert place.mount.run_python(code, *shuffled).returncode == 0

    found = counts(place)
    assert found["get"] == len(names)
    assert found.get("head", 0) == 0
    # Each directory: a probe for itself, two for its first names, then one listing.
    assert found["list"] <= 10 * 4
    place.proxy.log.clear()
    assert place.mount.run_python(code, *shuffled).returncode == 0
    assert counts(place) == {}


def test_a_missing_name_costs_one_request_while_its_absence_is_fresh(place: Scene) -> None:
    place.put("a", 1)

    for _ in range(5):
        assert not place.mount.run_python("import os; print(os.path.exists('nope'))").stdout.startswith("True")

    assert counts(place) == {"list": 1}


def test_without_a_ttl_changes_are_seen_at_once_for_a_request_per_lookup(seaweed: S3Server) -> None:
    with scene(seaweed, "--ttl", "0") as place:
        look = "import os; print(os.path.exists('new'))"
        assert place.mount.run_python(look).stdout == "False\n"
        place.put("new", 1)
        assert place.mount.run_python(look).stdout == "True\n"
        place.proxy.log.clear()
        assert place.mount.run_python("print(len(open('new', 'rb').read()))").stdout == "1\n"
        assert {kind: count for kind, count in counts(place).items() if kind != "get"} == {"list": 1}
        place.delete("new")
        assert place.mount.run_python(look).stdout == "False\n"


def test_throttled_lookups_end_as_errors_other_than_absence(place: Scene) -> None:
    place.put("there", 1)
    everything = place.proxy.add(Rule(slow_down(), where=lambda r: r.kind in {Kind.LIST, Kind.HEAD}))
    look = "import os\ntry: os.stat('there'); print('found')\nexcept OSError as error: print(error.errno)"

    failed = place.mount.run_python(look).stdout
    place.proxy.remove(everything)

    assert failed == "5\n"
    assert place.mount.run_python(look).stdout == "found\n"


@pytest.mark.parametrize("refused", [Kind.HEAD, Kind.LIST])
def test_a_file_is_found_where_only_one_of_head_and_list_is_allowed(place: Scene, refused: Kind) -> None:
    place.put("there", 1)
    place.proxy.add(Rule(s3_error(403, "AccessDenied"), kind=refused))

    look = "import os\ntry: os.stat('there'); print('found')\nexcept OSError as error: print(error.errno)"

    assert place.mount.run_python(look).stdout == "found\n"


def test_where_nothing_is_allowed_names_are_denied_not_absent(place: Scene) -> None:
    denied = place.proxy.add(s3_error(403, "AccessDenied"))
    look = "import os\ntry: os.stat('there')\nexcept OSError as error: print(error.errno)"

    assert place.mount.run_python(look).stdout == "13\n"
    assert place.mount.run("ls").returncode != 0
    place.proxy.remove(denied)
    place.put("there", 1)
    assert place.mount.run_python(look).stdout == ""


def truncated_without_token(body: bytes) -> bytes:
    body = re.sub(rb"<IsTruncated>.*?</IsTruncated>", b"<IsTruncated>true</IsTruncated>", body)
    return re.sub(rb"<NextContinuationToken>.*?</NextContinuationToken>", b"", body)


def truncated_with_empty_token(body: bytes) -> bytes:
    body = truncated_without_token(body)
    return body.replace(b"</IsTruncated>", b"</IsTruncated><NextContinuationToken></NextContinuationToken>")


def same_token_for_ever(body: bytes) -> bytes:
    body = truncated_without_token(body)
    return body.replace(b"</IsTruncated>", b"</IsTruncated><NextContinuationToken>x</NextContinuationToken>")


@pytest.mark.parametrize("rewrite", [truncated_without_token, truncated_with_empty_token, same_token_for_ever])
def test_a_listing_that_cannot_be_completed_is_an_error(place: Scene, rewrite: Callable[[bytes], bytes]) -> None:
    put_all(place, ["a", "b"])

    place.proxy.add(Rule(Action(rewrite_body=rewrite), kind=Kind.LIST))

    listed = place.mount.run("ls", timeout=30)

    assert listed.returncode != 0
    assert "Input/output error" in listed.stderr
    place.proxy.heal()
    assert place.mount.run("ls").stdout == "a\nb\n"


def test_a_token_on_the_last_page_is_ignored(place: Scene) -> None:
    put_all(place, ["a", "b"])
    token = b"</IsTruncated><NextContinuationToken>x</NextContinuationToken>"
    place.proxy.add(Rule(Action(rewrite_body=lambda body: body.replace(b"</IsTruncated>", token)), kind=Kind.LIST))

    assert place.mount.run("ls").stdout == "a\nb\n"
