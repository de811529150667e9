"""Clipped residuals equal NumPy's in float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dpprobe.heads.kernels.residuals import clip_rows


@pytest.mark.parametrize(("m", "classes"), [(1, 2), (7, 1), (64, 4), (65, 11)])
@pytest.mark.parametrize("bias", [0.0, 700.0, np.inf, np.nan])
def test_residuals_equal_numpys_and_depend_only_on_their_row(
    m: int, classes: int, bias: float
) -> None:
    """A row's bits do not depend on other rows; non-finite logits have probability 0."""
    generator = np.random.default_rng(m)
    logits = 3 * generator.normal(size=(m, classes))
    logits[m // 2 :, 0] += bias
    norms, lengths, weights = generator.uniform(0.2, 2, size=(3, m))
    targets = np.eye(classes, dtype=np.float32)[generator.integers(classes, size=m)]
    for sigmoid, step, clip in itertools.product((False, True), (0.0, 1e-3), (0.4, np.inf)):
        with np.errstate(all="ignore"):
            powers = np.exp(logits - logits.max(1, keepdims=True))
            shares = 1 / (1 + np.exp(-logits)) if sigmoid else powers / powers.sum(1)[:, None]
        expected = np.nan_to_num(shares) - targets
        length = np.linalg.norm(expected, axis=1) * norms
        expected *= (np.minimum(1, clip / np.maximum(length, 1e-99)) * weights * lengths)[:, None]
        actual = logits.copy()
        clip_rows(actual, targets, norms, lengths, weights, clip, sigmoid, step)
        if step:
            assert (actual == np.trunc(actual)).all()
            assert (abs(actual) <= abs(expected) / step + 1e-9).all()
        np.testing.assert_allclose(actual * (step or 1), expected, rtol=1e-12, atol=step + 1e-15)
        for row in (0, m - 1):
            alone, one = logits[[row]], slice(row, row + 1)
            given = targets[one], norms[one], lengths[one], weights[one]
            clip_rows(alone, *given, clip, sigmoid, step)
            np.testing.assert_array_equal(alone[0], actual[row])
