"""States in each bundle the privacy cost of choosing a release among the study's cells."""

from __future__ import annotations

from typing import Any


def fits_block(listed: int) -> dict[str, Any]:
    """States the number of other fits in the budget of an estimator's head."""
    return {"cells": 0, "epsilon": None, "uncovered": None, "other_fits": listed - 1}
