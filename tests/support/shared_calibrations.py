"""Calibrations and prices found once for all tests of a process that do not look at how."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dpprobe.privacy import accountants, noise_calibration
from dpprobe.privacy.target import Target

_ANSWERS: dict[tuple[Any, ...], Any] = {}
_PRICES: dict[tuple[Any, ...], tuple[float, bool]] = {}


@pytest.fixture(scope="module", autouse=True)
def _shared_calibrations() -> Iterator[None]:
    """Has each answer found once; it depends on the arguments alone."""
    solve = noise_calibration.solve_target

    def answer(mechanisms: Any, target: Target, selection: Any) -> Any:
        key = (tuple(mechanisms), target.epsilon, target.delta, target.accountant, selection)
        if key not in _ANSWERS:
            _ANSWERS[key] = solve(mechanisms, target, selection)
        return {**_ANSWERS[key]}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise_calibration, "solve_target", answer)
        yield


@pytest.fixture(scope="module", autouse=True)
def _shared_prices() -> Iterator[None]:
    """Prices the choice among the same cells once."""
    from dpprobe.release.parts.choice import measure  # heavy: only tests of releases need it

    def price_once(fits: Any, delta: float) -> tuple[float, bool]:
        key = (*((tuple(one.mechanisms), one.times, one.selection) for one in fits), delta)
        if key not in _PRICES:
            _PRICES[key] = accountants.all_together(fits, delta)
        return _PRICES[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "all_together", price_once)
        yield
