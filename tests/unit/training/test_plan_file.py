"""The file of calibrated plans between two jobs."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import PrivacyError
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import method_options
from dpprobe.privacy import accountants
from dpprobe.privacy.plan import Patients, Plan
from dpprobe.privacy.risk import Risk
from dpprobe.privacy.target import Target
from dpprobe.training.plan_file import Plans, check_price, plan_method, read_plans, write_plans


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


def test_when_all_fail_each_is_named(tmp_path: Path) -> None:
    ceiling = method_options({"head": "nonprivate"})
    with pytest.raises(PrivacyError, match="a: batch_size 400.*\\nb: .*write epsilon inf"):
        written(tmp_path, {"a": IMPOSSIBLE, "b": ceiling})
    assert not (tmp_path / "plans.json").exists()


def test_all_heads_together_are_priced(tmp_path: Path) -> None:
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


def test_a_tuned_method_is_priced_with_its_selection(tmp_path: Path) -> None:
    found = read(tmp_path, {"full": FULL, "tuned": TUNED})
    own = found.plans["tuned"]
    assert own.selection == TUNED.priced_selection(300)
    assert own.selection is not None
    assert own.selection.repeated == ("score", "gradients")
    noise = own.find_mechanism("gradients").noise_multiplier
    assert noise > 1.5 * found.plans["full"].find_mechanism("gradients").noise_multiplier
    five = accountants.price_together(own.mechanisms, 1e-5, 5, own.selection)
    assert found.together["tuned"] == pytest.approx(five, rel=1e-4)


@pytest.mark.usefixtures("coarse_risks")
def test_methods_are_calibrated_to_a_risk_and_checked_against_it(tmp_path: Path) -> None:
    """A head that samples has an epsilon of its own at the same risk."""
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
def test_a_release_refuses_a_plan_whose_epsilons_are_not_its_price(
    tmp_path: Path, name: str
) -> None:
    plan = plan_method(
        {"full": FULL, "small": SMALL, "tuned": TUNED}[name],
        Target(n=300, epsilon=4.0, delta=1e-4, patients=Patients(images=3)),
        cache=tmp_path,
    )
    check_price(plan)
    assert plan.patients is not None
    fine = 0.998 if name != "full" else 1 - 1e-5  # others are priced on a grid
    edits = {
        "cost": [less_noise(plan, factor) for factor in (fine, 0.98, 1e-5)],
        "says epsilon": [
            replace(plan, realised_epsilon=2.0),
            replace(plan, realised_epsilon=0.9998 * plan.realised_epsilon),
            replace(plan, patients=replace(plan.patients, epsilon=5.0)),
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
