"""A plan: the setting, its alternatives, absolute accuracies."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dpprobe.errors import ConfigError
from dpprobe.planner.accuracy_plan import make_plan
from dpprobe.planner.predicted_accuracy import Setting, predict

SETTING = Setting(n=3000, classes=4, epsilon=1.0, dimension=1280)


def test_a_plan_has_more_images_and_more_budget() -> None:
    plan = make_plan(SETTING, ceiling=0.82)
    wished = [(choice.label, choice.n, choice.epsilon) for choice in plan.choices]
    assert wished == [
        ("this", 3000, 1.0),
        ("2x images", 6000, 1.0),
        ("4x images", 12_000, 1.0),
        ("10x images", 30_000, 1.0),
        ("2x budget", 3000, 2.0),
        ("4x budget", 3000, 4.0),
    ]
    assert all(choice.kept.expected >= plan.now.kept.expected for choice in plan.choices)
    assert plan.now.kept == predict(SETTING)
    few = make_plan(replace(SETTING, epsilon=60.0))
    assert [c.label for c in few.choices if "budget" in c.label] == [], "above 100 is no budget"


def test_accuracy_lies_between_chance_and_ceiling_as_the_share_says() -> None:
    kept = replace(predict(SETTING), low=-0.1, expected=0.5, high=1.2)
    values = kept.predict_accuracy(chance=0.25, ceiling=0.85)
    assert values == pytest.approx((0.19, 0.55, 0.97))
    assert replace(kept, high=3.0).predict_accuracy(chance=0.25, ceiling=0.85)[2] == 1.0


def test_the_loss_falls_under_5_points_before_it_falls_under_2() -> None:
    plan = make_plan(SETTING, ceiling=0.82)
    five, two = plan.n_within[5], plan.n_within[2]
    assert five is not None
    assert two is None or five < two
    loss = 100 * (
        0.82 - predict(SETTING.with_n(five)).predict_accuracy(chance=0.25, ceiling=0.82)[1]
    )
    assert loss == pytest.approx(5.0, abs=0.05)


def test_without_a_ceiling_those_of_public_sets_stand() -> None:
    plan = make_plan(SETTING)
    assert not plan.scale.given
    assert list(plan.scale.ceilings) == sorted(plan.scale.ceilings)
    assert plan.scale.chance == 0.25


def test_unequal_classes_need_more_to_beat_the_largest() -> None:
    equal = make_plan(SETTING, ceiling=0.82)
    unequal = make_plan(SETTING, ceiling=0.82, majority=0.8)
    assert equal.scale.floor == 0.0
    assert unequal.scale.floor == pytest.approx(0.55 / 0.57)
    assert (equal.too_few, unequal.too_few) == (False, True)
    assert unequal.now.kept == equal.now.kept
    if unequal.would_do is not None:
        assert unequal.would_do > SETTING.n


def test_json_says_the_same() -> None:
    plan = make_plan(SETTING, ceiling=0.82)
    values = json.loads(json.dumps(plan.as_json()))
    assert values["setting"]["n"] == 3000
    first = values["choices"][0]
    assert first["kept"]["expected"] == plan.now.kept.expected
    expected = 0.25 + first["kept"]["expected"] * (0.82 - 0.25)
    assert first["accuracy"][0]["expected"] == pytest.approx(expected)
    assert set(values["n_within_points"]) == {"5", "2"}
    assert values["too_few"] is False
    assert values["sources"]


def test_a_delta_of_one_over_n_and_above_is_warned_of() -> None:
    assert make_plan(SETTING).warnings == ()
    assert "is 1/n" in make_plan(replace(SETTING, delta=1 / 3000)).warnings[0]
    warning = make_plan(replace(SETTING, delta=0.01)).warnings[0]
    assert "above 1/n" in warning
    assert "Write a smaller --delta" in warning


@pytest.mark.parametrize(
    ("ceiling", "majority", "message"),
    [
        (82.0, None, "ceiling 82: outside 0.25 .*as 0.82"),
        (0.25, None, "ceiling 0.25: outside"),
        (0.5, 0.6, "ceiling 0.5: outside 0.6"),
        (None, 0.1, "majority 0.1: the share of the largest of 4 classes must be at least 0.25"),
        (None, 1.0, "majority 1: "),
    ],
)
def test_accuracies_that_cannot_be_are_named(
    ceiling: float | None, majority: float | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_plan(SETTING, ceiling=ceiling, majority=majority)
