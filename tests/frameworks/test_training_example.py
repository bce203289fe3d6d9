"""The example of docs/training.md, run as it stands there."""

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.data import coded_bytes
from tests.support.http_heads import Kind
from tests.support.scene import Scene, scene
from tests.support.servers import S3Server

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "training.md"

FILES = 300
SIZE = 50_000
PATHS = [f"c{index % 5}/f{index:03}" for index in range(FILES)]
EPOCHS = 2

COMMAND = """#!/bin/sh
# s3mount, but what it is told of an order is kept as well.
{{ cat; echo; }} | tee -a '{orders}' | '{python}' -P -m s3mount.cli "$@"
"""

LOOP = """

if __name__ == "__main__":
    import hashlib
    import json
    import sys

    samples = []

    def step(batch):
        samples.extend([path, hashlib.sha256(content).hexdigest()] for path, content in batch)

    mount_point, epochs, result = sys.argv[1:]
    train(step, mount_point, epochs=int(epochs))
    Path(result).write_text(json.dumps(samples))
"""


@pytest.fixture
def place(seaweed: S3Server) -> Iterator[Scene]:
    with scene(seaweed) as built:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda path: built.put(path, SIZE), PATHS))
        built.proxy.log.clear()
        yield built


def run_example(place: Scene, folder: Path) -> tuple[list[tuple[str, str]], list[str]]:
    """Train on all files; returns path and digest of each sample that was seen, and the paths that were handed over."""
    [example] = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    script, command, orders, result = (folder / name for name in ("example.py", "s3mount", "orders", "samples"))
    script.write_text(example + LOOP, "utf-8")
    command.write_text(COMMAND.format(orders=orders, python=sys.executable), "utf-8")
    command.chmod(0o755)
    line = f'PATH="{folder}:$PATH" exec "$@"'
    arguments = (str(script), str(place.mount.path), str(EPOCHS), str(result))

    done = place.mount.run("sh", "-c", line, "sh", sys.executable, "-P", *arguments, timeout=60)

    assert done.returncode == 0, done.stderr
    assert done.stdout == f"s3mount: {place.mount.path} fetches {FILES} files in that order\n" * EPOCHS
    return [(path, digest) for path, digest in json.loads(result.read_text("utf-8"))], orders.read_text().splitlines()


def test_the_example_reads_in_the_order_it_hands_over_and_fetches_every_file_once(place: Scene, tmp_path: Path) -> None:
    samples, handed_over = run_example(place, tmp_path)
    place.proxy.log.wait_until_idle()

    paths = [str(Path(path).relative_to(place.mount.path)) for path, _ in samples]
    epochs = paths[:FILES], paths[FILES:]
    assert epochs[0] != epochs[1]
    assert all(sorted(epoch) == sorted(PATHS) for epoch in epochs)
    assert handed_over == [path for path, _ in samples]
    digests = {path: hashlib.sha256(coded_bytes(path, 0, SIZE)).hexdigest() for path in PATHS}
    assert [digest for _, digest in samples] == [digests[path] for path in paths]
    assert {get.key for get in place.gets()} == set(PATHS)
    assert len(place.gets()) == FILES + place.gets_sent_twice()
    assert not place.proxy.log.select(Kind.HEAD)
