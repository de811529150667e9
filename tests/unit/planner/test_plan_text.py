"""Plans and warnings in words."""

from __future__ import annotations

from dpprobe.planner.plan_text import format_span, round_count, too_few_warning


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


def test_numbers_are_short() -> None:
    assert [round_count(n) for n in (7, 99, 101, 2345, 120_001)] == [7, 99, 110, 2400, 130_000]
    assert format_span((0.551, 0.62, 0.7)) == "62% (55 to 70)"
