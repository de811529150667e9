"""Measures of constructed scatter with known answers, noise on its null line, and faults."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression

from dpprobe.analyses.representation_law.law_measures import (
    RCOND,
    fit_law,
    measure_residuals,
    measure_scatter,
)
from tests.support.clouds import clouds


def _classes(
    seed: int, *, classes: int = 3, rows: int = 20, distance: float = 2.0, dimension: int = 5
) -> tuple[np.ndarray, np.ndarray]:
    """Makes orthogonal class means, with equal noise in all directions."""
    drawn = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), rows)
    means = distance * np.eye(classes, dimension)
    return means[labels] + drawn.standard_normal((len(labels), dimension)), labels


def _direct(x: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Computes separability and fuzziness by their definitions."""
    grand = x.mean(axis=0)
    between = np.zeros((x.shape[1],) * 2)
    within = np.zeros_like(between)
    for label in np.unique(labels):
        part = x[labels == label]
        mean = part.mean(axis=0)
        between += len(part) / len(x) * np.outer(mean - grand, mean - grand)
        within += (part - mean).T @ (part - mean) / len(x)
    return (
        float(np.trace(between @ np.linalg.pinv(within, rcond=RCOND, hermitian=True))),
        float(np.trace(within @ np.linalg.pinv(between, rcond=RCOND, hermitian=True))),
    )


@pytest.mark.parametrize(("rows", "dimension"), [(30, 12), (6, 12), (4, 40)])
def test_both_orders_are_their_definitions(rows: int, dimension: int) -> None:
    """With fewer rows than dimensions, the scatter is singular."""
    x, labels = _classes(1, classes=4, rows=rows, dimension=dimension)
    x, labels = x[:-1], labels[:-1]  # classes of unequal size
    measured = measure_scatter(x, labels)
    separability, fuzziness = _direct(x, labels)
    assert measured.separability == pytest.approx(separability, rel=1e-6)
    assert measured.fuzziness == pytest.approx(fuzziness, rel=1e-6)


@given(scale=st.floats(1e-3, 1e3), shift=st.floats(-10, 10), seed=st.integers(0, 2**32 - 1))
@example(scale=1.0, shift=1e5, seed=0)
def test_law_measures_are_invariant_to_rotation_scale_and_shift(
    scale: float, shift: float, seed: int
) -> None:
    (x, labels), (others, other_labels) = _classes(3), _classes(4)
    turn = np.linalg.qr(np.random.default_rng(seed).standard_normal((5, 5)))[0]

    def moved(values: np.ndarray) -> np.ndarray:
        return scale * (values @ turn) + shift * scale

    plain, changed = measure_scatter(x, labels), measure_scatter(moved(x), labels)
    assert changed.separability == pytest.approx(plain.separability, rel=1e-6)
    assert changed.fuzziness == pytest.approx(plain.fuzziness, rel=1e-6)
    one = measure_residuals(x, labels, held_out=others, held_out_labels=other_labels)
    two = measure_residuals(moved(x), labels, held_out=moved(others), held_out_labels=other_labels)
    assert two.integer == pytest.approx(one.integer, rel=1e-6)
    assert two.integer_held_out == pytest.approx(one.integer_held_out, rel=1e-6)


def test_only_the_integer_target_depends_on_the_order_of_classes() -> None:
    x, labels = _classes(5, classes=4, rows=30, distance=1.0, dimension=6)
    x[labels == 3] += 3.0
    renamed = np.array([2, 0, 3, 1])[labels]
    plain = measure_residuals(x, labels, held_out=x, held_out_labels=labels)
    other = measure_residuals(x, renamed, held_out=x, held_out_labels=renamed)
    assert other.one_hot == pytest.approx(plain.one_hot)
    assert other.one_hot_held_out == pytest.approx(plain.one_hot_held_out)
    assert abs(_known(other.integer) - _known(plain.integer)) > 0.05
    fuzziness = measure_scatter(x, labels).fuzziness
    assert measure_scatter(x, renamed).fuzziness == pytest.approx(fuzziness)


def test_pure_noise_has_the_null_residual_and_no_predictive_power() -> None:
    """As in the paper, 1,000 rows with 768 dimensions leave 0.231 of the variance of any target."""
    drawn = np.random.default_rng(0)
    x, others = drawn.standard_normal((1000, 768)), drawn.standard_normal((500, 768))
    labels, other_labels = np.repeat(np.arange(10), 100), np.repeat(np.arange(10), 50)
    measured = measure_residuals(x, labels, held_out=others, held_out_labels=other_labels)
    assert measured.rank == 768
    assert measured.null == pytest.approx(231 / 999)
    assert measured.integer == pytest.approx(measured.null, abs=0.05)
    assert measured.one_hot == pytest.approx(measured.null, abs=0.02)
    # noise in the weights adds d / (n - d - 2) of the variance
    assert _known(measured.one_hot_held_out) == pytest.approx(1 + 768 / 230, rel=0.15)


def test_the_interval_is_student_s_around_the_slope() -> None:
    """The reference is a second fit, with the t quantile from a printed table."""
    layers = [0, 1, 2, 4, 5, 6, 7, 8]
    logs = -0.2 * np.array(layers) + 0.1 * np.random.default_rng(0).standard_normal(8)
    values = dict(zip(layers, np.exp(logs).tolist(), strict=True))
    law, _ = fit_law(range(10), [values.get(layer) for layer in range(10)])
    assert law is not None
    (slope, _), covariance = np.polyfit(layers, logs, 1, cov=True)
    reach = 2.4469 * np.sqrt(covariance[0, 0])  # 97.5%, 6 degrees of freedom
    expected = np.exp([slope - reach, slope, slope + reach])
    np.testing.assert_allclose([law.low, law.rho, law.high], expected, rtol=1e-6)
    assert law.r_squared == pytest.approx(np.corrcoef(layers, logs)[0, 1] ** 2)


def _known(value: float | None) -> float:
    assert value is not None
    return value


@pytest.mark.parametrize("rho", [0.5, 0.9, 1.1])
def test_a_law_is_recovered(rho: float) -> None:
    law, fault = fit_law(range(1, 13), [3.0 * rho**layer for layer in range(1, 13)])
    assert fault is None
    assert law is not None
    assert law.rho == pytest.approx(rho)
    assert law.low == pytest.approx(rho, rel=1e-6)
    assert law.r_squared == pytest.approx(1)
    assert law.layers == 12


@pytest.mark.parametrize(("rows", "dimension"), [(60, 5), (60, 40), (30, 80)])
def test_residuals_equal_those_of_scikit_learn_s_regression(rows: int, dimension: int) -> None:
    """Values are means over one target per class; held-out residuals use the held-out variance."""
    x, labels = clouds(rows, dimension, 3)
    others, other_labels = clouds(25, dimension, 3, seed=1)
    found = measure_residuals(x, labels, held_out=others, held_out_labels=other_labels)
    model = LinearRegression()
    targets = [labels, *(labels == label for label in range(3))]
    wanted = [other_labels, *(other_labels == label for label in range(3))]
    inner, outer = [], []
    for fitted, tested in zip(targets, wanted, strict=True):
        model.fit(x, fitted)
        inner.append(1 - model.score(x, fitted))
        outer.append(1 - model.score(others, tested))
    assert found.integer_held_out == pytest.approx(outer[0])
    assert found.one_hot_held_out == pytest.approx(np.mean(outer[1:]))
    assert found.rank == min(dimension, rows - 1)
    if found.rank == rows - 1:
        assert (found.integer, found.one_hot, found.null) == (None, None, 0)
        assert found.fault == f"rank {found.rank} fits any target of {rows} rows"
    else:
        assert (found.integer, found.one_hot) == pytest.approx((inner[0], np.mean(inner[1:])))
        assert found.null == pytest.approx((rows - 1 - dimension) / (rows - 1))
        assert found.fault is None


def test_a_class_that_no_held_out_row_has_is_left_out_of_the_mean() -> None:
    x, labels = clouds(60, 5, 3)
    others, other_labels = x[labels != 1], labels[labels != 1]
    found = measure_residuals(x, labels, held_out=others, held_out_labels=other_labels)
    model, shares = LinearRegression(), []
    for label in (0, 2):
        model.fit(x, labels == label)
        shares.append(1 - model.score(others, other_labels == label))
    assert found.one_hot_held_out == pytest.approx(np.mean(shares))
    alone = measure_residuals(x, labels, held_out=x[:5], held_out_labels=np.ones(5))
    assert (alone.integer_held_out, alone.one_hot_held_out) == (None, None)
    assert alone.integer == found.integer
    broken = measure_residuals(x, labels, held_out=x * np.nan, held_out_labels=labels)
    assert (broken.integer_held_out, broken.integer) == (None, found.integer)


ANY = np.random.default_rng(0).normal(size=(12, 4))
CLASSES_OF = np.arange(12) % 3


@pytest.mark.parametrize(
    ("x", "labels", "scatter", "residuals"),
    [
        (ANY, 0 * CLASSES_OF, "one class", None),
        (np.ones((12, 2)), CLASSES_OF, "the same for all rows, so that D is 0/0", "nothing to"),
        (np.zeros((12, 2)), CLASSES_OF, "the same for all rows, so that D is 0/0", "nothing to"),
        (np.full((12, 2), np.inf), CLASSES_OF, "not finite in some rows", "not finite in some"),
        (np.eye(3)[CLASSES_OF], CLASSES_OF, "no scatter within classes except rounding", None),
        (
            np.repeat(np.eye(4), 3, axis=0),
            CLASSES_OF,
            "class means differ by no more than rounding",
            None,
        ),
    ],
    ids=["one class", "equal", "zeros", "infinite", "exact", "equal means"],
)
def test_what_has_no_measure_says_why(
    x: np.ndarray, labels: np.ndarray, scatter: str, residuals: str | None
) -> None:
    with np.errstate(invalid="ignore"):
        measured = measure_scatter(x, labels)
        left = measure_residuals(x, labels, held_out=x, held_out_labels=labels)
    assert (measured.separability, measured.fuzziness, measured.fault) == (None, None, scatter)
    if residuals is None:
        assert left.fault is None
    else:
        assert residuals in (left.fault or "")
        assert (left.integer, left.one_hot, left.integer_held_out, left.rank) == (None,) * 3 + (0,)


def test_a_law_needs_three_layers_above_rounding() -> None:
    for values in ([None, 1.0, 3.0], [1.0, 0.5, 1e-9], [1e-12, 0.5, 0.2]):
        assert fit_law(range(3), values) == (None, "2 layers; a law needs 3")
    assert fit_law(range(2), [None, None]) == (None, "0 layers; a law needs 3")
    law, fault = fit_law(range(6), [8.0, None, 2.0, 1.0, 1e-9, 0.0])
    assert fault is None
    assert law is not None
    assert law.rho == pytest.approx(0.5), "2^(3 - layer)"
    assert law.layers == 3
