"""DP-FC: its limits without noise, its price, published settings, public whitening, its floors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.errors import ConfigError, DataError
from dpprobe.heads.feature_covariance import Options
from tests.support.linear_heads import Source
from tests.support.second_order_data import check_logistic_regression, classes_of, fit


@pytest.mark.parametrize(("loss", "several"), [("softmax", False), ("sigmoid", True)])
def test_without_noise_many_steps_are_scikit_learns_logistic_regression(
    loss: Any, several: bool
) -> None:
    features, labels = classes_of(300, 4, 3, noise=2.5, several=several)
    options = Options(normalize="none", loss=loss, ridge=0, steps=300, average="last")
    check_logistic_regression(fit(options, features, labels, 3, seeds=(1,)), features, labels)


def test_one_step_from_zero_is_least_squares() -> None:
    """The first gradient is that of least squares on centred labels, K times as long a step."""
    from dpprobe.heads.least_squares import Options as LeastSquares

    features, labels = classes_of()
    one = fit(Options(normalize="none", steps=1, step=1.0), features, labels, 4, seeds=(1,))
    other = fit(LeastSquares(normalize="none"), features, labels, 4, seeds=(1,))
    other.weights[..., -1] -= 1 / 4
    np.testing.assert_allclose(one.weights, 4 * other.weights, rtol=1e-3, atol=2e-4)


def test_published_settings_are_the_published_update() -> None:
    """Mehta et al. 2023: 10 steps, rate 0.2, lambda 100, C 0.005, bias -10, equal noise."""
    options = Options(
        normalize="none", loss="sigmoid", steps=10, learning_rate=0.2, ridge=100,
        max_grad_norm=0.005, covariance_share=1 / 11, intercept=0, init_bias=-10,
        penalised=False, average="last",
    )  # fmt: skip
    covariance, gradients = options.list_mechanisms(100)
    assert covariance.noise_multiplier == pytest.approx(gradients.noise_multiplier)
    features, labels = classes_of(100, 6, 3)
    features = features / 20
    actual = fit(options, features, labels, 3, noise=1e-9, seeds=(1,)).weights[0]
    rows = features.double()
    targets = torch.nn.functional.one_hot(labels, 3).double()
    weights = torch.zeros(3, 6, dtype=torch.float64)
    matrix = rows.T @ rows + 100 * torch.eye(6, dtype=torch.float64)
    for _ in range(10):
        residuals = torch.sigmoid(rows @ weights.T - 10) - targets
        norms = residuals.norm(dim=1) * rows.norm(dim=1)
        clipped = residuals * (0.005 / norms).clamp(max=1)[:, None]
        weights -= 0.2 * (clipped.T @ rows) @ torch.linalg.inv(matrix)
    np.testing.assert_allclose(actual[:, :-1], weights, rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(actual[:, -1], -10)


def test_a_diverged_head_is_refused() -> None:
    features, labels = classes_of()
    options = Options(normalize="none", max_row_norm=10, learning_rate=1e300, steps=3)
    with pytest.raises(ConfigError, match="smaller learning_rate"):
        fit(options, features, labels, 4, noise=1.0)


def test_public_covariance_is_the_private_one_of_other_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many rows as the private ones count for: here rows of twice their length, twice."""
    features, labels = classes_of()
    public = 2 * torch.cat([features, features])
    rows = public.numpy()
    monkeypatch.setattr("dpprobe.features.feature_store.FeatureStore", lambda _: Source(rows))
    options = Options(normalize="l2", ridge=3.0, public_covariance="somewhere/manifest.json")
    fitted = fit(options, features, labels, 4, noise=1e-7)
    private = fit(Options(normalize="l2", ridge=3.0), features, labels, 4, noise=1e-7)
    np.testing.assert_allclose(fitted.weights, private.weights, rtol=1e-3, atol=1e-3)
    assert options.paths == ("init_file", "public_covariance")
    assert options.input_files() == ("somewhere/manifest.json",)
    narrow = rows[:, :3]
    monkeypatch.setattr("dpprobe.features.feature_store.FeatureStore", lambda _: Source(narrow))
    with pytest.raises(DataError, match="dimension 3"):
        fit(options, features, labels, 4, noise=0.05)
