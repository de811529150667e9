"""Sums, over units, how much more accurate a second head is than a first head.

A row's difference is the share of the row's labels that the second head predicts correctly, minus
the share for the first head. With one label, it is 1 if only the second head is right, and -1 if
only the first head is right. A unit's difference is the mean of its rows' differences. A unit adds
a number in [-1, 1], and null rows add 0, so the sum has sensitivity 1. Both heads may be earlier
releases, because composition is adaptive. The sum is a whole number of steps of a public grid.
Differences are rounded towards zero, so no absolute value grows.

`release.comparison` compares two releases on test units with this sum; `heads.student` compares a
student and its teacher on training units.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.errors import PrivacyError
from dpprobe.privacy.grid import Grid, GridSum

Floats = npt.NDArray[np.float64]


def weigh_differences(first: Floats, second: Floats, weights: Floats) -> Floats:
    """Returns the rows' weighted differences, [rows]; null rows add 0.

    Args:
      first, second: [rows], the share of each row's labels that the head predicts correctly; NaN in
        null rows.
      weights: [rows], non-negative, with a sum of at most 1 over a unit's rows.

    Raises PrivacyError for shares outside [0, 1].

    Example:
      >>> first, second = np.array([1.0, 0.0, np.nan]), np.array([0.0, 1.0, 1.0])
      >>> weigh_differences(first, second, np.array([1.0, 0.5, 1.0])).tolist()
      [-1.0, 0.5, 0.0]
    """
    if not (len(first) == len(second) == len(weights)):
        raise PrivacyError(
            f"comparison: {len(first)} and {len(second)} rows of two heads, but {len(weights)} "
            "weights; pass the same rows"
        )
    shares = np.stack([first, second])
    usable = ~np.isnan(shares).any(axis=0)
    if not ((shares[:, usable] >= 0) & (shares[:, usable] <= 1)).all():
        raise PrivacyError(
            "comparison: a share of right labels lies outside 0 to 1; nothing is released"
        )
    return np.asarray(np.where(usable, shares[1] - shares[0], 0.0) * weights)


def sum_differences(first: Floats, second: Floats, weights: Floats, n: int) -> GridSum:
    """Sums the rows' weighted differences over n units, with sensitivity 1; returns shape [1, 1].

    For arguments and errors see `weigh_differences`.
    """
    each = weigh_differences(first, second, weights)
    grid = Grid.make_grid(1.0, n, whole=True)
    steps = grid.round_to_steps(torch.from_numpy(each)).sum()
    return GridSum(steps.reshape(1, 1), grid.step)
