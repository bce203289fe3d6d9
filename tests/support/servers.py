"""Real S3 servers on loopback: SeaweedFS as a process, moto in this one. Each ends with its context manager.

`scripts/s3-server` and the demo use the same SeaweedFS.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
from botocore.config import Config
from moto.server import ThreadedMotoServer
from types_boto3_s3 import S3Client

ACCESS_KEY = "s3mount-test-key"
SECRET_KEY = "s3mount-test-secret"  # known to everybody, and only good on loopback
REGION = "us-east-1"

START_SECONDS = 30.0
"""How long SeaweedFS may take; 2.6 s on 2 idle cores."""

START_ATTEMPTS = 3
"""Between finding a free port and using it, somebody else may take it."""


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server."""

    endpoint_url: str
    pid: int | None = None
    """Of the process, if it is one of its own."""
    directory: Path | None = None
    """Where it keeps its data."""

    @property
    def environment(self) -> dict[str, str]:
        """What lets any S3 client use it."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint_url,
        }

    def client(self) -> S3Client:
        """A client that goes straight to it."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
            config=Config(
                retries={"max_attempts": 5},
                max_pool_connections=32,
                s3={"addressing_style": "path"},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def new_bucket(self) -> str:
        """Create a bucket with a fresh name."""
        name = f"bucket-{secrets.token_hex(6)}"
        client = self.client()
        try:
            client.create_bucket(Bucket=name)
        finally:
            client.close()
        return name


@contextlib.contextmanager
def moto_server() -> Iterator[S3Server]:
    """Run moto in this process. It takes any key, also those no file system can show."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield S3Server(f"http://{host}:{port}")
    finally:
        server.stop()


@contextlib.contextmanager
def seaweed_server(directory: Path | None = None) -> Iterator[S3Server]:
    """Run SeaweedFS; with its data in *directory*, or in a temporary one that is removed afterwards."""
    with contextlib.ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="s3mount-seaweed-")))
        server = start_seaweed(directory)
        stack.callback(stop_seaweed, server)
        yield server


def start_seaweed(directory: Path) -> S3Server:
    """Start SeaweedFS and return once it answers; it goes on until `stop_seaweed`.

    Raises:
        RuntimeError: It does not start; the message ends with what it printed.
    """
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    for _ in range(START_ATTEMPTS - 1):
        with contextlib.suppress(RuntimeError):
            return _start_once(directory)
    return _start_once(directory)


def stop_seaweed(server: S3Server) -> None:
    """End the server's process, at once: asked to, it takes 25 s. Doing it twice does no harm."""
    if server.directory is not None:
        _stop_in(server.directory)


def _stop_in(directory: Path) -> None:
    """End the server with its data in *directory*: also one whose number nobody knows yet, or has any more."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            arguments = entry.read_text(encoding="utf-8", errors="replace").split("\0")
            if f"-dir={directory}" in arguments:
                _end(int(entry.parent.name), arguments)


def _end(pid: int, arguments: list[str]) -> None:
    os.kill(pid, signal.SIGKILL)
    while _is_running(pid):
        time.sleep(0.01)
    ports = {value for option, _, value in (argument.partition("=") for argument in arguments) if ".port" in option}
    for path in Path("/tmp").glob("seaweedfs-*.sock"):  # SeaweedFS knows no other place
        if path.stem.rpartition("-")[2] in ports:
            path.unlink(missing_ok=True)


def _start_once(directory: Path) -> S3Server:
    ports = _free_ports(10)
    names = ["master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"]
    names += ["s3.port", "s3.port.grpc"]
    identity = {
        "name": "test",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = directory / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}), encoding="utf-8")
    arguments = [
        _weed(),
        "server",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-dir={directory}",
        "-filer",
        "-s3",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.telemetry=false",
        # Or it looks for other masters first: 3.8 s to start instead of 2.6, and 8.5 if the volume server is faster.
        "-master.peers=none",
        f"-s3.config={config}",
        # Many small volumes: each bucket takes some, and an empty one takes no room.
        "-volume.max=500",
        "-master.volumeSizeLimitMB=1024",
        *(f"-{name}={port}" for name, port in zip(names, ports, strict=False)),
    ]
    log = directory / "weed.log"
    with contextlib.ExitStack() as on_failure, log.open("wb") as output:
        on_failure.callback(_stop_in, directory)  # first: Ctrl-C may come before the process has told its number
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=directory,
            start_new_session=True,
            # A bucket begins with one volume instead of 7: a whole run of the tests makes more than a hundred buckets.
            env={**os.environ, "TMPDIR": str(directory), "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"},
        )
        server = S3Server(f"http://127.0.0.1:{ports[names.index('s3.port')]}", process.pid, directory)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            if _answers(server):
                on_failure.pop_all()
                # The process is ended by pid, possibly by another program.
                process.returncode = 0
                return server
            time.sleep(0.1)
    raise RuntimeError(f"SeaweedFS did not start: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")


def _answers(server: S3Server) -> bool:
    """Whether it can store an object: it answers some requests before it has a volume to write to."""
    try:
        with urllib.request.urlopen(server.endpoint_url, timeout=1):
            pass
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        return False
    client = server.client()
    try:
        client.create_bucket(Bucket="ready")
        client.put_object(Bucket="ready", Key="probe", Body=b"x")
        client.delete_object(Bucket="ready", Key="probe")
        client.delete_bucket(Bucket="ready")
    except Exception:  # noqa: BLE001 whatever it is, it is not ready
        return False
    finally:
        client.close()
    return True


def _is_running(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [int(sock.getsockname()[1]) for sock in sockets]


def _weed() -> str:
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise RuntimeError("there is no weed command: run make install")
    return found
