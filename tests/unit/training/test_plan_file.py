"""The file of calibrated plans between two jobs, and `auto` methods decided from features."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.stats import norm

from dpprobe.data.options import Headline
from dpprobe.errors import DpprobeError, PrivacyError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.files.json_files import read_json, write_json
from dpprobe.heads import auto, auto_rule
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import method_options
from dpprobe.json_values import hash_value
from dpprobe.privacy import accountants
from dpprobe.privacy.plan import Patients, Plan
from dpprobe.privacy.randomness import cell_seed
from dpprobe.privacy.risk import Risk
from dpprobe.privacy.target import Target
from dpprobe.results.cell_record import recorded_facts
from dpprobe.training.fit_inputs import FitInputs
from dpprobe.training.plan_file import (
    Plans,
    check_price,
    decide_methods,
    plan_method,
    read_plans,
    write_plans,
)
from tests.support.auto_rules import raise_rule
from tests.support.training_jobs import change_job, make_job
from tests.unit.training.test_head_job import CLASSES, DIMENSION, ROWS, Run, write_features


def method(**own: Any) -> MethodOptions:
    return method_options({"head": "sgd", **own})


FULL = method(batch_size="full", steps=3)
SMALL = method(batch_size=30, steps=12)
TUNED = method_options(
    {
        "head": "tuned",
        "base": {"head": "sgd", "batch_size": "full", "steps": 3},
        "search": {"learning_rate": [0.1, 1]},
    }
)
IMPOSSIBLE = method(batch_size=400, steps=3)


def written(
    folder: Path, methods: dict[str, MethodOptions], epsilon: float | Risk = 1.0, seeds: int = 5
) -> Path:
    path = folder / "plans.json"
    target = Target(n=300, epsilon=epsilon, delta=1e-5)
    write_plans(methods, target, output=path, cache=folder / "cache", seeds=seeds)
    return path


def read(folder: Path, methods: dict[str, MethodOptions], **own: Any) -> Plans:
    return read_plans(written(folder, methods, **own))


def test_bounds_on_attacks_are_stored_and_may_be_missing(tmp_path: Path) -> None:
    """Version 4 lacks the bounds; for one Gaussian, SciPy's normal distribution gives the bound."""
    path = written(tmp_path, {"full": method(batch_size="full", steps=1)}, seeds=1)
    plans = read_plans(path)
    (release,) = plans.plans["full"].mechanisms
    right = norm.cdf(0.5 / release.noise_multiplier)
    assert plans.allows["full"]["balanced_accuracy"] == pytest.approx(right, abs=2e-6)
    record = read_json(path)
    del record["methods"]["full"]["allows"], record["sha256"]
    record["format_version"] = 4
    write_json(path, {**record, "sha256": hash_value(record)})
    assert read_plans(path) == replace(plans, allows={})


def test_a_delta_above_one_over_n_is_refused_or_where_allowed_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = partial(Target, n=300, epsilon=1.0, delta=0.01)
    for above, remedy in ((None, "smaller delta"), (False, "`allow_delta_above_one_over")):
        with pytest.raises(PrivacyError, match=rf"above 1/n = 0\.00333 .*{remedy}"):
            target(above=above)
    path = tmp_path / "plans.json"
    write_plans({"full": FULL}, target(above=True), output=path, cache=tmp_path / "cache", seeds=1)
    assert caplog.text.count("would allow a mechanism that publishes a random row") == 1
    plan = read_plans(path).plans["full"]
    assert (plan.delta, plan.n) == (0.01, 300)
    assert plan.realised_epsilon == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize(("share", "told"), [(0.09, 0), (0.99, 1)])
def test_a_delta_above_a_tenth_of_one_over_n_is_warned_of(
    share: float, told: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = Target(n=300, epsilon=1.0, delta=share / 300, unit="patient")
    path = tmp_path / "plans.json"
    write_plans({"full": FULL}, target, output=path, cache=tmp_path / "cache", seeds=1)
    assert caplog.text.count(f"on average {share} patients of 300") == told


def test_when_all_fail_each_is_named(tmp_path: Path) -> None:
    ceiling = method_options({"head": "nonprivate"})
    with pytest.raises(PrivacyError, match="a: batch_size 400.*\\nb: .*write epsilon inf"):
        written(tmp_path, {"a": IMPOSSIBLE, "b": ceiling})
    assert not (tmp_path / "plans.json").exists()
    auto = method_options({"head": "auto"})  # decided later
    assert set(read(tmp_path, {"a": IMPOSSIBLE, "auto": auto}).failures) == {"a"}


def test_all_heads_together_and_selections_are_priced(tmp_path: Path) -> None:
    found = read(tmp_path, {"full": FULL, "small": SMALL})
    for name, plan in found.plans.items():
        five = [item.repeat_count(5) for item in plan.mechanisms]
        tight = accountants.compute_epsilon(five, 1e-5, "pld")
        assert tight <= found.together[name] <= tight * (1.3 if name == "small" else 1 + 1.1e-5)
        assert found.together[name] > plan.realised_epsilon
    alone = read(tmp_path, {"full": FULL}, seeds=1)
    assert alone.together["full"] == alone.plans["full"].realised_epsilon
    nothing = read(tmp_path, {"full": FULL}, epsilon=math.inf)
    assert nothing.together == {"full": math.inf}
    assert not nothing.plans["full"].private
    tuned = read(tmp_path, {"full": FULL, "tuned": TUNED})
    own = tuned.plans["tuned"]
    assert own.selection == TUNED.priced_selection(300)
    assert own.selection is not None
    assert own.selection.repeated == ("score", "gradients")
    noise = own.find_mechanism("gradients").noise_multiplier
    assert noise > 1.5 * tuned.plans["full"].find_mechanism("gradients").noise_multiplier
    priced = accountants.price_together(own.mechanisms, 1e-5, 5, own.selection)
    assert tuned.together["tuned"] == pytest.approx(priced, rel=1e-4)


@pytest.mark.usefixtures("coarse_risks")
def test_methods_are_calibrated_to_a_risk_and_checked_against_it(tmp_path: Path) -> None:
    """A head that samples has a different epsilon at the same risk."""
    risk = Risk(advantage=0.2)
    found = read(tmp_path, {"full": FULL, "small": SMALL}, epsilon=risk)
    full, small = found.plans["full"], found.plans["small"]
    assert full.epsilon == risk.to_epsilon(1e-5)
    assert abs(small.epsilon - full.epsilon) > 0.01
    for plan in found.plans.values():
        assert plan.risk == {"advantage": 0.2}
        assert risk.permits(plan)
        check_price(plan)
    with pytest.raises(PrivacyError, match="advantage 0.1"):
        check_price(replace(full, risk={"advantage": 0.1}))


def less_noise(plan: Plan, factor: float) -> Plan:
    return replace(plan, mechanisms=tuple(item.scale_noise(factor) for item in plan.mechanisms))


def other_checks(plan: Plan, value: float | None) -> Plan:
    return replace(plan, checks={name: one and value for name, one in plan.checks.items()})


@pytest.mark.parametrize("name", ["full", "small", "tuned"])
def test_a_plan_that_misstates_its_epsilons_or_checks_is_refused(tmp_path: Path, name: str) -> None:
    plan = plan_method(
        {"full": FULL, "small": SMALL, "tuned": TUNED}[name],
        Target(n=300, epsilon=4.0, delta=1e-4, patients=Patients(images=3)),
        cache=tmp_path,
    )
    check_price(plan)
    assert plan.patients is not None
    fine = 0.998 if name != "full" else 1 - 1e-5  # the others are priced on a grid
    edits = {
        "cost": [less_noise(plan, factor) for factor in (fine, 0.98, 1e-5)],
        "says epsilon": [
            replace(plan, realised_epsilon=2.0),
            replace(plan, realised_epsilon=0.9998 * plan.realised_epsilon),
            replace(plan, patients=replace(plan.patients, epsilon=5.0)),
            replace(plan, patients=Patients(images=None, epsilon=5.0)),
            other_checks(plan, 0.01),
            other_checks(plan, None),
        ],
        "priced by": [replace(plan, priced_by="exact, audited")],
        "checked by": [replace(plan, checks={})],
        "notes": [replace(plan, check_notes={"rdp": "fine"})],
    }
    for key, wrong in edits.items():
        for each in wrong:
            with pytest.raises(PrivacyError, match=key):
                check_price(each)


AUTO = method_options({"head": "auto"})
SGD = method_options({"head": "sgd", "batch_size": 30, "steps": 12})
FACTS = DataFacts(
    n=ROWS["train"],
    dimension=DIMENSION,
    classes=CLASSES,
    multi_label=False,
    epsilon=4.0,
    delta=1e-4,
    unit="image",
)
TARGET = Target(n=FACTS.n, epsilon=FACTS.epsilon, delta=FACTS.delta)


@pytest.fixture
def run(tmp_path: Path, calibration: Path) -> Run:
    write_features(tmp_path)
    job = make_job(methods={"auto": AUTO, "sgd": SGD})
    return Run(tmp_path, job, calibration, {"image": ROWS["train"]})


def test_a_cell_of_auto_is_the_chosen_head_s_and_states_why(run: Run) -> None:
    run.train()
    chosen = method_options(auto_rule.choose_head(FACTS))
    values = run.record("auto")
    assert values["head"] == "auto"
    assert values["options"]["rule"] == auto_rule.RULE
    assert values["options"]["chosen"] == chosen.model_dump(mode="json")
    task = run.open().make_task("auto", device="cpu")
    assert task.fingerprint == values["fingerprint"]
    seeds = [cell_seed(task.identity, index) for index in range(2)]
    store = FeatureStore(run.folder / "train/manifest.json")
    data = FitInputs(store, "image").read_rows(device="cpu", memory_mb=100)
    alone = fit_heads(chosen, data, task.plan, seeds)
    weights = load_file(run.cell("auto") / "heads.safetensors")["weights"]
    np.testing.assert_array_equal(weights, alone.weights)
    said = run.read("auto", "privacy")
    assert said["chosen_from"] == {
        "rule": f"auto rule {auto_rule.RULE}",
        "head": chosen.head,
        **FACTS.to_dict(),
    }
    assert said["private"] is True
    assert 0.98 * 4 < said["epsilon_realised"] <= 4
    assert "chosen_from" not in run.read("sgd", "privacy")
    assert recorded_facts(run.record("auto"), epsilon=4.0, delta=1e-4) == FACTS
    assert FitInputs(store, "image").read_facts(TARGET) == FACTS


@pytest.mark.parametrize("metric", [None, "accuracy", "macro_accuracy"])
def test_a_cell_of_auto_follows_the_metric_that_the_study_names(
    tmp_path: Path, calibration: Path, metric: Headline | None
) -> None:
    write_features(tmp_path)
    methods = {"auto": AUTO, "never": method_options({"head": "auto", "balanced": False})}
    run = Run(
        tmp_path, make_job(methods=methods, metric=metric), calibration, {"image": ROWS["train"]}
    )
    run.train()
    balances = metric == "macro_accuracy"
    for name, expected in {"auto": balances, "never": False}.items():
        options = method_options(run.record(name)["options"])
        assert options.releases_priors is expected
        said = run.read(name, "privacy")["chosen_from"]
        assert said.get("metric") == metric
        facts = recorded_facts(run.record(name), epsilon=4.0, delta=1e-4, metric=metric)
        assert methods[name].resolve_choice(facts) == options, "planning finds the cell current"


@pytest.mark.parametrize(("metric", "balanced"), [("accuracy", None), ("macro_accuracy", True)])
def test_the_non_private_baseline_follows_the_headline_metric(
    tmp_path: Path, calibration: Path, metric: Headline, balanced: bool | None
) -> None:
    write_features(tmp_path)
    methods = {"ceiling": method_options({"head": "nonprivate", "penalties": [0.1]})}
    job = make_job(methods=methods, metric=metric, epsilon="inf")
    run = Run(tmp_path, job, calibration, {"image": ROWS["train"]})
    run.train()
    assert run.record("ceiling")["options"].get("balanced") is balanced


def test_a_current_cell_is_kept_and_another_rule_or_choice_makes_it_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.train()
    before, other = run.contents("auto"), run.contents("sgd")
    run.train()
    assert run.contents("auto") == before
    number = raise_rule(monkeypatch)
    run.train()
    assert run.contents("auto") != before
    assert run.record("auto")["options"]["rule"] == number
    fingerprint = run.record("auto")["fingerprint"]
    monkeypatch.setattr(auto, "choose_head", lambda *_, **__: {"head": "least_squares"})
    run.train()
    assert run.record("auto")["fingerprint"] != fingerprint
    assert run.record("auto")["options"]["chosen"]["head"] == "least_squares"
    assert run.contents("sgd") == other


def test_without_privacy_auto_chooses_too(run: Run) -> None:
    run.train(epsilon="inf", methods={"auto": AUTO})
    run = replace(run, job=change_job(run.job, epsilon="inf"))
    values, said = run.record("auto"), run.read("auto", "privacy")
    facts = replace(FACTS, epsilon=float("inf"))
    assert values["options"]["chosen"]["head"] == auto_rule.choose_head(facts)["head"]
    assert said["private"] is False
    assert said["chosen_from"]["epsilon"] == "inf"
    assert values["summary"]["accuracy"]["mean"] > 0.7


def test_a_choice_that_cannot_be_trained_does_not_keep_the_others(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"head": "sgd", "batch_size": 1000, "steps": 3}
    monkeypatch.setattr(auto, "choose_head", lambda *_, **__: few)
    with pytest.raises(DpprobeError, match="auto: batch_size 1000 is above the 300"):
        run.train()
    monkeypatch.undo()
    assert len(run.stored("sgd")) == 1
    run.train()
    assert run.cell("sgd").exists()


def test_deciding_prices_all_seeds_together_as_for_any_method(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    chosen = method_options(auto_rule.choose_head(FACTS))
    both, more = {"auto": AUTO, "alone": chosen}, dict[str, Any](cache=tmp_path, seeds=3)
    both["again"] = AUTO
    write_plans(both, TARGET, output=path, **more)
    calibrated = read_plans(path)
    methods, plans = decide_methods(both, calibrated, FACTS, TARGET, **more)
    assert methods["alone"] is chosen
    assert methods["auto"].trained_head == chosen
    for name in ("auto", "again"):
        assert plans.plans[name].to_dict() == plans.plans["alone"].to_dict()
        assert plans.together[name] == plans.together["alone"]
    alone = decide_methods({"alone": chosen}, calibrated, FACTS, TARGET, **more)
    assert alone[1] is calibrated
