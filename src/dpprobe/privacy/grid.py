"""Public grids on which sums over rows are integers, exact in any order.

Entries of rows and factors are rounded towards zero to whole multiples of a power of two that
depends only on n and on public bounds. Rounding towards zero never lengthens a vector, so a norm of
at most C stays at most C, and sensitivities need no term for rounding. Entries of a bits times
factors of b bits are added over n rows. If n 2^(a + b) <= 2^52, every partial sum is exact in
float64, and sums do not depend on the order of rows, blocks, threads or the device. So any library
may compute them as float64 products. `check_exact` checks the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from dpprobe import devices
from dpprobe.errors import PrivacyError

# Float64 is exact up to 2^53. The factor of two leaves room for numbers added at the end.
_SUM_BITS = 52
# Most bits of a row's entry, and of an entry without a factor. More bits would be far below any
# noise, and noise of thousands of sensitivities must stay below 2^48 steps.
_ENTRY_BITS, _LONE_BITS = 17, 26
_FEWEST_BITS = 8
_PANEL = 160


@dataclass(frozen=True)
class GridSum:
    """Sums over rows in units of a public step.

    Attributes:
      units: float64; whole numbers if noise will be added.
      step: the value of one unit.
    """

    units: torch.Tensor
    step: float = 1.0

    @property
    def values(self) -> torch.Tensor:
        """The sums, float64."""
        return self.units * self.step

    @property
    def one_seed(self) -> GridSum:
        """The sums with a leading dimension of size 1, for one seed."""
        return GridSum(self.units[None], self.step)

    def divide_by(self, divisor: float) -> GridSum:
        """Divides by a public number."""
        return GridSum(self.units, self.step / divisor)


@dataclass(frozen=True)
class Grid:
    """The grid of one sum over rows, to which each row adds one vector.

    Attributes:
      step: a power of two; 1 if nothing is rounded.
      whole: True if entries are rounded; False without noise, because sums then need not be exact.

    Example:
      >>> grid = Grid.make_grid(1.0, 1000, whole=True)
      >>> grid.step == 2.0**-25
      True
      >>> grid.round_to_steps(torch.tensor([0.3, -0.3])).tolist()  # towards zero
      [10066330.0, -10066330.0]
    """

    step: float
    whole: bool

    @classmethod
    def make_grid(cls, longest: float, rows: int, *, whole: bool) -> Grid:
        """Returns the grid for vectors of norm at most `longest`, a public bound, over n rows."""
        return cls(grid_step(longest, lone_bits(rows)) if whole else 1.0, whole)

    def round_to_steps(self, values: torch.Tensor) -> torch.Tensor:
        """Returns values in steps, rounded towards zero: float64."""
        return towards_zero(values, self.step) if self.whole else values.to(torch.float64)


def check_exact(rows: int, largest: float) -> None:
    """Checks that float64 adds the integer products of n units exactly, in any order.

    `largest` bounds a unit's sum of absolute products in one entry of the result, such as a product
    of two norms (Cauchy-Schwarz). Raises PrivacyError if partial sums may exceed 2^53.

    Example:
      >>> check_exact(10**6, 2.0**33)
      >>> check_exact(10**7, 2.0**33)
      Traceback (most recent call last):
          ...
      dpprobe.errors.PrivacyError: n = 10000000: sums of products up to 8.58993e+09 may exceed
      2^53, above which float64 rounds; nothing is released
    """
    if not rows * largest <= 2.0 ** (_SUM_BITS + 1):
        raise PrivacyError(
            f"n = {rows}: sums of products up to {largest:.6g} may exceed 2^53, above which "
            "float64 rounds; nothing is released"
        )


def product_bits(rows: int) -> int:
    """Returns the total bits of a row's entry and its factor with which sums over n rows are exact.

    Raises PrivacyError if there are too many rows for 16 bits.
    """
    bits = _SUM_BITS - max(rows - 1, 0).bit_length()
    if bits < 2 * _FEWEST_BITS:
        raise PrivacyError(
            f"n = {rows}: exact sums support at most {2 ** (_SUM_BITS - 2 * _FEWEST_BITS)} rows"
        )
    return bits


def entry_bits(rows: int) -> int:
    """Returns the bits of a row's entries that are multiplied by a factor."""
    return min(product_bits(rows) // 2, _ENTRY_BITS)


def factor_bits(rows: int) -> int:
    """Returns the bits of a factor by which a row's entries are multiplied."""
    return min(product_bits(rows) - entry_bits(rows), _ENTRY_BITS)


def lone_bits(rows: int) -> int:
    """Returns the bits of entries that are added without a factor."""
    return min(product_bits(rows), _LONE_BITS)


def grid_step(longest: float, bits: int) -> float:
    """Returns the power of two such that `longest` is at most 2^bits steps."""
    exponent = math.frexp(longest)[1]  # longest < 2^exponent
    return math.ldexp(1.0, exponent - bits)


def towards_zero(values: torch.Tensor, step: float) -> torch.Tensor:
    """Returns values as whole steps, rounded towards zero: float64."""
    return truncate(values.to(torch.float64).div(step))


def truncate(values: torch.Tensor) -> torch.Tensor:
    """Rounds values towards zero, in place."""
    if not devices.has_kernels(values.device):
        return values.trunc_()
    np.trunc(values.numpy(), out=values.numpy())  # PyTorch's takes nine times as long on a CPU
    return values


def mirror_upper(upper: torch.Tensor) -> torch.Tensor:
    """Makes an upper triangle a symmetric matrix, in place, panel by panel."""
    for low in range(0, len(upper), _PANEL):
        block = upper[low : low + _PANEL, low : low + _PANEL]
        block.copy_(block.triu() + block.triu(1).T)
        upper[low + _PANEL :, low : low + _PANEL] = upper[low : low + _PANEL, low + _PANEL :].T
    return upper
