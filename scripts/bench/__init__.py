"""Measurements that are kept: ours beside bare loops and, where installed, s3fs and rclone, in one run.

``make bench`` runs all, ``python -m scripts.bench NAME…`` some. Figures are ratios and counts first: requests are
counted by a proxy before the server, CPU seconds are those of the daemon, wall time is shown last and drifts with the
machine.
"""
