"""Least squares: numpy's without noise, sensitivities by brute force, floors under noise."""

from __future__ import annotations

import numpy as np
import pytest

from dpprobe.errors import PrivacyError
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.least_squares import Options
from dpprobe.heads.training_set import TrainingSet
from tests.support.second_order_data import SEEDS, classes_of, fit, plan_of

pytestmark = pytest.mark.usefixtures("several_blocks")


def test_without_noise_it_is_numpys() -> None:
    """With one label per row and with several, rows far beyond max_row_norm."""
    for several in (False, True):
        features, labels = classes_of(several=several)
        fitted = fit(Options(normalize="none", ridge=0), features, labels, 4)
        rows = np.column_stack([features.double().numpy(), np.ones(len(features))])
        targets = labels.numpy() if several else np.eye(4)[labels.numpy()]
        expected, *_ = np.linalg.lstsq(rows, targets, rcond=None)
        for weights in fitted.weights:
            np.testing.assert_allclose(weights, expected.T, atol=2e-5)


def test_releases_are_counted() -> None:
    features, labels = classes_of()
    fitted = fit(Options(), features, labels, 4, noise=1.0)
    assert fitted.steps == 1
    assert fitted.weights.shape == (2, 4, 13)
    assert not np.allclose(fitted.weights[0], fitted.weights[1])
    plan = plan_of(Options(gram_share=0.9), len(features), 1.0)
    with pytest.raises(PrivacyError, match="plan"):
        fit_heads(Options(), TrainingSet(features, labels, 4), plan, SEEDS)
