"""Calibrations that are computed once for all tests of a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.coarse_risks import coarse_risks  # noqa: F401
from tests.support.shared_calibrations import _shared_calibrations  # noqa: F401


@pytest.fixture(scope="session")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder that caches noise multipliers by a hash of their inputs."""
    return tmp_path_factory.mktemp("calibration")
