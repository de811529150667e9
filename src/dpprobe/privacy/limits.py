"""Bounds of epsilon and delta, and the spelling of an epsilon in paths."""

from __future__ import annotations

import math
from typing import Any

INFINITE = "inf"
# Noise can be calibrated, and the accountants were compared with each other, in this range.
SMALLEST_EPSILON = 0.01
LARGEST_EPSILON = 100.0
SMALLEST_DELTA = 1e-10


def epsilon_token(value: Any) -> str:
    """Returns the one spelling of an epsilon, used in paths: "0.5", "8", "inf".

    Raises:
      ValueError: when the value is not a positive number or "inf".
    """
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not number > 0:
        raise ValueError(f"{value!r} is not a positive number or inf")
    return INFINITE if math.isinf(number) else f"{number:.12g}"


def epsilon_value(token: str) -> float:
    """Returns the number that an epsilon token stands for."""
    return math.inf if token == INFINITE else float(token)


def delta_fault(delta: float, n: int, *, unit: str = "image") -> str | None:
    """Returns the error for a delta above 1 / n, which guarantees nothing; else None.

    Args:
      n: training units.
      unit: of privacy, "image" or "patient".
    """
    if delta * n <= 1.0 or math.isclose(delta * n, 1.0, rel_tol=1e-9):
        return None
    units = "rows" if unit == "image" else f"{unit}s"
    return (
        f"delta {delta:g} is above 1/n = {1 / n:.3g} (n = {n} training {units}); "
        "write a smaller delta"
    )


def delta_warning(delta: float, n: int) -> str | None:
    """Returns the warning for a delta of 1 / n, with n training units; else None."""
    if not math.isclose(delta * n, 1.0, rel_tol=1e-9):
        return None
    return (
        f"delta {delta:g} is 1/n (n = {n}); a mechanism that publishes one row at random "
        "satisfies it. Prefer a smaller delta."
    )
