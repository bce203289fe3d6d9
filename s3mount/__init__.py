"""Mount S3 buckets as directories on machine-learning training hosts."""

__version__ = "0.1.0"
