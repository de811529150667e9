"""Rare classes: the recall that is left of them, where it breaks down, and a law for it.

Nothing here is private: recalls come from test labels, and reference heads from training examples
without noise. The notions are those of the open questions on imbalance of Berrada et al. 2023
(docs/references.md): n_c is the number of training examples of the class, rho the recall of the
class over that of a reference without privacy on the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import least_squares
from scipy.special import expit, logit

from dpprobe.analyses.imbalance.imbalance_record import BreakDown, Estimate, Law, Ranged, RareCell
from dpprobe.privacy.limits import epsilon_value
from dpprobe.results.bootstrap import CONFIDENCE
from dpprobe.results.intervals import wilson_interval
from dpprobe.results.metrics import SAME

# A reference with less recall has not learnt the class either: its half says nothing.
_LEAST_REFERENCE = 0.1
# A curve through fewer cells on its slope is made up.
FEWEST_BETWEEN = 6
FEWEST_SETS = 3
RESAMPLES = 500
_STEEPEST = 20.0  # exponents beyond are a step, which has no slope to estimate

Array = np.ndarray


def estimate_share(values: Sequence[float], counted: float) -> Estimate:
    """Returns the mean over seeds of a share, with an interval over seeds and test examples.

    Args:
      values: one a seed, 0 to 1.
      counted: independent test examples, or units, that each value is a share of.
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
    """Returns the recall above which a reference has learnt a class of so many.

    A head of noise alone keeps one in so many of a class's rows: a half must be more than that.
    With two classes no half is more, so nothing is compared.
    """
    return max(_LEAST_REFERENCE, 2 / classes)


def _keep_promised(cells: Sequence[RareCell]) -> list[RareCell]:
    """Returns the cells with a finite epsilon and a reference that has learnt the class."""
    return [cell for cell in cells if cell.private and cell.reference_learnt]


def _rows_times_epsilon(cell: RareCell) -> float:
    return cell.class_rows * epsilon_value(cell.epsilon)


def retained_recall(cell: RareCell) -> float:
    """Returns rho, the recall over the reference's, at most 1."""
    assert cell.reference_recall
    return min(cell.recall.mean / cell.reference_recall, 1.0)


def break_down(cells: Sequence[RareCell], *, class_name: str, method: str) -> BreakDown:
    """Returns where a method's recall of a class falls below half of the reference's.

    Args:
      cells: of one backbone; those of other classes and methods, and those that promise nothing,
        are passed over.
    """
    mine = [c for c in cells if c.private and (c.class_name, c.method) == (class_name, method)]
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


def fit_law(
    cells: Sequence[RareCell],
    *,
    method: str,
    dimension: Callable[[RareCell], int] | None = None,
    seed: int = 0,
) -> Law:
    """Fits a logistic curve through a method's cells, with intervals over training sets.

    The recalls of one training set at several epsilons go up and down together, so the intervals
    (percentiles of `RESAMPLES` fits) draw whole training sets again. They hold for other parts of
    the same classes, not for other classes; of few training sets they are too narrow. In simulated
    studies of 21 they held the ratio in 92% and the half point in 93% of the cases. Exponents are
    those of the average curve, which differences between training sets flatten.

    Args:
      dimension: of the features of a cell, where cells of several backbones are given. It is one
        with all else that sets the backbones apart.
    """
    mine = _keep_promised([cell for cell in cells if cell.method == method])
    rho = np.array([retained_recall(cell) for cell in mine])
    between = int(np.sum((rho >= 0.1) & (rho <= 0.9)))
    classes = sorted({cell.class_name for cell in mine})
    groups = [(cell.training_set, cell.class_name) for cell in mine]
    columns = _make_covariates(mine, dimension)
    facts = {
        "method": method,
        "points": len(mine),
        "between": between,
        "sets": len(set(groups)),
        "class_rows": _range_ends([cell.class_rows for cell in mine]),
        "epsilons": _range_ends([epsilon_value(cell.epsilon) for cell in mine]),
    }
    if reason := _no_law(columns, between, len(set(groups))):
        return _make_lawless(facts, reason)
    which = np.array([classes.index(cell.class_name) for cell in mine])
    design = np.column_stack([np.eye(len(classes))[which], *columns])
    fitted = _fit_curve(design, rho)
    draws = _refit_redrawn(design, rho, groups, len(classes), seed)
    if np.abs(fitted[len(classes) :]).max() > _STEEPEST or len(draws) < RESAMPLES / 2:
        return _make_lawless(facts, "recall jumps from none to all: a step has no slope")
    residuals = rho - expit(design @ fitted)
    return Law(
        **facts,
        **_describe_curve(fitted, draws, len(classes), with_dimension=dimension is not None),
        intercepts=dict(zip(classes, map(float, fitted), strict=False)),
        resamples=len(draws),
        r_squared=1 - float(residuals.var() / rho.var()),
        error=float(np.sqrt(np.mean(residuals**2))),
        reason="",
    )


def _range_ends(values: Sequence[float]) -> tuple[float, float] | None:
    return (min(values), max(values)) if values else None


def _make_covariates(
    cells: Sequence[RareCell], dimension: Callable[[RareCell], int] | None
) -> list[Array]:
    """Returns the logarithms of n_c, epsilon and, where it is given, the dimension."""
    columns = [
        np.array([cell.class_rows for cell in cells]),
        np.array([epsilon_value(cell.epsilon) for cell in cells]),
    ]
    if dimension is not None:
        columns.append(np.array([dimension(cell) for cell in cells]))
    return [np.log(column.astype(np.float64)) for column in columns]


def _make_lawless(facts: Mapping[str, Any], reason: str) -> Law:
    """Returns a law without a curve, and why there is none."""
    numbers = ("n_c_exponent", "epsilon_exponent", "dimension_exponent", "ratio", "half")
    nothing = dict.fromkeys((*numbers, "r_squared", "error"))
    return Law(**facts, **nothing, intercepts={}, resamples=0, reason=reason)


def _no_law(columns: Sequence[Array], between: int, sets: int) -> str:
    """Returns the reason why cells do not decide a curve; empty where they may."""
    if sets < FEWEST_SETS:
        return f"{sets} training sets; a curve needs {FEWEST_SETS}"
    if any(np.ptp(column) == 0 for column in columns):
        return "n_c, epsilon or the dimension does not vary"
    if between < FEWEST_BETWEEN:
        return (
            f"{between} cells keep between 10 and 90 % of the reference's recall; a curve needs "
            f"{FEWEST_BETWEEN}"
        )
    return ""


def _fit_curve(design: Array, rho: Array) -> Array:
    """Returns the coefficients of the least squares fit of rho by expit(design @ coefficients).

    Args:
      design: float64 [points, coefficients].
      rho: float64 [points], 0 to 1.
    """
    # A start from the straight line through the logits, which no point at 0 or 1 pulls to infinity.
    start = np.linalg.lstsq(design, logit(np.clip(rho, 0.02, 0.98)), rcond=None)[0]

    def residuals(coefficients: Array) -> Array:
        return np.asarray(expit(design @ coefficients) - rho)

    def slopes(coefficients: Array) -> Array:
        fitted = expit(design @ coefficients)
        return np.asarray(design * (fitted * (1 - fitted))[:, None])

    return np.asarray(least_squares(residuals, start, slopes, method="trf", max_nfev=200).x)


def _refit_redrawn(
    design: Array, rho: Array, groups: Sequence[tuple[str, str]], classes: int, seed: int
) -> list[Array]:
    """Returns the coefficients of fits to each class's training sets, drawn again.

    Draws that have no slope, or a step for one, are left out.
    """
    generator = np.random.default_rng(seed)
    rows: dict[str, dict[str, list[int]]] = {}
    for row, (training_set, class_name) in enumerate(groups):
        rows.setdefault(class_name, {}).setdefault(training_set, []).append(row)
    strata = [list(sets.values()) for sets in rows.values()]
    fits = []
    for _ in range(RESAMPLES):
        drawn = [sets[k] for sets in strata for k in generator.integers(len(sets), size=len(sets))]
        chosen = np.array([row for each in drawn for row in each])
        varies = np.ptp(design[chosen][:, classes:], axis=0) > 0
        if varies.all() and np.ptp(rho[chosen]) > 0:
            fit = _fit_curve(design[chosen], rho[chosen])
            if np.abs(fit[classes:]).max() <= _STEEPEST:
                fits.append(fit)
    return fits


def _describe_curve(
    fitted: Array, draws: Sequence[Array], classes: int, *, with_dimension: bool
) -> dict[str, Ranged | None]:
    """Returns the exponents, their ratio and the half point, each with its interval."""

    def make_ranged(value: Callable[[Array], float]) -> Ranged:
        drawn = np.array([value(each) for each in draws])
        low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        return Ranged(value=value(fitted), low=float(low), high=float(high))

    def half_point(each: Array) -> float:
        return math.exp(min(-float(each[:classes].mean()) / each[classes], 700.0))

    return {
        "n_c_exponent": make_ranged(lambda each: float(each[classes])),
        "epsilon_exponent": make_ranged(lambda each: float(each[classes + 1])),
        "dimension_exponent": make_ranged(lambda each: float(each[-1])) if with_dimension else None,
        "ratio": make_ranged(lambda each: float(each[classes + 1] / each[classes])),
        "half": None if with_dimension else make_ranged(half_point),
    }


def best_methods(cells: Sequence[RareCell]) -> Mapping[tuple[str, float, str], RareCell]:
    """Returns the private cell of the largest recall for each (class, fraction, epsilon).

    Choosing it by looking at test results is not covered by any epsilon.
    """
    best: dict[tuple[str, float, str], RareCell] = {}
    for cell in cells:
        key = (cell.class_name, cell.fraction, cell.epsilon)
        if cell.private and (key not in best or cell.recall.mean > best[key].recall.mean):
            best[key] = cell
    return best
