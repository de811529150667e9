"""The noisy counts of a calibration: sensitivity, releases, prices, and the whole bundle."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.special import softmax

from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.target import Target
from dpprobe.release.parts.calibration import measure as calibration_release
from dpprobe.release.parts.calibration.measure import TEMPERATURE, calibration_mechanisms
from dpprobe.results.unit_counts import row_weights

CLASSES = 3


def planned(folder: Path, n: int, epsilon: float, classes: int = CLASSES) -> Plan:
    wanted = calibration_mechanisms(classes=classes, multi_label=False)
    target = Target(n=n, epsilon=epsilon, delta=1e-5)
    return calibrate(wanted, target, cache=folder / "calibration")


class Sums:
    """Collects the sums of a release without their noise; temperatures follow given answers."""

    def __init__(self, plan: Plan, answers: list[float] | None = None) -> None:
        self.plan, self.given = plan, answers
        self.sums: list[tuple[str, npt.NDArray[np.float64]]] = []

    def release_gaussian(self, name: str, total: GridSum) -> torch.Tensor:
        values = total.values
        self.sums.append((name, values.numpy().ravel()))
        if name == TEMPERATURE and self.given is not None:
            place = sum(each == TEMPERATURE for each, _ in self.sums) - 1
            return torch.full_like(values, self.given[place])
        return values


def sums_of(
    scores: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    weights: npt.NDArray[Any],
    plan: Plan,
    answers: list[float],
) -> Sums:
    sums = Sums(plan, answers)
    calibration_release._release_tables(scores, labels, weights, sums)  # type: ignore[arg-type]
    return sums


@pytest.mark.parametrize("units", [[0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 1, 2], [0] * 6])
@pytest.mark.parametrize("classes", [2, CLASSES])
def test_no_unit_moves_a_sum_by_more_than_its_sensitivity(
    tmp_path: Path, units: list[int], classes: int
) -> None:
    """Given the temperatures, which were released before: composition is adaptive."""
    generator, whose = np.random.default_rng(1), np.array(units)
    shares = row_weights(whose)
    weights = np.ones(6) if shares is None else shares
    plan = planned(tmp_path, n=len(np.unique(whose)) + 1000, epsilon=1.0, classes=classes)
    stated = {item.name: item.sensitivity for item in plan.mechanisms}
    worst = dict.fromkeys(stated, 0.0)
    for _ in range(60):
        scores = generator.normal(size=(6, classes)) * generator.choice([0.01, 1, 1e6])
        labels = generator.integers(0, classes, 6)
        if generator.random() < 0.3:  # equal rows: a unit's sum is then longest
            scores[:], labels[:] = scores[0], labels[0]
        answers = list(generator.normal(size=6))
        whole = sums_of(scores, labels, weights, plan, answers)
        for unit in np.unique(whose):
            without = np.where((whose != unit)[:, None], scores, math.nan)
            less = sums_of(without, labels, weights, plan, answers)
            for (name, values), (same, others) in zip(whole.sums, less.sums, strict=True):
                assert name == same
                worst[name] = max(worst[name], float(np.linalg.norm(values - others)))
    for name, change in worst.items():
        assert change <= stated[name]
        assert change > (0.5 if name == TEMPERATURE else 1 - 1e-6), "the bound is tight"


def test_a_row_without_finite_scores_counts_nothing(tmp_path: Path) -> None:
    plan = planned(tmp_path, n=1000, epsilon=1.0)
    labels = np.zeros(4, np.int64)
    for bad in (math.nan, math.inf, -math.inf):
        scores = np.full((4, CLASSES), bad)
        for name, values in sums_of(scores, labels, np.ones(4), plan, [0.0] * 6).sums:
            assert not values.any(), name


@pytest.mark.parametrize("scale", [0.02, 0.3, 1.0, 4.0, 30.0])
@pytest.mark.parametrize(("classes", "offset"), [(2, 0.0), (2, 0.6), (CLASSES, 0.0)])
def test_a_head_s_planted_error_is_described(
    tmp_path: Path, classes: int, offset: float, scale: float
) -> None:
    """Without noise: `scale` times the scores, with the offset, are the logits of the truth."""
    generator, n = np.random.default_rng(5), 20_000
    logits = 2.0 * generator.normal(size=(n, classes))
    truth = softmax(logits + offset * np.eye(classes)[1], axis=1)
    labels = (truth.cumsum(axis=1) > generator.random((n, 1))).argmax(axis=1)
    plan = planned(tmp_path, n=n, epsilon=8.0, classes=classes)
    sums: Any = Sums(plan)
    noisy = calibration_release._release_tables(logits / scale, labels, np.ones(n), sums)
    described = calibration_release.describe_calibration(noisy, plan.mechanisms, n)
    assert described["scale"] == pytest.approx(scale, rel=0.1)
    assert described["offset"] == pytest.approx(offset, abs=0.05)
