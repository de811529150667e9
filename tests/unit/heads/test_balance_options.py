"""Released frequencies of classes: what a unit adds, what noise there is, what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.heads.balance import (
    CLASS_COUNTS,
    BalanceOptions,
    log_shifts,
)
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import method_options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.target import Target
from tests.support.mechanisms import made_plan
from tests.support.observers import Watching
from tests.support.second_order_data import classes_of, plan_of

HEADS: dict[str, dict[str, Any]] = {
    "sgd, sampled": {"head": "sgd", "batch_size": 50, "steps": 4, "learning_rate": 0.5},
    "momentum": {"head": "momentum", "steps": 3},
    "momentum, whitened": {"head": "momentum", "normalize": "whitened", "steps": 3},
    "momentum, exact": {"head": "momentum", "engine": "exact", "steps": 3},
    "adam": {"head": "adam", "steps": 3},
    "newton": {"head": "newton", "steps": 2},
    "feature_covariance": {"head": "feature_covariance", "normalize": "l2", "steps": 2},
}
ROWS, CLASSES = 60, 4
LABELS = torch.tensor([0] * 30 + [1] * 20 + [2] * 9 + [3])


def options(name: str, **values: Any) -> BalanceOptions:
    method = method_options({**HEADS[name], "class_priors": "released", **values})
    assert isinstance(method, BalanceOptions)
    return method


def counted(
    method: MethodOptions, features: torch.Tensor, units: Units | None = None
) -> torch.Tensor:
    """The sums that a fit releases as class counts, before their noise."""
    data = TrainingSet(features.clone(), LABELS, CLASSES, units=units)
    watching = Watching(through=True)
    fit_heads(method, data, plan_of(method, data.n, 1.0), [1], observer=watching)
    (sums,) = watching.sums[CLASS_COUNTS]
    return sums


def test_counts_are_of_rows_before_class_weights() -> None:
    features, _ = classes_of(ROWS)
    weighted = options("momentum", class_weights=[1, 0.5, 0.25, 0.1])
    assert torch.equal(counted(weighted, features), counted(options("momentum"), features))


@pytest.mark.parametrize("name", HEADS)
def test_the_head_is_the_plain_one_but_for_its_biases(name: str) -> None:
    """At the noise that the balanced plan has: counts change nothing of the other releases."""
    features, _ = classes_of(ROWS)
    method, plain = options(name), method_options(HEADS[name])
    plan = plan_of(method, ROWS, 0.5)
    alone = made_plan(plan.mechanisms[1:], ROWS)
    data = TrainingSet(features, LABELS, CLASSES)
    balanced, before = fit_heads(method, data, plan, [1, 2]), fit_heads(plain, data, alone, [1, 2])
    np.testing.assert_array_equal(balanced.weights[..., :-1], before.weights[..., :-1])
    assert balanced.priors is not None
    assert before.priors is None
    expected = [log_shifts(priors) for priors in balanced.priors.tolist()]
    moved = balanced.weights[..., -1] - before.weights[..., -1]
    np.testing.assert_allclose(moved, expected, atol=1e-5)
    assert not np.array_equal(balanced.priors[0], balanced.priors[1]), "each seed has its noise"
    assert np.array_equal(balanced.released_arrays()["class_priors"], balanced.priors)
    assert "class_priors" not in before.released_arrays()


@pytest.mark.parametrize("name", HEADS)
def test_without_noise_it_is_the_exact_frequencies(name: str) -> None:
    features, _ = classes_of(ROWS)
    data = TrainingSet(features, LABELS, CLASSES)
    method = options(name)
    public = method_options({**HEADS[name], "class_priors": [30, 20, 9, 1]})
    released = fit_heads(method, data, plan_of(method, ROWS, 0.0), [1, 2])
    known = fit_heads(public, data, plan_of(public, ROWS, 0.0), [1, 2])
    np.testing.assert_allclose(released.weights, known.weights, atol=1e-6)
    assert released.priors is not None
    np.testing.assert_allclose(released.priors[1], np.array([30, 20, 9, 1]) / 60, rtol=1e-6)


def test_a_class_that_nobody_has_and_a_tiny_epsilon_give_finite_shifts(tmp_path: Path) -> None:
    features, _ = classes_of(ROWS)
    data = TrainingSet(features, LABELS.clamp(max=2), CLASSES)
    method = options("momentum", normalize="l2")
    without = fit_heads(method, data, plan_of(method, ROWS, 0.0), [1]).priors
    assert without is not None
    assert without[0, 3] == pytest.approx(1 / 61), "as if it had one row"
    plan = calibrate(
        method.list_mechanisms(ROWS), Target(n=ROWS, epsilon=0.01, delta=1e-6), cache=tmp_path
    )
    heads = fit_heads(method, data, plan, range(20))
    assert heads.priors is not None
    assert np.isfinite(heads.weights).all()
    # noise alone, whose counts are at most a few standard deviations: no class is boosted by much
    assert heads.priors.max() / heads.priors.min() < 3
