"""Public weights and priors of classes: no unit adds more, and files are as they were without."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.analyses.audit.white_box import audited_shape
from dpprobe.errors import ConfigError
from dpprobe.heads.balance import BalanceOptions, fit_balanced, weigh_classes
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.normalisation import NoNormalisation
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import method_options
from dpprobe.heads.rows import Rows, Transform
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.releases import Releases
from tests.support.mechanisms import made_plan
from tests.support.observers import Watching
from tests.support.second_order_data import classes_of, plan_of

pytestmark = pytest.mark.usefixtures("several_blocks")

HEADS: dict[str, dict[str, Any]] = {
    "sgd": {"head": "sgd", "init": "zero", "batch_size": "full", "steps": 4, "learning_rate": 0.5},
    "sgd, sampled": {"head": "sgd", "batch_size": 50, "steps": 4, "learning_rate": 0.5},
    "sgd, exact": {
        "head": "sgd",
        "init": "zero",
        "engine": "exact",
        "batch_size": "full",
        "steps": 3,
    },
    "momentum": {"head": "momentum", "normalize": "l2", "steps": 3},
    "feature_covariance": {"head": "feature_covariance", "normalize": "l2", "steps": 2},
    "newton": {"head": "newton", "normalize": "l2", "steps": 2},
}
WEIGHTS = (1.0, 0.5, 0.25, 0.125)


def options(name: str, **values: Any) -> MethodOptions:
    return method_options({**HEADS[name], **values})


def trained(method: MethodOptions, data: TrainingSet, noise: float) -> np.ndarray:
    return fit_heads(method, data, plan_of(method, data.n, noise), [1, 2]).weights


@pytest.mark.parametrize("name", HEADS)
def test_no_row_adds_more_than_its_weight(name: str) -> None:
    """Every release's sums, with a row and with a null row in its place, as an audit sees them."""
    features, labels = classes_of(60)
    features *= 50  # every row is clipped
    method = options(name, class_weights=WEIGHTS)
    plan = plan_of(method, 60, 1.0)
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


def test_weights_multiply_those_of_units_and_leave_normalisations_alone() -> None:
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
            options("newton", normalize="centred", **more), data, _private(more), [3]
        ).transforms[0].arrays["centre"]
        for more in ({}, {"class_weights": WEIGHTS})
    ]  # fmt: skip
    assert torch.equal(*centred)


def _private(more: dict[str, Any]) -> Plan:
    return plan_of(options("newton", normalize="centred", **more), 20, 1.0)


@pytest.mark.parametrize("name", HEADS)
def test_priors_move_the_biases_alone(name: str) -> None:
    features, labels = classes_of(200)
    data = TrainingSet(features.clone(), labels, 4)
    priors = [0.7, 0.1, 0.15, 0.05]
    plain = trained(options(name), data, 0.5)
    adjusted = trained(options(name, class_priors=priors), data, 0.5)
    np.testing.assert_array_equal(adjusted[..., :-1], plain[..., :-1])
    shifts = adjusted[..., -1] - plain[..., -1]
    expected = -np.log(priors) + np.log(priors).mean()
    np.testing.assert_allclose(shifts, np.tile(expected, (2, 1)), atol=1e-5)


def test_priors_undo_what_frequencies_do() -> None:
    """Two normal classes, one ten times rarer: the boundary goes back to the middle."""
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(30_000, generator=generator) < 1 / 11).long()
    features = torch.randn(30_000, 1, generator=generator) + 2 * labels[:, None] - 1
    data = TrainingSet(features, labels, 2)
    base = {"normalize": "none", "steps": 60, "ridge": 0, "average": "last", "max_row_norm": 5}
    method = method_options({"head": "newton", **base, "class_priors": [10, 1]})
    fitted = fit_heads(method, data, plan_of(method, data.n, 0.0), [1])
    at = np.linspace(-3, 3, 601, dtype=np.float32)[:, None]
    boundary = at[score_rows(fitted, at)[0].argmax(1) == 1].min()
    assert boundary == pytest.approx(0, abs=0.06)
    plain = method_options({"head": "newton", **base})
    uneven = fit_heads(plain, data, plan_of(plain, data.n, 0.0), [1])
    assert at[score_rows(uneven, at)[0].argmax(1) == 1].min() > 0.9


def test_a_search_weighs_its_trials_as_its_base_would() -> None:
    features, labels = classes_of(120)
    values = {
        "head": "tuned", "base": {**HEADS["sgd"], "class_weights": WEIGHTS},
        "search": {"learning_rate": [0.5, 0.6]}, "trials": 2,
    }  # fmt: skip
    heads = []
    for weights in (WEIGHTS, (1.0, 1.0, 1.0, 1.0)):
        method = method_options(values | {"base": {**HEADS["sgd"], "class_weights": weights}})
        mechanisms, selection = method.list_mechanisms(120), method.priced_selection(120)
        plan = made_plan(mechanisms, 120, 0.0, selection=selection)
        heads.append(fit_heads(method, TrainingSet(features.clone(), labels, 4), plan, [1]).weights)
        assert method.counted_classes == 4
    assert np.abs(heads[0] - heads[1]).max() > 1e-3


def test_numbers_for_other_classes_and_rows_of_several_labels() -> None:
    features, labels = classes_of(40)
    data = TrainingSet(features.clone(), labels, 4)
    for name in ("class_weights", "class_priors"):
        method = options("sgd", **{name: [1, 1, 1]})
        with pytest.raises(ConfigError, match=f"{name} has 3 numbers for 4 classes"):
            fit_heads(method, data, plan_of(method, 40, 1.0), [1])
    features, several = classes_of(40, several=True)
    method = options("sgd", loss="sigmoid", class_weights=[1, 1, 1, 1])
    rows = Rows(TrainingSet(features, several, 4), Transform(NoNormalisation()))
    releases = Releases(plan_of(method, 40, 1.0), [1], torch.device("cpu"))
    with pytest.raises(ConfigError, match="one label per row"):
        fit_balanced(method, rows, releases)


def test_an_audit_of_numbers_a_class_has_all_classes() -> None:
    plan = plan_of(options("sgd"), 100, 1.0)
    shapes = [
        audited_shape(method, plan, 512, 30, False).num_classes
        for method in (options("sgd"), options("sgd", class_priors=[1] * 30))
    ]
    assert shapes == [10, 30]
