"""The kernels of `grid_rows`, against NumPy in float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dpprobe.heads.kernels import grid_rows

SHAPES = [(1, 1, 2), (7, 3, 2), (64, 5, 4), (65, 5, 1), (130, 33, 11)]


@pytest.mark.parametrize(("m", "d", "classes"), SHAPES)
def test_rows_and_gradients_of_the_grid_are_numpy_s(m: int, d: int, classes: int) -> None:
    generator = np.random.default_rng(m)
    features = (20 * generator.normal(size=(m, d))).astype(np.float32)
    scale, shift, norms, weights, lengths = generator.uniform(0.2, 2, size=(5, m))
    constant, factors = np.full(m, 3.0), generator.normal(size=(d + 1, classes)) / 20
    factors[-1] = 0
    targets = np.eye(classes, dtype=np.float32)[generator.integers(classes, size=m)]
    biases, no_digits = generator.normal(size=classes), np.zeros((0, 0), dtype=np.int32)
    for whole, centred, sigmoid, step, clip in itertools.product(
        (False, True), (False, True), (False, True), (0.0, 1e-3), (0.4, np.inf)
    ):
        centre = generator.normal(size=d) if centred else np.zeros(0)
        exact = scale[:, None] * features - (shift[:, None] * centre if centred else 0)
        rows = np.column_stack([np.trunc(exact) if whole else exact, constant])
        filled = np.empty((m, d + 1))
        given = features, scale, shift, centre, constant, whole
        grid_rows.fill_rows(*given, filled)
        np.testing.assert_allclose(filled, rows, rtol=1e-12, atol=1e-12)
        total = np.ones(d)
        grid_rows.add_rows(features, scale, whole, total)
        plain = scale[:, None] * features
        np.testing.assert_allclose(total, 1 + (np.trunc(plain) if whole else plain).sum(0))
        weighed = filled.copy()
        grid_rows.weigh_rows(weights, whole, weighed)
        product = weights[:, None] * filled
        np.testing.assert_allclose(weighed, np.trunc(product) if whole else product)

        logits = rows @ factors * 0.5 * lengths[:, None] + biases
        shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        residuals = (1 / (1 + np.exp(-logits)) if sigmoid else shares) - targets
        size = np.linalg.norm(residuals, axis=1) * norms
        residuals *= (np.minimum(1, clip / np.maximum(size, 1e-99)) * weights * lengths)[:, None]
        sums = np.zeros((classes, d + 1))
        grid_rows.add_gradients(
            *given, targets, norms, lengths, weights, factors, no_digits, 1.0, True, biases, 0.5,
            clip, sigmoid, step, sums,
        )  # fmt: skip
        expected = (np.trunc(residuals / step) if step else residuals).T @ rows
        np.testing.assert_allclose(sums, expected, rtol=1e-9, atol=1e-9)
