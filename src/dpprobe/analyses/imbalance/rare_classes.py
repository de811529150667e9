"""Rare classes: the recall that heads keep for them, and where it breaks down.

Not private: recalls come from test labels, and reference heads from training examples, without
noise. As in the open questions on imbalance of Berrada et al. 2023 (docs/references.md), n_c is the
number of training examples of the class. rho is the recall of the class divided by the class's
recall by a non-private reference on the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dpprobe.analyses.imbalance.imbalance_record import BreakDown, Estimate, RareCell
from dpprobe.privacy.limits import epsilon_value
from dpprobe.privacy.risk import find_risk
from dpprobe.results.bootstrap import CONFIDENCE
from dpprobe.results.intervals import wilson_interval
from dpprobe.results.metrics import SAME

# A reference with less recall has not learnt the class, so half of its recall means nothing.
_LEAST_REFERENCE = 0.1


def estimate_share(values: Sequence[float], counted: float) -> Estimate:
    """Returns the mean over seeds of a share, with an interval over seeds and test examples.

    Args:
      values: the share of each seed, 0 to 1.
      counted: the number of independent test examples, or units, behind each share.
    """
    from scipy.stats import t

    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    low, high = wilson_interval(mean, counted)
    if len(array) == 1:
        return Estimate(mean=mean, std=None, low=low, high=high)
    std = 0.0 if np.ptp(array) <= SAME else float(array.std(ddof=1))
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(array) - 1)) * std / len(array) ** 0.5
    return Estimate(
        mean=mean,
        std=std,
        low=min(low, max(0.0, mean - half)),
        high=max(high, min(1.0, mean + half)),
    )


def least_reference(classes: int) -> float:
    """Returns the recall above which a reference counts as having learnt a class.

    A head of pure noise has recall 1 / classes, and half of the reference's recall must be larger.
    With two classes no half is larger, so nothing is compared.
    """
    return max(_LEAST_REFERENCE, 2 / classes)


def _keep_promised(cells: Sequence[RareCell]) -> list[RareCell]:
    """Returns the cells with a finite epsilon and a reference that has learnt the class."""
    return [cell for cell in cells if cell.private and cell.reference_learnt]


def _rows_times_epsilon(cell: RareCell) -> float:
    return cell.class_rows * epsilon_value(cell.epsilon)


def retained_recall(cell: RareCell) -> float:
    """Returns rho, the recall divided by the reference's recall, at most 1."""
    assert cell.reference_recall
    return min(cell.recall.mean / cell.reference_recall, 1.0)


def break_down(cells: Sequence[RareCell], *, class_name: str, method: str) -> BreakDown:
    """Returns where a method's recall of a class falls below half of the reference's.

    Args:
      cells: cells of one backbone; other classes and methods, and non-private cells, are ignored.
    """
    # Budgets given as a risk are left out, because the record lacks their epsilon.
    mine = [
        c
        for c in cells
        if c.private
        and (c.class_name, c.method) == (class_name, method)
        and find_risk(c.epsilon) is None
    ]
    compared = sorted(_keep_promised(mine), key=_rows_times_epsilon)
    held = [retained_recall(cell) >= 0.5 for cell in compared]
    products = [_rows_times_epsilon(cell) for cell in compared]
    reached = next((p for p, good in zip(products, held, strict=True) if good), None)
    failed = max((p for p, good in zip(products, held, strict=True) if not good), default=0.0)
    lasting = next((product for product in products if product > failed), None)
    if not compared:
        note = "nothing to compare with"
    elif reached is None:
        note = "above the largest product of the study"
    elif all(held):
        note = "at or below the smallest product of the study"
    elif lasting is None:
        note = "the largest product of the study fails again"
    else:
        note = ""
    return BreakDown(
        class_name=class_name,
        method=method,
        reached=reached,
        lasting=lasting,
        cells=len(compared),
        left_out=len(mine) - len(compared),
        smallest=products[0] if products else None,
        largest=products[-1] if products else None,
        note=note,
    )


def best_methods(cells: Sequence[RareCell]) -> Mapping[tuple[str, float, str], RareCell]:
    """Returns the private cell with the largest recall for each (class, fraction, epsilon).

    No epsilon covers choosing a cell by test results.
    """
    best: dict[tuple[str, float, str], RareCell] = {}
    for cell in cells:
        key = (cell.class_name, cell.fraction, cell.epsilon)
        if cell.private and (key not in best or cell.recall.mean > best[key].recall.mean):
            best[key] = cell
    return best
