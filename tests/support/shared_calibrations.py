"""Computes each calibration and price once per process, for tests of other code."""

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
    """Computes each calibration only once; the arguments determine the result."""
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
    """Computes the price of a choice only once for the same cells."""
    from dpprobe.release.parts.choice import measure  # slow; only tests of releases need it

    def price_once(fits: Any, delta: float) -> tuple[float, bool]:
        key = (*((tuple(one.mechanisms), one.times, one.selection) for one in fits), delta)
        if key not in _PRICES:
            _PRICES[key] = accountants.all_together(fits, delta)
        return _PRICES[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "all_together", price_once)
        yield
