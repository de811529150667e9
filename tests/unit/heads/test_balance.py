"""Class weights and class priors: what a unit contributes, the noise, and side effects."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from dpprobe.analyses.audit.white_box import audited_shape
from dpprobe.heads.balance import weigh_classes
from dpprobe.heads.balance_options import CLASS_COUNTS, BalanceOptions
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.normalisation import NoNormalisation
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import method_options
from dpprobe.heads.rows import Rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.target import Target
from tests.support.linear_heads import plan_for
from tests.support.mechanisms import made_plan
from tests.support.observers import Watching
from tests.support.second_order_data import classes_of

pytestmark = pytest.mark.usefixtures("several_blocks")

FULL = {"head": "sgd", "init": "zero", "batch_size": "full", "steps": 4, "learning_rate": 0.5}
HEADS: dict[str, dict[str, Any]] = {
    "sgd": FULL,
    "sgd, sampled": {"head": "sgd", "batch_size": 50, "steps": 4, "learning_rate": 0.5},
    "sgd, exact": FULL | {"engine": "exact"},
    "momentum": {"head": "momentum", "normalize": "l2", "steps": 3},
    "momentum, whitened": {"head": "momentum", "normalize": "whitened", "steps": 3},
    "momentum, exact": {"head": "momentum", "engine": "exact", "steps": 3},
    "adam": {"head": "adam", "steps": 3},
    "feature_covariance": {"head": "feature_covariance", "normalize": "l2", "steps": 2},
    "newton": {"head": "newton", "normalize": "l2", "steps": 2},
    "newton, centred": {"head": "newton", "steps": 2},
}
EACH = pytest.mark.parametrize("name", HEADS)
WEIGHTS = (1.0, 0.5, 0.25, 0.125)
ROWS, CLASSES = 60, 4
LABELS = torch.tensor([0] * 30 + [1] * 20 + [2] * 9 + [3])


def options(name: str, **values: Any) -> MethodOptions:
    return method_options({**HEADS[name], **values})


@pytest.mark.parametrize("name", [name for name in HEADS if not options(name).normalize.priced])
def test_no_row_adds_more_than_its_weight(name: str) -> None:
    """Compares every sum with a row to the sum with a null row in its place, as an audit does."""
    features, labels = classes_of(60)
    features *= 50  # every row is clipped
    method = options(name, class_weights=WEIGHTS)
    plan = plan_for(method, 60, 1.0)
    for row in (0, 1, 2, 3):
        null = features.clone()
        null[row] = math.nan
        worlds = Watching(), Watching()
        for watching, changed in zip(worlds, (features, null), strict=True):
            data = TrainingSet(changed.clone(), labels, 4)
            fit_heads(method, data, plan, [1], observer=watching)
        for mechanism in plan.mechanisms:
            longest = mechanism.sensitivity * WEIGHTS[int(labels[row])]
            pairs = zip(*(world.sums[mechanism.name] for world in worlds), strict=True)
            changes = [float((one.double() - other.double()).norm()) for one, other in pairs]
            assert len(changes) == mechanism.count
            assert max(changes) <= longest * (1 + 1e-5), (mechanism.name, row)
            if name != "sgd, sampled":
                assert min(changes) > 0


def test_class_weights_multiply_unit_weights() -> None:
    features, labels = classes_of(60)
    units = Units.number_units([f"{row // 3}" for row in range(60)])
    data = TrainingSet(features, labels, 4, units=units)
    rows = Rows(data, Transform(NoNormalisation()))
    method = options("sgd", class_weights=WEIGHTS)
    assert isinstance(method, BalanceOptions)
    other = weigh_classes(method, rows)
    expected = torch.tensor(WEIGHTS)[labels] * torch.from_numpy(units.weights)
    torch.testing.assert_close(other.weights, expected)
    assert other.n == rows.n == 20
    assert rows.weights is not None
    assert torch.equal(rows.weights, torch.from_numpy(units.weights))
    rows.make_once("a", lambda: 1)
    assert other.make_once("a", lambda: 2) == 2
    centred = [
        fit_heads(
            options("newton, centred", **more),
            data,
            plan_for(options("newton, centred", **more), 20, 1.0),
            [3],
        )
        .transforms[0]
        .arrays["centre"]
        for more in ({}, {"class_weights": WEIGHTS})
    ]
    assert torch.equal(*centred)


def test_an_audit_of_numbers_a_class_has_all_classes() -> None:
    plan = plan_for(options("sgd"), 100, 1.0)
    shapes = [
        audited_shape(method, plan, 512, 30, False).num_classes
        for method in (options("sgd"), options("sgd", class_priors=[1] * 30))
    ]
    assert shapes == [10, 30]


# --- released frequencies of classes ------------------------------------------------------------


def released(name: str, **values: Any) -> MethodOptions:
    return options(name, class_priors="released", **values)


def test_counts_are_of_rows_before_class_weights() -> None:
    """Each of a patient's m rows counts 1 / m; a null row counts 0."""
    counts = []
    units = Units.number_units([f"{row // 7}" for row in range(ROWS)])
    features = classes_of(ROWS)[0]
    features[5] = math.nan
    for more in ({}, {"class_weights": WEIGHTS}):
        method, watching = released("momentum", **more), Watching(through=True)
        data = TrainingSet(features.clone(), LABELS, CLASSES, units=units)
        fit_heads(method, data, plan_for(method, units.count, 1.0), [1], observer=watching)
        counts += watching.sums[CLASS_COUNTS]
    assert torch.equal(*counts)
    shares = [1 / min(7, ROWS - row // 7 * 7) * (row != 5) for row in range(ROWS)]
    assert counts[0].tolist() == pytest.approx(np.bincount(LABELS, shares), abs=1e-4)


@EACH
@pytest.mark.parametrize("priors", [(0.7, 0.1, 0.15, 0.05), "released"])
def test_priors_change_only_biases(name: str, priors: Any) -> None:
    """Releasing class counts does not change the noise of the other releases."""
    method, plain = options(name, class_priors=priors), options(name)
    plan, data = plan_for(method, ROWS, 0.5), TrainingSet(classes_of(ROWS)[0], LABELS, CLASSES)
    others = made_plan([each for each in plan.mechanisms if each.name != CLASS_COUNTS], ROWS)
    record = Mock(return_value={})
    balanced = fit_heads(method, data, plan, [1, 2], record=record)
    before = fit_heads(plain, data, others, [1, 2])
    np.testing.assert_allclose(record.call_args.args[1][-1], balanced.weights[-1], atol=1e-6)
    np.testing.assert_array_equal(balanced.weights[..., :-1], before.weights[..., :-1])
    given = [priors] * 2
    if priors == "released":
        assert balanced.priors is not None
        given = balanced.priors.tolist()
        assert given[0] != given[1], "each seed has its noise"
        assert np.array_equal(balanced.released_arrays()["class_priors"], balanced.priors)
    assert before.priors is None
    assert "class_priors" not in before.released_arrays()
    expected = [np.log(each).mean() - np.log(each) for each in given]
    moved = balanced.weights[..., -1] - before.weights[..., -1]
    np.testing.assert_allclose(moved, expected, atol=1e-5)


@EACH
def test_without_noise_it_is_the_exact_frequencies(name: str) -> None:
    features, _ = classes_of(ROWS)
    data = TrainingSet(features, LABELS, CLASSES)
    method = released(name)
    public = options(name, class_priors=[30, 20, 9, 1])
    counts = fit_heads(method, data, plan_for(method, ROWS, 0.0), [1, 2])
    known = fit_heads(public, data, plan_for(public, ROWS, 0.0), [1, 2])
    np.testing.assert_allclose(counts.weights, known.weights, atol=1e-6)
    assert counts.priors is not None
    np.testing.assert_allclose(counts.priors[1], np.array([30, 20, 9, 1]) / 60, rtol=1e-6)


def test_empty_classes_and_tiny_epsilons_give_finite_shifts(tmp_path: Path) -> None:
    features, _ = classes_of(ROWS)
    data = TrainingSet(features, LABELS.clamp(max=2), CLASSES)
    method = released("momentum", normalize="l2")
    without = fit_heads(method, data, plan_for(method, ROWS, 0.0), [1]).priors
    assert without is not None
    assert without[0, 3] == pytest.approx(1 / 61), "as if it had one row"
    plan = calibrate(
        method.list_mechanisms(ROWS), Target(n=ROWS, epsilon=0.01, delta=1e-6), cache=tmp_path
    )
    heads = fit_heads(method, data, plan, range(20))
    assert heads.priors is not None
    assert np.isfinite(heads.weights).all()
    # the counts are pure noise of at most a few standard deviations: no class is boosted much
    assert heads.priors.max() / heads.priors.min() < 3
