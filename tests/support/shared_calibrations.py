"""Calibrations and prices found once for all tests of a process that do not look at how."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dpprobe.privacy import accountants, calibration
from dpprobe.release import release_choice_price

_ANSWERS: dict[tuple[Any, ...], Any] = {}
_PRICES: dict[tuple[Any, ...], tuple[float, bool]] = {}


@pytest.fixture(scope="module", autouse=True)
def _shared_calibrations() -> Iterator[None]:
    """Has each answer found once; it depends on the arguments alone."""
    solve, price = calibration._find_answer, accountants.all_together

    def answer(mechanisms: Any, *target: Any) -> Any:
        key = (tuple(mechanisms), *target)
        if key not in _ANSWERS:
            _ANSWERS[key] = solve(mechanisms, *target)
        return {**_ANSWERS[key]}

    def price_choice(fits: Any, delta: float) -> tuple[float, bool]:
        key = (*((tuple(one.mechanisms), one.times, one.selection) for one in fits), delta)
        if key not in _PRICES:
            _PRICES[key] = price(fits, delta)
        return _PRICES[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release_choice_price, "all_together", price_choice)
        patch.setattr(calibration, "_find_answer", answer)
        yield
