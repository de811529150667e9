"""Fixtures for the tests in this folder."""

from tests.support.coarse_risks import coarse_risks  # noqa: F401
from tests.support.shared_calibrations import _shared_calibrations, _shared_prices  # noqa: F401
