"""Every error s3mount raises, and the one table from error to errno.

Stores raise the most precise class with the facts in attributes. `fuse.py` asks `errno_of` at its boundary; nothing
else imports `errno`.
"""

import errno


class S3MountError(Exception):
    """Base of all errors of ours."""


class FileError(S3MountError):
    """An operation on one file or directory failed."""


class NoSuchEntryError(FileError):
    """There is no such object or directory: a true 404 or a complete listing says so."""


class AccessDeniedError(FileError):
    """The store refused the credentials or the permission."""


class StaleObjectError(FileError):
    """The object has another version now, or is gone, since the handle was opened."""


class ArchivedObjectError(FileError):
    """The object is archived and has to be restored before it can be read."""


class StoreUnavailableError(FileError):
    """The store did not answer, or not usefully, before the deadline."""


class CorruptResponseError(FileError):
    """The store answered with something that is not what was asked for."""


class InvalidRequestError(FileError):
    """The store refused the request as malformed, for instance for its key."""


class InvalidNameError(FileError):
    """The name cannot be part of a key."""


class NameTooLongError(FileError):
    """The name exceeds 255 bytes, or its key 1,024."""


class ReadOnlyError(FileError):
    """The mount does not take changes."""


class NotADirectoryEntryError(FileError):
    """A directory was expected."""


class IsADirectoryEntryError(FileError):
    """A file was expected."""


class NoSuchAttributeError(FileError):
    """There is no such extended attribute."""


class UnsupportedOperationError(FileError):
    """S3 cannot express this operation."""


class BadHandleError(FileError):
    """The handle is not open."""


class MountError(S3MountError):
    """The mount command cannot do what was asked; the message is one line that says what to do."""

    exit_code = 1
    """Exit status of the command, see docs/configuration.md."""


class UsageError(MountError):
    """An option or argument is wrong."""

    exit_code = 2


class MountPointError(MountError):
    """The mount point is missing, in use or not usable."""

    exit_code = 3


class FuseUnavailableError(MountError):
    """The kernel or the permissions do not allow FUSE mounts."""

    exit_code = 4


class BucketError(MountError):
    """The bucket is missing, in another region, or may not be listed."""

    exit_code = 5


class CredentialsMissingError(MountError):
    """There are no usable credentials."""

    exit_code = 6


class EndpointError(MountError):
    """The endpoint does not answer."""

    exit_code = 7


class NotMountedError(MountError):
    """There is no mount of ours at that place."""

    exit_code = 8


class StartTimeoutError(MountError):
    """The file system was not ready in time."""

    exit_code = 9


class DaemonError(MountError):
    """The daemon does not answer, or died."""

    exit_code = 10


class InterruptedStartError(MountError):
    """A signal came before the file system was ready."""

    exit_code = 130


class InternalError(MountError):
    """A defect of ours; the traceback is in the log."""

    exit_code = 70


ERRNO_OF: dict[type[FileError], int] = {
    NoSuchEntryError: errno.ENOENT,
    AccessDeniedError: errno.EACCES,
    StaleObjectError: errno.ESTALE,
    ArchivedObjectError: errno.EIO,
    StoreUnavailableError: errno.EIO,
    CorruptResponseError: errno.EIO,
    InvalidRequestError: errno.EINVAL,
    InvalidNameError: errno.EILSEQ,
    NameTooLongError: errno.ENAMETOOLONG,
    ReadOnlyError: errno.EROFS,
    NotADirectoryEntryError: errno.ENOTDIR,
    IsADirectoryEntryError: errno.EISDIR,
    NoSuchAttributeError: errno.ENODATA,
    UnsupportedOperationError: errno.EOPNOTSUPP,
    BadHandleError: errno.EBADF,
}
"""The whole table; docs/semantics.md gives the reasons."""


def errno_of(error: Exception) -> int:
    """Errno an application sees for *error*; ``EIO`` for whatever is not in the table."""
    for cls in type(error).__mro__:
        if cls in ERRNO_OF:
            return ERRNO_OF[cls]
    return errno.EIO


NEVER_NEEDED = errno.ENOSYS
"""What the kernel is answered to a request it need not send again; no application sees it."""


def errno_name(number: int) -> str:
    """Symbolic name of an errno, such as ``ENOENT``."""
    if number == errno.EOPNOTSUPP:
        return "EOPNOTSUPP"  # Linux has two names for it; this is the one its manual pages use
    return errno.errorcode.get(number, str(number))


def is_disconnected(error: OSError) -> bool:
    """Whether a system call failed because the daemon behind a FUSE mount is gone."""
    return error.errno in {errno.ENOTCONN, errno.ECONNABORTED}


def is_busy(error: OSError) -> bool:
    """Whether a system call failed because files are open or the place is in use."""
    return error.errno == errno.EBUSY


def is_no_device(error: OSError) -> bool:
    """Whether a device file has no driver behind it."""
    return error.errno in {errno.ENODEV, errno.ENXIO}
