"""Measurements that are kept: ours beside bare loops and, where installed, s3fs and rclone, in one run.

``make bench`` runs all, ``python -m scripts.bench NAME…`` some, ``--quick`` those of reads with an eighth of the data.
Figures are ratios and counts first: requests are counted at the server (`object_server`, for reads) or by a proxy
before it, CPU seconds are those of the daemon, wall time is shown last and drifts with the machine. Each step has a
fresh mount, so that nothing is left in the kernel's cache.
"""
