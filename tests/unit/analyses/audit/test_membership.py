"""Membership attacks on heads: what they must see, what they must not, ugly data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from dpprobe.analyses.audit import membership
from dpprobe.analyses.audit.membership import attack_membership
from dpprobe.errors import DataError, PrivacyError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import HEADS, method_options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.accountants import gaussian_mu
from dpprobe.privacy.trade_off import bound_attacks
from tests.support.audits import priced
from tests.support.feature_stores import write_store
from tests.unit.heads.test_fit_every_head import FULL, options, plan

SGD: dict[str, Any] = {"head": "sgd", "batch_size": "full", "steps": 10, "init": "zero"}
Result = tuple[dict[str, Any], dict[str, Any]]  # the record, and columns of scores
NONPRIVATE: dict[str, Any] = {"head": "nonprivate", "penalties": [1e-5], "tolerance": 1e-3}


def random_rows(
    rows: int = 60, dimension: int = 40, classes: int = 3, *, seed: int = 0
) -> TrainingSet:
    """Rows whose labels say nothing: all that a head gets right is memory."""
    generator = np.random.default_rng(seed)
    features = torch.from_numpy(generator.normal(size=(rows, dimension)).astype(np.float32))
    labels = torch.from_numpy(generator.integers(classes, size=rows))
    return TrainingSet(features, labels, classes)


def attacked(
    values: dict[str, Any], data: TrainingSet, epsilon: float, folder: Path, **changes: Any
) -> Result:
    method = method_options(values)
    plan = priced(method, data.n, epsilon, folder)
    return attack_membership(method, plan, data, **{"seed": 5, "shadows": 24} | changes)


def entry(result: Result, name: str, rows: str = "all") -> dict[str, Any]:
    (one,) = (row for row in result[0]["rows"] if row["attack"] == name and row["rows"] == rows)
    return dict(one)


def half_of(data: TrainingSet) -> tuple[membership.Attacked, np.ndarray, np.ndarray]:
    """Draws units of which a coin leaves some in; returns the coins, and the rows that are out."""
    chosen = membership.draw_units(data, rows=40, mislabelled=0.0, seed=1)
    (inside,) = membership.toss_coins(chosen, 1, seed=1)
    return chosen, inside, chosen.rows[~inside[chosen.unit_of]]


def test_a_head_that_memorises_is_attacked_far_above_chance(tmp_path: Path) -> None:
    result = attacked(NONPRIVATE, random_rows(), math.inf, tmp_path)
    for name in membership.ATTACKS:
        assert entry(result, name)["auc_interval"][0] > 0.8, name
    assert entry(result, "lira")["auc"] > 0.95


@pytest.mark.parametrize("batch", ["full", 16])
def test_little_epsilon_leaves_chance(batch: int | str, tmp_path: Path) -> None:
    """At epsilon 0.1 no attack has an AUC above 0.53."""
    values = SGD | {"batch_size": batch, "steps": 20, "max_grad_norm": 1.0}
    result = attacked(values, random_rows(300), 0.1, tmp_path)
    for name in membership.ATTACKS:
        low, high = entry(result, name)["auc_interval"]
        assert low <= 0.53, name
        assert high >= 0.47, name
    assert result[0]["allowed"]["balanced_accuracy"] < 0.53


def test_changed_labels_are_remembered_most(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = torch.from_numpy(np.arange(200) % 4)
    features = generator.normal(size=(200, 20)).astype(np.float32)
    features[np.arange(200), labels.numpy()] += 4
    data = TrainingSet(torch.from_numpy(features), labels, 4)
    values = NONPRIVATE | {"penalties": [1e-2]}
    result = attacked(values, data, math.inf, tmp_path, mislabelled=0.05, targets=20)
    changed, all_rows = entry(result, "lira", "mislabelled"), entry(result, "lira")
    assert changed["units"] == 10
    assert all_rows["units"] == 190
    assert changed["members"] + changed["non_members"] == 20 * 10
    assert changed["auc"] > 0.95 > all_rows["auc"]
    assert torch.equal(data.labels, labels), "the caller's labels were changed"


@pytest.mark.parametrize("head", sorted(HEADS))
@pytest.mark.parametrize("noise", [0.0, 5.0])
def test_rows_that_are_out_have_no_influence(head: str, noise: float) -> None:
    """The head is the same to the last bit whatever these rows and their labels are."""
    method = options(head)
    generator = np.random.default_rng(0)
    heads = []
    data = random_rows(90, 6)
    _, inside, out = half_of(data)
    for change in (False, True):
        assert data.features is not None
        features, labels = data.features.clone(), data.labels.clone()
        if change:
            features[out] = torch.from_numpy(generator.normal(size=(len(out), 6)) * 9).float()
            labels[out] = (labels[out] + 1) % 3
        other = TrainingSet(features, labels, 3)
        rows = membership.leave_units_out(other, half_of(other)[0], inside)
        heads.append(fit_heads(method, rows, plan(method, 90, noise=noise), [7]).weights)
    np.testing.assert_array_equal(heads[0], heads[1])


@pytest.mark.parametrize("head", ["adam", "feature_covariance", "least_squares", "sgd"])
def test_a_row_that_is_out_is_a_null_row(head: str) -> None:
    """Heads with NaN rows in their place, under the same noise, differ by rounding alone."""
    method, data = options(head, FULL), random_rows(90, 6)
    chosen, inside, out = half_of(data)
    noisy, left = plan(method, 90, noise=5.0), membership.leave_units_out(data, chosen, inside)
    weighted = fit_heads(method, left, noisy, [7]).weights
    assert data.features is not None
    features = data.features.clone()
    features[out] = math.nan
    nulled = fit_heads(method, TrainingSet(features, data.labels, 3), noisy, [7]).weights
    everyone = fit_heads(method, data, noisy, [7]).weights
    np.testing.assert_allclose(weighted, nulled, atol=1e-4 * np.abs(nulled).max())
    assert np.abs(everyone - nulled).max() > 1e-3 * np.abs(nulled).max()


def test_equal_seeds_give_equal_results_whatever_the_threads(tmp_path: Path) -> None:
    data = random_rows(50)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(attacked(SGD, data, 8.0, tmp_path))
    finally:
        torch.set_num_threads(before)
    first, second = (
        {k: v for k, v in record.items() if not k.endswith(("seconds", "second"))}
        for record, _ in results
    )
    assert first == second
    np.testing.assert_array_equal(results[0][1]["score"], results[1][1]["score"])
    other = attacked(SGD, data, 8.0, tmp_path, seed=6)
    assert not np.array_equal(other[1]["score"], results[0][1]["score"])


def test_the_record_is_json_and_its_allowance_the_plans(tmp_path: Path) -> None:
    data = random_rows(50)
    method = method_options(SGD)
    plan = priced(method, data.n, 2.0, tmp_path)
    result = attack_membership(method, plan, data, seed=5)[0]
    record = json.loads(json.dumps(result, allow_nan=False))
    allowed = bound_attacks(plan.mechanisms, [0.001, 0.01], delta=1e-5, epsilon=2.0)
    assert tuple(record["allowed"]["tpr_at_fpr"].values()) == allowed.true_positives
    # the largest gain over chance of Gaussians mu apart is at the threshold mu / 2
    exact = float(ndtr(gaussian_mu(plan.mechanisms) / 2))
    assert exact <= record["allowed"]["balanced_accuracy"] <= exact + 1e-3
    counts = [record[name] for name in ("shadows", "targets", "units", "n")]
    assert counts == [127, 128, 50, 50]
    assert len(record["roc"]["fpr"]) == len(record["roc"]["allowed"])
    assert {len(curve["tpr"]) for curve in record["roc"]["curves"]} == {len(record["roc"]["fpr"])}


def test_several_labels_a_row(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = (generator.random((100, 4)) < [0.5, 0.4, 0.3, 0.02]).astype(np.uint8)
    features = torch.from_numpy(generator.normal(size=(100, 60)).astype(np.float32))
    data = TrainingSet(features, torch.from_numpy(labels), 4)
    result = attacked(NONPRIVATE, data, math.inf, tmp_path, mislabelled=0.1)
    assert entry(result, "lira")["auc"] > 0.9
    rare, expected = entry(result, "lira", "rarest_classes")["units"], int(labels[:, 3].sum())
    assert max(1, expected - 2) <= rare <= expected


def test_a_patient_is_in_or_out_with_all_images(tmp_path: Path) -> None:
    names = [f"p{row // 3}" if row < 90 else f"q{row}" for row in range(120)]
    data = random_rows(120)
    assert data.features is not None
    patients = TrainingSet(data.features, data.labels, 3, units=Units.number_units(names))
    rows = membership.leave_units_out(patients, *half_of(patients)[:2])
    by_patient: dict[str, set[bool]] = {}
    assert rows.weights is not None
    for name, weight in zip(names, rows.weights.tolist(), strict=True):
        by_patient.setdefault(name, set()).add(weight > 0)
    assert all(len(states) == 1 for states in by_patient.values())
    assert {True} in by_patient.values()
    assert {False} in by_patient.values()
    result = attacked(NONPRIVATE, patients, math.inf, tmp_path, mislabelled=0.0)
    assert (result[0]["units"], result[0]["n"]) == (60, 60)
    assert entry(result, "lira")["auc"] > 0.8


def test_streamed_rows_are_attacked_like_rows_in_memory(tmp_path: Path) -> None:
    store = FeatureStore(write_store(tmp_path, rows=300, dimension=8, classes=3))
    labels = torch.from_numpy(np.asarray(store.labels).astype(np.int64))
    memory, stream = (
        attacked(SGD, TrainingSet(kept, labels, 3), 8.0, tmp_path, rows=100, shadows=8)
        for kept in (torch.from_numpy(store.read()), store)
    )
    np.testing.assert_allclose(memory[1]["score"], stream[1]["score"], atol=1e-4)


def test_data_without_an_attack_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="20 are needed"):
        attacked(SGD, random_rows(19), 8.0, tmp_path)
    method = method_options(SGD)
    with pytest.raises(PrivacyError, match="calibrate for this dataset"):
        attack_membership(method, priced(method, 99, 8.0, tmp_path), random_rows(98), seed=1)


def test_duplicates_and_rows_of_nan_are_attacked_like_others(tmp_path: Path) -> None:
    once = random_rows(40, 5).features
    assert once is not None
    features = once.repeat(2, 1)
    features[3] = math.nan
    data = TrainingSet(features, torch.arange(80) % 4, 4)
    for values, epsilon in ((SGD, 8.0), (NONPRIVATE, math.inf)):
        result = attacked(values, data, epsilon, tmp_path, shadows=8)
        assert np.isfinite(result[1]["score"]).all()
