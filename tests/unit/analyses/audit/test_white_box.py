"""The audit of a cell: bounds below claims, controls above them, power, and searches."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm

from dpprobe.analyses.audit import canary_attack, noise_tests, white_box
from dpprobe.analyses.audit.audit_record import AuditRecord
from dpprobe.analyses.audit.bounds import accuracy_lower_bound, epsilon_lower_bound
from dpprobe.analyses.audit.canary_attack import OTHERS, Shape, make_worlds
from dpprobe.analyses.audit.controls import CONTROLS, add_counts
from dpprobe.analyses.audit.noise_tests import Outcome
from dpprobe.errors import ConfigError
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
from tests.support.mechanisms import best_of, gaussians

N = 400
# Controls that need more classes, features, rows, patients or samples than here.
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
) -> white_box.AuditedCell:
    shape = Shape(n=N, dimension=4, num_classes=2, multi_label=False)
    return white_box.AuditedCell(method, plan, shape, 5, runs, confidence)


@pytest.mark.parametrize(
    ("name", "epsilon"), [("least_squares", 0.5), ("sgd", 8.0), ("sampled_sgd", 2.0)]
)
def test_a_claim_lies_above_its_bound_and_all_controls_are_caught(
    name: str, epsilon: float, calibrations: Path, tmp_path: Path
) -> None:
    method = METHODS[name]
    plan = planned(method, epsilon, calibrations)
    sampled = name == "sampled_sgd"  # its controls take long and are in test_controls
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
    """Runs 50 audits of 40 runs each, at 90% confidence."""
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
    """The weights are enough: they depend on more than the released numbers."""
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
def test_the_audit_detects_missing_noise_in_unobserved_releases(
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
    """Images have twice their weight, or the weight for the mean number of images per patient."""

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


def test_the_audit_threshold_is_not_tested_on_the_runs_that_set_it() -> None:
    members = np.arange(200) % 2 == 0
    scores = np.where(members, 1.0, 0.0)
    scores[50:] = np.where(members[50:], -1.0, 2.0)  # the opposite of the first runs
    test = canary_attack.Runs(members=members, releases=scores, bundle=scores, used={})
    assert white_box._count_right_heads(test) == (0, 150)


def test_runs_of_two_attacks_use_different_seeds_and_coins() -> None:
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
def test_the_two_worlds_differ_only_in_the_canaries(multi_label: bool) -> None:
    """With several labels, canaries have all of them, and the rows in their direction have none."""
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


# The audited plan, and its description in the record


TUNED = head("tuned", base={"head": "prototypes"}, search={"max_row_norm": [1.0, 2.0]}, trials=2)


def cell_for(name: str, runs: int = 400) -> white_box.AuditedCell:
    return cell_of(plan_of(METHODS[name], N), runs, METHODS[name])


def searched(**changes: Any) -> white_box.AuditedCell:
    made = plan_of(TUNED, N, noise=3.0)
    plan = replace(made, selection=best_of(2.0, made.mechanisms[0].name), **changes)
    return cell_of(plan, 12, TUNED)


@pytest.mark.parametrize(
    ("noise", "wanted"),
    # each canary has mu = 1 / noise; together they have mu near 2, in at most 50 rows
    [(0.5, 1), (2.0, 4), (3.0, 6), (20.0, 40), (90.0, 50)],
)
def test_as_many_canaries_as_make_a_test_most_powerful(noise: float, wanted: int) -> None:
    plan = replace(plan_of(METHODS["prototypes"], N), mechanisms=(gaussians(noise),))
    cell = cell_of(plan, 12)
    assert cell.canary_count == wanted
    assert cell.family.group == wanted
    few = cell_of(replace(plan, n=6), 12)
    assert few.canary_count == min(wanted, 3), "at most half of the units"
    assert searched().canary_count == 1
    rows = "a synthetic row at" if wanted == 1 else f"{wanted} equal synthetic rows at"
    assert cell._describe_canary().startswith(rows)
    assert "clipping norm" not in searched()._describe_canary()
    others = f"{min(64, N - wanted)} synthetic rows of 4 features in 2 classes"
    assert cell._describe_rows().startswith(others)
    assert cell_of(replace(plan, n=6), 12)._describe_rows().startswith(f"{6 - few.canary_count} ")
    assert "n = 400 are null" in cell._describe_rows()


@pytest.mark.parametrize(
    ("name", "test"),
    [
        ("exact_sgd", white_box.JOINT),
        ("sampled_exact_sgd", white_box.SAMPLED),
        ("sgd", f"{white_box.JOINT}, as real numbers"),
        ("sampled_sgd", f"{white_box.SAMPLED}, as real numbers"),
    ],
)
def test_a_test_is_named_by_sampling_and_arithmetic(name: str, test: str) -> None:
    plan = plan_of(METHODS[name], N)
    assert cell_of(plan, 12, METHODS[name])._name_test() == test
    first, *rest = plan.mechanisms
    beside = replace(first, sample_rate=1.0, name="other")
    both = replace(plan, mechanisms=(first, *rest, beside))
    assert cell_of(both, 12, METHODS[name])._name_test() == test, "one that samples is enough"
    assert searched()._name_test() == white_box.HEADS


@pytest.mark.parametrize(
    ("method", "given", "audited"),
    # features and classes of the cell, then of the audited heads
    [
        (METHODS["sgd"], (500, 30), (64, 10)),
        (METHODS["sgd"], (64, 10), (64, 10)),
        (METHODS["sgd"], (2, 3), (11, 3)),
        (head("sgd", class_weights=[1.0] * 29 + [0.5]), (500, 30), (64, 30)),
        (head("sgd", normalize={"kind": "group_norm", "groups": 4}), (500, 30), (500, 10)),
        (head("sgd", normalize={"kind": "group_norm", "groups": 2}), (4, 3), (4, 3)),
        (SimpleNamespace(input_files=lambda: "a", counted_classes=None), (500, 30), (500, 30)),
    ],
)
def test_audited_heads_are_small_unless_options_need_the_real_width(
    method: Any, given: tuple[int, int], audited: tuple[int, int]
) -> None:
    plan = plan_of(METHODS["sgd"], N)
    shape = white_box.audited_shape(method, plan, *given, True)
    assert (shape.dimension, shape.num_classes) == audited
    assert (shape.n, shape.multi_label, shape.rows_per_unit) == (N, True, 1)
    for unit, rows in (("patient", 3), ("group", 3), ("row", 1)):
        shape = white_box.audited_shape(method, replace(plan, unit=unit), *given, False)
        assert shape.rows_per_unit == rows


@pytest.mark.parametrize(
    ("classes", "several", "labels"), [(3, False, 3), (30, False, 10), (12, True, 1)]
)
def test_each_class_has_canaries_in_turn(classes: int, several: bool, labels: int) -> None:
    cell = cell_of(plan_of(METHODS["prototypes"], N), 12)
    shape = replace(cell.shape, num_classes=classes, multi_label=several)
    worlds = replace(cell, shape=shape).attack.worlds
    assert [each.label for each in worlds] == list(range(labels))


@pytest.mark.parametrize(
    ("clip", "length"), [(0.5, 1.0), (1.0, 1.0), (1.005, 1.0), (1.02, 30.0), (40.0, 1000.0)]
)
def test_a_canary_is_as_long_as_needed_to_reach_the_clipping_norm(
    clip: float, length: float
) -> None:
    """Of the norms 1, 30 and 1000, the smallest with 99% of the largest norm's change is chosen."""
    method = head("least_squares", normalize="none", max_row_norm=clip)
    attack, strength = cell_of(plan_of(method, N), 12, method)._piloted_attack
    assert float(attack.worlds[-1].canary.norm()) == pytest.approx(length, rel=1e-5)
    assert strength > 0
    assert searched()._piloted_attack[1] == 0.0


def runs_of(runs: int = 400, **changes: Any) -> canary_attack.Runs:
    """Returns runs, half of them in, of which releases and heads guess six of eight right."""
    members = np.arange(runs) % 2 == 0
    scores = np.where(members, 1.0, -1.0) * np.where(np.arange(runs) % 8 < 6, 1, -1)
    values = {"members": members, "releases": scores, "bundle": scores} | changes
    return canary_attack.Runs(**values)


# 6 of 8 in 400 runs; after the first quarter, which has 76 right guesses, 224 of 300.
RIGHT, RIGHT_HEADS = (300, 400), (224, 300)


def test_right_guesses_are_counted_of_all_runs_by_releases_and_of_the_later_ones_by_heads() -> None:
    test = runs_of()
    assert white_box._count_right_releases(test) == RIGHT
    assert white_box._count_right_heads(test) == RIGHT_HEADS
    # a head whose score falls if the canary is in gives an equally good test
    turned = runs_of(bundle=-test.bundle)
    assert white_box._count_right_heads(turned) == RIGHT_HEADS
    # a score of 0 or NaN is no guess of "in"
    zero = runs_of(releases=np.zeros(400))
    assert white_box._count_right_releases(zero) == (200, 400)
    lost = runs_of(releases=np.full(400, math.nan))
    assert white_box._count_right_releases(lost) == (200, 400)
    two = runs_of(runs=2)
    assert white_box._count_right_heads(two)[1] == 1, "at least one run sets the threshold"


@pytest.mark.parametrize("name", ["exact_sgd", "tuned"])
def test_bounds_follow_from_the_counts_of_right_guesses(name: str) -> None:
    cell = searched() if name == "tuned" else cell_for(name)
    test = runs_of(used={"a": 0.9})
    box = cell.describe_bounds(test)
    correct, runs = RIGHT_HEADS if name == "tuned" else RIGHT
    share = accuracy_lower_bound(correct, runs, 0.95)
    assert (box["runs"], box["in"], box["out"]) == (runs, runs / 2, runs / 2)
    assert (box["accuracy"], box["confidence"]) == (correct / runs, 0.95)
    assert box["group"] == cell.canary_count
    assert box["epsilon_lower"] == cell.family.epsilon_of_accuracy(share)
    heads = accuracy_lower_bound(*RIGHT_HEADS, 0.95)
    assert box["bundle"] == {
        "accuracy": 224 / 300,
        "epsilon_lower": cell.family.epsilon_of_accuracy(heads),
    }
    direct = epsilon_lower_bound(
        test.releases[test.members], test.releases[~test.members], 1e-5, 0.95, group=box["group"]
    )
    assert box["direct_epsilon_lower"] == direct
    assert box["sensitivity_used"] == {"a": 0.9}
    assert (box["replayed"], box["cut_caught"], box["probability"]) == (None, None, 0.95)
    if name == "tuned":
        assert box["number_factor"] is None
        assert math.isnan(box["noise_factor"])
    else:
        assert box["noise_factor"] == cell.family.factor_of(2 * share - 1)
        assert box["number_factor"] > 1


def test_the_direct_bound_is_zero_if_the_canary_is_in_all_runs_or_none() -> None:
    cell, scores = cell_of(plan_of(METHODS["prototypes"], N), 40), np.linspace(-1, 1, 40)
    for members in (np.ones(40, dtype=bool), np.zeros(40, dtype=bool)):
        assert cell._bound_directly(scores, members) == 0.0
    assert cell._bound_directly(scores * 9, scores > 0) > 0


def p_values(cell: white_box.AuditedCell, **changes: Any) -> dict[str, float]:
    return {item.name: item.p_value for item in cell.list_tests(runs_of(**changes))}


@pytest.mark.parametrize("name", ["exact_sgd", "tuned"])
def test_more_right_guesses_than_allowed_have_a_binomial_p_value(name: str) -> None:
    cell = searched() if name == "tuned" else cell_for(name)
    allowed = (1 + cell.family.total_variation()) / 2
    found = p_values(cell)
    # at least this many right guesses
    assert found["head"] == pytest.approx(sum(binom.pmf(range(224, 301), 300, allowed)))
    if name == "exact_sgd":
        assert found["releases"] == pytest.approx(sum(binom.pmf(range(300, 401), 400, allowed)))
        assert list(found) == [
            "releases",
            "head",
            "sensitivity",
            "head_from_releases",
            "unobserved",
        ]
    else:
        assert list(found) == ["head", "unobserved"]


@pytest.mark.parametrize(
    ("name", "used", "change"),
    # rounding is tolerated for float32 sums, but not for exact ones
    [("exact_sgd", 1e-12, 0.0), ("sgd", 1e-5, 1e-4)],
)
def test_sums_may_exceed_a_sensitivity_and_heads_differ_only_by_rounding(
    name: str, used: float, change: float
) -> None:
    cell = cell_for(name)
    for factor, passes in ((0.9, 1.0), (1.2, 0.0)):
        found = p_values(
            cell,
            used={"b": 1 + factor * used, "a": 0.5},
            unobserved_change=factor * max(change, 1e-12) if factor > 1 else factor * change,
        )
        assert (found["sensitivity"], found["unobserved"]) == (passes, passes)
    assert p_values(cell, head_change=1e-12)["head_from_releases"] == 0
    assert p_values(cell, head_change=0.0)["head_from_releases"] == 1
    assert p_values(cell)["sensitivity"] == 1, "nothing was changed"


def test_a_replay_adds_its_outcomes_and_its_heads_change() -> None:
    cell = cell_for("exact_sgd")
    replay = canary_attack.Replay((Outcome("replayed_sums", 1.0),), 0.1, "what was compared")
    found = p_values(cell, replay=replay)
    assert found["replayed_sums"] == 1.0
    assert found["unobserved"] == 0.0
    right = canary_attack.Replay((), 0.0, "")
    assert p_values(cell, replay=right)["unobserved"] == 1.0
    assert p_values(cell, replay=right, unobserved_change=0.1)["unobserved"] == 0.0
    box = cell.describe_bounds(runs_of(replay=replay))
    assert box["replayed"] == "what was compared"
    assert not box["holds"]


@pytest.mark.parametrize("looks", [1, 2])
def test_the_error_is_shared_by_all_tests_that_chance_can_refute_and_by_all_looks(
    looks: int,
) -> None:
    """One in a thousand correct plans may be refuted: two tests and all looks share 0.001."""
    level = 0.001 / 2 / looks
    tests = [
        Outcome("variance", 1.01 * level),
        Outcome("normal", 0.99 * level),
        Outcome("sensitivity", 1.0),
        Outcome("unobserved", 0.0),
    ]
    assert white_box._share_error(tests, looks=looks) == pytest.approx(level)
    assert white_box._list_refuting(tests, looks=looks) == ["normal", "unobserved"]


def test_relative_strength_comes_from_the_pilot_runs_or_from_the_accuracy() -> None:
    exact = cell_of(plan_of(METHODS["exact_sgd"], N), 12, METHODS["exact_sgd"])
    piloted = min(1.0, exact._piloted_attack[1] / exact.family.separation)
    assert [exact._relative_strength(share) for share in (0.5, 0.9)] == [piloted, piloted]
    assert 0.9 < piloted <= 1
    sampled = cell_of(plan_of(METHODS["sampled_sgd"], N), 12, METHODS["sampled_sgd"])
    best = (1 + sampled.family.total_variation()) / 2
    assert sampled._relative_strength(best) == pytest.approx(1.0)
    assert sampled._relative_strength(0.99) == 1.0
    assert sampled._relative_strength(0.5) == 0.0
    half = 2 * norm.ppf(best) / 2  # half of the separation
    assert sampled._relative_strength(norm.cdf(half / 2)) == pytest.approx(0.5)
    assert searched()._relative_strength(0.9) == 0.0


@pytest.mark.parametrize(("classes", "mechanisms"), [(2, 1), (4, 1), (2, 3)])
def test_the_noise_of_one_number_is_caught_among_all_that_are_tested(
    classes: int, mechanisms: int
) -> None:
    parts = tuple(gaussians(3.0, count=k + 1, name=f"m{k}") for k in range(mechanisms))
    plan = replace(plan_of(METHODS["prototypes"], N), mechanisms=parts)
    cell = cell_of(plan, 40)
    cell = replace(cell, shape=replace(cell.shape, num_classes=classes))
    # four statistics per mechanism, of at most 5 * 5 numbers per class and release
    numbers = 4 * mechanisms * (mechanisms * classes) * 25
    share = noise_tests.smallest_caught_share(40, numbers, 1e-4, 0.95)
    assert cell._factor_of_one_number(1e-4) == pytest.approx(share**-0.5)


def test_a_plan_without_a_promise_or_of_one_unit_is_not_audited() -> None:
    plan = plan_of(METHODS["sgd"], 1)
    with pytest.raises(ConfigError, match="head sgd: n = 1, but an audit needs at least 2 units"):
        audited(METHODS["sgd"], plan)
    silent = replace(plan, n=N, mechanisms=(), realised_epsilon=math.inf, epsilon=math.inf)
    with pytest.raises(ConfigError, match="head sgd: its plan has no guarantee to test; leave"):
        audited(METHODS["sgd"], silent)
