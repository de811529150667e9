"""Fixtures of this room's tests."""

from tests.support.shared_calibrations import _shared_calibrations  # noqa: F401
