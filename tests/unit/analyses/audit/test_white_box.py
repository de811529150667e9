"""The audit of a cell: bounds below their claims, controls above them, power, searches."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.analyses.audit import canary_attack, white_box
from dpprobe.analyses.audit.audit_record import AuditRecord
from dpprobe.analyses.audit.bounds import accuracy_lower_bound
from dpprobe.analyses.audit.canary_attack import OTHERS, Shape, make_worlds
from dpprobe.analyses.audit.controls import CONTROLS, add_counts
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.releases import Releases
from tests.support.audit_records import write_audit
from tests.support.audits import METHODS, head, plan_of, priced

N = 400
# Controls that need more classes, features, rows, patients or samples.
NARROW = {
    "shared_batches",
    "paired_units",
    "exact_late_classes",
    "exact_late_features",
    "repeated_words",
    "light_patients",
    "dropped_rows",
}
Result = tuple[dict[str, Any], dict[str, Any]]  # parts of the record, and columns of scores


@pytest.fixture(scope="module")
def calibrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calibrations")


def planned(method: MethodOptions, epsilon: float, cache: Path) -> Plan:
    return priced(method, N, epsilon, cache)


def audited(method: MethodOptions, plan: Plan, **changes: Any) -> Result:
    options: dict[str, Any] = {
        "dimension": 8,
        "num_classes": 3,
        "multi_label": False,
        "runs": 200,
        "confidence": 0.95,
        "seed": 77,
        "controls": False,
        "progress_label": "test",
    }
    return white_box.audit_plan(method, plan, **(options | changes))


def cell_of(
    plan: Plan, runs: int, method: MethodOptions = METHODS["prototypes"], confidence: float = 0.95
) -> white_box._Cell:
    shape = Shape(n=N, dimension=4, num_classes=2, multi_label=False)
    return white_box._Cell(method, plan, shape, 5, runs, confidence)


@pytest.mark.parametrize(
    ("name", "epsilon"), [("least_squares", 0.5), ("sgd", 8.0), ("sampled_sgd", 2.0)]
)
def test_a_claim_lies_above_its_bound_and_all_controls_are_caught(
    name: str, epsilon: float, calibrations: Path, tmp_path: Path
) -> None:
    method = METHODS[name]
    plan = planned(method, epsilon, calibrations)
    sampled = name == "sampled_sgd"  # whose controls take long: test_controls has them
    parts, scores = audited(method, plan, controls=not sampled)
    box = parts["white_box"]
    assert box["holds"]
    assert 0.4 * epsilon < box["epsilon_lower"] <= plan.realised_epsilon
    assert 0 <= box["bundle"]["epsilon_lower"] <= plan.realised_epsilon
    assert 1 <= box["noise_factor"] < 2.5
    assert 1 < box["caught_factor"] < 2.5
    assert all(0.85 < used <= 1 + 1e-5 for used in box["sensitivity_used"].values())
    assert box["in"] + box["out"] == box["runs"] == 200
    tried = {control["name"]: control.get("caught") for control in parts["controls"]}
    absent = {
        "least_squares": {"half_sample_rate", "repeated_noise", "largest_norm"},
        "sgd": {"half_sample_rate", "float_noise", "clear_bit", "cut_noise", "cut_far_noise"},
    }
    if not sampled:
        assert tried == dict.fromkeys(CONTROLS, True) | dict.fromkeys(NARROW | absent[name])
    assert len(scores["attack"]) == len(scores["member"]) == len(scores["score"])
    expected = {"releases", "bundle"} | {fault for fault, caught in tried.items() if caught}
    assert set(scores["attack"]) == expected
    record = AuditRecord.read(write_audit(tmp_path, **parts))
    assert record.white_box is not None
    assert record.white_box.epsilon_lower == pytest.approx(box["epsilon_lower"])


def test_bounds_exceed_the_claim_no_more_often_than_stated(calibrations: Path) -> None:
    """Of 50 audits of 40 runs, at 90% confidence."""
    method = METHODS["exact_sgd"]
    plan = planned(method, 2.0, calibrations)
    cell = cell_of(plan, 2000, method=method, confidence=0.9)
    test = cell.run_attack(cell.attack, 2000, "runs", "test")
    right = ((test.releases > 0) == test.members).reshape(50, 40).sum(1)
    above = [
        cell.family.epsilon_of_accuracy(accuracy_lower_bound(int(count), 40, 0.9)) > 2.0
        for count in right
    ]
    assert np.mean(above) <= 0.1 + 3 * math.sqrt(0.09 / 50)
    allowed = (1 + cell.family.total_variation()) / 2
    assert abs(right.sum() / 2000 - allowed) < 4 * math.sqrt(allowed * (1 - allowed) / 2000)


def test_a_search_is_audited_by_the_head_that_it_releases(calibrations: Path) -> None:
    search = {"max_row_norm": [1.0, 2.0]}
    method = head("tuned", base={"head": "prototypes"}, search=search, trials=2)
    plan = planned(method, 4.0, calibrations)
    parts, scores = audited(method, plan, runs=60, controls=True)
    box = parts["white_box"]
    assert box["test"] == white_box.HEADS
    assert box["holds"]
    reasons = {control["not_applicable"] for control in parts["controls"]}
    assert reasons == {"a search publishes only its best head, so there is no release to break"}
    assert box["in"] + box["out"] == box["runs"] == 45
    assert set(scores["attack"]) == {"bundle"}
    assert not box["sensitivity_used"]


@pytest.mark.parametrize(
    ("n", "dimension", "num_classes", "multi_label"),
    [(2, 3, 2, False), (3, 1, 2, False), (50, 4, 1, True), (50, 4, 5, True)],
)
def test_small_and_multi_label_data_are_audited(
    n: int, dimension: int, num_classes: int, multi_label: bool
) -> None:
    method = METHODS["least_squares"]
    plan = plan_of(method, n, noise=2.0)
    parts, _ = audited(
        method,
        plan,
        runs=60,
        dimension=dimension,
        num_classes=num_classes,
        multi_label=multi_label,
    )
    box = parts["white_box"]
    assert box["runs"] == 60
    assert box["accuracy"] > 0.5
    assert all(0.99 < used <= 1 + 1e-5 for used in box["sensitivity_used"].values())


@pytest.mark.parametrize("name", ["least_squares", "momentum_balanced"])
def test_a_patient_of_three_images_uses_up_the_promise_and_no_more(name: str) -> None:
    plan = replace(plan_of(METHODS[name], N), unit="patient")
    box = audited(METHODS[name], plan, runs=40)[0]["white_box"]
    assert all(0.85 < used <= 1 + 1e-5 for used in box["sensitivity_used"].values())
    shape = white_box.audited_shape(METHODS[name], plan, 8, 3, False)
    worlds = make_worlds(shape, group=2, length=1.0, seed=1)
    assert worlds.present.rows - worlds.absent.rows == 6
    assert worlds.present.n == N


def test_every_test_of_an_audit_can_refute_the_claim(calibrations: Path) -> None:
    cell = cell_of(planned(METHODS["prototypes"], 2.0, calibrations), 200)
    test = cell.run_attack(cell.attack, 200, "runs", "test")
    tests = cell.list_tests(test)
    assert not white_box._list_refuting(tests)
    names = [item.name for item in tests]
    assert len(set(names)) == len(names) == 9
    perfect = np.where(test.members, 1.0, -1.0) * np.linspace(1.0, 1.1, 200)
    broken = {
        "releases": replace(test, releases=perfect),
        "head": replace(test, bundle=perfect),
        "sensitivity": replace(test, used={"class_sums": 1 + 1e-9}),
        "head_from_releases": replace(test, head_change=1e-9),
        "unobserved": replace(test, unobserved_change=1e-9),
    } | {
        name: replace(
            test,
            noise=[
                item._replace(p_value=0.0) if item.name == name else item for item in test.noise
            ],
        )
        for name in [item.name for item in test.noise]
    }
    assert set(broken) == set(names)
    for name, seen in broken.items():
        assert white_box._list_refuting(cell.list_tests(seen)) == [name]


def test_exact_counts_in_the_published_biases_refute_the_claim(
    calibrations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the head's weights alone, and because they depend on more than what was released."""
    plan = planned(METHODS["prototypes"], 1.0, calibrations)

    def fit_with_counts(
        method: Any, data: TrainingSet, plan: Plan, seeds: Any, **options: Any
    ) -> Heads:
        return add_counts(fit_heads(method, data, plan, seeds, **options), data)

    monkeypatch.setattr(canary_attack, "fit_heads", fit_with_counts)
    box = audited(METHODS["prototypes"], plan, runs=400)[0]["white_box"]
    values = {item["name"]: item["p_value"] for item in box["tests"]}
    assert values.pop("head_from_releases") == 0
    assert values.pop("head") < box["level"]
    assert min(values.values()) > box["level"], "what is released beside the head is right"
    assert box["bundle"]["epsilon_lower"] > plan.realised_epsilon > box["epsilon_lower"]
    assert box["holds"] is False


def no_noise(_self: Releases, _name: str, sums: GridSum, _deviation: float) -> torch.Tensor:
    return sums.values


def no_noise_ahead(self: Releases, _name: str, _step: float, *shape: int) -> list[Any]:
    return [np.zeros(shape, dtype=np.int64) for _ in self.seeds]


@pytest.mark.parametrize(
    ("name", "part", "fault"),
    [
        ("feature_covariance", "_release_at_once", no_noise),
        ("exact_sgd", "_release_at_once", no_noise),
        ("sampled_exact_sgd", "draw_ahead", no_noise_ahead),
    ],
)
def test_a_release_without_noise_where_nobody_observes_refutes_the_claim(
    name: str, part: str, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Releases, part, fault)
    box = audited(METHODS[name], plan_of(METHODS[name], N), runs=10)[0]["white_box"]
    assert not box["holds"]
    assert [test["name"] for test in box["tests"] if test["p_value"] == 0] == ["unobserved"]


@pytest.mark.parametrize("count", ["each", "mean"])
def test_wrong_weights_of_a_patient_s_images_refute_the_claim(
    count: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the weight, or that of a patient with the mean number of images."""

    def number_units(names: list[str]) -> Units:
        units = right(names)
        weights = np.where(units.weights < 1, 2 * units.weights, 1)
        if count == "mean":
            weights = np.full_like(units.weights, units.count / len(names))
        return replace(units, weights=weights.astype(np.float32))

    right = Units.number_units
    monkeypatch.setattr(Units, "number_units", number_units)
    plan = replace(plan_of(METHODS["least_squares"], N), unit="patient")
    box = audited(METHODS["least_squares"], plan, runs=10)[0]["white_box"]
    assert not box["holds"]


def test_runs_that_set_the_threshold_are_not_the_ones_that_it_is_tested_on() -> None:
    members = np.arange(200) % 2 == 0
    scores = np.where(members, 1.0, 0.0)
    scores[50:] = np.where(members[50:], -1.0, 2.0)  # the opposite of what the first ones say
    test = canary_attack.Runs(members=members, releases=scores, bundle=scores, used={})
    assert white_box._count_right_heads(test) == (0, 150)


def test_runs_of_two_attacks_share_neither_seeds_nor_coins() -> None:
    seen: list[tuple[list[int], list[bool]]] = []

    class Noted(canary_attack.Attack):
        def train_and_score(self, seeds: Any, members: Any, _: Any) -> Any:
            seen.append((list(seeds), members.tolist()))

    cell = cell_of(plan_of(METHODS["prototypes"], N), 200)
    attack = Noted(method=cell.method, plan=cell.plan, worlds=(), claim=cell.plan)
    for name in ("runs", "half_noise"):
        cell.run_attack(attack, 40, name, "test")
    (seeds, coins), (others, other_coins) = seen
    assert len({*seeds, *others}) == 80
    assert coins != other_coins


@pytest.mark.parametrize("multi_label", [False, True])
def test_the_two_worlds_differ_in_the_canaries_alone(multi_label: bool) -> None:
    """Canaries of several labels have all, and rows in the canaries' direction have none."""
    shape = Shape(n=90, dimension=5, num_classes=3, multi_label=multi_label)
    worlds, group, label, other = make_worlds(shape, group=4, length=2.0, seed=1, label=2), 4, 2, 0
    assert (worlds.absent.n, worlds.present.n) == (90, 90)
    features, labels = worlds.present.features, worlds.present.labels
    assert worlds.absent.features is not None
    assert features is not None
    rows = len(worlds.absent.features)
    assert list(worlds.canaries) == list(range(rows, rows + group))
    assert features[:rows].equal(worlds.absent.features)
    assert labels[:rows].equal(worlds.absent.labels)
    assert features[rows:].norm(dim=1).sub(2).abs().max() < 1e-5
    alike = torch.cosine_similarity(features[:rows], worlds.canary) > 0.999
    assert alike.sum() == OTHERS // 2
    assert (labels[rows:] == (1 if multi_label else label)).all()
    assert (labels[:rows][alike] == (0 if multi_label else other)).all()
    assert (worlds.label, worlds.other_label) == (label, other)
