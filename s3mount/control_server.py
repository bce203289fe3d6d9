"""The daemon's side of the status socket. Nothing a client does harms the mount or another client.

The socket is made under another name and renamed over a stale one, so there is a working one at every moment; at the
end it is removed only if it is still ours.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import trio

from s3mount import __version__
from s3mount.control import MAX_BODY_BYTES
from s3mount.errors import UsageError
from s3mount.metrics import Metrics
from s3mount.options import MountPointOptions
from s3mount.status import describe

log = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 4096

CLIENT_SECONDS = 5.0
"""How long a client may take to send its request and take the reply."""

BODY_SECONDS = 60.0
"""How long it may take in addition where the request has a body."""

MAX_CLIENTS = 16

Handler = Callable[[bytes], object]
"""Answers one command, given its body, with something JSON can express."""


async def serve_control(
    mount_point: MountPointOptions,
    metrics: Metrics,
    add_hint: Callable[[bytes], int],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer ``s3mount status`` and ``s3mount hint`` until cancelled; just wait if there is no place for a socket."""
    if mount_point.control_socket is None:
        task_status.started()
        await trio.sleep_forever()
    started_at = time.monotonic()

    def status(_body: bytes) -> object:
        return describe(
            mount_point,
            metrics,
            version=__version__,
            pid=os.getpid(),
            uptime_seconds=time.monotonic() - started_at,
        )

    def hint(body: bytes) -> object:
        try:
            return {"paths": add_hint(body)}
        except UsageError as error:
            return {"error": str(error)}

    await serve(mount_point.control_socket, {"status": status, "hint": hint}, task_status=task_status)


async def serve(
    path: Path, handlers: Mapping[str, Handler], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Answer requests at *path* until cancelled.

    Raises:
        OSError: There can be no socket at *path*; raised before it has started.
    """
    with await _listen(path) as listener:
        inode = _inode(path)
        try:
            task_status.started()
            async with trio.open_nursery() as nursery:
                limit = trio.Semaphore(MAX_CLIENTS)
                while True:
                    await limit.acquire()
                    nursery.start_soon(_serve_client, await _accept(listener), handlers, limit)
        finally:
            _remove(path, inode)


def _remove(path: Path, inode: int) -> None:
    """Remove the socket, unless another mount has put its own there since (after a lazy unmount)."""
    with suppress(OSError):
        if _inode(path) == inode:
            path.unlink()


def _inode(path: Path) -> int:
    return path.lstat().st_ino


async def _accept(listener: trio.socket.SocketType) -> trio.socket.SocketType:
    while True:
        try:
            connection, _ = await listener.accept()
        except OSError as error:
            log.warning("the status socket takes no clients for now: %s", error.strerror)
            await trio.sleep(1)
        else:
            return connection


async def _listen(path: Path) -> trio.socket.SocketType:
    fresh = path.with_name(f"{path.name}.new")
    listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    try:
        fresh.unlink(missing_ok=True)
        await listener.bind(str(fresh))
        fresh.chmod(0o600)
        listener.listen(MAX_CLIENTS)
        fresh.rename(path)
    except BaseException:
        listener.close()
        raise
    return listener


async def _serve_client(
    connection: trio.socket.SocketType, handlers: Mapping[str, Handler], limit: trio.Semaphore
) -> None:
    """Answer one request."""
    try:
        with connection, trio.move_on_after(CLIENT_SECONDS) as scope, suppress(OSError):
            stream = trio.SocketStream(connection)
            with suppress(trio.BrokenResourceError):
                line, rest = await _receive_line(stream)
                scope.deadline += BODY_SECONDS
                reply = await _reply(line, rest, stream, handlers)
                await stream.send_all(json.dumps(reply).encode() + b"\n")
    except Exception:
        log.exception("internal error while answering at the status socket")
    finally:
        limit.release()


async def _receive_line(stream: trio.SocketStream) -> tuple[bytes, bytes]:
    """The request, without the line's end, and what came after it; what is too long is cut."""
    received = bytearray()
    while b"\n" not in received and len(received) < MAX_REQUEST_BYTES:
        got = await stream.receive_some(MAX_REQUEST_BYTES)
        if not got:
            break
        received += got
    line, _, rest = received.partition(b"\n")
    return bytes(line), bytes(rest)


async def _reply(line: bytes, rest: bytes, stream: trio.SocketStream, handlers: Mapping[str, Handler]) -> object:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        return {"error": "a request is one line of JSON"}
    command = request.get("command") if isinstance(request, dict) else None
    handler = handlers.get(command) if isinstance(command, str) else None
    if handler is None:
        return {"error": f"commands are: {', '.join(sorted(handlers))}"}
    size = request.get("body_bytes", 0)
    if not isinstance(size, int) or not 0 <= size <= MAX_BODY_BYTES:
        return {"error": f"a body has at most {MAX_BODY_BYTES} bytes"}
    body = await _receive_body(stream, rest, size)
    return {"error": "the body ended early"} if body is None else handler(body)


async def _receive_body(stream: trio.SocketStream, start: bytes, size: int) -> bytes | None:
    body = bytearray(start)
    while len(body) < size:
        got = await stream.receive_some(1 << 16)
        if not got:
            return None
        body += got
    return bytes(body[:size])
