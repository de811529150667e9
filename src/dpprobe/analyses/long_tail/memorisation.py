"""Memorisation scores of training examples, by heads trained on random subsets; not private.

An example's score is the accuracy on the example of heads trained on the example, minus the
accuracy of heads not trained on the example (Feldman and Zhang 2020, "What neural networks memorize
and why", section 2). Heads are trained on random shares of the units; rows of a unit, such as a
patient's images, are in or out together. Scores are computed from labels and features without
noise. Scores reveal unusual examples, so scores must be protected like the examples.

Each head is a ridge regression of the classes (one column of 0 and 1 for each class), which is the
limit of private least squares without noise. The ridge head's closed form lets hundreds of heads
share one factorisation. With the rows X, the targets Y, the ridge r and Q = (XX' + r)^-1, the head
trained without the rows O has the dual coefficients QY - Q_:O Q_OO^-1 (QY)_O. These coefficients
are 0 on O (block inverse of Q), and equal a new fit's coefficients up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dpotri
from scipy.stats import hypergeom

from dpprobe.privacy.randomness import open_stream
from dpprobe.progress import Progress

Numbers = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

THRESHOLD = 0.25  # Feldman and Zhang's threshold: rows with larger scores count as memorised
SHARE = 0.7  # share of the units that trains each head
FEWEST_UNITS = 20
RIDGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 1e2, 1e3, 1e4)
PILOT_UNITS, PILOT_HEADS = 2000, 5  # numbers of units and heads for choosing the ridge


def scale_columns(features: npt.NDArray[np.floating]) -> Numbers:
    """Returns columns [n, d + 1]: features centred and scaled to mean squared norm 1, then ones.

    Centre and scale are computed from all rows, including rows on which a head is not trained.
    """
    columns = np.ones((len(features), features.shape[1] + 1))
    np.subtract(features, features.mean(axis=0, dtype=np.float64), out=columns[:, :-1])
    squares = float(np.square(columns[:, :-1]).sum(axis=1).mean())
    columns[:, :-1] *= squares**-0.5 if squares > 0 else 0.0
    return columns


class Heads:
    """Ridge heads on rows [n, d] and targets [n, K], each trained without some of the rows."""

    def __init__(self, rows: Numbers, targets: Numbers, ridge: float) -> None:
        self.rows = rows
        kernel = rows @ rows.T
        kernel[np.diag_indices_from(kernel)] += ridge
        factor, _ = cho_factor(kernel.T, lower=False, overwrite_a=True, check_finite=False)
        upper = np.triu(dpotri(factor, overwrite_c=True)[0])
        self.inverse = np.ascontiguousarray(upper + np.triu(upper, 1).T)
        self.coefficients = self.inverse @ targets

    def weights_without(self, out: Index) -> Numbers:
        """Returns the weights [d, K] of the head that is trained on all rows except `out`."""
        across = self.inverse[out]  # rows of the symmetric inverse, faster to copy than columns
        block = cho_factor(across[:, out], overwrite_a=True, check_finite=False)
        solved = cho_solve(block, self.coefficients[out], check_finite=False)
        coefficients = self.coefficients - across.T @ solved
        coefficients[out] = 0.0  # exactly 0, without rounding
        return np.asarray(self.rows.T @ coefficients)


@dataclass(frozen=True)
class Memorisation:
    """Numbers of heads trained with and without each row, and of those that predict its label.

    Attributes:
      right_in, heads_in: [n], numbers of right heads, and of all heads, trained with the row.
      right_out, heads_out: [n], numbers of right heads, and of all heads, trained without the row.
    """

    right_in: Index
    heads_in: Index
    right_out: Index
    heads_out: Index
    ridge: float

    @cached_property
    def scores(self) -> Numbers:
        """Each row's memorisation score, -1 to 1; NaN if all heads, or no heads, trained on it."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.right_in / self.heads_in - self.right_out / self.heads_out)

    @cached_property
    def standard_errors(self) -> Numbers:
        """The standard error of each score, from the number of heads.

        One right and one wrong head are added to both counts, with and without the row, so that a
        row on which all heads agree has a standard error above 0 (Agresti and Caffo 2000).
        """
        share_in = (self.right_in + 1) / (self.heads_in + 2)
        share_out = (self.right_out + 1) / (self.heads_out + 2)
        return np.asarray(
            np.sqrt(
                share_in * (1 - share_in) / (self.heads_in + 2)
                + share_out * (1 - share_out) / (self.heads_out + 2)
            )
        )

    def share_above(self, threshold: float) -> float:
        known = self.scores[~np.isnan(self.scores)]
        return float((known > threshold).mean())

    def expected_share_above(self, threshold: float) -> float:
        """Returns the expected value of `share_above` if no row is memorised.

        Without memorisation, heads trained with and without a row predict its label equally often,
        and heads draw their left-out rows independently of each other. So the number of right heads
        with the row is hypergeometric, given the number of all right heads.
        """
        known = (self.heads_in > 0) & (self.heads_out > 0)
        inside, outside = self.heads_in[known], self.heads_out[known]
        right = self.right_in[known] + self.right_out[known]
        # score > threshold  <=>  right_in > least
        least = (threshold + right / outside) / (1 / inside + 1 / outside)
        tails = hypergeom.sf(np.floor(least + 1e-9), inside + outside, right, inside)
        return float(tails.mean())


def measure_memorisation(
    rows: Numbers, labels: Index, *, num_classes: int, units: Index, heads: int, seed: int
) -> Memorisation:
    """Trains heads on random shares of the units, and tests each head on all rows.

    Args:
      rows: [n, d], from `scale_columns`.
      units: int64 [n], the unit of each row, numbered from 0 without gaps; at least 20 units.
    """
    targets = np.eye(num_classes)[labels]
    ridge = choose_ridge(rows, targets, units, seed=seed)
    family = Heads(rows, targets, ridge)
    right = np.zeros((2, len(rows)), dtype=np.int64)
    trained = np.zeros((2, len(rows)), dtype=np.int64)
    with Progress(heads, label="memorisation", unit="heads") as progress:
        for out in draw_subsets(units, heads, seed=seed, name="memorisation subsets"):
            weights = family.weights_without(np.flatnonzero(out))
            hit = (rows @ weights).argmax(axis=1) == labels
            for side, chosen in enumerate((~out, out)):
                right[side] += hit & chosen
                trained[side] += chosen
            progress.advance_by(1)
    return Memorisation(right[0], trained[0], right[1], trained[1], ridge)


def choose_ridge(rows: Numbers, targets: Numbers, units: Index, *, seed: int) -> float:
    """Returns the ridge with the smallest squared error on rows that heads were not trained on.

    Uses a few heads on at most 2,000 units. Accuracies may have ties, but squared errors have none.
    """
    count = int(units.max()) + 1
    drawn = open_stream(seed, "ridge units").permutation(count)[:PILOT_UNITS]
    chosen = np.flatnonzero(np.isin(units, drawn))
    rows, targets = rows[chosen], targets[chosen]
    units = np.unique(units[chosen], return_inverse=True)[1]
    errors = []
    for ridge in RIDGES:
        family, error = Heads(rows, targets, ridge), 0.0
        for out in draw_subsets(units, PILOT_HEADS, seed=seed, name="ridge subsets"):
            left = np.flatnonzero(out)
            error += float(
                np.square(rows[left] @ family.weights_without(left) - targets[left]).sum()
            )
        errors.append(error)
    return RIDGES[int(np.argmin(errors))]


def draw_subsets(units: Index, heads: int, *, seed: int, name: str) -> Iterator[Flags]:
    """Yields, for each head, the rows [n] to leave out: all rows of 30% of the units."""
    count = int(units.max()) + 1
    left_out = count - round(SHARE * count)
    random = open_stream(seed, name)
    for _ in range(heads):
        out = np.zeros(count, dtype=bool)
        out[random.permutation(count)[:left_out]] = True
        yield out[units]
