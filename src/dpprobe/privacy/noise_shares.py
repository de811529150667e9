"""Splits the noise of a sum among several sites, and prices what is left if some sites collude.

**Claim.** Sites whose rounded noise adds up to a Gaussian mechanism's variance promise what that
mechanism promises, with a penalty far below the last digit of epsilon.

**What is released.** Each coordinate of a sum is a whole number S of steps of a public grid. Site j
adds K_j = round(s_j Z_j) to its part of S in int64, with Z_j real standard normals and s_j its
share. Secure aggregation shows the total alone. Whoever knows the numbers of t sites subtracts
them. What is left is T = S + sum of K_j, with S of the honest sites and j over their shares.

**Sensitivity.** A unit is at one site, so it moves S by at most the sensitivity of the mechanism,
as in one place. A patient at two sites is two units, and pays twice the mu.

**Theorem.** Let V be the sum of s_j^2 over the h honest shares of a coordinate, and

    Theta(s) = sum over whole n of exp(-pi^2 s^2 n^2),    tau = (product of Theta(s_j)) - 1 < 1.

Let L+ be the sum of ln(1 + tau) over all coordinates of all releases, L- the sum of
-ln(1 - tau), and P = L+ + L-. With h = 1 every tau is 0. Then for all adaptive releases together,
all neighbouring datasets and every epsilon

    delta(epsilon) <= exp(L+) delta_G(epsilon - P),

with delta_G the privacy profile of real Gaussian mechanisms of variances V. The reason: given the
real sum G = S + sum of s_j Z_j, the fractional parts of the shares have a density within 1 +- tau
of a uniform one, whatever S is. So T is nearly G after a random rounding that knows no data.
docs/secure-sums-proof.md has the proof. It also shows that shares below one step break the claim.

**Who prices it.** The shares of any h sites have together at least the variance that the plan's
mechanism was calibrated with. So the accountants' epsilon of the plan holds, unchanged, with
`Penalty` on top. This does not cover the best of several runs, whose price is not that of one run.

**The constant.** Let q = exp(-pi^2 s^2), s the smallest share, and h q <= 1/50. Then
Theta - 1 <= 2 q / (1 - q^3), tau <= exp(h (Theta - 1)) - 1 <= 1.021 h (Theta - 1), and
ln(1 + tau) - ln(1 - tau) <= 2.002 tau. So D coordinates have P <= 4.1 h D q, and L+ <= P / 2. From
16 steps on q is below 10^-1097.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from dpprobe.errors import PrivacyError
from dpprobe.privacy.rounded_gaussian import LARGEST_DEVIATION

# In steps of the grid. From here on penalties are below 10^-1000.
SMALLEST_SHARE = 16.0
# pi^2 / ln(10), rounded down.
_DECADES = 4.2863
# Honest shares of all coordinates. More would need larger shares for the same penalty.
_MOST_NUMBERS = 2**63


def split_noise(deviation: float, parties: int, colluders: int) -> float:
    """Returns the share of each party: the standard deviation of its noise, in steps.

    The shares of any `parties - colluders` parties have together at least the variance
    `deviation`^2, exactly.

    Args:
      deviation: of a release's noise, in steps of the grid of its sums.
      colluders: parties whose noise an attacker may know; 0 only if no party is an attacker.

    Raises:
      PrivacyError: for numbers that leave no honest party, or a share below `SMALLEST_SHARE`.
    """
    if not 0 <= colluders < parties:
        raise PrivacyError(
            f"{colluders} of {parties} sites collude: at least one site must be honest; write a "
            "number of colluding sites from 0 to the number of sites less one"
        )
    if not 0 < deviation <= LARGEST_DEVIATION:
        raise PrivacyError(
            f"deviation {deviation!r} in steps of the grid: shares of noise need one above 0, up "
            "to 2^48; write an epsilon that has noise, and not a smaller one than needed"
        )
    honest, variance = parties - colluders, Fraction(deviation) ** 2
    share = deviation / math.sqrt(honest)
    while honest * Fraction(share) ** 2 < variance:
        share = math.nextafter(share, math.inf)
    _check_share(share)
    return share


@dataclass(frozen=True, kw_only=True)
class Penalty:
    """The price of noise in shares on top of the Gaussian mechanism's.

    Attributes:
      smallest: the smallest honest share, in steps. Off the diagonal of a symmetric release shares
        are smaller by sqrt(2).
      honest: honest shares, h.
      coordinates: numbers with noise in all releases together, D. A symmetric matrix [d, d] has
        d (d + 1) / 2.
    """

    smallest: float
    honest: int
    coordinates: int

    def __post_init__(self) -> None:
        _check_share(self.smallest)
        if (
            self.honest < 1
            or self.coordinates < 1
            or self.honest * self.coordinates > _MOST_NUMBERS
        ):
            raise PrivacyError(
                f"{self.honest} honest sites, {self.coordinates} numbers with noise: a penalty "
                "needs at least one of each, and at most 2^63 in all; release smaller sums"
            )

    @property
    def log10_total(self) -> float:
        """An upper bound on log10 of P = L+ + L-; -inf for one honest share, which costs 0."""
        if self.honest == 1:
            return -math.inf
        return math.log10(4.1 * self.honest * self.coordinates) - _DECADES * self.smallest**2

    def price_epsilon(self, epsilon_of: Callable[[float], float], delta: float) -> float:
        """Computes the epsilon of noise in shares at `delta`, from that of Gaussian mechanisms.

        The penalty is below the spacing of floats: epsilon is that of the next smaller delta,
        rounded up. So delta_G(epsilon - P) exp(L+) <= delta.

        Args:
          epsilon_of: an accountant's upper bound on the plan's epsilon at a delta.
        """
        if self.honest == 1:
            return epsilon_of(delta)
        return math.nextafter(epsilon_of(math.nextafter(delta, 0.0)), math.inf)


def _check_share(share: float) -> None:
    if not share >= SMALLEST_SHARE:
        raise PrivacyError(
            f"a site's share of the noise is {share:.3g} steps of the grid: at least "
            f"{SMALLEST_SHARE:g} are needed to price it; write a smaller epsilon"
        )
