"""Bounds of epsilon and delta, and the spelling of an epsilon in paths."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Annotated, Any

from pydantic import Field

INFINITE = "inf"
# The range in which noise can be calibrated, and for which accountants were compared.
SMALLEST_EPSILON = 0.01
LARGEST_EPSILON = 100.0
SMALLEST_DELTA = 1e-10
# The largest delta that dpprobe chooses, and the fraction of 1 / n above which it warns: a delta of
# 0.1 / n allows publishing a tenth of a unit on average.
LARGEST_DELTA, WARNED_SHARE = 1e-5, 0.1
Budget = Annotated[float, Field(ge=SMALLEST_EPSILON, le=LARGEST_EPSILON, allow_inf_nan=False)]
# Significant digits to which noise and epsilons are rounded up. The last bits of Fourier transforms
# differ between processors, but a plan is part of a cell's identity and must not differ.
DIGITS = 6
# Relative; epsilons have six digits, and their last bits differ between processors.
PRICE_TOLERANCE = 2e-5
# The largest number of cohorts in one chain, whose releases share one epsilon.
LONGEST_HORIZON = 120
# Tables mark a delta above 1 / n by ABOVE_MARK, and explain the mark by ABOVE_NOTE.
ABOVE_MARK = " (above 1/n)"
ABOVE_NOTE = (
    "A delta above 1/n, with n training units, would allow a mechanism that publishes a random "
    "training unit, so no result of this study may be released"
)


def epsilon_token(value: Any) -> str:
    """Returns the one spelling of an epsilon in paths, such as "0.5" or "inf"; raises ValueError.

    Example:
      >>> epsilon_token(0.50), epsilon_token("inf")
      ('0.5', 'inf')
      >>> epsilon_token(0)
      Traceback (most recent call last):
          ...
      ValueError: 0: must be a positive number or inf
    """
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    # `float` reads digits of all scripts, and 1e999 as infinity, which would mean no privacy
    text = value.lower() if isinstance(value, str) else "inf"
    plain = text.isascii() and ("inf" in text or number < math.inf)
    if not (number > 0 and plain):
        raise ValueError(f"{value!r:.100}: must be a positive number or inf")
    return INFINITE if math.isinf(number) else f"{number:.12g}"


def to_json(value: float | None) -> float | str | None:
    """Converts a number for JSON: infinity becomes the text "inf"."""
    return INFINITE if value is not None and math.isinf(value) else value


def epsilon_value(token: str) -> float:
    return math.inf if token == INFINITE else float(token)


def round_up(value: float) -> float:
    """Rounds up to `DIGITS` significant digits."""
    return _round_digits(value, ROUND_CEILING)


def round_down(value: float) -> float:
    """Rounds down to `DIGITS` significant digits."""
    return _round_digits(value, ROUND_FLOOR)


def rounded_up(loss: float) -> float:
    """Rounds a privacy loss up to four significant digits.

    Example:
      >>> rounded_up(0.73021), rounded_up(0.5)
      (0.7303, 0.5)
    """
    shown = float(f"{loss:.4g}")
    if shown >= loss:
        return shown
    return float(f"{loss + 10.0 ** (math.floor(math.log10(loss)) - 3):.4g}")


def _round_digits(value: float, rounding: str) -> float:
    return float(Context(prec=DIGITS, rounding=rounding).create_decimal(repr(float(value))))


def delta_above(delta: float, n: int) -> bool:
    """Returns True for a delta above 1 / n, with n training units, beyond round-off."""
    return delta * n > 1.0 and not math.isclose(delta * n, 1.0, rel_tol=1e-9)


def delta_fault(
    delta: float, n: int, *, unit: str = "image", allowed: bool | None = None
) -> str | None:
    """Returns the error message for a delta above 1 / n, which guarantees nothing; else None.

    `allowed` is the study's option that allows a larger delta; None for a release.

    Example:
      >>> delta_fault(1e-3, 2000, unit="patient")
      'delta 0.001 is above 1/n = 0.0005 (n = 2000 training patients); set a smaller delta'
      >>> delta_fault(1e-5, 2000) is None
      True
    """
    if allowed or not delta_above(delta, n):
        return None
    remedy = "set a smaller delta"
    if allowed is not None:
        remedy += ", or `allow_delta_above_one_over_n: true` if nothing will be released"
    return f"{_describe_above(delta, n, unit)}; {remedy}"


def delta_warning(delta: float, n: int, *, unit: str = "image") -> str | None:
    """Returns the warning for a delta above 0.1 / n, even if an option allows it; else None.

    A mechanism that publishes each unit's rows with probability delta, independently of the other
    units, is (0, delta)-differentially private. It publishes delta n units on average.
    """
    if delta_above(delta, n):
        return f"{above_in_words(delta, n, unit=unit)}. No result with this delta may be released."
    share = delta * n * (1 - 1e-9)  # without round-off
    if share <= WARNED_SHARE:
        return None
    shown, units = f"{rounded_up(share):g}", _name_units(unit)
    times = "" if shown == "1" else f"{shown} * "
    return (
        f"delta {delta:g} is {times}1/n (n = {n} training {units}): this delta allows a mechanism "
        f"that publishes {_describe_published(unit, 'each')} with probability delta, on average "
        f"{shown} {units} of {n}. Prefer {choose_delta(n):g} (at most {WARNED_SHARE:g}/n)."
    )


def choose_delta(n: int) -> float:
    """Returns the largest power of ten that is at most 0.1 / n and at most 1e-5.

    Example:
      >>> choose_delta(500), choose_delta(60_000)
      (1e-05, 1e-06)
    """
    return min(LARGEST_DELTA, 10.0 ** -(1 + math.ceil(math.log10(max(n, 1)))))


def above_in_words(delta: float, n: int, *, unit: str = "image") -> str:
    """Explains a delta above 1 / n; empty for other deltas."""
    if not delta_above(delta, n):
        return ""
    return (
        f"{_describe_above(delta, n, unit)}: this delta would allow a mechanism that publishes "
        f"{_describe_published(unit, 'a random')}"
    )


def _describe_published(unit: str, which: str) -> str:
    return f"{which} row" if unit in ("image", "row") else f"{which} {unit}'s rows"


def _name_units(unit: str) -> str:
    return "rows" if unit == "image" else f"{unit}s"


def _describe_above(delta: float, n: int, unit: str) -> str:
    return f"delta {delta:g} is above 1/n = {1 / n:.3g} (n = {n} training {_name_units(unit)})"
