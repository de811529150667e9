"""A plan's text has a table, warnings and notes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from dpprobe.planner.accuracy_plan import Choice, PlanForPeople, Scale
from dpprobe.planner.learning_curves import read_curves
from dpprobe.planner.plan_text import (
    beaten_words,
    plan_in_words,
    round_count,
    too_few_warning,
    too_few_words,
    write_notes,
)
from dpprobe.planner.predicted_accuracy import Kept, Setting, n_that_would_do, too_few

SETTING = Setting(n=3000, classes=4, epsilon=1.0, dimension=1280)
HALF = Kept(low=0.25, expected=0.5, high=1.0, beyond=0)


def made(**changes: Any) -> PlanForPeople:
    """Returns a plan whose head keeps half of a lead from 25% to 75%: 50% (range 37% to 75%)."""
    values: dict[str, Any] = {
        "setting": SETTING,
        "scale": Scale(chance=0.25, majority=0.25, ceilings=(0.75,), given=True),
        "choices": (Choice(label="this", n=3000, epsilon=1.0, kept=HALF),),
        "n_within": {5: 12_345, 2: None},
        "too_few": False,
        "would_do": None,
        "warnings": (),
    }
    return PlanForPeople(**values | changes)


def test_the_table_has_the_kept_lead_and_the_accuracy_of_each_choice() -> None:
    lines = plan_in_words(made()).splitlines()
    assert lines[0] == "3,000 images, 4 classes, 1,280 features, epsilon 1, delta 1e-05"
    head, row = lines[2:4]
    assert re.split(r"\s{2,}", head.strip()) == [
        "images epsilon",
        "lead kept",
        "if non-private is 75%",
    ]
    # 25% plus 0.25, 0.5 and 1 times 50 points
    assert re.split(r"\s{2,}", row) == ["this", "3,000", "1", "50% (25 to 100)", "50% (38 to 75)"]
    text = "\n".join(lines)
    assert "Images needed for a loss against a non-private baseline of 75%:" in text
    assert "less than 5 points: about 13,000 images at epsilon 1" in text
    assert "less than 2 points: unknown, because no public set came that close" in text


def test_warnings_and_too_few_units_are_printed_above_the_table() -> None:
    lines = plan_in_words(made(warnings=("delta",), too_few=True, would_do=4321)).splitlines()
    assert lines[2:5] == [
        "warning: delta",
        f"{too_few_words(SETTING, 4321)}.",
        "",
    ]
    assert "lead kept" in lines[5]
    assert "Too few" not in plan_in_words(made(would_do=4321))


def test_choices_that_do_not_beat_the_majority_class_are_named_under_each_baseline() -> None:
    more = replace(HALF, expected=0.9)
    choices = (
        Choice(label="this", n=3000, epsilon=1.0, kept=HALF),
        Choice(label="2x images", n=6000, epsilon=1.0, kept=more),
    )
    # half of the lead: 50% for a ceiling of 75%, 62.5% for 100%; nine tenths: 70% and 92.5%
    scale = Scale(chance=0.25, majority=0.7, ceilings=(0.75, 1.0), given=False)
    text = plan_in_words(made(choices=choices, scale=scale))
    assert re.search(r"50% \(38 to 75\) +62% \(44 to 100\)\n", text), (
        "leads over chance all the same"
    )
    words = "no better than the majority-class baseline (70%)"
    assert f"If a non-private head reaches 75%, these are {words}: this, 2x images." in text
    assert f"If a non-private head reaches 100%, these are {words}: this." in text
    fair = Scale(chance=0.25, majority=0.25, ceilings=(0.75,), given=True)
    lost = (replace(choices[0], kept=replace(HALF, expected=0.0)),)
    assert "majority" not in plan_in_words(made(choices=lost, scale=fair))


@pytest.mark.parametrize(("expected", "beaten"), [(0.59, True), (0.6, True), (0.61, False)])
def test_accuracies_up_to_the_majority_class_baseline_are_called_no_better(
    expected: float, beaten: bool
) -> None:
    words = beaten_words((0.1, expected, 0.9), 0.6)
    assert words == ("no better than the majority-class baseline (60%)" if beaten else "")
    patients = beaten_words((0.1, expected, 0.9), 0.6, unit="patient")
    assert patients.endswith("(60%, mean over patients)" if beaten else "")


def test_notes_name_the_sources_the_coverage_and_what_lies_outside() -> None:
    curves = read_curves()
    usual = write_notes((), classes=2)
    assert any(", ".join(curves.sources) in line for line in usual)
    low, high = curves.law.band
    assert any(f"held {100 * (high - low):.0f}% of results" in line for line in usual)

    def added(*kept: Kept, classes: int = 2, unit: str = "image") -> list[str]:
        choices = [Choice(label="this", n=9, epsilon=1.0, kept=each) for each in kept]
        notes = write_notes(choices, classes=classes, unit=unit)
        assert notes[:5] == usual[:5]
        return notes[6:]

    assert added(HALF) == []
    (above,) = added(replace(HALF, expected=1.01), HALF)
    assert "expected to beat the non-private one" in above
    assert added(replace(HALF, expected=1.0)) == []
    (below,) = added(HALF, replace(HALF, beyond=-1))
    assert "below the measured range show the range's lowest" in below
    (beyond,) = added(replace(HALF, beyond=1))
    assert "above the measured range show the range's highest" in beyond
    (several,) = added(unit="patient")
    assert "several images per patient is unknown" in several
    assert added(classes=curves.most_classes) == []
    (guesses,) = added(classes=curves.most_classes + 1)
    assert f"with {curves.most_classes + 1:,} classes the predictions are guesses" in guesses


@pytest.mark.parametrize("unit", ["image", "patient"])
def test_too_few_units_are_reported_with_how_many_would_do(unit: str) -> None:
    enough, none = (too_few_words(SETTING, each, unit=unit) for each in (1234, None))
    for words in (enough, none):
        assert f"Too few {unit}s for epsilon 1: with 3,000 {unit}s in 4 classes" in words
    assert enough.endswith(f"about 1,300 {unit}s are enough")
    assert f"no measured number of {unit}s is enough; use a larger epsilon" in none


@pytest.mark.parametrize("n", [60, 2000, 50_000])
@pytest.mark.parametrize("classes", [2, 10, 100])
@pytest.mark.parametrize("epsilons", [[100.0, 0.1], [1.0], [0.01, 10.0, 0.1]])
def test_a_study_is_warned_of_the_epsilons_for_which_it_is_too_small(
    n: int, classes: int, epsilons: list[float]
) -> None:
    warning = too_few_warning(
        n=n, classes=classes, dimension=None, epsilons=epsilons, delta=1e-5, unit="patient"
    )
    short = []
    for epsilon in sorted(epsilons):
        setting = Setting(n=n, classes=classes, epsilon=epsilon)
        if too_few(setting):
            enough = n_that_would_do(setting)
            words = "" if enough is None else f" (about {round_count(enough):,} are enough)"
            short.append(f"epsilon {epsilon:g}{words}")
    if short:
        assert warning is not None
        assert warning.startswith(
            f"{n:,} patients in {classes} classes are too few for {', '.join(short)}: "
        )
    else:
        assert warning is None
