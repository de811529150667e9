"""A coarse search for the epsilon of a permitted risk, as each search step prices many plans."""

from __future__ import annotations

import pytest

from dpprobe.privacy import noise_calibration


@pytest.fixture
def coarse_risks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the search coarse: epsilon may be a third too small (see unit/privacy/test_risk.py)."""
    monkeypatch.setattr(noise_calibration, "RISK_TOLERANCE", 0.5)
