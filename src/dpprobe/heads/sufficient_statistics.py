"""Heads from sums that are released once: least_squares and prototypes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from dpprobe.heads import Fitted, Record
from dpprobe.heads import least_squares as least_squares_module
from dpprobe.heads import prototypes as prototypes_module
from dpprobe.heads.first_order import without_loss
from dpprobe.heads.least_squares import GRAM, TARGETS
from dpprobe.heads.prototypes import CLASS_SUMS
from dpprobe.heads.rows import Rows
from dpprobe.heads.second_order import (
    Design,
    Piece,
    check_dimension,
    cross_moment,
    each_seed,
    ridge_of,
    second_moment,
    spectrum,
)
from dpprobe.privacy.releases import Releases


def fit_least_squares(
    options: least_squares_module.Options,
    rows: Rows,
    releases: Releases,
    *,
    record: Record | None = None,
) -> Fitted:
    """W = B (G + lambda I)^-1 for each seed; scores estimate the labels as zeros and ones."""
    check_dimension(rows, options.head)
    private, classes = releases.plan.private, rows.num_classes
    norm = 1.0 if rows.multi_label else math.sqrt(1 - 1 / classes) if classes > 1 else 1.0
    with torch.inference_mode():
        design = Design(options, rows, private=private)
        gram = rows.cached(design.key("gram"), lambda: second_moment(design))
        make = _targets(rows, math.sqrt(options.max_labels) if private else math.inf)
        targets = rows.cached(
            (*design.key("targets"), options.max_labels),
            lambda: cross_moment(design, make, classes),
        )

        def solve(own: Releases) -> torch.Tensor:
            noisy = own.symmetric(GRAM, gram[None])[0]
            found = spectrum(noisy, own.deviation(GRAM))
            right = own.gaussian(TARGETS, targets[None])[0].double()
            noise = [own.plan.mechanism(name).noise_multiplier for name in (GRAM, TARGETS)]
            ridge = ridge_of(design, options.ridge, options.longest, noise[0], noise[1], found)
            weights = design.weights(found.solve(right, ridge) * norm)
            if not rows.multi_label:
                weights[:, -1] += 1 / classes
            return weights

        weights = each_seed(releases, (GRAM, TARGETS), solve, head=options.head)
    return _fitted(weights, record)


def _targets(rows: Rows, longest: float) -> Callable[[Piece], torch.Tensor]:
    """What rows are regressed on: of norm 1, or with several labels at most `longest`."""
    classes = rows.num_classes

    def several(piece: Piece) -> torch.Tensor:
        return clipped_labels(rows, piece, longest)

    def one(piece: Piece) -> torch.Tensor:
        centred = rows.targets(piece.start, piece.stop) - 1 / classes
        return centred / max(math.sqrt(1 - 1 / classes), 0.5)

    return several if rows.multi_label else one


def clipped_labels(rows: Rows, piece: Piece, longest: float) -> torch.Tensor:
    """Float32 [m, K]: labels as zeros and ones, of norm at most `longest`."""
    labels = rows.targets(piece.start, piece.stop)
    norms = torch.linalg.vector_norm(labels, dim=1, keepdim=True, dtype=torch.float64)
    return labels * (longest / norms).clamp(max=1).to(torch.float32)


def fit_prototypes(
    options: prototypes_module.Options,
    rows: Rows,
    releases: Releases,
    *,
    record: Record | None = None,
) -> Fitted:
    """Unit class sums for each seed; scores are cosines times the row's norm."""
    private, classes = releases.plan.private, rows.num_classes
    longest = math.sqrt(options.max_labels) if private else math.inf
    with torch.inference_mode():
        design = Design(options, rows, private=private)
        sums = rows.cached(
            (*design.key("class sums"), longest),
            lambda: cross_moment(
                design, lambda piece: clipped_labels(rows, piece, longest), classes
            ),
        )

        def directions(own: Releases) -> torch.Tensor:
            noisy = own.gaussian(CLASS_SUMS, sums[None])[0].double()
            weights = torch.zeros_like(noisy)
            lengths = torch.linalg.vector_norm(noisy[:, :-1], dim=1, keepdim=True)
            weights[:, :-1] = noisy[:, :-1] / lengths.clamp(min=1e-30)
            if design.offset > 0:
                doubt = max(2 * own.deviation(CLASS_SUMS), 1e-30)
                weights *= (noisy[:, -1:] / doubt).clamp(0, 1)
            return weights.to(torch.float32)

        weights = each_seed(releases, (CLASS_SUMS,), directions, head=options.head)
    return _fitted(weights, record)


def _fitted(weights: torch.Tensor, record: Record | None) -> Fitted:
    """What a head of one step returns."""
    history = without_loss(weights, record, step=1, epoch=1.0)
    return Fitted(weights=weights.cpu().numpy(), steps=1, history=history)
