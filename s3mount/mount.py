"""The composition root: builds every object of a mount, bottom-up, and runs it until it is unmounted or stopped."""

import gc
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable

import trio

from s3mount import kernel
from s3mount.cache.blocks import BlockCache
from s3mount.control_server import serve_control
from s3mount.filesystem import FileSystem
from s3mount.fuse import FuseMount, FuseOperations, invalidate_name
from s3mount.metrics import Gauge, Metrics
from s3mount.namespace.tree import Tree
from s3mount.options import MountOptions
from s3mount.store.s3 import open_s3_store
from s3mount.upcoming import UpcomingFiles

log = logging.getLogger(__name__)

DRAIN_SECONDS = 10.0
"""How long requests under way may take after a signal to stop."""

GC_THRESHOLDS = (50_000, 20, 100)
"""A million inodes are no garbage: full collections over them would stop the mount for a second each."""


async def run(options: MountOptions, *, on_ready: Callable[[], None]) -> None:
    """Mount, call *on_ready* once the file system answers, and return after it was unmounted or a signal came.

    Raises:
        MountError: It cannot be mounted; the message says why in one line.
    """
    metrics = Metrics()
    started_at = time.monotonic()
    metrics.watch(Gauge.UPTIME_SECONDS, lambda: time.monotonic() - started_at)
    async with (
        open_s3_store(options.store, metrics, probe_prefix=options.namespace.prefix) as store,
        trio.open_nursery() as nursery,
    ):
        tree = Tree(
            store,
            options.namespace,
            metrics,
            nursery,
            mounted_at_ns=time.time_ns(),
            on_stale=invalidate_name,
        )
        cache = BlockCache(store, nursery, metrics, limit_bytes=options.read.memory_bytes)
        upcoming = UpcomingFiles(tree, cache, nursery, ttl_seconds=options.namespace.ttl_seconds)
        filesystem = FileSystem(
            tree, cache, upcoming, metrics, namespace_options=options.namespace, read_options=options.read
        )
        operations = FuseOperations(filesystem, metrics, absent_ttl_seconds=options.namespace.absent_ttl_seconds)
        fuse_mount = FuseMount(operations, options.mount_point)
        try:
            nursery.start_soon(tree.expire)
            await _serve(fuse_mount, options, metrics, upcoming, on_ready=on_ready)
        finally:
            fuse_mount.close()
            nursery.cancel_scope.cancel()


async def _serve(
    fuse_mount: FuseMount,
    options: MountOptions,
    metrics: Metrics,
    upcoming: UpcomingFiles,
    *,
    on_ready: Callable[[], None],
) -> None:
    """Answer requests until unmounted or stopped."""
    # Before anybody can know that we run: a signal must find its receiver.
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:

            async def serve() -> None:
                await fuse_mount.serve()
                log.info("%s is unmounted", options.mount_point.path)
                nursery.cancel_scope.cancel()

            nursery.start_soon(serve)
            root = await trio.to_thread.run_sync(os.stat, options.mount_point.path, abandon_on_cancel=True)
            kernel.raise_limits(root.st_dev)
            await nursery.start(serve_control, options.mount_point, metrics, upcoming.add_hint)
            _settle_memory()
            on_ready()
            await _next_signal(signals)
            fuse_mount.stop()
            with trio.move_on_after(DRAIN_SECONDS):
                await _next_signal(signals)
            nursery.cancel_scope.cancel()


async def _next_signal(signals: AsyncIterator[int]) -> None:
    """Return when the process is told to end."""
    async for number in signals:
        log.info("stopping: got %s", signal.Signals(number).name)
        return


def _settle_memory() -> None:
    """Take what start-up made out of the garbage collector's sight, and let it look at the rest less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
