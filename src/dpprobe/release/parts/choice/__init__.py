"""States the privacy cost of choosing a release among the study's cells, in each statement."""

from __future__ import annotations

from typing import Any


def fits_block(listed: int) -> dict[str, Any]:
    """States among how many other fits in its budget an estimator's head was chosen."""
    return {"cells": 0, "epsilon": None, "uncovered": None, "other_fits": listed - 1}
