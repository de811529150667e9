"""Fixtures of this room's tests."""

from tests.support.coarse_risks import coarse_risks  # noqa: F401
