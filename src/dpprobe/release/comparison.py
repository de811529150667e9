"""Compares the accuracy of two heads on private units by two noisy sums.

**Mechanisms.** A row's difference is the share of its labels that the second head has right, minus
the first head's share: with one label, 1 if only the second head is right, -1 if only the first is.
For macro accuracy, the difference is multiplied by its class's weight (below), at most 1. A unit's
difference d is the mean of its rows' differences. The sums of d and of d^2 over units are
released. A unit adds numbers in [-1, 1] and [0, 1] and null rows add 0, so both sums have
sensitivity 1; the second sum has a fifth of the budget. Both heads may be any earlier releases,
because composition is adaptive. Sums are whole numbers of steps of a public grid. Numbers are
rounded towards zero, which never lengthens them, so the epsilon is exact (`privacy.releases`).

**Macro accuracy.** With class frequencies p_k that are public or released, class k's weight is
w_k = min p / p_k. The mean of d then has expected value min p * sum_k D_k, where D_k is the
difference of class k's recalls. The difference of macro accuracies is this mean divided by
K min p. If a class's true frequency is r times the stated frequency, its recall counts r times; the
interval does not cover this error.

**Interval.** The estimate is the first sum divided by the public n. Its variance is the noise's
variance plus at most E d^2 / n. A bound on E d^2 is the second sum, plus 2.58 standard deviations
of its noise, divided by n; it is too low with probability 0.5%. The interval is the estimate plus
or minus as many standard deviations as exclude 4.5%: both error probabilities add up to 5%.

**Power.** A difference is found if its interval excludes 0: a two-sided test at 5%. If the heads
disagree on a share of each class, E d^2 is at most v: the share times sum_k p_k w_k^2. The bound
exceeds v by more than the stated margin with probability 5%, and the estimate falls short of a
difference by 1.04 standard deviations with probability 15%, so that `least_difference` is found
with a probability of at least 80%. All numbers of a plan are public.

The functions take any units: a release compares on test units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtri

from dpprobe.errors import PrivacyError
from dpprobe.heads.accuracy_difference import weigh_differences
from dpprobe.privacy.entropy import Entropy
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.plan import Mechanism, Plan, check_mechanisms, full_batch, split_budget
from dpprobe.privacy.releases import Releases
from dpprobe.release.counted_units import count_steps, weigh_rows
from dpprobe.results.bootstrap import CONFIDENCE

Floats = npt.NDArray[np.float64]

DIFFERENCE, SQUARES = "difference", "squared_difference"
SQUARES_SHARE = 0.2
POWER = 0.8  # the probability with which a difference of `least_difference` is found
_BOUND_ERROR = 0.005  # the probability that the bound of the squares is too low
_Z = float(ndtri(1 - (1 - CONFIDENCE - _BOUND_ERROR) / 2))
_Z_BOUND = float(ndtri(1 - _BOUND_ERROR))
_Z_HIGH_BOUND, _Z_LOW_ESTIMATE = float(ndtri(0.95)), float(ndtri(POWER + 0.05))


class Difference(NamedTuple):
    """A metric of the second head minus the first head's; its 95% CI covers sampling and noise."""

    value: float
    low: float
    high: float

    @property
    def better(self) -> int | None:
        """The head that is better: 0 or 1; None if no difference was found."""
        if self.low > 0:
            return 1
        return 0 if self.high < 0 else None


class ReleasedSums(NamedTuple):
    """The noisy sums over units of their differences and of the differences' squares."""

    difference: float
    squares: float


@dataclass(frozen=True)
class Metric:
    """The metric of a comparison: accuracy, or macro accuracy by class frequencies.

    Attributes:
      frequencies: the class frequencies, public or released; empty for accuracy.
    """

    frequencies: tuple[float, ...] = ()

    @property
    def name(self) -> Literal["accuracy", "macro_accuracy"]:
        return "macro_accuracy" if self.frequencies else "accuracy"

    @cached_property
    def weights(self) -> Floats:
        """The weight of each class, at most 1; empty for accuracy."""
        return min(self.frequencies, default=0.0) / np.asarray(self.frequencies, np.float64)

    @property
    def scale(self) -> float:
        """The factor from the mean of the units' differences to the metric's difference."""
        return 1 / (len(self.frequencies) * min(self.frequencies)) if self.frequencies else 1.0

    @property
    def mean_square(self) -> float:
        """The mean square of the units' weights."""
        return float(np.dot(self.frequencies, self.weights**2)) if self.frequencies else 1.0

    def weigh_labels(self, labels: npt.NDArray[np.int64]) -> Floats:
        """Returns rows' weights, [rows]; arbitrary for rows without a class (-1), which add 0."""
        return self.weights[labels] if self.frequencies else np.ones(len(labels))


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The public number n of units, and the standard deviations of the noise of both sums."""

    n: int
    difference: float
    squares: float

    @classmethod
    def of_plan(cls, plan: Plan) -> Noise:
        scales = (plan.find_mechanism(name).noise_scale for name in (DIFFERENCE, SQUARES))
        difference, squares = scales
        return cls(n=plan.n, difference=difference, squares=squares)


def comparison_mechanisms() -> tuple[Mechanism, ...]:
    """Returns the mechanisms of a comparison, with noise multipliers up to a common factor."""
    each = "each the second head's accuracy minus the first head's"
    difference = full_batch(DIFFERENCE, f"sum over the units, of {each}", 1.0)
    squares = full_batch(SQUARES, f"sum over the units, of {each}, squared", 1.0)
    return split_budget([(SQUARES_SHARE, (squares,)), (1 - SQUARES_SHARE, (difference,))])


def release_sums(
    first: Floats,
    second: Floats,
    units: npt.NDArray[np.int64] | None,
    plan: Plan,
    entropy: Entropy,
    *,
    class_weights: Floats | None = None,
) -> ReleasedSums:
    """Releases the noisy sums of the differences of two heads and of their squares, once.

    Args:
      first, second: [rows], per head the share of a row's labels that is right; NaN in null rows.
      units: [rows], a number for each row's unit; None if each row is a unit.
      plan: has the noise of `comparison_mechanisms` on n units.
      class_weights: [rows], the weight of each row's class; 1 if absent.

    Raises PrivacyError for another plan, another number of units, or shares or weights outside
    [0, 1].
    """
    check_mechanisms(plan, comparison_mechanisms())
    weights = weigh_rows(units, len(first), plan)
    if class_weights is not None:
        weights = weights * _check_shares(class_weights, "weight of a class")
    differences = unit_differences(first, second, weights, units)
    releases = Releases(plan, [0], torch.device("cpu"), entropy=entropy)
    noisy = {
        name: float(releases.release_gaussian(name, sum_units(each, plan.n))[0, 0])
        for name, each in ((SQUARES, differences**2), (DIFFERENCE, differences))
    }
    releases.check_counts()
    return ReleasedSums(noisy[DIFFERENCE], noisy[SQUARES])


def unit_differences(
    first: Floats, second: Floats, weights: Floats, units: npt.NDArray[np.int64] | None
) -> Floats:
    """Returns the units' weighted differences, [units], in [-1, 1]; null rows add 0.

    Rows' weights add up to at most 1 in a unit. Raises PrivacyError for shares outside [0, 1].
    """
    each = weigh_differences(first, second, weights)
    if units is not None:
        each = np.asarray(np.bincount(units, weights=each), dtype=np.float64)
    return np.clip(each, -1, 1)  # a sum of rounded weights may exceed 1


def _check_shares(values: Floats, what: str) -> Floats:
    if not ((values >= 0) & (values <= 1)).all():
        raise PrivacyError(f"comparison: a {what} lies outside 0 to 1; nothing is released")
    return values


def sum_units(values: Floats, n: int) -> GridSum:
    """Sums the numbers of n units, each in [-1, 1], in whole grid steps; returns shape [1, 1]."""
    steps, step = count_steps(values, n)
    return GridSum(torch.tensor([[steps.sum()]], dtype=torch.float64), step)


def estimate_difference(released: ReleasedSums, noise: Noise, metric: Metric) -> Difference:
    """Returns the difference of a metric, with its interval, from both noisy sums."""
    bound = (released.squares + _Z_BOUND * noise.squares) / noise.n
    value, half = released.difference / noise.n, _Z * _spread(noise, min(max(bound, 0.0), 1.0))
    ends = (metric.scale * end for end in (value, value - half, value + half))
    return Difference(*(min(max(end, -1.0), 1.0) for end in ends))


def least_difference(noise: Noise, metric: Metric, *, disagreement: float) -> float:
    """Returns the smallest true difference that is found with probability `POWER`.

    `disagreement` is the true share of each class's units on which the heads disagree.
    """
    square = disagreement * metric.mean_square
    margin = _Z_BOUND * noise.squares
    margin += _Z_HIGH_BOUND * math.sqrt(noise.squares**2 + noise.n * square)
    found = _Z * _spread(noise, min(square + margin / noise.n, 1.0))
    return metric.scale * (found + _Z_LOW_ESTIMATE * _spread(noise, square))


def _spread(noise: Noise, mean_square: float) -> float:
    """Bounds the standard deviation of the mean of units' differences, including noise."""
    return math.sqrt(mean_square / noise.n + (noise.difference / noise.n) ** 2)


def mean_frequencies(stated: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Returns the mean of several stated class frequencies; empty if there are none."""
    return tuple(math.fsum(each) / len(stated) for each in zip(*stated, strict=True))
