"""A student trained on public images, and the private test of whether it replaces the head.

The trained head labels the public rows with its probabilities. The **student** is the linear
discriminant of these soft labels, for equally frequent classes. It has weights W_k = S^-1 m_k and
biases -m_k . W_k / 2, with class means m_k, and the covariance S of rows around their expected
class mean, shrunk towards a multiple of the identity (Ledoit and Wolf 2004). The head is released
and the rows are public, so training the student costs no privacy.

**student_gain** [1] is released to compare student and head: a row counts w_y if only the student
is right, and -w_y if only the head is right, with the weight w_y of the row's class, at most 1. The
sum (`heads.accuracy_difference`) has sensitivity 1: a unit adds the mean over its rows, in [-1, 1],
and a null row adds nothing. Student, head and w follow from earlier releases, and composition is
adaptive. The student replaces the head if the noisy sum is above two standard deviations of its
noise, which is post-processing. On unrelated public images, students are far worse than the head. A
student that is neither better nor worse passes once in 44 fits.

w_k is p_min / p_k if the head is corrected for class frequencies p, because such a head predicts as
if classes were equally frequent; else 1. bench/results/few_patients.md measures students.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.errors import DataError
from dpprobe.heads.accuracy_difference import sum_differences
from dpprobe.heads.balance_options import BalanceOptions
from dpprobe.heads.fitted import STUDENT_GAIN
from dpprobe.heads.normalisation import AroundCentre
from dpprobe.heads.public_rows import share_public_rows
from dpprobe.heads.rows import Rows
from dpprobe.heads.second_order import Design, UnitRows
from dpprobe.heads.student_options import gain_threshold
from dpprobe.privacy.grid import GridSum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dpprobe.heads.fitted import Fitted
    from dpprobe.heads.options import MethodOptions
    from dpprobe.privacy.releases import Releases

Weights = npt.NDArray[np.float32]

STUDENT_HEADS, STUDENT_CLASSES = "student_heads", "student_classes"
# The weight of the identity in the shrunk covariance.
SHRINKAGE = 0.3
# Added to probabilities, so that a class without public rows gets the mean of all rows.
_LEAST = 1e-12


def compare_student(method: MethodOptions, fit: Fitted, rows: Rows, releases: Releases) -> Fitted:
    """Releases the gains of students, and replaces heads by better students.

    Args:
      fit: heads on `rows`.
      rows: rows of norm 1, centred at the released centre, with one label each; not whitened.

    Raises DataError if all public rows are equal.
    """
    assert isinstance(method.normalize, AroundCentre), method
    public = share_public_rows(method.normalize, rows.data)
    assert public is not None, method
    known = Rows(public.data, rows.transform)
    students = np.stack([train_student(head, known) for head in fit.weights])
    pairs = torch.from_numpy(np.stack([fit.weights, students], 1)).double()
    of_class = _weigh_classes(method, fit)
    releases.show_values(STUDENT_HEADS, pairs)
    releases.show_values(STUDENT_CLASSES, torch.from_numpy(of_class))
    design = Design(UnitRows(), rows, private=releases.plan.private)
    labels = rows.labels.cpu().numpy()
    shares = np.ones(len(rows)) if rows.weights is None else rows.weights.double().cpu().numpy()
    sums = []
    for pair, each in zip(pairs, of_class, strict=True):
        head_right, student_right = _find_right(design, pair, labels)
        weights = shares * each[labels]
        sums.append(sum_differences(head_right, student_right, weights, rows.n))
    units = torch.cat([each.units for each in sums]).to(rows.device)
    noisy = releases.release_gaussian(STUDENT_GAIN, GridSum(units, sums[0].step))
    least = gain_threshold(releases.plan)
    gains = np.asarray([[gain, least] for gain in noisy[:, 0].tolist()], dtype=np.float32)
    better = gains[:, 0] > gains[:, 1]
    return replace(fit, weights=np.where(better[:, None, None], students, fit.weights), gains=gains)


def _weigh_classes(method: MethodOptions, fit: Fitted) -> npt.NDArray[np.float64]:
    """Returns class weights [seeds, K]: at most 1, and all 1 for heads without priors."""
    weights = np.ones(fit.weights.shape[:2])
    if isinstance(method, BalanceOptions) and method.class_priors:
        weights /= method.public_priors if fit.priors is None else fit.priors
        weights /= weights.max(1, keepdims=True)
    return weights


def train_student(head: Weights, rows: Rows) -> Weights:
    """Returns the linear discriminant of soft labels on public rows, float32 [K, d + 1]."""
    teacher = torch.from_numpy(head).to(rows.device).double()
    mass = teacher.new_zeros(len(teacher))
    sums = teacher.new_zeros((len(teacher), rows.dimension))
    squares = teacher.new_zeros((rows.dimension, rows.dimension))
    overlaps = teacher.new_zeros((len(teacher), len(teacher)))
    count = 0
    for block, labels in _label_rows(teacher, rows):
        mass += labels.sum(0)
        sums += labels.T @ block
        squares += block.T @ block
        overlaps += labels.T @ labels
        count += len(block)
    means = sums / mass[:, None]
    # outer products of the rows' deviations from their expected means, x - sum_k p_k m_k
    crossed = means.T @ sums
    covariance = (squares - crossed - crossed.T + means.T @ overlaps @ means) / count
    size = float(covariance.trace()) / rows.dimension
    if not size > _LEAST:
        raise DataError(
            "student_share: all public images have equal features, so that no student learns from "
            "them; use a file of other images"
        )
    covariance *= 1 - SHRINKAGE
    covariance.diagonal().add_(SHRINKAGE * size)
    student = torch.linalg.solve(covariance, means.T).T
    biases = -(student * means).sum(1, keepdim=True) / 2
    return torch.cat([student, biases], 1).to(torch.float32).cpu().numpy()


def _label_rows(teacher: torch.Tensor, rows: Rows) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields blocks of usable rows, float64 [m, d], and the teacher's probabilities [m, K]."""
    usable = rows.data.lengths.isfinite() & (rows.data.lengths > 0)
    for start, stop, features in rows.read_blocks(8 * rows.dimension):
        block = features[usable[start:stop]].double()
        scores = block @ teacher[:, :-1].T + teacher[:, -1]
        yield block, scores.softmax(1).clamp(min=_LEAST)


def _find_right(
    design: Design, pair: torch.Tensor, labels: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Returns 1 where a head of a pair predicts a row correctly, [2, rows]; NaN in null rows."""
    factors = [design.make_factors(head) for head in pair.to(design.rows.device)]
    right = np.empty((2, len(labels)))
    for piece, block in design.read_blocks():
        for answers, each in zip(right, factors, strict=True):
            scores = design.compute_logits(block, each).cpu().numpy()
            window = slice(piece.start, piece.stop)
            answers[window] = scores.argmax(1) == labels[window]
    right[:, design.rows.lengths.isinf().cpu().numpy()] = np.nan
    return right
