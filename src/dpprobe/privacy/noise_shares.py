"""Splits the noise of a sum among several sites, and bounds epsilon if some sites collude.

**Claim.** Sites add rounded noise whose variances sum to the variance of a Gaussian mechanism. The
sites' total has the guarantee of the Gaussian mechanism, with a penalty far below epsilon's last
digit.

**What is released.** Each coordinate of a sum is a whole number of steps of a public grid. Site j
adds K_j = round(s_j Z_j) to its partial sum in int64. Z_j is a real standard normal, and s_j the
site's share of the noise. Secure aggregation reveals only the total of all sites. An attacker who
knows the numbers of some sites subtracts these numbers. The remainder is T = S + sum of K_j: the
sum S of the honest sites, plus the noise of the honest sites.

**Sensitivity.** A unit is at one site, so it changes S by at most the sensitivity of the mechanism.
A patient at two sites counts as two units, and has twice the mu.

**Theorem.** A coordinate has h honest shares s_j. V is the sum of the squares of the honest shares,
and

            Theta(s) = sum over all integers n of exp(-pi^2 s^2 n^2),
            tau = (product of Theta(s_j)) - 1, or 0 if h = 1.

The tau of every coordinate must be below 1. Over all coordinates of all releases, L+ is the sum of
ln(1 + tau), and L- the sum of -ln(1 - tau). Let P = L+ + L-. All adaptive releases together have,
for every epsilon,

            delta(epsilon) <= exp(L+) delta_G(epsilon - P).

delta_G is the privacy profile of real-valued Gaussian mechanisms of variances V. The proof
conditions on the real sum G = S + sum of s_j Z_j. The fractional parts of the shares then have a
density within 1 +- tau of a uniform one, for every S. So T is nearly a random rounding of G that
does not depend on data. docs/secure-sums-proof.md has the proof, and counterexamples with shares
below one step.

**Accounting.** The noise of any h sites has at least the variance that the mechanism of the plan
was calibrated with. So the accountants' epsilon of the plan remains valid, plus `Penalty`. The
bound does not cover selecting the best of several runs, which has a different epsilon.

**The constant.** Let q = exp(-pi^2 s^2), with s the smallest share, and h q <= 1/50. Then

            Theta - 1 <= 2 q / (1 - q^3),
            tau <= exp(h (Theta - 1)) - 1 <= 1.021 h (Theta - 1),
            ln(1 + tau) - ln(1 - tau) <= 2.004 tau.

So D coordinates have P <= 4.1 h D q, and L+ <= P / 2. From 16 steps on, q is below 10^-1097.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from dpprobe.errors import PrivacyError
from dpprobe.privacy.rounded_gaussian import LARGEST_DEVIATION

# The smallest allowed share, in steps of the grid; the penalty is then below 10^-1000.
SMALLEST_SHARE = 16.0
# pi^2 / ln(10), rounded down.
_DECADES = 4.2863


def split_noise(deviation: float, parties: int, colluders: int) -> float:
    """Returns the share of each party: the standard deviation of its noise, in steps.

    The noise of any `parties - colluders` parties has at least the variance `deviation`^2, exactly.

    Args:
      deviation: the deviation of a release's noise, in steps of the grid of its sums.
      colluders: how many parties' noise an attacker may know; with 0, no party may be an attacker.

    Raises PrivacyError for numbers that leave no honest party, or a share below `SMALLEST_SHARE`.

    Example:
      >>> split_noise(300.0, parties=3, colluders=0) == 300 / 3**0.5
      True
      >>> split_noise(300.0, parties=3, colluders=2)  # each site could be the only honest one
      300.0
      >>> split_noise(300.0, parties=3, colluders=3)
      Traceback (most recent call last):
          ...
      dpprobe.errors.PrivacyError: 3 of 3 sites collude: at least one site must be honest;
      use 0 to 2 colluding sites
    """
    if not 0 <= colluders < parties:
        raise PrivacyError(
            f"{colluders} of {parties} sites collude: at least one site must be honest; use 0 to "
            f"{parties - 1} colluding sites"
        )
    if not 0 < deviation <= LARGEST_DEVIATION:
        raise PrivacyError(
            f"deviation {deviation!r} in steps of the grid: noise in shares needs a deviation "
            "above 0 and at most 2^48; choose an epsilon between 0.01 and 100"
        )
    honest, variance = parties - colluders, Fraction(deviation) ** 2
    share = deviation / math.sqrt(honest)
    while honest * Fraction(share) ** 2 < variance:
        share = math.nextafter(share, math.inf)
    check_share(share)
    return share


@dataclass(frozen=True, kw_only=True)
class Penalty:
    """The increase of epsilon if noise is split into shares, over a Gaussian mechanism's epsilon.

    Attributes:
      smallest: the smallest honest share, in steps. Off the diagonal of a symmetric release, shares
        are smaller by sqrt(2).
      honest: the number h of honest shares.
      coordinates: the number D of noisy coordinates in all releases together. A symmetric matrix
        [d, d] has d (d + 1) / 2 coordinates.
    """

    smallest: float
    honest: int
    coordinates: int

    def __post_init__(self) -> None:
        check_share(self.smallest)
        if min(self.honest, self.coordinates) < 1:
            raise PrivacyError(
                f"{self.honest} honest sites, {self.coordinates} numbers with noise: a penalty "
                "needs at least one of each; count the sites that do not collude"
            )

    @property
    def log10_total(self) -> float:
        """An upper bound on log10 of P = L+ + L-; -inf for one honest share, which costs 0."""
        if self.honest == 1:
            return -math.inf
        return math.log10(4.1 * self.honest * self.coordinates) - _DECADES * self.smallest**2

    def price_epsilon(self, epsilon_of: Callable[[float], float], delta: float) -> float:
        """Converts a Gaussian mechanism's epsilon at `delta` to the epsilon of noise in shares.

        Returns the epsilon at the next smaller float delta, rounded up. The penalty is below the
        spacing of floats, so exp(L+) delta_G(epsilon - P) <= delta.

        Args:
          epsilon_of: an accountant's upper bound on the plan's epsilon at a delta.
        """
        if self.honest == 1:
            return epsilon_of(delta)
        return math.nextafter(epsilon_of(math.nextafter(delta, 0.0)), math.inf)


def check_share(share: float, *, released: str = "a release") -> None:
    """Raises PrivacyError for a share, in steps of the grid, below `SMALLEST_SHARE`."""
    if not share >= SMALLEST_SHARE:
        raise PrivacyError(
            f"a site's share of the noise of {released} is {share:.3g} steps of the grid: at "
            f"least {SMALLEST_SHARE:g} are needed; set a smaller epsilon"
        )
