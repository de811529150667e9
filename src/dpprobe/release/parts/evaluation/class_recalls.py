"""Estimates the recall of each class of a released head from noisy counts of test units.

**Mechanism.** A noisy table of 2 K numbers is released: for each of K classes, the weights of right
and of wrong predictions. A test example adds its weight to one number of the table, and a null row
adds nothing. The weights of a unit's rows sum to at most 1, so a unit adds a vector of norm at most
1. The table of right and wrong predictions has sensitivity 1 for any number of classes.

**Recall.** The recall p of a class is right / (right + wrong). A recall's variance is the sum of a
sampling variance and a noise variance. With m units, the sampling variance is p (1 - p) / m, with p
moved towards a half (Agresti and Coull 1998). The noise variance is s^2 (p^2 + (1 - p)^2) / m^2, if
each count's noise has standard deviation s (delta method). Macro accuracy is the mean of recalls.
The interval of worst-class recall covers the lowest recall: each class has an interval at a
confidence of 1 - 0.05 / K (Bonferroni).

A class whose number of units does not clearly exceed the noise has no recall. If a class has no
recall, no macro accuracy is stated, because a mean over other classes would mislead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from dpprobe.privacy.noisy_totals import least_total
from dpprobe.privacy.plan import Mechanism, full_batch
from dpprobe.results.bootstrap import CONFIDENCE

Floats = npt.NDArray[np.float64]

CLASS_COUNTS = "class_counts"


class Estimate(NamedTuple):
    """A test result with 95% interval and standard error, which cover sampling and noise."""

    value: float
    low: float
    high: float
    standard_error: float


class Worst(NamedTuple):
    """The index of the class with the lowest recall, and the lowest recall with its 95% CI."""

    place: int
    recall: float
    low: float
    high: float


def recall_mechanisms() -> tuple[Mechanism, ...]:
    released = "numbers of test rows of each class with a right prediction, and with a wrong one"
    return (full_batch(CLASS_COUNTS, released, 1.0),)


def count_answers(
    right: npt.NDArray[np.bool_], labels: npt.NDArray[np.integer], units: Floats, classes: int
) -> Floats:
    """Adds up weights in grid steps by class and prediction, [classes, 2]; right answers first."""
    places = 2 * labels + ~right
    table = np.bincount(places, weights=units, minlength=2 * classes)
    return table.astype(np.float64).reshape(classes, 2)


def class_deviation(deviation: float) -> float:
    """Returns the standard deviation of the noise on a class's number of units (two counts)."""
    return deviation * math.sqrt(2)


def estimate_recalls(
    counts: Sequence[Sequence[float]] | Floats, deviation: float
) -> tuple[Estimate, Worst | None]:
    """Estimates mean and lowest recall from noisy counts [classes, 2], right predictions first.

    Noise may make counts negative; `deviation` is the standard deviation of each count's noise. The
    lowest recall is None if a class has too few units to be measured.
    """
    table = np.asarray(counts, dtype=np.float64)
    units, classes = table.sum(axis=1), len(table)
    if (units <= least_total(class_deviation(deviation))).any():
        return Estimate(1 / classes, 0.0, 1.0, 0.5), None
    recalls = np.clip(table[:, 0] / units, 0, 1)
    z, each_z = (float(ndtri(1 - (1 - CONFIDENCE) / (2 * each))) for each in (1, classes))
    errors = _recall_errors(recalls, units, deviation, z)
    mean, error = float(recalls.mean()), math.sqrt(float(np.sum(errors**2))) / classes
    worst = int(np.argmin(recalls))
    ends = each_z * _recall_errors(recalls, units, deviation, each_z)
    lowest = float(recalls[worst])
    low, high = max(0.0, mean - z * error), min(1.0, mean + z * error)
    return Estimate(mean, low, high, error), Worst(
        worst,
        lowest,
        max(0.0, float((recalls - ends).min())),
        min(1.0, max(lowest, float((recalls + ends).min()))),
    )


def _recall_errors(recalls: Floats, units: Floats, deviation: float, z: float) -> Floats:
    """Returns the standard error of each recall, from sampling and noise.

    Each number of units is lowered by one standard deviation of its noise, because only classes
    with large noisy numbers are measured, whose noise tends to be positive.
    """
    units = units - class_deviation(deviation)
    moved = (recalls * units + z**2 / 2) / (units + z**2)
    noise = (deviation / units) ** 2 * (recalls**2 + (1 - recalls) ** 2)
    return np.asarray(np.sqrt(moved * (1 - moved) / units + noise))
