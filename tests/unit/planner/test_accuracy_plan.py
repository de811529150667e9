"""A plan describes the setting, its alternatives, and the range of possible accuracies."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.errors import ConfigError
from dpprobe.planner.accuracy_plan import make_plan, make_scale
from dpprobe.planner.learning_curves import read_curves
from dpprobe.planner.predicted_accuracy import Setting, n_to_keep, predict, too_few
from dpprobe.privacy.risk import Risk, RiskEpsilon

SETTING = Setting(n=3000, classes=4, epsilon=1.0, dimension=1280)


def test_the_loss_falls_under_5_points_before_it_falls_under_2() -> None:
    plan = make_plan(SETTING, ceiling=0.82)
    five, two = plan.n_within[5], plan.n_within[2]
    assert five is not None
    assert two is None or five < two
    loss = 100 * (
        0.82 - predict(SETTING.with_n(five)).predict_accuracy(chance=0.25, ceiling=0.82)[1]
    )
    assert loss == pytest.approx(5.0, abs=0.05)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 30.0, 50.0, 100.0])
@pytest.mark.parametrize("unit", ["image", "patient"])
def test_alternatives_have_more_units_or_a_larger_budget_that_can_be_calibrated(
    epsilon: float, unit: str
) -> None:
    plan = make_plan(SETTING.with_epsilon(epsilon), unit=unit)
    made = [(choice.label, choice.n, choice.epsilon) for choice in plan.choices]
    wanted = [("this", 3000, epsilon)]
    wanted += [(f"{k}x {unit}s", k * 3000, epsilon) for k in (2, 4, 10)]
    wanted += [(f"{k}x budget", 3000, k * epsilon) for k in (2, 4) if k * epsilon <= 100]
    assert made == wanted
    assert plan.now is plan.choices[0]
    for choice in plan.choices:
        assert choice.kept == predict(replace(SETTING, n=choice.n, epsilon=choice.epsilon))


def test_a_scale_takes_the_given_baseline_or_the_public_ones() -> None:
    given_scale = make_plan(SETTING, ceiling=0.82, majority=0.4).scale
    assert (given_scale.ceilings, given_scale.given, given_scale.middle) == ((0.82,), True, 0.82)
    assert (given_scale.chance, given_scale.majority) == (0.25, 0.4)
    public = make_plan(SETTING).scale
    assert public.ceilings == read_curves().choose_ceilings(4)
    assert not public.given
    assert public.middle == sorted(public.ceilings)[1]
    assert public.majority == public.chance == 0.25, "by default all classes are as frequent"


def test_public_baselines_at_or_below_the_majority_class_are_left_out() -> None:
    low, middle, high = read_curves().choose_ceilings(4)
    assert low < middle < high
    scales = {share: make_scale(4, ceiling=None, majority=share) for share in (low, middle, high)}
    assert scales[low].ceilings == (middle, high)
    assert scales[middle].ceilings == (high,)
    assert scales[high].ceilings == (1.0,), "nothing public is left, so the best there is"


@pytest.mark.parametrize(("ceiling", "given"), [(0.6, False), (0.61, True), (None, False)])
def test_a_measured_baseline_counts_if_it_exceeds_the_majority_class(
    ceiling: float | None, given: bool
) -> None:
    scale = make_scale(2, ceiling=ceiling, majority=0.6)
    assert scale.given == given
    assert scale.chance == 0.5
    if given:
        assert scale.ceilings == (ceiling,)
    else:
        assert all(value > 0.6 for value in scale.ceilings)


@given(classes=st.integers(2, 50), lead=st.floats(0.1, 1), share=st.floats(-1, 2))
def test_a_share_of_the_lead_and_an_accuracy_are_each_other_s_inverse(
    classes: int, lead: float, share: float
) -> None:
    ceiling = 1 / classes + lead * (1 - 1 / classes)
    scale = make_scale(classes, ceiling=ceiling, majority=1 / classes)
    accuracy = scale.accuracy_of(share)
    assert accuracy == pytest.approx(1 / classes + share * (ceiling - 1 / classes))
    assert scale.share_of(accuracy) == pytest.approx(share, abs=1e-9)
    assert scale.share_of(ceiling) == pytest.approx(1.0)
    assert scale.floor == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ceiling": 82.0}, r"ceiling 82: outside 0\.25 .* to 1; give .* as a fraction"),
        ({"ceiling": 0.25}, r"ceiling 0\.25: outside 0\.25"),
        ({"ceiling": 0.5, "majority": 0.6}, r"ceiling 0\.5: outside 0\.6 \(majority-class"),
        ({"ceiling": 0.6, "majority": 0.6}, r"ceiling 0\.6: outside 0\.6"),
        ({"majority": 0.1}, r"majority 0\.1: .* largest of 4 classes must be at least 0\.25"),
        ({"majority": 1.0}, "majority 1: .* below 1"),
        ({"majority": 0.25 - 2e-9}, "majority 0.25: .* at least 0.25"),
    ],
)
def test_accuracies_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_plan(SETTING, **options)
    assert make_plan(SETTING, ceiling=1.0).choices
    for possible in (0.25 - 5e-10, 0.99):
        assert make_plan(SETTING, majority=possible).choices


@pytest.mark.parametrize(("n", "majority"), [(60, 0.25), (3000, 0.25), (3000, 0.8), (100_000, 0.8)])
def test_what_is_needed_is_measured_from_the_majority_class(n: int, majority: float) -> None:
    setting = SETTING.with_n(n)
    plan = make_plan(setting, ceiling=0.9, majority=majority)
    floor = (majority - 0.25) / 0.65
    assert plan.scale.floor == pytest.approx(floor)
    assert plan.too_few == too_few(setting, floor=floor)
    # the middle between the majority class and the non-private head
    assert plan.would_do == n_to_keep(setting, (1 + floor) / 2)
    assert plan.n_within == {k: n_to_keep(setting, 1 - k / 65) for k in (5, 2)}


@pytest.mark.parametrize(
    ("delta", "words"),
    [
        (1 / 30_000, None),
        (1e-4, "is 0.3 * 1/n (n = 3000"),
        (1 / 3000, "is 1/n (n = 3000"),
        (1 / 2999, "Choose a smaller --delta."),
        (0.01, "No result with this delta may be released. Choose a smaller --delta."),
    ],
)
def test_a_delta_above_a_tenth_of_one_over_n_is_warned_of(delta: float, words: str | None) -> None:
    warnings = make_plan(replace(SETTING, delta=delta)).warnings
    assert len(warnings) == (words is not None)
    for warning in warnings:
        assert words is not None
        assert words in warning
        assert ("Choose a smaller" in warning) == (delta > 1 / SETTING.n), "allowed at 1/n itself"


@pytest.mark.parametrize(("ceiling", "majority"), [(None, None), (0.82, 0.4)])
def test_json_has_each_choice_s_accuracy_under_each_baseline(
    ceiling: float | None, majority: float | None
) -> None:
    plan = make_plan(SETTING, ceiling=ceiling, majority=majority, unit="patient")
    values = json.loads(json.dumps(plan.as_json(), allow_nan=False))
    assert (values["chance"], values["majority"]) == (0.25, majority or 0.25)
    assert values["ceilings"] == ([ceiling] if ceiling else [*plan.scale.ceilings])
    assert values["setting"] == {
        "n": 3000,
        "classes": 4,
        "epsilon": 1.0,
        "delta": 1e-5,
        "dimension": 1280,
    }
    assert (values["unit"], values["ceiling_given"]) == ("patient", ceiling is not None)
    assert "risk_target" not in values
    for choice, stated in zip(plan.choices, values["choices"], strict=True):
        assert (stated["label"], stated["n"], stated["epsilon"]) == (
            choice.label,
            choice.n,
            choice.epsilon,
        )
        for accuracy, top in zip(stated["accuracy"], plan.scale.ceilings, strict=True):
            assert accuracy["ceiling"] == top
            for name in ("low", "expected", "high"):
                share = getattr(choice.kept, name)
                assert accuracy[name] == pytest.approx(min(1.0, 0.25 + share * (top - 0.25)))
    assert values["n_within_points"] == {str(k): n for k, n in plan.n_within.items()}
    assert values["n_that_would_do"] == plan.would_do
    assert values["sources"] == sorted(set(values["sources"]))
    assert values["coverage"] == read_curves().law.coverage


def test_json_names_the_risk_that_determined_epsilon() -> None:
    risk = Risk(advantage=0.1)
    epsilon = RiskEpsilon(risk.to_epsilon(1e-5), risk.token, 1e-5)
    values = make_plan(SETTING.with_epsilon(epsilon)).as_json()
    assert values["risk_target"] == {"advantage": 0.1}
    labels = [choice["label"] for choice in values["choices"]]
    assert labels == ["this", "2x images", "4x images", "10x images", "2x budget", "4x budget"]


@given(st.lists(st.floats(0.02, 0.98), min_size=2, max_size=4, unique=True))
def test_a_better_baseline_makes_every_predicted_accuracy_better(ceilings: list[float]) -> None:
    kept = predict(SETTING)
    spans = [kept.predict_accuracy(chance=0.01, ceiling=each) for each in sorted(ceilings)]
    for lower, upper in itertools.pairwise(spans):
        assert all(a <= b for a, b in zip(lower, upper, strict=True))
