"""Bounds of epsilon and delta, and the spelling of an epsilon in paths."""

from __future__ import annotations

import math
from typing import Any

INFINITE = "inf"
# What noise can be calibrated for, and what the accountants were held against each other on.
SMALLEST_EPSILON = 0.01
LARGEST_EPSILON = 100.0
SMALLEST_DELTA = 1e-10


def epsilon_token(value: Any) -> str:
    """The one spelling of an epsilon, used in paths: "0.5", "8", "inf".

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
    """The number an epsilon token stands for."""
    return math.inf if token == INFINITE else float(token)


def delta_fault(delta: float, rows: int) -> str | None:
    """Why a delta promises nothing for so many rows; None where it does."""
    if delta * rows <= 1.0 or math.isclose(delta * rows, 1.0, rel_tol=1e-9):
        return None
    return (
        f"delta {delta:g} is above 1/n = {1 / rows:.3g} (n = {rows} training rows); "
        "write a smaller delta"
    )


def delta_warning(delta: float, rows: int) -> str | None:
    """What is to be said of a delta of 1/n; None of others."""
    if not math.isclose(delta * rows, 1.0, rel_tol=1e-9):
        return None
    return (
        f"delta {delta:g} is 1/n (n = {rows}); a mechanism that publishes one row at random "
        "satisfies it. Prefer a smaller delta."
    )
