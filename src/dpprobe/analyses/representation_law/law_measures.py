"""Separability, fuzziness and prediction residual of features, and a geometric law over layers.

With K classes, class means m_k of n_k rows and the grand mean m, the scatter between and within
classes is SS_b = (1/n) sum_k n_k (m_k - m)(m_k - m)^T and SS_w = (1/n) sum_ik (x_ik - m_k) (x_ik -
m_k)^T. `separability` is Tr[SS_b SS_w^+], which grows as classes move apart; the paper on
representation laws calls it D. `fuzziness` is Tr[SS_w SS_b^+], which falls as classes move apart;
He and Su (2023) call it D. Pseudo-inverses are computed in float64, without eigenvalues of at most
`RCOND` times the largest eigenvalue.

All values are computed from private examples without noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from dpprobe.analyses.representation_law.law_record import FittedLaw

Matrix = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]

# Eigenvalues (variances) below this share of the largest count as 0. For standard deviations the
# share is 1e-5, well above float32's precision of 1e-7.
RCOND = 1e-10
# Rows are equal up to float32 rounding if their spread is below this share of their length.
CONSTANT = 1e-6
# Values up to this threshold are rounding errors, and are not used for laws.
ROUNDING = 1e-9
FEWEST_LAYERS = 3  # the fewest layers for an interval of rho
CONFIDENCE = 0.95
# Reasons why a layer has no value of a measure.
NOT_FINITE = "not finite in some rows"
CONSTANT_ROWS = "the same for all rows, so there is nothing to predict"


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """Separability and fuzziness; None if 0/0 or a rounding error, with the reason in `fault`."""

    separability: float | None = None
    fuzziness: float | None = None
    fault: str | None = None


@dataclass(frozen=True, kw_only=True)
class Residuals:
    """Prediction residuals: the share of a target's variance that least squares does not explain.

    Attributes:
      integer: the residual with the class number as target, on the fitted rows, as in the paper.
      integer_held_out: the residual with the class number as target, on held-out rows.
      one_hot, one_hot_held_out: residuals with one target per class, as a mean over classes.
      null: the residual of features of pure noise of equal rank, (n - 1 - rank) / (n - 1).
      rank: the rank of the centred features.
      fault: the reason why residuals are None.
    """

    integer: float | None = None
    integer_held_out: float | None = None
    one_hot: float | None = None
    one_hot_held_out: float | None = None
    null: float = 1.0
    rank: int = 0
    fault: str | None = None


def measure_scatter(features: npt.ArrayLike, labels: npt.ArrayLike) -> Scatter:
    """Computes separability and fuzziness of features [n, d] with class numbers [n]."""
    x = np.asarray(features, dtype=np.float64)
    _, codes, sizes = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)
    if len(sizes) < 2:
        return Scatter(fault="one class")
    if not np.isfinite(x).all():
        return Scatter(fault=NOT_FINITE)
    if is_constant(x):
        return Scatter(fault="the same for all rows, so that D is 0/0")
    means = (np.eye(len(sizes))[codes].T @ x) / sizes[:, None]
    centred = x - means[codes]
    between = np.sqrt(sizes / len(x))[:, None] * (means - x.mean(axis=0))
    # The rows of v are eigenvectors of SS_b, with eigenvalues s^2.
    _, s, v = np.linalg.svd(between, full_matrices=False)
    kept = s**2 > max(RCOND * s[0] ** 2, (CONSTANT * _root_mean_square(x)) ** 2)
    along = ((centred @ v[kept].T) ** 2).mean(axis=0)
    fuzziness = float((along / s[kept] ** 2).sum()) if kept.any() else None
    if _root_mean_square(centred) <= CONSTANT * _root_mean_square(x):
        return Scatter(fault="no scatter within classes except rounding")
    values, vectors = _decompose_moment(centred)
    inverse = (means - x.mean(axis=0)) @ vectors / np.sqrt(values)
    separability = float(((sizes / len(x))[:, None] * inverse**2).sum())
    return Scatter(
        separability=separability if kept.any() else None,
        fuzziness=fuzziness,
        fault=None if kept.any() else "class means differ by no more than rounding",
    )


def measure_residuals(
    features: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    held_out: npt.ArrayLike,
    held_out_labels: npt.ArrayLike,
) -> Residuals:
    """Measures prediction residuals of linear regressions with an intercept.

    The integer target depends on the order of the classes, one-hot targets do not. A residual on
    held-out rows is relative to the target's variance on held-out rows, and may be above 1.

    Args:
      features, labels: [n, d] and [n], features and class numbers of the rows to fit.
      held_out, held_out_labels: [m, d] and [m], features and class numbers of held-out rows.
    """
    x, numbers = np.asarray(features, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    rows = len(x)
    finite = bool(np.isfinite(x).all())
    if not finite or is_constant(x):
        return Residuals(fault=CONSTANT_ROWS if finite else NOT_FINITE)
    classes = np.unique(numbers)
    targets = _make_targets(numbers, classes)
    centre = x.mean(axis=0)
    values, vectors = _decompose_moment(x - centre)
    weights = vectors / values @ (vectors.T @ ((x - centre).T @ targets) / rows)
    offset = targets.mean(axis=0)
    inner = _left_over(targets, (x - centre) @ weights + offset)
    others = np.asarray(held_out, dtype=np.float64)
    wanted = _make_targets(np.asarray(held_out_labels, dtype=np.int64), classes)
    with np.errstate(invalid="ignore"):  # no residual on held-out rows that are not finite
        outer = _left_over(wanted, (others - centre) @ weights + offset)
    rank = len(values)
    full = rank >= rows - 1
    return Residuals(
        integer=None if full else _average_finite(inner[:1]),
        integer_held_out=_average_finite(outer[:1]),
        one_hot=None if full else _average_finite(inner[1:]),
        one_hot_held_out=_average_finite(outer[1:]),
        null=max(0.0, (rows - 1 - rank) / max(1, rows - 1)),
        rank=rank,
        fault=f"rank {rank} fits any target of {rows} rows" if full else None,
    )


def _make_targets(labels: Index, classes: Index) -> Matrix:
    """Returns regression targets [n, 1 + K]: the class number, and an indicator per class."""
    return np.column_stack([labels, labels[:, None] == classes]).astype(np.float64)


def _left_over(targets: Matrix, predicted: Matrix) -> Matrix:
    """Returns the unexplained share of each target's variance; NaN for a variance of 0."""
    total = ((targets - targets.mean(axis=0)) ** 2).sum(axis=0)
    left = ((targets - predicted) ** 2).sum(axis=0)
    return np.divide(left, total, out=np.full(len(total), np.nan), where=total > 0)


def _average_finite(values: Matrix) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def fit_law(
    layers: Sequence[int], values: Sequence[float | None]
) -> tuple[FittedLaw | None, str | None]:
    """Fits a geometric law: a least-squares line through the logarithms of values by layer.

    Values that are None or at most `ROUNDING` are left out.

    Returns:
      The law and None, or None and the reason why no law was fitted.
    """
    known = [
        (layer, value)
        for layer, value in zip(layers, values, strict=True)
        if value is not None and value > ROUNDING
    ]
    if len(known) < FEWEST_LAYERS:
        return None, f"{len(known)} layers; a law needs {FEWEST_LAYERS}"
    x = np.array([layer for layer, _ in known], dtype=np.float64)
    y = np.log([value for _, value in known])
    fit = stats.linregress(x, y)
    spread = float(((y - y.mean()) ** 2).sum())
    flat = spread <= (ROUNDING * max(1.0, float(np.abs(y).max()))) ** 2
    # SciPy returns no finite standard error for equal values.
    error = fit.stderr if np.isfinite(fit.stderr) else 0.0
    reach = error * stats.t.ppf((1 + CONFIDENCE) / 2, len(known) - 2)
    return FittedLaw(
        rho=float(np.exp(fit.slope)),
        low=float(np.exp(fit.slope - reach)),
        high=float(np.exp(fit.slope + reach)),
        r_squared=None if flat else float(fit.rvalue**2),
        layers=len(known),
    ), None


def is_constant(x: Matrix) -> bool:
    """Returns True if rows are equal up to float32 rounding."""
    return bool(_root_mean_square(x - x.mean(axis=0)) <= CONSTANT * _root_mean_square(x))


def _root_mean_square(x: Matrix) -> float:
    return float(np.sqrt((x**2).sum(axis=1).mean()))


def _decompose_moment(x: Matrix) -> tuple[Matrix, Matrix]:
    """Returns eigenvalues [rank] of x^T x / n above rounding, and their eigenvectors [d, rank].

    Decomposes the smaller of x^T x and x x^T, which have equal nonzero eigenvalues.
    """
    rows, columns = x.shape
    small = x.T @ x if columns <= rows else x @ x.T
    values, vectors = np.linalg.eigh(small / rows)
    kept = values > RCOND * values[-1]
    values, vectors = values[kept], vectors[:, kept]
    if columns > rows:
        vectors = x.T @ vectors / np.sqrt(values * rows)
    return values, vectors
