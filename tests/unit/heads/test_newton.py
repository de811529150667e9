"""Newton: its bounds by brute force, its limits without noise, its forms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dpprobe.heads import second_order
from dpprobe.heads.newton import HESSIANS, Options
from dpprobe.heads.preconditioned_descent import Descent
from dpprobe.heads.second_order import (
    Spectrum,
    estimate_spectrum,
    sum_gradients,
)
from dpprobe.privacy.releases import Releases
from tests.support.second_order_data import (
    check_logistic_regression,
    classes_of,
    fit,
    plan_of,
    rows_of,
)


def descent_of(options: Options, features: torch.Tensor, labels: torch.Tensor) -> Descent:
    """A private one, on 4 classes."""
    rows = rows_of(features, labels, 4)
    releases = Releases(plan_of(options, rows.n, 1.0), (1,), rows.device)
    clip = options.gradient_bound * options.gradient_scale(4)
    return Descent(options, rows, releases, clip, scale=options.gradient_scale(4), record=None)


@pytest.mark.parametrize(
    ("loss", "bias", "steps", "bound"),
    [
        ("softmax", None, 3, math.sqrt(2)),
        ("softmax", None, 1, 1.0),
        ("sigmoid", 0.0, 3, 1.0),
        ("sigmoid", 0.0, 1, 0.5),
        ("sigmoid", None, 1, 1.0),
    ],
)
def test_bounds_that_gradients_have_by_themselves_clip_nothing(
    loss: Any, bias: Any, steps: int, bound: float
) -> None:
    """The derivation, and that it costs no bias: the clipped sum is the plain one."""
    options = Options(
        normalize="none", loss=loss, max_grad_norm=None, steps=steps, init_bias=bias, intercept=0
    )
    assert options.gradient_bound == pytest.approx(bound)
    features, labels = classes_of(80, 3, 4)
    features = features / features.norm(dim=1).max() * 0.999
    descent = descent_of(options, features, labels)
    head = descent.start
    if steps > 1:
        head = 20 * torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    logits = features @ head[:, :-1].T + head[:, -1]
    p = torch.softmax(logits, 1) if loss == "softmax" else torch.sigmoid(logits)
    plain = (p - torch.nn.functional.one_hot(labels, 4)).T @ features
    actual = sum_gradients(descent.design, descent.loss, head)
    # residuals are rounded towards zero to 2^-16
    torch.testing.assert_close(actual.values[:, :-1], plain.double(), rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("several", "values"),
    [
        (False, {"steps": 80}),
        (True, {"loss": "sigmoid", "hessian": "shared", "steps": 60, "step": 0.9}),
        (True, {"loss": "sigmoid", "hessian": "per_class", "steps": 60, "step": 0.9}),
    ],
)
def test_without_noise_it_is_scikit_learns_logistic_regression(
    several: bool, values: dict[str, Any]
) -> None:
    features, labels = classes_of(300, 4, 3, noise=2.5, several=several)
    options = Options(normalize="none", ridge=0, average="last", **values)
    check_logistic_regression(fit(options, features, labels, 3, seeds=(1,)), features, labels)


def test_per_class_noise_is_that_of_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of zeros: each class's matrix is noise alone, sqrt(K) times that of what is released."""
    options = Options(
        normalize="none", loss="sigmoid", hessian="per_class", steps=2, intercept=0, ridge=1.0
    )
    seen: list[tuple[torch.Tensor, float]] = []

    def spy(matrix: torch.Tensor, deviation: float) -> Spectrum:
        seen.append((matrix.clone(), deviation))
        return estimate_spectrum(matrix, deviation)

    monkeypatch.setattr(second_order, "estimate_spectrum", spy)
    fit(options, torch.zeros(12, 60), torch.arange(12) % 4, 4, noise=5.0, seeds=(1, 2))
    wanted = plan_of(options, 12, 5.0).find_mechanism(HESSIANS).noise_multiplier * math.sqrt(4)
    assert [deviation for _, deviation in seen] == pytest.approx([wanted] * 2 * 2 * 4)
    noise = torch.stack([matrix[:60, :60] for matrix, _ in seen])
    assert float(noise.diagonal(dim1=1, dim2=2).std()) == pytest.approx(wanted, rel=0.1)
    above = noise[:, *torch.triu_indices(60, 60, 1)]
    assert float(above.std()) == pytest.approx(wanted / math.sqrt(2), rel=0.03)
    assert float(torch.corrcoef(above).fill_diagonal_(0).abs().max()) < 0.15
