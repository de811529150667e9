"""Prices repeating a private run a random number of times and releasing only the best run.

A run Q releases some output with a score; runs are totally ordered by score, ties at random. The
number of runs K is drawn without the data, and A is the best of them (Papernot and Steinke 2022).
The cost of A is bounded here by the privacy profile of Q, as in Koskela, Redberg and Wang 2024
("Privacy profiles for private selection"), with the whole trade-off curve in place of one point of
it. That is tighter than Renyi divergences: at epsilon 1 and ten runs (geometric) by a third.

**Bound.** Write Q' and A' for a neighbouring dataset, f(x) = E[x^K], and for an output y let
z(y) = Q(better than y). Then A(dy) = f'(1 - z(y)) Q(dy), and so for A', Q' and z'. So with c the
largest log of f'(1 - z) / f'(1 - z'), and delta_Q(e) = sup_S Q(S) - exp(e) Q'(S),

    delta_A(e) = integral of [f'(1 - z) Q - exp(e) f'(1 - z') Q']_+  over all y
              <= integral of f'(1 - z) [Q - exp(e - c) Q']_+  <=  E[K] delta_Q(e - c),

since f' rises to f'(1) = E[K]. To bound c: "better than y" is an event, so z' <= T(z), where
T(z) = min over e of exp(e) z + delta_Q(e), and f' rises. For the truncated negative binomial of
shape s and stopping probability g, f'(1 - z) is proportional to (g + (1 - g) z)^(-s - 1); for
Poisson to exp(-E[K] z). There a run that is not among the best is unlikely to win: outcomes with
z > z0 have probability at most exp(-E[K] z0) under A, which may be spent as part of delta, and
c is then the largest over z <= z0 only. The event K = 0 has the same probability under A and A'.

A profile has two directions, from Q to Q' and from Q' to Q. With delta_Q the larger of the two at
each epsilon, the bound holds in both directions.

For a Poisson number of runs theorem 6 of Papernot and Steinke is at times tighter, when the delta
that it needs is computed from the profile: `poisson_epsilon`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpprobe.errors import PrivacyError
from dpprobe.privacy.plan import Selection

if TYPE_CHECKING:
    from dp_accounting.pld import privacy_loss_distribution

Array = npt.NDArray[np.float64]

# T is the envelope of so many lines, one a point of Q's profile, up to where delta_Q is this small.
_POINTS, _NEGLIGIBLE = 4000, 1e-10
# Fractions of delta that a Poisson selection may spend on outcomes with z > z0.
_TAILS = (0.0, 1e-3, 1e-2, 0.1, 0.3)
# Covers the round-off of c, far below what a plan's digits show.
_ROUND_OFF = 1 + 1e-9


@dataclass(frozen=True)
class Profile:
    """The privacy profile of one run: at each epsilon the larger delta of the two directions.

    Attributes:
      deltas: computes delta at each of an array of epsilons, which rise from 0.
      epsilon: computes the epsilon at one delta.
    """

    deltas: Callable[[Array], Array]
    epsilon: Callable[[float], float]


class Bound(NamedTuple):
    """A bound on A's profile: delta_A(e) <= mean * delta_Q(e - offset) + tail."""

    mean: float
    offset: float
    tail: float

    def epsilon(self, profile: Profile, delta: float) -> float:
        """Computes the epsilon of A at `delta`."""
        return self.offset + profile.epsilon((delta - self.tail) / self.mean)


def stopping_probability(selection: Selection) -> float:
    """Computes the parameter gamma of a truncated negative binomial with this mean and shape.

    Papernot and Steinke 2022, definition 1.
    """
    from scipy.optimize import brentq

    shape = selection.shape

    def surplus(log_gamma: float) -> float:
        odds = math.expm1(-log_gamma)  # 1 / gamma - 1
        return math.log(odds * _over_one_minus_power(log_gamma, shape) / selection.mean)

    return math.exp(brentq(surplus, -60.0, -1e-9, xtol=1e-14, rtol=1e-14))


def _over_one_minus_power(log_gamma: float, shape: float) -> float:
    """Computes shape / (1 - gamma^shape), or its limit at shape 0."""
    power = shape * log_gamma
    return shape / -math.expm1(power) if power < -1e-12 else -1 / log_gamma


def draw_runs(selection: Selection, generator: np.random.Generator) -> int:
    """Draws the number of runs from the distribution that is priced.

    Papernot and Steinke 2022, definition 1. A negative binomial is a Poisson variable whose mean is
    Gamma distributed; a draw of 0 is repeated. For shapes below 1, where 0 is likely, the
    distribution is inverted instead: its probabilities decrease from 1 run on.
    """
    if math.isinf(selection.shape):
        return int(generator.poisson(selection.mean))
    gamma, shape = stopping_probability(selection), selection.shape
    stay = 1 - gamma
    if shape >= 1:
        while True:
            runs = int(generator.poisson(generator.gamma(shape) * stay / gamma))
            if runs:
                return runs
    return _runs_of_small_shape(gamma, shape, generator.random())


def _runs_of_small_shape(gamma: float, shape: float, at: float) -> int:
    """Returns the quantile `at` of the number of runs, for shapes below 1."""
    stay = 1 - gamma
    probability = stay * gamma**shape * _over_one_minus_power(math.log(gamma), shape)
    left, runs = at - probability, 1
    while left >= 0 and probability > 1e-18:
        probability *= stay * (runs + shape) / (runs + 1)
        left -= probability
        runs += 1
    return runs


def runs_at(selection: Selection, at: float) -> int:
    """Returns the number of runs at a quantile of the distribution that is priced.

    Args:
      at: between 0 and 1; of a uniform number the answer has that distribution.
    """
    from scipy import stats  # heavy: planning imports what imports this module

    if math.isinf(selection.shape):
        return int(stats.poisson.ppf(at, selection.mean))
    gamma = stopping_probability(selection)
    if selection.shape < 1:
        return _runs_of_small_shape(gamma, selection.shape, at)
    untruncated = stats.nbinom(selection.shape, gamma)
    none = untruncated.pmf(0)
    return max(1, int(untruncated.ppf(none + at * (1 - none))))


def best_bound(selection: Selection, profile: Profile, delta: float) -> Bound:
    """Returns the bound on A's profile with the least epsilon at `delta`."""
    return min(_bounds(selection, profile, delta), key=lambda bound: bound.epsilon(profile, delta))


def _bounds(selection: Selection, profile: Profile, delta: float) -> list[Bound]:
    mean = selection.mean
    z, worst, envelope = _trade_off(profile)
    if math.isfinite(selection.shape):
        gamma = stopping_probability(selection)
        ratio = (gamma + (1 - gamma) * worst) / (gamma + (1 - gamma) * z)
        offset = (selection.shape + 1) * math.log(float(ratio.max()))
        return [Bound(mean, offset * _ROUND_OFF, 0.0)]
    bounds = []
    for part in _TAILS:
        tail = part * delta
        reach = min(-math.log(tail) / mean, 1.0) if tail else 1.0
        if tail and reach == 1:
            continue
        gap = float(np.append((worst - z)[z <= reach], envelope(reach) - reach).max())
        bounds.append(Bound(mean, mean * gap * _ROUND_OFF, tail))
    return bounds


def poisson_epsilon(
    selection: Selection, profile: Profile, delta: float, *, mu: float, once: float, times: int
) -> float:
    """Computes the epsilon of `times` fits without sampling by Papernot and Steinke, theorem 6.

    With e = log(1 + 1 / (a - 1)), the best of a Poisson number of runs has a Renyi divergence of
    order a of at most a mu^2 / 2 + E[K] delta_Q(e) + log E[K] / (a - 1).

    Args:
      mu: of a run; `profile` is its profile.
      once: the mu of the mechanisms that are released once, before the runs.
    """
    orders = 1 + np.geomspace(1e-2, 1e4, 2000)
    deltas = profile.deltas(np.log1p(1 / (orders - 1))[::-1])[::-1]
    mean = selection.mean
    divergences = orders * (mu**2 + once**2) / 2 + mean * deltas + math.log(mean) / (orders - 1)
    # Canonne, Kamath and Steinke 2020, proposition 12.
    epsilons = times * divergences + np.log1p(-1 / orders)
    epsilons -= (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(float(epsilons.min()), 0.0)


def _trade_off(profile: Profile) -> tuple[Array, Array, Callable[[float], float]]:
    """Bounds T from above by the lower envelope of lines exp(e) z + delta_Q(e), for some e >= 0.

    c follows from the largest ratio of two functions of z (negative binomial) or from their largest
    difference (Poisson). Both functions are linear between adjacent vertices of the envelope, where
    ratio and difference are largest at an end: so the vertices are enough. Slopes below 1 are not
    needed: there ratio and difference decrease in z.

    Returns:
      The vertices' z, the envelope at them, and a function that computes it at any z.
    """
    reach = min(profile.epsilon(_NEGLIGIBLE), 600.0)
    epsilons = np.linspace(0.0, reach, _POINTS)
    slopes, deltas = np.exp(epsilons), profile.deltas(epsilons)
    inner = np.clip(-np.diff(deltas) / np.diff(slopes), 0.0, 1.0)
    z = np.concatenate([[1.0], inner, [0.0]])
    lines = np.concatenate([[0], np.arange(_POINTS - 1), [_POINTS - 1]])
    worst = np.minimum(slopes[lines] * z + deltas[lines], 1.0)
    # T ends at 1: where its first line gets there is a vertex as well.
    z = np.append(z, np.clip((1 - deltas) / slopes, 0.0, 1.0).max())
    worst = np.append(worst, 1.0)

    def envelope(at: float) -> float:
        return float(min((slopes * at + deltas).min(), 1.0))

    return z, worst, envelope


def dominating_loss(
    selection: Selection, profile: Profile, delta: float, interval: float
) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Computes a privacy loss distribution that dominates A, to be composed with others.

    First the bound on A's profile on a grid, at negative epsilons by
    delta_A(-e) = 1 - exp(-e) (1 - delta_A'(e)); then its convex minorant in exp(e), which is not
    below the profile, since the profile is convex; then the distribution by connecting the dots
    (Doroshenko et al. 2022).

    Args:
      delta: the result is to be tight near this delta.
      interval: the grid spacing on the privacy loss.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    bound = best_bound(selection, profile, delta)
    reach = next(
        (
            epsilon
            for part in (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
            if math.isfinite(epsilon := profile.epsilon(part * delta / bound.mean))
        ),
        None,
    )
    if reach is None:
        raise PrivacyError(
            f"selection of a mean of {selection.mean:g} runs: one run has no finite epsilon at "
            f"delta {delta / bound.mean:.3g}, below what privacy loss distributions reach; write a "
            "larger delta, fewer trials, or accountant: rdp"
        )
    top = bound.offset + reach
    size = math.ceil(top / interval)
    epsilons = interval * np.arange(size + 1)
    inside = np.maximum(epsilons - bound.offset, 0.0)
    positive = bound.mean * profile.deltas(inside) + bound.tail
    positive[epsilons < bound.offset] = 1.0
    positive = np.minimum.accumulate(np.minimum(positive, 1.0))
    negative = 1 - np.exp(-epsilons[1:]) * (1 - positive[1:])
    grid = np.concatenate([-epsilons[:0:-1], epsilons])
    deltas = _convex_minorant(np.exp(grid), np.concatenate([negative[::-1], positive]))
    pmf: Any = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, -size, size, np.clip(deltas, 0.0, 1.0)
    )
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def _convex_minorant(x: Array, y: Array) -> Array:
    """Computes the largest convex function below (x, y), x rising, by Andrew's monotone chain."""
    kept: list[int] = []
    for point in range(len(x)):
        while len(kept) > 1:
            a, b = kept[-2:]
            if (y[b] - y[a]) * (x[point] - x[a]) < (y[point] - y[a]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(point)
    return np.interp(x, x[kept], y[kept])
