"""Errors for users: one line with the faulty option or file, its value and the remedy."""

from __future__ import annotations

import errno

from dpprobe.shown_text import show_message

# The system's path errors that last until the user corrects the path; retries may fix all others.
LASTING = {
    errno.EACCES,
    errno.EINVAL,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
}

NETWORK = {"httpcore", "httpx", "huggingface_hub", "requests", "urllib3"}


class DpprobeError(Exception):
    """Base class of all errors for users.

    Attributes:
      passes: True if a retry may succeed without any change.
    """

    passes = False

    def __str__(self) -> str:
        single = len(self.args) == 1 and isinstance(self.args[0], str)  # perhaps `Lines`
        message = self.args[0] if single else super().__str__()
        return show_message(message)


class ConfigError(DpprobeError):
    """The study's configuration is wrong; raised before any job starts."""


class MissingExtraError(ConfigError):
    """A package of an extra is not installed."""


class DeviceError(ConfigError):
    """This machine lacks the device that a study asks for; another machine may have it."""

    passes = True


class DataError(DpprobeError):
    """A dataset, an image or a table is missing, damaged or inconsistent."""


class NothingToShow(DataError):
    """A figure has no result to show, for example losses if all test images have one class."""


class DownloadError(DpprobeError):
    """A file could not be downloaded."""

    passes = True


class WrongDownloadError(DownloadError):
    """A server refuses a download or sends an unexpected file."""

    passes = False


class WorkerError(DpprobeError):
    """A process of this job was killed or hangs; often it had too little memory."""

    passes = True


class StoreError(DpprobeError):
    """A feature shard or its manifest is missing, damaged or replaced by another file."""


class PrivacyError(DpprobeError):
    """A mechanism cannot run as planned, or its epsilon cannot be computed."""


class WaitingError(DpprobeError):
    """Other sites have not answered yet; rerun the command after their answers."""

    passes = True


class BudgetError(PrivacyError):
    """A release or a fit would cost more epsilon than the budget of its dataset allows."""


class DiskError(DpprobeError):
    """A file cannot be written: the disk is full or read-only."""

    passes = True


class TrackingError(DpprobeError):
    """The MLflow store cannot be written."""

    passes = True


def may_pass(error: BaseException) -> bool:
    """Returns True if a retry may succeed without any change.

    Returns False only for dpprobe's own errors: if their `passes` is False, or if they were not
    caused by the system, the network or a lack of memory.
    """
    if not isinstance(error, DpprobeError):
        return True
    if "passes" in vars(error):  # decided for this error, whatever caused it
        return error.passes
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DpprobeError) and cause.passes:
            return True
        if isinstance(cause, MemoryError) or "out of memory" in str(cause):
            return True
        if isinstance(cause, OSError) and cause.errno not in {None, *LASTING}:
            return True
        # network libraries' errors have no errno
        library = type(cause).__module__.partition(".")[0]
        if isinstance(cause, TimeoutError | ConnectionError) or library in NETWORK:
            return True
        cause = cause.__cause__ or cause.__context__
    return False
