"""Fixtures for the tests in this folder."""

from tests.support.shared_calibrations import _shared_calibrations  # noqa: F401
