"""R4: some columns of a Parquet file are read without fetching all the others."""

import json

import pytest

from tests.support.made import Maker
from tests.support.proxy_log import bytes_sent
from tests.support.scene import scene
from tests.support.servers import S3Server

MAX_FETCHED = 5
"""Bytes fetched per byte of the columns that are read."""

COLUMNS = ("c1", "c5")

WRITE = """
import hashlib, json, sys
import numpy as np
import pyarrow, pyarrow.parquet
choose, rows = np.random.default_rng(3), 1 << 20
columns = {f"c{index}": choose.random(rows) for index in range(8)}
pyarrow.parquet.write_table(pyarrow.table(columns), sys.argv[1], row_group_size=rows // 8, use_dictionary=False)
footer, sizes = pyarrow.parquet.read_metadata(sys.argv[1]), dict.fromkeys(columns, 0)
for group in range(footer.num_row_groups):
    for index in range(footer.num_columns):
        chunk = footer.row_group(group).column(index)
        sizes[chunk.path_in_schema] += chunk.total_compressed_size
digests = {name: hashlib.sha256(column).hexdigest() for name, column in columns.items()}
print(json.dumps([sizes, digests]))
"""

READ = """
import hashlib, json, sys
import pyarrow.parquet
path, is_mapped, *names = sys.argv[1:]
table = pyarrow.parquet.read_table(path, columns=names, memory_map=is_mapped == "mapped")
print(json.dumps({name: hashlib.sha256(table[name].to_numpy()).hexdigest() for name in table.column_names}))
"""


@pytest.fixture(scope="module")
def table(maker: Maker) -> tuple[bytes, dict[str, int], dict[str, str]]:
    """A file of 8 columns of 8 MiB in 8 row groups; the bytes of each column in it, and its digest."""
    content, printed = maker.make(WRITE)
    sizes, digests = json.loads(printed)
    return content, sizes, digests


@pytest.mark.parametrize("way", ["read", "mapped"])
def test_two_columns_of_eight_are_right_and_the_others_mostly_left_alone(
    seaweed: S3Server, table: tuple[bytes, dict[str, int], dict[str, str]], way: str
) -> None:
    content, sizes, digests = table
    with scene(seaweed) as place:
        place.client.put_object(Bucket=place.bucket, Key="tables/t.parquet", Body=content)

        done = place.mount.run_python(READ, "tables/t.parquet", way, *COLUMNS, timeout=60)
        place.proxy.log.wait_until_idle()

        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {name: digests[name] for name in COLUMNS}
        assert bytes_sent(place.gets()) <= MAX_FETCHED * sum(sizes[name] for name in COLUMNS)
