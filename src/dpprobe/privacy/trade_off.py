"""The best attack that a plan leaves possible: true positives against false positives.

Somebody who knows everything but one unit's rows looks at what was released, and decides whether
this unit is in. The test is wrong about units that are not in at a rate alpha, its false positives,
and right about units that are in at a rate beta. Nothing is released here, and no data is read:
beta's largest value follows from the plan alone (Wasserman and Zhou 2010; Dong, Roth and Su 2022).

**Gaussians on all rows.** A composition without sampling is dominated by, and attains, one release
of N(mu, 1) against N(0, 1). By Neyman and Pearson the best test of these is a threshold, so

    beta = Phi(Phi^-1(alpha) + mu).

**Poisson samples.** With delta(e) the privacy profile, both directions covered, and any e >= 0, an
event of probability alpha without the unit has at most exp(e) alpha + delta(e) with it; and its
complement, of probability 1 - beta with the unit, has at most exp(e) (1 - beta) + delta(e) without:

    beta <= min over e of  exp(e) alpha + delta(e)   and   1 - exp(-e) (1 - alpha - delta(e)).

Every e gives a bound, so a minimum over a grid of them is one; a profile that overestimates delta
overestimates beta.

**A selection** was priced at one (epsilon, delta), and the same two lines at this point are what is
known of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpprobe.errors import PrivacyError
from dpprobe.privacy import accountants
from dpprobe.privacy.plan import Mechanism, Selection

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Epsilons at which a sampled composition's profile is taken, up to where its delta is this small.
_POINTS, _NEGLIGIBLE = 4000, 1e-9
# Answers are rounded up to so many decimals, after what the round-off of their computation may be.
_DECIMALS, _ROUND_OFF = 6, 1e-12


def best_attack(
    mechanisms: Sequence[Mechanism],
    false_positive_rates: Sequence[float],
    selection: Selection | None = None,
    *,
    delta: float,
    epsilon: float,
) -> list[float]:
    """Bounds the true positive rate of any test of "is this unit in?", at each false positive rate.

    Args:
      mechanisms: of the plan, with absolute noise multipliers.
      false_positive_rates: from 0 to 1.
      selection: names the mechanisms that are repeated, with only the best run released.
      delta: of the plan; of a selection the one it was priced at.
      epsilon: realised at `delta`; used for a selection alone.

    Returns:
      The rates, rounded up to six decimals: exact where no mechanism samples and none is repeated,
      upper bounds elsewhere.

    Raises:
      PrivacyError: for a rate that does not lie between 0 and 1.
    """
    for rate in false_positive_rates:
        if not 0 <= rate <= 1:
            raise PrivacyError(f"false positive rate {rate!r}: must lie between 0 and 1")
    if any(mechanism.noise_multiplier == 0 for mechanism in mechanisms):
        return [1.0 for _ in false_positive_rates]
    if selection is not None:
        rates = [_bound(rate, epsilon, delta) for rate in false_positive_rates]
    elif all(mechanism.sample_rate == 1 for mechanism in mechanisms):
        mu = accountants.gaussian_mu(mechanisms)
        rates = [_gaussian(rate, mu) for rate in false_positive_rates]
    else:
        rates = _by_profile(mechanisms, false_positive_rates, delta)
    return [_rounded_up(rate) for rate in rates]


def _gaussian(rate: float, mu: float) -> float:
    """Computes Phi(Phi^-1(rate) + mu)."""
    from scipy.special import ndtr, ndtri

    return float(ndtr(ndtri(rate) + mu))


def _by_profile(
    mechanisms: Sequence[Mechanism], rates: Sequence[float], delta: float
) -> list[float]:
    """Bounds the true positive rates by the privacy profile of a composition with sampling."""
    import numpy as np

    profile = accountants.privacy_profile(mechanisms, delta)
    last = profile.epsilon(_NEGLIGIBLE)
    if not math.isfinite(last):
        last = profile.epsilon(delta)
    epsilons = np.linspace(0.0, last, _POINTS)
    deltas = np.asarray(profile.deltas(epsilons))
    return [float(_bounds(rate, epsilons, deltas).min()) for rate in rates]


def _bound(rate: float, epsilon: float, delta: float) -> float:
    """Bounds the true positive rate by one (epsilon, delta)."""
    import numpy as np

    return float(_bounds(rate, np.asarray(epsilon), np.asarray(delta)).min())


def _bounds(
    rate: float, epsilons: npt.NDArray[np.float64], deltas: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Computes the lower of the two bounds at each point of a privacy profile."""
    import numpy as np

    few = np.exp(np.minimum(epsilons, 700.0)) * rate + deltas
    many = 1 - np.exp(-epsilons) * (1 - rate - deltas)
    return np.minimum(few, many)


def _rounded_up(rate: float) -> float:
    """Rounds a rate up, and never above 1."""
    scale = 10**_DECIMALS
    return min(1.0, math.ceil((rate + _ROUND_OFF) * scale) / scale)
