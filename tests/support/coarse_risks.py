"""A coarse search for the epsilon of a permitted risk: each step of it prices many plans."""

from __future__ import annotations

import pytest

from dpprobe.privacy import noise_calibration


@pytest.fixture
def coarse_risks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the epsilon of a risk be a third too small; tests/unit/privacy/test_risk.py has how near
    it comes."""
    monkeypatch.setattr(noise_calibration, "RISK_TOLERANCE", 0.5)
