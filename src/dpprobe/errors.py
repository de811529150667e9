"""The errors a user is meant to read: one line that names the thing, the value and the remedy."""


class DpprobeError(Exception):
    """Base of every error raised for a person to read."""


class ConfigError(DpprobeError):
    """The study's configuration is wrong; raised before any job starts."""


class DataError(DpprobeError):
    """A dataset, an image or a table is not what it should be."""


class DownloadError(DpprobeError):
    """A file could not be fetched, or is not the one that was asked for."""


class StoreError(DpprobeError):
    """A feature shard or its manifest is missing, damaged or not the one that was written."""


class PrivacyError(DpprobeError):
    """A mechanism cannot be priced or run as it was planned."""


class TrackingError(DpprobeError):
    """The tracking store cannot be written."""
