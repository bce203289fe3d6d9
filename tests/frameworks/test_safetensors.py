"""R3: many processes open one file of weights, which is fetched once for all of them."""

from tests.support.made import Maker
from tests.support.proxy_log import bytes_sent
from tests.support.scene import scene
from tests.support.servers import S3Server

MAX_FETCHED = 1.05
"""Bytes fetched per byte of the file."""

PROCESSES = 8

SAVE = """
import hashlib, sys
import torch
from safetensors.torch import save_file
generator = torch.Generator().manual_seed(2)
tensors = {f"layer{index}": torch.rand(1 << 20, generator=generator) for index in range(16)}
save_file(tensors, sys.argv[1])
print(*(hashlib.sha256(tensors[name].numpy()).hexdigest() for name in sorted(tensors)))
"""

LOAD = """
import hashlib, multiprocessing, sys
import torch
from safetensors import safe_open
def load(number):
    with safe_open(sys.argv[1], framework="pt") as file:
        return " ".join(hashlib.sha256(file.get_tensor(name).numpy()).hexdigest() for name in sorted(file.keys()))
if __name__ == "__main__":
    context, processes = multiprocessing.get_context("fork"), int(sys.argv[2])
    with context.Pool(processes) as pool:
        print("\\n".join(pool.map(load, range(processes), chunksize=1)))
"""


def test_processes_that_open_one_file_of_weights_fetch_it_once(seaweed: S3Server, maker: Maker) -> None:
    content, digests = maker.make(SAVE)
    with scene(seaweed) as place:
        place.client.put_object(Bucket=place.bucket, Key="models/model.safetensors", Body=content)

        done = place.mount.run_python(LOAD, "models/model.safetensors", str(PROCESSES), timeout=60)
        place.proxy.log.wait_until_idle()

        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [digests] * PROCESSES
        assert bytes_sent(place.gets()) <= MAX_FETCHED * len(content)
