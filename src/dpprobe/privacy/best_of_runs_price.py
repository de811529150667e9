"""Bounds epsilon of repeating a private run a random number of times and releasing only the best.

A run Q releases some output with a score; runs are totally ordered by score, ties at random. The
number of runs K is drawn without the data, and A is the best run (Papernot and Steinke 2022). The
privacy profile of Q bounds the cost of A, as in Koskela, Redberg and Wang 2024 ("Privacy profiles
for private selection"). The bound below uses the whole trade-off curve instead of one point, and
the probability that an output is the best.

**Bound.** Q' and A' are Q and A on a neighbouring dataset. Let f(x) = E[x^K], and let w(z) = f'(1 -
z), which falls from w(0) = E[K]. For an output y let z(y) = Q(better than y). Then A(dy) = w(z(y))
Q(dy), and A'(dy) = w(z'(y)) Q'(dy). "Better than y" is an event, so z' <= T(z), where T(z) = min
over e of exp(e) z + delta_Q(e), delta_Q(e) = sup_S Q(S) - exp(e) Q'(S). With L(y) = dQ'/dQ(y),

    delta_A(e) = E_Q [w(z) - exp(e) w(z') L]_+ <= E_Q F(exp(e) L)
    F(m) = max over z in [0, 1] of [w(z) - m w(T(z))]_+,

since w(z') >= w(T(z)) and z(y) is some number in [0, 1]. F is a maximum of falling lines, so F is
convex and falling. F(0) = E[K], and F is 0 from m = exp(c) on, where c is the largest log of w(z) /
w(T(z)). Chords of F bound F by a sum of hinges: F(m) <= sum_j p_j [1 - m exp(-c_j)]_+ with p_j >= 0
that sum to E[K], and c_j <= c. The mean of a hinge [1 - m exp(-c_j)]_+ over Q is a point of Q's
privacy profile:

    delta_A(e) <= sum_j p_j delta_Q(e - c_j)  <=  E[K] delta_Q(e - c).

A privacy profile has two directions, from Q to Q' and from Q' to Q. With delta_Q the larger of the
two directions at each epsilon, the bound holds in both directions.

The bound is nearly tight: for Gaussian runs, some ranking of outputs attains 98 to 99.8% of the
epsilon (`bench/results/selection_gap.md`), so no bound from Q's profile alone can be much lower.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpprobe.errors import PrivacyError

if TYPE_CHECKING:
    from dp_accounting.pld import privacy_loss_distribution

Array = npt.NDArray[np.float64]

# The number of epsilons at which Q's profile is tabulated, and the delta at the last of them.
_POINTS, _NEGLIGIBLE = 4000, 1e-10
# The number of z at which F is computed, and the number of hinges.
_PLACES, _HINGES = 4000, 200
# The largest privacy loss whose exponential is finite.
LARGEST_LOSS = 700.0
# A factor that covers round-off, far below the digits of a plan.
_ROUND_OFF = 1 + 1e-9


@dataclass(frozen=True)
class Profile:
    """The privacy profile of one run: delta by epsilon, the larger delta of both directions.

    Attributes:
      deltas: computes delta for an array of increasing epsilons that starts at 0.
      epsilon: computes the epsilon at one delta.
    """

    deltas: Callable[[Array], Array]
    epsilon: Callable[[float], float]


@dataclass(frozen=True)
class Table:
    """A privacy profile at equally spaced epsilons from 0, with upper bounds between them.

    A profile decreases, and is convex in exp(epsilon), so its chords are upper bounds.
    """

    profile: Profile
    epsilons: Array
    deltas: Array

    @classmethod
    def tabulate_profile(cls, profile: Profile, delta: float) -> Table:
        """Tabulates a profile up to an epsilon whose delta is negligible, or up to epsilon 600."""
        parts = (min(_NEGLIGIBLE, 1e-4 * delta), _NEGLIGIBLE)
        reaches = [profile.epsilon(part) for part in parts]
        reach = min(next((each for each in reaches if math.isfinite(each)), math.inf), 600.0)
        epsilons = np.linspace(0.0, reach, _POINTS)
        return cls(profile, epsilons, profile.deltas(epsilons))

    def delta_at(self, epsilons: Array) -> Array:
        """Computes delta at epsilons of any sign.

        For e > 0, delta_Q(-e) = 1 - exp(-e) (1 - delta_Q'(e)), with delta_Q' from Q' to Q.
        """
        size, top = np.abs(epsilons), self.epsilons[-1]
        places = np.exp(np.minimum(size, top) - top)
        deltas = np.interp(places, np.exp(self.epsilons - top), self.deltas)
        return np.where(epsilons < 0, 1 - np.exp(-size) * (1 - deltas), deltas)


@dataclass(frozen=True)
class Bound:
    """A bound on A's privacy profile: delta_A(e) <= sum of weights * delta_Q(e - offsets).

    Attributes:
      table: Q's privacy profile.
      weights: non-negative numbers that sum to E[K].
      offsets: increasing numbers.
    """

    table: Table
    weights: Array
    offsets: Array

    def bound_delta(self, epsilon: float) -> float:
        """Computes the bound on delta_A at one epsilon."""
        return float(self.weights @ self.table.delta_at(epsilon - self.offsets))

    def bound_epsilon(self, delta: float) -> float:
        """Computes the epsilon of A at `delta`, rounded up by at most 1e-10 (relative)."""
        if self.bound_delta(0.0) <= delta:
            return 0.0
        one = self.table.profile.epsilon(delta / float(self.weights.sum()))
        low, high = 0.0, float(self.offsets[-1]) + one  # as if all offsets were the largest
        while math.isfinite(high) and high - low > 1e-10 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.bound_delta(middle) > delta else (low, middle)
        return high


def best_bound(mean: float, profile: Profile, delta: float) -> Bound:
    """Returns a bound on A's privacy profile for `mean` runs on average, accurate near `delta`."""
    return _bound_profile(mean, Table.tabulate_profile(profile, delta / mean))


def _bound_profile(mean: float, table: Table) -> Bound:
    """Bounds the convex function F by its chords between equally spaced offsets."""
    heights, losses = _make_lines(mean, table)
    top = max(float(losses.max()), 0.0) * _ROUND_OFF + 1e-12
    offsets = np.linspace(0.0, top, _HINGES)
    # Largest value of any line at m = exp(offset); a line has height w(z) and is 0 at exp(loss).
    values = np.array(
        [(heights * -np.expm1(np.minimum(offset - losses, 0.0))).max() for offset in offsets]
    )
    values[-1] = 0.0
    values = np.concatenate([[mean], values])
    # Slopes of F's chords give the weights; the first chord begins at m = 0.
    gap = offsets[1] - offsets[0]
    falls = -np.diff(values)
    weights = falls / np.concatenate([[1.0], np.full(_HINGES - 1, -math.expm1(-gap))])
    weights[:-1] -= falls[1:] / math.expm1(gap)
    # F is convex, so negative weights are only round-off.
    weights = np.maximum(weights, 0.0)
    weights *= _ROUND_OFF * mean / weights.sum()
    return Bound(table, weights, offsets)


def _make_lines(mean: float, table: Table) -> tuple[Array, Array]:
    """Returns lines in m whose maximum is at least F, as values at 0 and logarithms of their zeros.

    Between adjacent z, T is at most the line exp(e) z + delta_Q(e) of the first z. The convex w is
    below its chord between adjacent z, and w of a line is convex too and above its tangent. So w(z)
    - m w(T(z)) is at most the larger of two numbers: its value at the first z, and at the second z
      with the tangent's value in place of w(T(z)). If the tangent falls to w(1) between the two z,
      this point replaces the second z: beyond it w(T(z)) is at least w(1), and w falls.
    """

    def log_weight(z: Array) -> Array:
        """Computes log w of a geometric number of runs."""
        return math.log(mean) - 2 * np.log1p((mean - 1) * z)

    def rate(z: Array) -> Array:
        """Computes minus the derivative of log w."""
        return 2 * (mean - 1) / (1 + (mean - 1) * z)

    # The first positive z, so small that the steepest line and w are constant below.
    first = 1e-3 * math.exp(-min(table.epsilons[-1], 60.0)) / float(rate(np.zeros(1))[0])
    z = np.concatenate([[0.0], np.geomspace(min(first, 1e-3), 1.0, _PLACES)])
    slopes, worst = _trade_off(table, z)
    at, others, most = log_weight(z), log_weight(worst), log_weight(np.ones(1))[0]
    steepness = rate(worst[:-1]) * slopes[:-1]
    step = np.minimum(steepness * np.diff(z), -np.expm1(most - others[:-1]))
    second = log_weight(z[:-1] + step / steepness)
    with np.errstate(divide="ignore"):
        tangent = np.maximum(others[:-1] + np.log1p(-step), most)
    return np.exp(np.concatenate([at, second])), np.concatenate([at - others, second - tangent])


def _trade_off(table: Table, z: Array) -> tuple[Array, Array]:
    """Bounds T at each z by one line exp(e) z + delta_Q(e); returns slopes, and values capped at 1.

    Every such line is an upper bound on T. At z the lowest line has the e at which the profile's
    chords change from slopes below -z to slopes above.
    """
    slopes, deltas = np.exp(table.epsilons), table.deltas
    with np.errstate(invalid="ignore", divide="ignore"):
        chords = np.nan_to_num(-np.diff(deltas) / np.diff(slopes))
    chords = np.minimum.accumulate(chords)
    lines = len(chords) - np.searchsorted(chords[::-1], z)
    return slopes[lines], np.minimum(slopes[lines] * z + deltas[lines], 1.0)


def dominating_loss(
    mean: float, profile: Profile, delta: float, interval: float
) -> privacy_loss_distribution.PrivacyLossDistribution | None:
    """Computes a privacy loss distribution that dominates A, for composition with other mechanisms.

    Computes the bound on A's profile on a grid, at negative epsilons by delta_A(-e) = 1 - exp(-e)
    (1 - delta_A'(e)). The bound's convex minorant in exp(e) is at least the profile, because the
    profile is convex. Connecting the dots gives the distribution (Doroshenko et al. 2022).

    Args:
      delta: the result should be tight near this delta.
      interval: the grid spacing on the privacy loss.

    Returns:
      The distribution; None if its losses are too large for floating point.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    bound = best_bound(mean, profile, delta)
    reach = next(
        (
            epsilon
            for part in (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
            if math.isfinite(epsilon := profile.epsilon(part * delta / mean))
        ),
        None,
    )
    if reach is None:
        raise PrivacyError(
            f"selection of a mean of {mean:g} runs: one run has no finite epsilon at delta "
            f"{delta / mean:.3g}, which is too small for privacy loss distributions; set a larger "
            "delta, fewer trials, or `accountant: rdp`"
        )
    size = math.ceil((float(bound.offsets[-1]) + reach) / interval)
    if size * interval > LARGEST_LOSS:
        return None
    positive = _on_grid(bound, size, interval)
    epsilons = interval * np.arange(size + 1)
    negative = 1 - np.exp(-epsilons[1:]) * (1 - positive[1:])
    grid = np.concatenate([-epsilons[:0:-1], epsilons])
    deltas = _convex_minorant(np.exp(grid), np.concatenate([negative[::-1], positive]))
    pmf: Any = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, -size, size, np.clip(deltas, 0.0, 1.0)
    )
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def _on_grid(bound: Bound, size: int, interval: float) -> Array:
    """Computes the bound at multiples of the interval from 0, with offsets rounded up."""
    shifts = np.ceil(bound.offsets / interval).astype(int)
    most = int(shifts[-1])
    places: Array = np.arange(-most, size + 1, dtype=np.float64)
    deltas = bound.table.delta_at(interval * places)
    total = np.zeros(size + 1)
    for weight, shift in zip(bound.weights, shifts, strict=True):
        if weight:
            total += weight * deltas[most - shift : most - shift + size + 1]
    return np.minimum.accumulate(np.minimum(total, 1.0))


def _convex_minorant(x: Array, y: Array) -> Array:
    """Computes the lower convex hull of points (x, y) with increasing x, by monotone chain."""
    kept: list[int] = []
    for point in range(len(x)):
        while len(kept) > 1:
            a, b = kept[-2:]
            if (y[b] - y[a]) * (x[point] - x[a]) < (y[point] - y[a]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(point)
    return np.interp(x, x[kept], y[kept])
