"""Least squares on one-hot labels from a noisy Gram matrix and a noisy cross product.

The method of Mehta et al. 2023 ("Differentially private image classification from features"), a
case of sufficient statistics perturbation (Vu and Slavkovic 2009, Wang 2018).

The head releases two sums over rows x of norm at most S (`clipped_row_options.RowOptions`):

- "gram": G = sum of x x^T. A row adds x x^T, of Frobenius norm |x|^2 <= S^2; a null row adds
  nothing. The noise on G is symmetric and isometric: it has the same variance in all coordinates of
    an orthonormal basis of the symmetric matrices, so half the variance off the diagonal.
- "targets": B = sum of t x^T. With one label per example, t = (e_y - 1/K) / sqrt(1 - 1/K), with
  norm 1. Subtracting 1/K shifts all scores equally, and reduces noise by the factor sqrt(1 - 1/K).
  With several labels, t is the 0/1 vector clipped to norm sqrt(`max_labels`). A row adds t x^T, of
  norm |t| |x| <= S, or S sqrt(max_labels).

`gram_share` is G's share of mu^2 = 1/sigma_G^2 + 1/sigma_B^2. The weights are W = B (G* + lambda
I)^-1 with G* from `second_order.estimate_spectrum` and lambda from `second_order.ridge_of`, or from
`second_order.damp_ridge` if larger.

Without noise the rows are not clipped, and lambda is `second_order.floor_ridge`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from dpprobe.heads.clipped_row_options import MaxLabels, Ridge, RowOptions
from dpprobe.heads.fitted import Fitted, Record
from dpprobe.heads.normalisation import Share
from dpprobe.privacy.plan import Mechanism, full_batch, split_budget

if TYPE_CHECKING:
    import torch

    from dpprobe.heads.rows import Rows
    from dpprobe.heads.second_order import Piece
    from dpprobe.privacy.releases import Releases

GRAM, TARGETS = "gram", "targets"
# In directions hidden by noise, weights are at most 1 / _HIDDEN_SHARE times the noiseless weights,
# so that their error is at most the error of weights 0.
_HIDDEN_SHARE = 0.5


class Options(RowOptions):
    """Least squares; the defaults were fixed on public features (bench/results/defaults.md)."""

    fit_version: ClassVar[int] = 2

    head: Literal["least_squares"] = "least_squares"
    ridge: Ridge = None
    max_labels: MaxLabels = 1
    gram_share: Share = Field(
        0.3,
        description="The Gram matrix's share of the head's budget; the cross product gets the "
        "rest.",
    )

    @property
    def running_sums(self) -> tuple[str, ...]:
        return (GRAM, TARGETS)

    def list_releases(self, n: int) -> tuple[Mechanism, ...]:  # noqa: ARG002
        gram = full_batch(GRAM, "sum of the clipped rows' outer products", self.longest**2)
        targets = full_batch(
            TARGETS,
            "sum of the outer products of targets and clipped rows",
            self.longest * self.max_labels**0.5,
        )
        return split_budget([(self.gram_share, (gram,)), (1 - self.gram_share, (targets,))])


def fit(options: Options, rows: Rows, releases: Releases, *, record: Record | None) -> Fitted:
    """Solves W = B (G + lambda I)^-1 for each seed; scores estimate 0/1 labels."""
    # late imports: planning imports this module without torch
    import torch

    from dpprobe.heads.history import History
    from dpprobe.heads.second_order import (
        Design,
        cross_moment,
        damp_ridge,
        each_seed,
        estimate_spectrum,
        ridge_of,
        second_moment,
    )

    private, classes = releases.plan.private, rows.num_classes
    norm = 1.0 if rows.multi_label else math.sqrt(1 - 1 / classes) if classes > 1 else 1.0
    with torch.inference_mode():
        design = Design(options, rows, private=private)
        gram = rows.make_once(design.cache_key("gram"), lambda: second_moment(design))
        longest = math.sqrt(options.max_labels) if private else math.inf
        targets_of = regression_targets(rows, longest)
        targets = rows.make_once(
            (*design.cache_key("targets"), options.max_labels),
            lambda: cross_moment(design, targets_of, classes, longest),
        )

        def solve_seed(seed_releases: Releases) -> torch.Tensor:
            # both sums are released before either is used, because sites send them together
            noisy = seed_releases.release_symmetric(GRAM, gram.one_seed)[0]
            right = seed_releases.release_gaussian(TARGETS, targets.one_seed)[0]
            matrix = estimate_spectrum(noisy, seed_releases.noise_deviation(GRAM))
            noise = [seed_releases.noise_multiplier(name) for name in (GRAM, TARGETS)]
            ridge = ridge_of(design, options.ridge, options.longest, noise[0], noise[1], matrix)
            if options.ridge is None:
                deviation = noise[0] * options.longest**2
                ridge = damp_ridge(ridge, _HIDDEN_SHARE, deviation, design.columns)
            weights = design.make_weights(matrix.solve_ridge(right, ridge) * norm)
            if not rows.multi_label:
                weights[:, -1] += 1 / classes
            return weights

        weights = each_seed(releases, (GRAM, TARGETS), solve_seed, head=options.head)
    history = History(rows, 1.0, record, options.link)
    history.add_record(1, weights)
    return Fitted(weights=weights.cpu().numpy(), steps=1, history=history.records)


def regression_targets(rows: Rows, longest: float) -> Callable[[Piece], torch.Tensor]:
    """Returns a function from a piece to its targets [m, K], of norm 1 or at most `longest`."""
    from dpprobe.heads.second_order import MARGIN, clipped_labels  # imports torch

    classes = rows.num_classes

    def targets_of(piece: Piece) -> torch.Tensor:
        if rows.multi_label:
            return clipped_labels(rows, piece, longest)
        centred = rows.make_targets(piece.start, piece.stop).double() - 1 / classes
        return centred * ((1 - MARGIN) / max(math.sqrt(1 - 1 / classes), 0.5))

    return targets_of
