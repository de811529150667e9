"""Epsilon of the exponential mechanism by bounded range (Durfee and Rogers 2019, section 4.2).

**Mechanism.** Among public candidates r it draws one with a probability in proportion to
exp(u(r) / (sigma D)), where D, its sensitivity, bounds by how much one unit's rows move the scores
u of two candidates against each other: with c(r) the change of u(r) when null rows take their
place, max c - min c <= D. With c(r) / (sigma D) - log(Z / Z') for log P(r) / P'(r), no two log
likelihood ratios are further apart than eta = 1 / sigma. That is the definition of range eta.

- Both P and P' are probabilities, so the log ratios are not all above 0, nor all below: none is
  further than eta from 0, and the mechanism is (eta, 0)-DP. Where a unit moves all scores one way,
  each by at most D, this is half of the general cost, where scores may move by D up and by D down.
- Draws for several groups of scores at once, such as one per class, are one mechanism on tuples:
  the log ratios add up, so D bounds max c - min c of the sums over groups. It is no matter into how
  many groups a unit's rows fall, as long as they move all of them together by at most D.
- To k units together the range is k eta.

**Profile of one release.** Let the log ratio lie in [t - eta, t]. By convexity the largest delta
has it at both ends alone: at t with probability p = (1 - exp(t - eta)) / (1 - exp(-eta)) under P,
and then delta = p (1 - exp(epsilon - t)). The worst t is (epsilon + eta) / 2, so for |epsilon| at
most eta (Dong, Durfee and Rogers 2020, "Optimal differential privacy composition for exponential
mechanisms")

    delta(epsilon) = (1 - exp((epsilon - eta) / 2))^2 / (1 - exp(-eta)).

It is attained by the exponential mechanism on two candidates, of which a unit adds D to one: no
smaller delta holds for all. The profile is the same in both directions.

**Composition.** As a function of exp(epsilon) it is convex and falls from 1 to 0, so it is the
profile of a pair of distributions, whose log ratio l has the densities exp(+-l / 2) / (4 sinh(eta /
2)) on [-eta, eta]. That pair dominates every mechanism of range eta, and the composition of
dominating pairs dominates every adaptive composition (Zhu, Dong and Wang 2022, theorem 10): so an
exponential release composes like a Gaussian one, by privacy loss distributions. It is exact for
one release, an upper bound for several.

**Renyi.** f(a) = log E'[exp(a l)] has f(0) = f(1) = 0, and f'' is the variance of a variable in an
interval of length eta, at most eta^2 / 4. So f(a) <= a (a - 1) eta^2 / 8, and the Renyi divergence
f(a) / (a - 1) is at most a eta^2 / 8: zero-concentrated DP of rho = eta^2 / 8 (Cesar and Rogers
2021), which composes adaptively too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from dp_accounting.pld import privacy_loss_distribution


def range_epsilon(eta: float, delta: float) -> float:
    """Computes the smallest epsilon of range eta at `delta`, exactly."""
    if math.isinf(eta):
        return math.inf
    return max(0.0, eta + 2 * math.log1p(-math.sqrt(delta * -math.expm1(-eta))))


def range_deltas(eta: float, epsilons: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Computes the exact delta of range eta at each of an array of epsilons, of either sign."""
    import numpy as np  # heavy: planning imports what imports this module

    inside = np.clip(epsilons, -eta, eta)
    values = np.expm1((inside - eta) / 2) ** 2 / -math.expm1(-eta)
    return np.where(epsilons < -eta, -np.expm1(np.minimum(epsilons, 0.0)), values)


def range_rho(eta: float) -> float:
    """Computes the zero-concentrated privacy of range eta."""
    return eta**2 / 8


def loss_distribution(
    eta: float, interval: float
) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Computes the privacy loss distribution of the dominating pair, by connecting the dots.

    Args:
      interval: the grid spacing on the privacy loss, which only ever overestimates.
    """
    import numpy as np  # as above
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    size = math.ceil(eta / interval) + 1
    grid = interval * np.arange(-size, size + 1, dtype=np.float64)
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, -size, size, range_deltas(eta, grid)
    )
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)
