"""Running totals over cohorts of units, estimated from one release per cohort.

Cohort t has exact sums x_t over only its own units, and publishes a noisy release y_t. The running
total x_1 + ... + x_t is estimated from y_1 ... y_t, which is post-processing. There are two ways to
estimate running totals:

- Added: y_t = x_t + noise, and the estimate is y_1 + ... + y_t, without a horizon. A unit affects
  only one y, so it uses the epsilon of one release. The total's noise grows with sqrt(t).
- Factorised, for at most T cohorts: y_t = sum of c_k x_(t-k) + noise, with decreasing c. C is the
  lower triangular Toeplitz matrix of c, A the running sum, and the estimate is A C^-1 y. A unit
  changes all y together, by its contribution to the sums times a column of C. So a unit uses the
  epsilon of one Gaussian release, whose sensitivity is the sums' sensitivity times the column's
  norm, at most `column_norm`. The coefficients c of A^(1/2) are binom(2k, k) / 4^k (Fichtenberger,
  Henzinger and Upadhyay 2022, arXiv 2202.11205). With c of A^(1/2) every total has about 1 + ln(T)
  / pi times the noise of one release. The noise of each y is independent. So epsilon holds even if
  later cohorts are chosen after earlier outputs (Denisov et al. 2022).

The coefficients c in use are integers, with c_k / c_0 within 1/128 of the coefficients of A^(1/2).
So C x stays on the grid of the sums, int64 adds C x exactly, and the epsilon of `privacy.releases`
remains valid. A C^-1 is applied in float64, only to released numbers.

A unit in two cohorts s and t contributes u_s and u_t to their sums. Without a horizon, the noise is
independent, so the squared costs of both cohorts add up, as for any two releases. With a horizon,
both contributions change the same outputs: by the outer products of u_s with column s of C, and of
u_t with column t. As c > 0, the norm of both products' sum is largest for u_s = u_t, for all
earlier outputs. The norm is the sensitivity times

    |column s + column t| <= |column s| + |column t| <= 2 `column_norm`

So the norms of two cohorts add up: at most 1.61 `column_norm` in a horizon of 2, and 1.81 in one of
12. For two releases with independent noise the factor would be 1.41. The ledger uses 2
`column_norm`, a bound for any two cohorts.

The ledger enforces two more conditions. Units in two cohorts are declared (`same_units_as`), or the
release is refused. Each position in a chain of cohorts is used once. The exact sums of earlier
cohorts are private; chains of added totals do not store them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.privacy.limits import LONGEST_HORIZON

# c_0. With sums of at most 2^52 steps, chains of 60 cohorts do not overflow int64.
_SCALE = 64
_LARGEST_WHOLE = 2.0**62

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Factorisation:
    """The coefficients c of a chain of cohorts; (1,) without a horizon.

    Attributes:
      horizon: the largest number of cohorts; None for any number.

    Example:
      >>> added = Factorisation.make(None)  # each cohort's sum has its own noise
      >>> [round(added.noise_growth(cohorts), 2) for cohorts in (1, 4, 16)]
      [1.0, 2.0, 4.0]
      >>> [round(Factorisation.make(16).noise_growth(cohorts), 2) for cohorts in (1, 4, 16)]
      [1.4, 1.7, 1.94]
    """

    coefficients: tuple[int, ...] = (1,)
    horizon: int | None = None

    @classmethod
    def make(cls, horizon: int | None) -> Factorisation:
        """Returns the coefficients of A^(1/2) for a horizon; (1,) without a horizon."""
        if horizon is None:
            return cls()
        if not 2 <= horizon <= LONGEST_HORIZON:
            raise ConfigError(
                f"horizon {horizon}: must be a number of cohorts from 2 to {LONGEST_HORIZON}, or "
                "leave it out to add the cohorts' sums up"
            )
        roots = [Fraction(math.comb(2 * k, k), 4**k) for k in range(horizon)]
        return cls(coefficients=tuple(round(_SCALE * root) for root in roots), horizon=horizon)

    @property
    def keeps_sums(self) -> bool:
        """True if later releases read the exact sums of earlier cohorts."""
        return len(self.coefficients) > 1

    @property
    def column_norm(self) -> float:
        """The largest norm of a column of C, rounded up."""
        square = sum(c * c for c in self.coefficients)
        norm = math.sqrt(square)
        while Fraction(norm) ** 2 < square:
            norm = math.nextafter(norm, math.inf)
        return norm

    def check_place(self, place: int) -> None:
        """Raises PrivacyError for a cohort that the chain's epsilon does not cover."""
        if self.horizon is not None and place > self.horizon:
            raise PrivacyError(
                f"cohort {place}: epsilon covers only {self.horizon} cohorts (`horizon`); begin a "
                "new chain without `predecessor`"
            )

    def decode(self, cohorts: int) -> Floats:
        """Returns b_0 ... b_(t-1), so that the total over t cohorts is the sum of b_k y_(t-k)."""
        out = np.zeros(cohorts)
        for k in range(cohorts):
            reach = min(k, len(self.coefficients) - 1)
            known = sum(self.coefficients[j] * out[k - j] for j in range(1, reach + 1))
            out[k] = (1 - known) / self.coefficients[0]
        return out

    def noise_growth(self, cohorts: int) -> float:
        """Returns the noise deviation of a total over cohorts, relative to one release."""
        return self.column_norm * float(np.linalg.norm(self.decode(cohorts)))


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """The values of a released cohort that later releases need.

    Attributes:
      n: the cohort's number of units.
      outputs: the released outputs y, by mechanism, float64.
      sums: the private sums x, by mechanism, in int64 steps; empty in chains of added sums.
      steps: the grid step per entry of `sums`.
      weights: the released head's weights, float32 [K, d + 1].
    """

    n: int
    outputs: Mapping[str, Floats]
    sums: Mapping[str, Integers] = field(default_factory=dict)
    steps: Mapping[str, float] = field(default_factory=dict)
    weights: npt.NDArray[np.float32] | None = None


class RunningSums:
    """Combines the sums of a new cohort with the earlier cohorts of a chain.

    Args:
      names: the mechanisms whose sums add up over cohorts; a fit releases each once.
      n: the number of units of the new cohort.
    """

    def __init__(
        self,
        factorisation: Factorisation,
        earlier: Sequence[Cohort],
        *,
        names: Sequence[str],
        n: int,
    ) -> None:
        self.factorisation, self.earlier, self.names, self.n = (
            factorisation,
            tuple(earlier),
            tuple(names),
            n,
        )
        self.place = len(self.earlier) + 1
        factorisation.check_place(self.place)
        self._outputs: dict[str, Floats] = {}
        self._sums: dict[str, Integers] = {}
        self._steps: dict[str, float] = {}

    @property
    def total(self) -> int:
        """The number of units of all cohorts."""
        return self.n + sum(cohort.n for cohort in self.earlier)

    @property
    def new_share(self) -> float:
        """The new cohort's share of all units."""
        return self.n / self.total

    @property
    def noise_growth(self) -> float:
        return self.factorisation.noise_growth(self.place)

    @property
    def last_weights(self) -> npt.NDArray[np.float32] | None:
        """The weights of the previous head; None for a first cohort."""
        return self.earlier[-1].weights if self.earlier else None

    def mix_sums(
        self, name: str, units: Floats, step: float, *, sensitivity: float
    ) -> tuple[Integers, float]:
        """Returns the new cohort's row of C x in whole steps, and the size of a step.

        Args:
          units: the new cohort's sums, whole numbers of steps.
          sensitivity: a unit's sensitivity in these sums; n times the sensitivity bounds the sums.
        """
        whole = units.astype(np.int64)
        if self.factorisation.keeps_sums:
            self._sums[name], self._steps[name] = whole, step
        near = self.earlier[::-1][: len(self.factorisation.coefficients) - 1]
        finest = min([step, *(cohort.steps[name] for cohort in near)])
        bound = 0.0
        mixed = np.zeros_like(whole)
        parts = [(self.n, whole, step)]
        parts += [(cohort.n, cohort.sums[name], cohort.steps[name]) for cohort in near]
        for factor, (n, sums, grid) in zip(self.factorisation.coefficients, parts, strict=False):
            # exact, because steps are powers of two
            bound += factor * (n * sensitivity / finest)
            if bound > _LARGEST_WHOLE:
                raise PrivacyError(
                    f"{name}: {self.total} units of {self.place} cohorts exceed the exact sums of "
                    "a horizon; leave `horizon` out"
                )
            mixed += sums * np.int64(factor * int(grid / finest))
        return mixed, finest

    def take_output(self, name: str, output: Floats) -> Floats:
        """Stores a released output, and returns the estimated total over all cohorts."""
        self._outputs[name] = output
        every = [*(cohort.outputs[name] for cohort in self.earlier), output]
        factors = self.factorisation.decode(self.place)[::-1]
        total = np.zeros_like(output)
        for factor, part in zip(factors, every, strict=True):
            total += factor * part
        return total

    def make_cohort(self, weights: npt.NDArray[np.float32]) -> Cohort:
        """Returns the values of this cohort that later releases need; called after the fit."""
        return Cohort(
            n=self.n, outputs=self._outputs, sums=self._sums, steps=self._steps, weights=weights
        )
