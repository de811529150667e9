"""Runs one site's part of a fit at several sites: adds noise to its sums, and uses totals.

A private fit depends on private rows only through its noisy releases. A fit of several sites
therefore needs no separate protocol: every site runs the fit on its own rows, with totals over all
sites as releases. A fit stops at the first sum whose total is not known yet (`SumsMissing`). The
site's noisy sum is sent to the other sites, and the fit runs again with one more total. Repeated
runs repeat the passes over the rows, but a site may stop and continue at any time.

Each total is the sum of S_j + K_j over all sites j. S_j is the exact sum of site j, in whole steps
of a grid for all sites' units. K_j is the rounded Gaussian noise of site j. `privacy.noise_shares`
bounds the privacy cost of noise in shares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpprobe.errors import PrivacyError
from dpprobe.privacy.noise_shares import check_share
from dpprobe.privacy.releases import add_rounded_noise
from dpprobe.privacy.rounded_gaussian import RoundedGaussian

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Sum:
    """The numbers of one noisy release: a site's numbers (masked or not), or the total.

    Attributes:
      name: the mechanism's name.
      step: the value of one grid step, a public number.
      deviation: the plan's noise on the total, in steps.
      numbers: int64 [size]; the upper triangle of a symmetric matrix, row by row.
    """

    name: str
    step: float
    deviation: float
    symmetric: bool
    numbers: Integers

    @property
    def facts(self) -> tuple[str, float, float, bool, int]:
        """The facts of a sum that must be equal at all sites."""
        return self.name, self.step, self.deviation, self.symmetric, self.numbers.size

    def replace_numbers(self, numbers: Integers) -> Sum:
        return replace(self, numbers=numbers)


class SumsMissing(Exception):
    """Raised to stop a fit that needs other sites' totals; `sums` are this site's noisy numbers."""

    def __init__(self, sums: Sequence[Sum]) -> None:
        super().__init__(", ".join(each.name for each in sums))
        self.sums = tuple(sums)


class SharedSums:
    """Replaces the releases of one run of a fit by totals over all sites.

    Args:
      totals: the totals of the releases so far, in the order of the fit.
      open_noise: returns the noise for this site's exact sum with a given index (from 0).
      share: maps the deviation of a total's noise to the deviation of this site's noise, in steps;
        0 for no noise.
      together: mechanisms whose sums do not depend on other releases, so that their totals are
        requested at once. The fit must release all sums of `together` before it uses a total.
    """

    def __init__(
        self,
        totals: Sequence[Sum],
        *,
        open_noise: Callable[[int, Sum], RoundedGaussian],
        share: Callable[[float], float],
        together: Collection[str] = (),
    ) -> None:
        self._totals = tuple(totals)
        self._open_noise, self._share = open_noise, share
        self._together = frozenset(together)
        self._asked: list[Sum] = []
        self._seen: set[str] = set()
        self._place = 0
        # For the statement: the smallest noise share of a number, and the count of all numbers.
        self.smallest_share = math.inf
        self.coordinates = 0

    def add_up(
        self, name: str, local: Integers, *, step: float, deviation: float, symmetric: bool
    ) -> Integers:
        """Returns the total over all sites of one release, int64 of the shape of `local`.

        Args:
          local: this site's exact sum in steps, of any shape; symmetric matrices are [d, d].
          deviation: the plan's noise on the total, in steps.

        Raises:
          SumsMissing: if other sites' numbers are needed first.
          PrivacyError: if totals belong to another fit, or noise is too small for the grid.
        """
        place, self._place = self._place, self._place + 1
        self._seen.add(name)
        packed = Sum(
            name=name,
            step=step,
            deviation=deviation,
            symmetric=symmetric,
            numbers=_pack(local, symmetric),
        )
        self._count_noise(packed, share := self._share(deviation))
        if place < len(self._totals):
            return _unpack(self._take_total(place, packed), local, symmetric)
        if share:
            noisy = local.copy()
            add_rounded_noise(self._open_noise(place, packed), noisy, share, symmetric=symmetric)
            packed = packed.replace_numbers(_pack(noisy, symmetric))
        self._asked.append(packed)
        if name in self._together and not self._together <= self._seen:
            return np.zeros_like(local)
        raise SumsMissing(self._asked)

    def _count_noise(self, packed: Sum, share: float) -> None:
        self.coordinates += packed.numbers.size
        if not share:
            return
        finest = share / math.sqrt(2) if packed.symmetric else share
        check_share(finest, released=packed.name)
        self.smallest_share = min(self.smallest_share, finest)

    def _take_total(self, place: int, local: Sum) -> Integers:
        total = self._totals[place]
        if total.facts != local.facts:
            raise PrivacyError(
                f"total {place + 1} of the sites is {_describe(total)}, but this fit needs "
                f"{_describe(local)}; all sites must run one version of dpprobe"
            )
        return total.numbers


def add_sums(sums: Sequence[Sum]) -> Sum:
    """Returns the total of one release over all sites, modulo 2^64, in which masks cancel.

    Raises PrivacyError if the sites' sums differ in their mechanism, step or size.
    """
    for each in sums:
        if each.facts != sums[0].facts:
            raise PrivacyError(
                f"the sites' sums differ: {_describe(each)} and {_describe(sums[0])}; all sites "
                "must run one version of dpprobe"
            )
    total = np.zeros(sums[0].numbers.size, dtype=np.uint64)
    for each in sums:
        total += each.numbers.view(np.uint64)
    return sums[0].replace_numbers(total.view(np.int64))


def _describe(one: Sum) -> str:
    return f"{one.name} ({one.numbers.size:,} numbers of {one.step:.6g}, noise {one.deviation:.6g})"


def _pack(numbers: Integers, symmetric: bool) -> Integers:
    return numbers[np.triu_indices(len(numbers))] if symmetric else numbers.ravel()


def _unpack(numbers: Integers, like: Integers, symmetric: bool) -> Integers:
    if not symmetric:
        return numbers.reshape(like.shape)
    matrix = np.empty_like(like)
    rows, columns = np.triu_indices(len(like))
    matrix[rows, columns] = matrix[columns, rows] = numbers
    return matrix
