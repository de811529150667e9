"""The kernels of `grid_rows`, against NumPy in float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dpprobe.heads.kernels import grid_rows, integer_products
from dpprobe.heads.kernels.integer_products import NO_DIGITS

SHAPES = [(1, 1, 2), (7, 3, 2), (64, 5, 4), (65, 5, 1), (130, 33, 11)]


@pytest.mark.parametrize(("m", "d"), [shape[:2] for shape in SHAPES])
def test_rows_of_the_grid_are_numpy_s(m: int, d: int) -> None:
    generator = np.random.default_rng(m)
    features = (20 * generator.normal(size=(m, d))).astype(np.float32)
    scale, shift, weights, constant = generator.uniform(0.2, 2, size=(4, m))
    for whole, centred in itertools.product((False, True), repeat=2):
        centre = generator.normal(size=d) if centred else np.zeros(0)
        exact = scale[:, None] * features - (shift[:, None] * centre if centred else 0)
        filled = np.empty((m, d + 1))
        grid_rows.fill_rows(features, scale, shift, centre, constant, whole, filled)
        rows = np.column_stack([np.trunc(exact) if whole else exact, constant])
        np.testing.assert_allclose(filled, rows, rtol=1e-12, atol=1e-12)
        total = np.ones(d)
        grid_rows.add_rows(features, scale, whole, total)
        plain = scale[:, None] * features
        np.testing.assert_allclose(total, 1 + (np.trunc(plain) if whole else plain).sum(0))
        weighed = filled.copy()
        grid_rows.weigh_rows(weights, whole, weighed)
        product = weights[:, None] * filled
        np.testing.assert_allclose(weighed, np.trunc(product) if whole else product)


@pytest.mark.parametrize(("m", "d", "classes"), SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bias", [0.0, 3.0, np.nan])
def test_gradients_of_the_grid_are_numpy_s(
    m: int, d: int, classes: int, weighted: bool, bias: float
) -> None:
    """Also by products of digits; weights that are not finite have probabilities of 0."""
    generator = np.random.default_rng(m)
    features = (20 * generator.normal(size=(m, d))).astype(np.float32)
    scale, shift, norms, weights, lengths, constant = generator.uniform(0.2, 2, size=(6, m))
    factors, biases = np.rint(1e7 * generator.normal(size=(d + 1, classes))), np.zeros(classes)
    factors[-1], biases[0] = 0, bias
    targets = np.eye(classes, dtype=np.float32)[generator.integers(classes, size=m)]
    digits = integer_products.split_weights(factors[:-1].T.copy(), 11)
    for whole, centred, sigmoid, step, clip in itertools.product(
        (False, True), (False, True), (False, True), (0.0, 1e-3), (0.4, np.inf)
    ):
        centre = generator.normal(size=d) if centred else np.zeros(0)
        rows = scale[:, None] * features - (shift[:, None] * centre if centred else 0)
        rows = np.column_stack([np.trunc(rows) if whole else rows, constant])
        logits = weighted * (rows @ factors * 2e-9 * lengths[:, None]) + biases
        powers = np.exp(logits - logits.max(1, keepdims=True))
        shares = 1 / (1 + np.exp(-logits)) if sigmoid else powers / powers.sum(1, keepdims=True)
        residuals = np.nan_to_num(shares) - targets
        size = np.linalg.norm(residuals, axis=1) * norms
        residuals *= (np.minimum(1, clip / np.maximum(size, 1e-99)) * weights * lengths)[:, None]
        expected = (np.trunc(residuals / step) if step else residuals).T @ rows
        sums = np.zeros((2, classes, d + 1))
        for total, split in zip(sums, (NO_DIGITS, digits), strict=True):
            grid_rows.add_gradients(
                features,
                scale,
                shift,
                centre,
                constant,
                whole,
                targets,
                norms,
                lengths,
                weights,
                factors,
                split,
                2.0**11,
                weighted,
                biases,
                2e-9,
                clip,
                sigmoid,
                step,
                total,
            )
            if whole and step:
                np.testing.assert_allclose(total, sums[0], rtol=1e-12, atol=1e-9)
        np.testing.assert_allclose(sums[0], expected, rtol=1e-9, atol=1e-9)
