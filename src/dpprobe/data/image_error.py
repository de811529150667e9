"""The reason why an encoded image cannot be used."""

from __future__ import annotations

from dpprobe.errors import DataError


class ImageError(DataError):
    """The reason why an encoded image cannot be used."""
