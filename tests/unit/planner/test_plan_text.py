"""Plans and warnings in words."""

from __future__ import annotations

from dpprobe.planner.accuracy_plan import make_plan
from dpprobe.planner.plan_text import format_span, plan_in_words, round_count, too_few_warning
from dpprobe.planner.predicted_accuracy import Setting

SETTING = Setting(n=3000, classes=4, epsilon=1.0, dimension=1280)


def test_a_plan_names_its_numbers_and_their_origin() -> None:
    text = plan_in_words(make_plan(SETTING, ceiling=0.82))
    for words in (
        "3,000 images, 4 classes, 1,280 features, epsilon 1, delta 1e-05",
        "if non-private is 82%",
        "10x images",
        "2x budget",
        "less than 5 points: about",
        "Images of other kinds may lie outside",
        "digits",
    ):
        assert words in text, words
    assert "Too few" not in text
    assert max(map(len, text.splitlines())) <= 130


def test_too_few_is_said_plainly() -> None:
    text = plan_in_words(make_plan(Setting(n=60, classes=10, epsilon=0.1, dimension=1280)))
    assert "Too few images for epsilon 0.1: with 60 images in 10 classes" in text
    assert "images are enough" in text
    assert "the most favourable is assumed" in plan_in_words(
        make_plan(Setting(n=60, classes=10, epsilon=0.1))
    )


def test_a_study_is_warned_in_one_line_of_the_epsilons_that_are_too_small() -> None:
    warning = too_few_warning(n=60, classes=10, dimension=None, epsilons=[100.0, 0.1], delta=1e-5)
    assert warning is not None
    assert "\n" not in warning
    assert "60 images in 10 classes are too few for epsilon 0.1 (about " in warning
    assert "epsilon 100" not in warning
    many = {"n": 2000, "dimension": None, "epsilons": [0.1], "delta": 1e-5}
    assert too_few_warning(classes=100, **many) is not None  # type: ignore[arg-type]
    assert too_few_warning(classes=1000, **many) is None, "a guess"  # type: ignore[arg-type]
    more = {"classes": 10, "dimension": None, "epsilons": [1.0], "delta": 1e-5}
    assert too_few_warning(n=50_000, **more) is None  # type: ignore[arg-type]


def test_more_classes_than_were_measured_are_a_guess() -> None:
    text = plan_in_words(make_plan(Setting(n=10**6, classes=1000, epsilon=1.0, dimension=1280)))
    assert "The public sets had 100 classes at most: with 1,000 classes this is a guess." in text


def test_numbers_are_short() -> None:
    assert [round_count(n) for n in (7, 99, 101, 2345, 120_001)] == [7, 99, 110, 2400, 130_000]
    assert format_span((0.551, 0.62, 0.7)) == "62% (55 to 70)"
